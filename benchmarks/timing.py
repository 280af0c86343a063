"""Ratios of running times, measured in one run: the absolute times of a busy machine are noise."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable


def device_option(arguments: argparse.ArgumentParser) -> None:
    """--device, where what is measured can run on either."""
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cpu")


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    _finish()
    return time.perf_counter() - start


def _finish() -> None:
    """A GPU works on after the call has returned: wait for it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def ratio(
    ours: Callable[[], object], yardstick: Callable[[], object], repeats: int = 7
) -> tuple[float, float, float]:
    """Median of ours/yardstick over interleaved pairs, and the median seconds of each.

    Each pair is timed back to back, in turns of order, so that a slow moment hits both.
    """
    ours()
    yardstick()
    pairs = []
    for i in range(repeats):
        if i % 2:
            b, a = seconds(yardstick), seconds(ours)
        else:
            a, b = seconds(ours), seconds(yardstick)
        pairs.append((a, b))
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    return statistics.median(a / b for a, b in pairs), medians[0], medians[1]
