"""Errors that a person can fix, each reported in one sentence."""


class InfolmError(Exception):
    """Bad input: one sentence that says what is wrong and what to do. Exit code 2."""

    exit_code = 2


class RunError(InfolmError):
    """Something failed while running (disk full, loss not finite). Exit code 1."""

    exit_code = 1


class Interrupted(Exception):
    """A person pressed Ctrl-C, or the system ended the process; everything is saved."""
