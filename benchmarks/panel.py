"""What self-checks and the panel cost: 10,000 rows of 10 + 10 columns; memory against rows.

    OMP_NUM_THREADS=1 python benchmarks/panel.py

CPU seconds of one core, so that other work on the machine counts little. Bars: KSG with all
self-checks within 4 times the plain one, the panel under 60 s, memory linear in the rows: from
20,000 to 40,000 rows at most 2.2 times what the former needed beyond a small sample.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infolm.information.exact import CorrelatedGaussian
from infolm.information.nearest import KSG
from infolm.information.panel import Panel
from infolm.information.registry import estimator


def samples(rows: int) -> tuple[Any, ...]:
    task = CorrelatedGaussian.with_information(10, 1.0)
    return task.sample(rows, np.random.default_rng(0))


def seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def peak() -> float:
    """MB that this process has needed at most. `ru_maxrss` is no less than the parent's."""
    (line,) = (
        each
        for each in Path("/proc/self/status").read_text().splitlines()
        if each.startswith("VmHWM")
    )
    return float(line.split()[1]) / 1024


def memory(rows: int) -> float:
    """MB that a process needed at most for the fast panel on so many rows."""
    script = [sys.executable, __file__, "--memory", str(rows)]
    return float(subprocess.run(script, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--memory"]:
        Panel(fast=True).estimate(*samples(int(sys.argv[2])))
        print(peak())
        return
    x, y = samples(10_000)
    plain = seconds(lambda: KSG().estimate(x, y))
    checked = seconds(lambda: estimator("ksg").estimate(x, y))
    print(
        f"KSG, plain {plain:.1f} s; with self-checks {checked:.1f} s: {checked / plain:.1f} (bar 4)"
    )
    print(f"panel, fast: {seconds(lambda: Panel(fast=True).estimate(x, y)):.1f} s")
    print(f"panel: {seconds(lambda: Panel().estimate(x, y)):.1f} s (bar 60)")
    small, middle, large = (memory(rows) for rows in (500, 20_000, 40_000))
    growth = (large - small) / (middle - small)
    print(
        f"memory: {small:.0f} MB with 500 rows, {middle:.0f} with 20,000, {large:.0f} with 40,000: "
        f"{growth:.2f} times as much beyond the first (bar 2.2)"
    )


if __name__ == "__main__":
    main()
