"""Entropy and mutual information of discrete data, from counts.

A row (N, D) of x is one symbol: rows are the same symbol where all their columns are equal. With
c_s the count of symbol s among N and K the number of different symbols,

    plug-in          H = -sum_s (c_s / N) ln(c_s / N)
    Miller-Madow     H + (K - 1) / 2N                                    (Miller, 1955)

and I(X; Y) = H(X) + H(Y) - H(X, Y) by either. The plug-in of I is too large by about
(K_xy - K_x - K_y + 1) / 2N, which Miller-Madow subtracts; both are far off if most cells have been
seen only a few times.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm.errors import InfolmError
from infolm.information.estimate import (
    Array,
    Estimate,
    ceiling,
    half_width,
    joined,
    pairs,
    shuffled,
)

Rows = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

DISTINCT_SHARE = 0.9
"""Columns with a larger share of distinct values count as continuous."""
PAIRS_PER_CELL = 5
"""With fewer pairs per seen cell of the joint table there is a warning of undersampling."""


def plug_in_entropy(counts: npt.ArrayLike) -> float:
    """The maximum-likelihood entropy of the counts of each symbol (any shape), in nats.

    Counts of 0 add nothing.
    """
    c = np.asarray(counts, dtype=float).ravel()
    p = c[c > 0] / c.sum()
    return float(-(p * np.log(p)).sum())


def miller_madow_entropy(counts: npt.ArrayLike) -> float:
    """The plug-in entropy and its bias to first order, (K - 1) / 2N, K the symbols seen."""
    c = np.asarray(counts, dtype=float)
    return plug_in_entropy(c) + float((np.count_nonzero(c) - 1) / (2 * c.sum()))


@dataclass(frozen=True)
class Table:
    """The symbols of paired rows, numbered, and how often each was seen."""

    x: Ints  # (N,) the symbol of each row
    y: Ints
    both: Ints
    counts_x: Ints  # (K_x,)
    counts_y: Ints
    counts_both: Ints  # (K_xy,) of the cells that were seen

    @classmethod
    def of(cls, x: Rows, y: Rows) -> "Table":
        """Count the rows x (N, Dx) and y (N, Dy)."""
        (a, counts_x), (b, counts_y) = _numbered(x), _numbered(y)
        both, counts = _numbered((a * len(counts_y) + b)[:, None])
        return cls(a, b, both, counts_x, counts_y, counts)

    def shuffled(self, seed: int) -> "Table":
        """The table of the same rows with their y in random order."""
        return Table.of(self.x[:, None], shuffled(self.y, seed)[:, None])

    @property
    def freedom(self) -> int:
        """(K_x - 1)(K_y - 1), the degrees of freedom of a table of independent x and y."""
        return (len(self.counts_x) - 1) * (len(self.counts_y) - 1)

    def local(self) -> Array:
        """ln p(x, y) / p(x) p(y) of each pair, in nats, (N,); their mean is the plug-in."""
        seen = self.counts_both[self.both] * len(self.x)
        return np.log(seen / (self.counts_x[self.x] * self.counts_y[self.y]))

    def plug_in(self) -> float:
        return float(self.local().mean())

    def miller_madow(self) -> float:
        x, y, both = len(self.counts_x), len(self.counts_y), len(self.counts_both)
        return self.plug_in() - (both - x - y + 1) / (2 * len(self.x))


def _numbered(x: Rows) -> tuple[Ints, Ints]:
    """The number of each row's symbol (N,) and the counts of the symbols (K,)."""
    _, numbers, counts = np.unique(x, axis=0, return_inverse=True, return_counts=True)
    return numbers.reshape(-1), counts


@dataclass(frozen=True)
class PlugIn:
    """I(X; Y) of discrete rows as if the observed frequencies were the probabilities."""

    seed: int = 0

    @property
    def name(self) -> str:
        return "plug-in"

    def estimate(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Estimate:
        return _estimate(self.name, x, y, self.seed, Table.plug_in)


@dataclass(frozen=True)
class MillerMadow:
    """I(X; Y) of discrete rows by the entropies of Miller and Madow.

    The correction counts the cells seen: where most of the table is unseen it is too small.
    """

    seed: int = 0

    @property
    def name(self) -> str:
        return "miller-madow"

    def estimate(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Estimate:
        return _estimate(self.name, x, y, self.seed, Table.miller_madow)


def _discrete(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Rows, Rows]:
    a, b = pairs(x, y)
    for name, data in (("x", a), ("y", b)):
        distinct = len(np.unique(data, axis=0))
        if distinct > DISTINCT_SHARE * len(data) and (data != np.round(data)).any():
            raise InfolmError(
                f"{distinct:,} of the {len(data):,} rows of {name} are distinct, so it looks "
                "continuous: use ksg, or mixture, or round it to bins"
            )
    return a, b


def _estimate(
    name: str, x: npt.ArrayLike, y: npt.ArrayLike, seed: int, method: Callable[[Table], float]
) -> Estimate:
    """The estimate, with an interval that allows for the possible bias.

    It holds the values of both methods, both less what they find on shuffled pairs (their bias at
    independence, more than it elsewhere), and their errors. Near independence the error grows with
    the square root of I; hence z^2 / 2N more upwards, z the quantile.
    """
    a, b = _discrete(x, y)
    table = Table.of(a, b)
    shuffle = table.shuffled(seed)
    samples, value, permuted = len(a), method(table), method(shuffle)
    _, stderr, low, high = table_interval(table, seed)
    return Estimate(
        name,
        value,
        stderr,
        interval=(low, high),
        permuted=permuted,
        samples=samples,
        warning=joined(_undersampled(table, permuted), ceiling(value, samples)),
    )


def table_interval(table: Table, seed: int) -> tuple[float, float, float, float]:
    """The value of Miller and Madow, its standard error, and the ends of the interval."""
    stderr, shuffle = table_stderr(table), table.shuffled(seed)
    plain, corrected = table.plug_in(), table.miller_madow()
    centres = (plain, plain - shuffle.plug_in(), corrected, corrected - shuffle.miller_madow())
    low = min(centres) - half_width(stderr)
    high = max(centres) + half_width(stderr) + half_width(1.0) ** 2 / (2 * len(table.x))
    return corrected, stderr, max(low, 0.0), high


def table_stderr(table: Table) -> float:
    """sqrt(Var[local] / N + f / 2N^2), f the degrees of freedom of the table.

    The first is the delta method. It vanishes at independence, where 2N I is chi-square with f
    degrees of freedom, which gives the second; of the first, f / N is then chance and taken off.
    """
    samples = len(table.x)
    variance = max(float(table.local().var()) - table.freedom / samples, 0.0)
    return math.sqrt(variance / samples + table.freedom / (2 * samples**2))


def _undersampled(table: Table, permuted: float) -> str | None:
    samples, cells = len(table.x), len(table.counts_both)
    if samples >= PAIRS_PER_CELL * cells:
        return None
    return (
        f"undersampled: {samples:,} pairs fall into {cells:,} cells, so that shuffled pairs still "
        f"seem to share {permuted:.2f} nats"
    )
