"""A worker of the pool: a process that does one job after another.

Started by `infolm.studies.pool` as `python -m infolm.studies.worker`. It reads jobs from standard
input, a line of JSON each: `{"call": "package.module:function", "arguments": {...}}`. It answers on
standard output, likewise: `progress` now and then, and at the end of each job `result`, `failure`
(this job cannot succeed) or `stopped` (no job can, as on a full disk).
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, TextIO, TypeVar

from safetensors import SafetensorError

from infolm.errors import InfolmError, Interrupted, RunError

EVERY = 0.5
"""Seconds between two lines of progress."""

Result = TypeVar("Result")


class Stop(Exception):
    """Raised by a job when no other job can succeed either: its sentence ends the command."""


class Reporter:
    """Tells the command how far a job is; it is the watcher of a training, too.

    A worker whose command is gone ends at its next report; a training saves its state first.
    """

    def __init__(self, file: TextIO) -> None:
        self._file, self._last = file, -EVERY
        self._starter = os.getppid()

    def send(self, **message: Any) -> None:
        print(json.dumps(message), file=self._file, flush=True)

    def progress(self, share: float, stage: str) -> None:
        """The share of the job that is done, and what is being done."""
        if os.getppid() != self._starter:
            os.kill(os.getpid(), signal.SIGTERM)  # a training saves its state, and ends
        elif time.monotonic() - self._last >= EVERY:
            self._last = time.monotonic()
            self.send(progress=share, stage=stage)

    def step(self, progress: float, nll: float, tokens: int) -> None:
        self.progress(progress, "training")

    def say(self, text: str) -> None:
        pass

    def validated(self, step: int, progress: float, loss: float) -> None:
        pass


def outcome(attempt: Callable[[], Result]) -> tuple[Result | None, str]:
    """The result of the attempt, or why it failed. A full disk is not its fault and is raised."""
    try:
        return attempt(), ""
    except (InfolmError, MemoryError, RuntimeError) as error:
        if isinstance(error, RunError) and isinstance(error.__cause__, OSError | SafetensorError):
            raise
        message = str(error).strip().splitlines()
        return None, message[0] if message else type(error).__name__


def do(call: str, arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """One job; the answer is its result, its failure, or a sentence that stops the pool."""
    module, function = call.split(":")
    try:
        work = getattr(import_module(module), function)
        result, failure = outcome(lambda: work(arguments, reporter))
    except (Interrupted, BrokenPipeError):
        raise
    except (Stop, RunError, OSError) as error:
        return {"stopped": str(error)}
    except Exception as error:  # a fault of the program: the other jobs may do without it
        traceback.print_exc()
        return {"failure": f"{type(error).__name__}: {error}"}
    return {"failure": failure} if failure else {"result": result}


def main() -> int:
    from infolm.training.device import keep_freed_memory

    keep_freed_memory()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries is not an answer
    reporter = Reporter(answers)
    try:
        for line in sys.stdin:
            reporter.send(**do(**json.loads(line), reporter=reporter))
    except (Interrupted, BrokenPipeError):
        return 128 + signal.SIGTERM
    return 0


if __name__ == "__main__":
    # The module that jobs import, not this copy of it: what they raise is its `Stop`.
    sys.exit(import_module("infolm.studies.worker").main())
