"""Processes that train for a command, side by side, and end with it.

The command starts workers, each a module that reads what to do from standard input. A worker is in
a group of its own, so that Ctrl-C reaches the command alone, which passes it on, once.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from safetensors import SafetensorError

from infolm.errors import InfolmError, RunError

Worker = subprocess.Popen[str]
Result = TypeVar("Result")


def start(module: str, *arguments: str) -> Worker:
    """`python -m module arguments`, with pipes to its standard input and output."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )


@contextmanager
def crew() -> Iterator[list[Worker]]:
    """A list of workers; those in it at the end of the block are asked to save and end."""
    workers: list[Worker] = []

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
        try:
            for worker in workers:
                worker.wait()
        finally:  # asked a second time, we do not wait
            for worker in workers:
                worker.kill()
                with suppress(BrokenPipeError), worker:
                    pass  # closes its pipes
            signal.signal(signal.SIGTERM, before)


class Alone:
    """The watcher of a training in a worker: it ends the training if the starter is gone."""

    def __init__(self) -> None:
        self._starter = os.getppid()

    def step(self, progress: float, nll: float, tokens: int) -> None:
        if os.getppid() != self._starter:
            self._starter = os.getppid()
            os.kill(os.getpid(), signal.SIGTERM)  # the loop saves, and ends

    def say(self, text: str) -> None:
        pass

    def validated(self, step: int, progress: float, loss: float) -> None:
        pass


def outcome(attempt: Callable[[], Result]) -> tuple[Result | None, str]:
    """What the attempt gives, or why it failed. A full disk is not its fault: that passes."""
    try:
        return attempt(), ""
    except (InfolmError, MemoryError, RuntimeError) as error:
        if isinstance(error, RunError) and isinstance(error.__cause__, OSError | SafetensorError):
            raise
        said = str(error).strip().splitlines()
        return None, said[0] if said else type(error).__name__
