"""The speed of this machine relative to the reference: matrix products and memory bandwidth.

    scale = (reference GEMM / GEMM)^w (reference memory / memory)^(1 - w),  w = 3/4

A race may last 60 minutes times the scale: a machine of half the speed gets twice the time. Within
a tenth of the reference the scale is 1, since two calibrations of one quiet machine differ by some
hundredths. It is measured before the run and again after the last number, and the faster one
counts: making the machine look slow at first gains nothing. At each validation it is measured in
passing, so that a race that began in a slow hour of its machine ends in time all the same.
"""

import time
from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict, Field

SECONDS = 1.5
"""How long each of the two is measured."""
PASSING = 0.3
"""The same in passing, between two validations."""
SIDE = 1024
"""Rows and columns of the matrices."""
NUMBERS = 2**25
"""Of each of the two vectors that are added: 128 MB, beyond any cache."""
GEMM_SHARE = 0.75
"""w: products of matrices are most of a training step at these sizes."""
SAME = 0.1
"""A scale so near to 1 is 1."""


class Scores(BaseModel):
    """gemm: 10^9 floating-point operations a second in single precision. memory: 10^9 bytes moved a
    second."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gemm: float = Field(gt=0)
    memory: float = Field(gt=0)


REFERENCE = Scores(gemm=188.0, memory=69.0)
"""Two threads of an AMD EPYC in a virtual machine with nothing else to do: medians of three
`infolm race --calibrate` (185.8, 187.9, 191.0; 69.3, 68.4, 75.6). Records depend on it."""


def measure(seconds: float = SECONDS) -> Scores:
    """The best of many short measurements, on the threads that PyTorch has; seconds: of each."""
    import torch

    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    out = torch.empty(SIDE, SIDE)
    gemm = 2 * SIDE**3 / _best(lambda: torch.mm(a, b, out=out), seconds)
    x, y = torch.rand(NUMBERS), torch.rand(NUMBERS)
    # Two are read and one is written.
    memory = 3 * x.nbytes / _best(lambda: x.add_(y), seconds)
    return Scores(gemm=gemm / 1e9, memory=memory / 1e9)


def _best(work: Callable[[], object], seconds: float) -> float:
    """The least time of one call, repeated for so long and three times at least: what else the
    machine does makes a call slower, never faster."""
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def ratio(scores: Scores) -> float:
    """How many times longer than the reference this machine takes."""
    gemm, memory = REFERENCE.gemm / scores.gemm, REFERENCE.memory / scores.memory
    return float(gemm**GEMM_SHARE * memory ** (1 - GEMM_SHARE))


def scale(measured: Sequence[Scores]) -> float:
    """The factor of the 60 minutes: of several measurements the fastest counts."""
    least = min(map(ratio, measured))
    return 1.0 if abs(least - 1) <= SAME else least
