"""Jobs for the tests of the pool: they count to a number, a file a step, and resume."""

import errno
import os
import signal
import time
from pathlib import Path

from infolm.errors import InfolmError
from infolm.studies.worker import Stop


def count(arguments, reporter):
    """Make the files 0, 1, ... of a folder that are not there; gives how many this call made.

    At the step `die`, the first `deaths` calls kill their process; at `wait` a call waits until it
    is ended.
    """
    folder = Path(arguments["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    lives = folder / f"life-{os.getpid()}-{time.monotonic_ns()}"
    lives.touch()
    print("a library prints this")
    made = 0
    for step in range(arguments.get("steps", 3)):
        if step == arguments.get("wait"):
            while True:
                reporter.progress(step / 3, "waiting")
                time.sleep(0.01)
        if step == arguments.get("die") and len(list(folder.glob("life-*"))) <= arguments["deaths"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if not (folder / str(step)).exists():
            (folder / str(step)).touch()
            made += 1
    return {"made": made, "threads": os.environ["OMP_NUM_THREADS"], "pid": os.getpid()}


def fail(arguments, reporter):
    raise InfolmError("the input is bad: mend it\nand so on")


def blunder(arguments, reporter):
    return arguments["what is not there"]


def stop(arguments, reporter):
    raise Stop("nothing can go on")


def full_disk(arguments, reporter):
    raise OSError(errno.ENOSPC, "No space left on device")
