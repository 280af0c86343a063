"""The effective number of independent rows in a series.

The mean of a product of two series varies as if it came from

    N_eff = N / tau,    tau = 1 + 2 sum_l (1 - l/N) r_x(l) r_y(l)

independent rows, r(l) the autocorrelation at lag l (Bartlett, 1935). tau is 1 where the rows of
either side are independent: the other side may then have any serial dependence. Two
independent random walks of 5,000 rows have the N_eff of a handful of rows, and seem to share a nat.

Each column counts as its normal scores and as their squares, since series with swinging variances
have no autocorrelation of their own.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft

from infolm.information.estimate import Array
from infolm.information.ranks import average_scores

Rows = npt.NDArray[Any]

MOST_COLUMNS = 50
"""Columns of a side that are looked at."""
MOST_LAGS = 2_000
CHANCE = 0.001
"""Probability, about, that independent rows are taken as a series."""
WORTH = 0.8
"""Of the rows: a series whose rows are worth more is not warned of."""
BOTH = 0.05
"""Product of the autocorrelations of both sides that is taken as none."""


@dataclass(frozen=True)
class Serial:
    """How far the rows depend on their neighbours.

    tau: rows that are worth one independent row, at least 1. step: rows apart from which on the
    autocorrelations of x and y leave nothing that both share.
    """

    rows: int
    tau: float
    step: int

    @property
    def effective(self) -> float:
        return self.rows / self.tau

    @property
    def series(self) -> bool:
        """Whether this is more than chance and needs a warning."""
        return self.effective < WORTH * self.rows

    @property
    def warning(self) -> str | None:
        if not self.series:
            return None
        return (
            f"these rows are a time series: neighbouring rows depend on each other, so that "
            f"{self.rows:,} rows are worth about {self.effective:,.0f}; use --sequence, or shuffle "
            "the rows if their order means nothing"
        )


def serial(x: Rows, y: Rows) -> Serial:
    """What the rows x (N, Dx) and y (N, Dy), in their order, are worth."""
    samples = len(x)
    lags = min(samples // 4, MOST_LAGS)
    if lags < 2:
        return Serial(samples, 1.0, 1)
    features = _features(x), _features(y)
    of_x, of_y = (_autocorrelations(side, lags) for side in features)
    weights = 1 - np.arange(1, lags + 1) / samples
    # Independent rows whose x and y correlate by r have E[r_x(l) r_y(l)] = r^2 / N.
    squares = np.square(features[0] @ features[1].T / samples)
    sums = (of_x * weights) @ of_y.T - squares * weights.sum() / samples
    # Where one side's rows are independent, its r(l) are chance, and the sum varies by the other's.
    spread = np.maximum.outer(*(np.sqrt(np.square(side).sum(1) / samples) for side in (of_x, of_y)))
    sure = math.sqrt(2 * math.log(sums.size / CHANCE))
    beyond = np.where(sums > sure * spread, sums, 0.0)
    i, j = np.unravel_index(beyond.argmax(), sums.shape)
    if not beyond[i, j]:
        return Serial(samples, 1.0, 1)
    tau = 1 + 2 * float(sums[i, j])
    shared = np.abs(of_x[i] * of_y[j]) > BOTH
    # From the first lag on after which nothing is left; seasons come back, so the last counts.
    step = int(np.flatnonzero(shared)[-1]) + 2 if shared.any() else 1
    return Serial(samples, tau, min(step, max(samples // 20, 1)))


def _features(x: Rows) -> Array:
    """Normal scores of each column and their squares, standardised: (2 D, N)."""
    scores = average_scores(x[:, :MOST_COLUMNS])
    both = np.concatenate([scores, np.square(scores)], axis=1).T
    centred = both - both.mean(1, keepdims=True)
    size = np.sqrt(np.square(centred).mean(1, keepdims=True))
    kept = size[:, 0] > 1e-9  # the squares of a balanced binary column are constant
    return centred[kept] / size[kept]


def _autocorrelations(series: Array, lags: int) -> Array:
    """r(1) to r(lags) of each series (S, N): (S, lags)."""
    samples = series.shape[1]
    size = next_fast_len(samples + lags, real=True)
    power = np.square(np.abs(rfft(series, size, axis=1)))
    found: Array = irfft(power, size, axis=1)[:, 1 : lags + 1] / samples
    return found


def block_shuffled(rows: Rows, length: int, rng: np.random.Generator) -> Rows:
    """The rows in blocks of this length, from a random start in the circle, in random order.

    What a block holds keeps its order, so that a shuffled series is still a series.
    """
    if length <= 1:
        return rng.permutation(rows)
    turned = np.roll(rows, int(rng.integers(len(rows))), axis=0)
    blocks = np.array_split(np.arange(len(rows)), max(len(rows) // length, 2))
    order = rng.permutation(len(blocks))
    return turned[np.concatenate([blocks[at] for at in order])]
