"""The command, for tests of how processes use it."""

from commands import infolm

__all__ = ["infolm"]
