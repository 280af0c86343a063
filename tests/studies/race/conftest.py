"""The command, and a race that it may read."""

from commands import infolm
from race_tiny import quick, raced

__all__ = ["infolm", "quick", "raced"]
