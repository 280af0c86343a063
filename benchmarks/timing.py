"""Ratios of running times, measured in one run: the absolute times of a busy machine are noise."""

import statistics
import time
from collections.abc import Callable


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


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
