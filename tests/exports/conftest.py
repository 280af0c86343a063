"""The command, a run that it may read, and a browser."""

from browsers import browser
from commands import infolm, trained

__all__ = ["browser", "infolm", "trained"]
