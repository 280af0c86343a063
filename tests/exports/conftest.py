"""The command, and a run that it may read."""

from commands import infolm, trained

__all__ = ["infolm", "trained"]
