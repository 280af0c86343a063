"""The time of a race, from the start of the process, phase by phase; and its threads."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from infolm.errors import InfolmError


def process_age() -> float:
    """Seconds since the operating system started this process, imports and all."""
    try:
        # Behind the command's name, which may hold anything, in brackets: see proc(5).
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError):  # no Linux
        return _age_by_ps()


def _age_by_ps() -> float:
    """The same to the second, by `ps`: [[days-]hours:]minutes:seconds."""
    try:
        said = subprocess.check_output(["ps", "-o", "etime=", "-p", str(os.getpid())], text=True)
    except OSError:
        raise InfolmError(
            "this system does not report when the process started, from which a race is timed: "
            "run it "
            "on Linux or macOS"
        ) from None
    days, _, rest = said.strip().rpartition("-")
    seconds = 0
    for part in rest.split(":"):
        seconds = 60 * seconds + int(part)
    return 86_400 * int(days or 0) + seconds


class Clock:
    """Seconds since the start, divided into phases that follow each other without a gap.

    limit: seconds that the race may last. age: how old the process is, read once.
    """

    def __init__(self, limit: float, age: Callable[[], float] | None = None) -> None:
        self.limit = limit
        self._offset = (age or process_age)() - time.monotonic()
        self.phases: dict[str, float] = {}
        self._marked = 0.0

    def elapsed(self) -> float:
        return time.monotonic() + self._offset

    def left(self) -> float:
        return self.limit - self.elapsed()

    def mark(self, phase: str) -> None:
        """Assign the time since the last mark to this phase."""
        now = self.elapsed()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._marked
        self._marked = now

    @property
    def total(self) -> float:
        """Seconds up to the last mark."""
        return self._marked


class OutOfTime(Exception):
    """A part of the race has used up its time."""


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Inside, this process and those it starts run on so many processors, each with one thread."""
    import torch

    there = processors()
    if number > len(there):
        raise InfolmError(
            f"--threads is {number}, and this process may use {len(there)} "
            f"processor{'s'[: len(there) != 1]}: lower it"
        )
    before = torch.get_num_threads()
    _bind(there[:number])
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _bind(there)


def processors() -> list[int]:
    """Those that this process may use."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return list(range(os.cpu_count() or 1))


def _bind(numbers: list[int]) -> None:
    """Confine the process to these; where the system cannot, threads are all that is counted."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, numbers)
