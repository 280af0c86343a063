"""Evidence about the mutual information of a sample without training.

The nearest-neighbour value of Kraskov et al. on random normal scores (`ranks`) is consistent for
columns of any kind, and no monotone map of a column changes it. It needs many rows: if the
dependence is finer than the distance of k neighbours, or there are many columns, it is too low.
Both can be detected:

    drift     it reads more with all rows than with half of them, and with 3 neighbours than with 10
    trial     it misses on Gaussian rows of the same size and correlations, whose truth is known
    recovery  of a correlation planted in one pair among as many independent columns it sees a share
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import digamma, ndtr, stdtr

from infolm.information.discrete import PAIRS_PER_CELL, Table
from infolm.information.estimate import Array, pairs
from infolm.information.gaussian import (
    LARGEST,
    canonical_variates,
    information,
    information_stderr,
    surrogate,
    unbiased,
    whitened,
)
from infolm.information.nearest import TREE_COLUMNS, classes_local, ksg_by_neighbours
from infolm.information.ranks import random_scores, random_uniforms
from infolm.information.ridges import ridges
from infolm.information.screens import CLASSES, Hit, corrected, screened, strongest
from infolm.information.serial import Serial, block_shuffled, serial

Rows = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

NEAR, FAR = 3, 10
"""Neighbours whose values are compared."""
MOST_ASKED = 5_000
"""Rows whose local values are computed, among all rows."""
PERMUTED_ROWS = 500
FEWEST_BLOCKS = 4
"""Into which a series is cut for its permutations, where its dependence is not longer still."""
BY_SCREEN = 0.1
"""Share of the level of a test that is the screens': they count where they are beyond doubt."""
SMALLEST = 1e-12
"""p-value: that of a screen is no better known than this."""
PLANTED = 0.5
"""Nats planted in one pair of columns to see what share is found."""
FEW_COLUMNS = 3
"""In all: with so few, nearest neighbours find what is planted."""
FEW_VALUES = 0.2
"""Of the rows: a column with at most this share of distinct values counts as discrete."""
RARE = 0.05
"""Of the rows may be of classes too small for neighbours of their own."""
FEWEST = 25
"""Rows that a part must have to be read on its own."""
SHUFFLES = 20
"""Of a table whose counts are held against them."""
LEAST = 8
"""Least rows of a sample for any statement."""


@dataclass(frozen=True)
class Nearest:
    """Nearest neighbours on normal scores, in nats.

    value, stderr: with `NEAR` neighbours and all rows. halving: what is lost with half the rows.
    widening: what is lost with `FAR` neighbours. bias, bias_widening: on the Gaussian surrogate.
    uniform: with ranks from 0 to 1 instead of normal scores, less its own bias; it reads more where
    edges are hard. recovery: see the module. shuffled: on pairs that share nothing.
    """

    value: float
    stderr: float
    halving: float
    quartering: float
    widening: float
    bias: float
    bias_halving: float
    bias_widening: float
    uniform: float
    recovery: float
    shuffled: float
    ceiling: float


@dataclass(frozen=True)
class Correlated:
    """The information of the canonical correlations of normal scores."""

    value: float
    stderr: float
    perfect: bool  # a linear combination of one side equals one of the other


class Evidence:
    """All evidence for rows x (N, Dx) and y (N, Dy); each part is computed when first needed.

    sequence: the user knows that the rows are a time series.
    """

    def __init__(self, x: npt.ArrayLike, y: npt.ArrayLike, seed: int = 0) -> None:
        self.x, self.y = pairs(x, y, at_least=LEAST)
        self.seed = seed
        self.samples, self.dx = self.x.shape
        self.dy = self.y.shape[1]

    @property
    def columns(self) -> int:
        return self.dx + self.dy

    def _rng(self, part: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, part])

    @cached_property
    def serial(self) -> Serial:
        return serial(self.x, self.y)

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        return self._rng(6).permutation(self.samples)

    @cached_property
    def scores(self) -> tuple[Array, Array]:
        """Random normal scores of both sides, the rows in random order."""
        rng, order = self._rng(0), self._order
        return random_scores(self.x[order], rng), random_scores(self.y[order], rng)

    @cached_property
    def copied(self) -> float:
        """The share of rows that are copies: x, y and the pair are seen equally often, not once.

        A value seen in a twentieth of the rows or more is an atom of its column, not a copy.
        """
        if self.discrete_x or self.discrete_y:
            return 0.0
        table = Table.of(self.x, self.y)
        times = table.counts_both[table.both]
        alike = (times == table.counts_x[table.x]) & (times == table.counts_y[table.y])
        return float((alike & (times > 1) & (times < self.samples / 20)).mean())

    @cached_property
    def discrete_x(self) -> bool:
        return bool(_discrete(self.x).all())

    @cached_property
    def discrete_y(self) -> bool:
        return bool(_discrete(self.y).all())

    @cached_property
    def classes(self) -> bool:
        """Whether values of both sides repeat, but not their pairs."""
        distinct = [len(np.unique(side, axis=0)) for side in (self.x, self.y)]
        return max(distinct) < 0.6 * self.samples and not self.sampled_table

    @cached_property
    def table(self) -> Table | None:
        """The counts, where all columns of both sides are discrete."""
        if not (self.discrete_x and self.discrete_y):
            return None
        return Table.of(self.x, self.y)

    @cached_property
    def sampled_table(self) -> bool:
        """Whether the table has enough pairs for each of its cells."""
        table = self.table
        return table is not None and self.samples >= PAIRS_PER_CELL * len(table.counts_both)

    @cached_property
    def correlated(self) -> Correlated:
        """Ranks blur strong correlations: what they do to a Gaussian of the same is taken off."""
        x, y = (whitened(side)[0] * math.sqrt(self.samples) for side in self.scores)
        dx, dy = x.shape[1], y.shape[1]
        if self.samples <= dx + dy + 2:
            return Correlated(0.0, 0.0, False)
        u, v, rho = canonical_variates(x, y)
        perfect = bool(rho[0] > LARGEST)
        rho = np.minimum(rho, LARGEST)
        gx, gy, _ = surrogate(*self.scores, seed=self.seed)
        rng = self._rng(5)
        ranked = self._of_gaussian(random_scores(gx, rng), random_scores(gy, rng))
        blur = ranked - self._of_gaussian(gx, gy)
        stderr = math.hypot(information_stderr(u, v, rho), blur / 2)
        return Correlated(unbiased(rho, self.samples, dx, dy) - blur, stderr, perfect)

    @cached_property
    def shuffled_correlated(self) -> float:
        x, y = self.scores
        return self._of_gaussian(x, self._rng(7).permutation(y))

    @cached_property
    def nearest(self) -> Nearest:
        x, y = (self._cast(side) for side in self.scores)
        value, wide, spread = _read(x, y)
        asked = min(self.samples, MOST_ASKED)
        halves = self._parts(x, y, 2)
        quarters = self._parts(x, y, 4)
        trials = []
        for trial in range(2 if self.samples <= 2 * MOST_ASKED else 1):
            gx, gy, _ = surrogate(*self.scores, seed=self.seed + trial)
            gx, gy = (self._cast(side) for side in (gx, gy))
            near, far, _ = _read(gx, gy)
            trials.append(
                (near - self._of_gaussian(gx, gy), near - self._parts(gx, gy, 2), near - far)
            )
        bias, bias_halving, bias_widening = np.mean(trials, axis=0).tolist()
        return Nearest(
            value=value,
            stderr=spread * math.sqrt(2 / asked),
            halving=value - halves,
            quartering=halves - quarters,
            widening=value - wide,
            bias=bias,
            bias_halving=bias_halving,
            bias_widening=bias_widening,
            uniform=self._of_uniforms(*self.scores) - self._uniform_bias(),
            recovery=self._recovery(),
            shuffled=_read(x, self._rng(1).permutation(y))[0],
            ceiling=float(digamma(self.samples) - digamma(NEAR)),
        )

    def _of_uniforms(self, x: Array, y: Array) -> float:
        rng = self._rng(8)
        u, v = (self._cast(random_uniforms(side, rng)) for side in (x, y))
        return _read(u, v)[0]

    def _uniform_bias(self) -> float:
        gx, gy, _ = surrogate(*self.scores, seed=self.seed)
        return self._of_uniforms(gx, gy) - self._of_gaussian(gx, gy)

    @cached_property
    def by_class(self) -> tuple[float, float, float] | None:
        """Value, standard error and what is lost with half the rows, after Ross (2014), where one
        side is classes, the other not."""
        if self.discrete_x == self.discrete_y:
            return None
        order, (x, y) = self._order, self.scores
        side, scores = (self.x[order], y) if self.discrete_x else (self.y[order], x)
        _, classes, counts = np.unique(side, axis=0, return_inverse=True, return_counts=True)
        classes = classes.reshape(-1)
        if (counts[classes] <= 2 * NEAR).mean() > RARE:
            return None
        asked = min(self.samples, MOST_ASKED)
        local = classes_local(classes, scores, NEAR, asked)
        halves = [
            classes_local(classes[i::2], scores[i::2], NEAR, asked // 2).mean() for i in range(2)
        ]
        value = float(local.mean())
        return value, float(local.std() * math.sqrt(2 / asked)), value - float(np.mean(halves))

    def _cast(self, side: Array) -> Array:
        # In many columns all distances are computed, twice as fast in single precision.
        return side.astype(np.float32) if self.columns > TREE_COLUMNS else side

    def _of_gaussian(self, x: Array, y: Array) -> float:
        """The unbiased information of Gaussian rows, from those very rows."""
        u, v = (whitened(side.astype(np.float64))[0] for side in (x, y))
        rho = np.minimum(np.linalg.svd(u.T @ v, compute_uv=False), LARGEST)
        if self.samples <= u.shape[1] + v.shape[1] + 2:
            return information(rho)
        return unbiased(rho, self.samples, u.shape[1], v.shape[1])

    def _parts(self, x: Array, y: Array, count: int) -> float:
        """The mean value of the rows in so many parts."""
        if self.samples // count < FEWEST:
            return _read(x, y)[0]
        return float(np.mean([_read(x[i::count], y[i::count], count)[0] for i in range(count)]))

    def _recovery(self) -> float:
        """The share of `PLANTED` nats found in one pair of as many independent columns."""
        if self.columns <= FEW_COLUMNS:
            return 1.0
        rng = self._rng(2)
        rho = math.sqrt(-math.expm1(-2 * PLANTED))
        x, y = (
            rng.standard_normal((self.samples, self.dx)),
            rng.standard_normal((self.samples, self.dy)),
        )
        y[:, 0] = rho * x[:, 0] + math.sqrt(1 - rho**2) * y[:, 0]
        found = _read(self._cast(x), self._cast(y), asked=2_000)[0]
        return float(np.clip(found / PLANTED, 0.02, 1.0))

    @cached_property
    def screens(self) -> tuple[Hit, ...]:
        order, (u, v) = self._order, (ndtr(side) for side in self.scores)
        found = screened(self.x[order], self.y[order], u, v)
        classes = [_discrete(side) for side in (self.x, self.y)]
        found += ridges(u, v, self._rng(9))
        if not self.sampled_table and all(each.any() for each in classes):
            found.append(self._cells(*classes))
        return tuple(corrected(hit, len(found)) for hit in found)

    def _cells(self, of_x: Mask, of_y: Mask) -> Hit:
        """The classes of both sides, and what the other columns share beside them.

        Codes of classes in no order are no numbers, so neighbours and correlations may miss what
        their counts show. The plug-in of the counts reads too much, but no less of what is
        shuffled; so the difference is a lower limit. Its place among `SHUFFLES` shuffles is that of
        Student's t. With C the classes and R the other columns,

            I(X; Y) >= I(C_x; C_y) + I(R_x; R_y | C_x, C_y),

        the latter from the correlations of normal scores within the cells.
        """
        order = self._order
        table = Table.of(self.x[order][:, of_x], self.y[order][:, of_y])
        shuffled = [table.shuffled(self.seed + 1 + at).plug_in() for at in range(SHUFFLES)]
        beyond = table.plug_in() - float(np.mean(shuffled))
        spread = max(float(np.std(shuffled, ddof=1)), 1e-9) * math.sqrt(1 + 1 / SHUFFLES)
        p = float(stdtr(SHUFFLES - 1, -beyond / spread))
        error = math.hypot(spread, float(table.local().std()) / math.sqrt(self.samples))
        rest, rest_error = self._within(table, of_x, of_y)
        sure = max(beyond - 2 * error, 0.0) + max(rest - 2 * rest_error, 0.0)
        return Hit(p, sure, sure, CLASSES)

    def _within(self, table: Table, of_x: Mask, of_y: Mask) -> tuple[float, float]:
        """I(R_x; R_y | cell) of Gaussian scores about the means of their cells, and its standard
        error; 0 where there are no such columns, or too few rows for the cells."""
        free = self.samples - len(table.counts_both)
        rest = self.scores[0][:, ~of_x], self.scores[1][:, ~of_y]
        columns = sum(side.shape[1] for side in rest)
        if min(side.shape[1] for side in rest) == 0 or free < self.samples / 2 + columns:
            return 0.0, 0.0
        centred = []
        for side in rest:
            sums = np.zeros((len(table.counts_both), side.shape[1]))
            np.add.at(sums, table.both, side)
            about = side - (sums / table.counts_both[:, None])[table.both]
            centred.append(whitened(about)[0] * math.sqrt(self.samples))
        u, v, rho = canonical_variates(*centred)
        rho = np.minimum(rho, LARGEST)
        return unbiased(rho, free, u.shape[1], v.shape[1]), information_stderr(u, v, rho)

    def p_value(self, permutations: int) -> float:
        """Of independence, by permutations of whole blocks where the rows are a series.

        Two statistics, nearest neighbours on `PERMUTED_ROWS` rows at most and the correlations of
        all rows, are ranked among their values on permuted rows; the better rank counts, and its
        place among the better ranks of the permuted rows is the p-value. Beside it stands that of
        the screens, which may be below what so many permutations can show. Each has its share of
        the errors, `BY_SCREEN` and the rest, so that both together keep to any level.
        """
        rng = self._rng(3)
        keep = np.arange(self.samples)
        rows = keep[: min(PERMUTED_ROWS, self.samples)]
        length = self._block(len(rows))
        x, y = self.scores if length == 1 else self._in_order()
        found = np.empty((permutations + 1, 2))
        near = _Permuted(x[rows], y[rows])
        ux, uy = (whitened(side)[0] for side in (x, y))
        for at in range(permutations + 1):
            order = keep if at == 0 else block_shuffled(keep, length, rng)
            small = rows if at == 0 else block_shuffled(rows, length, rng)
            found[at] = near(small), np.square(ux.T @ uy[order]).sum()
        ranks = (found[:, None] <= found[None]).mean(1)  # of each, among all
        best = ranks.min(1)
        by_permutation = float((best <= best[0]).mean())
        if length > 1:
            return by_permutation
        by_screen = strongest(*self.screens).p_value
        both = by_permutation / (1 - BY_SCREEN), max(by_screen / BY_SCREEN, SMALLEST)
        return min(1.0, *both)

    def _block(self, rows: int) -> int:
        """Rows of a series that are permuted together; 1 where the rows are independent.

        Where blocks meet, the dependence of neighbours is lost, so that permuted rows vary too
        little: by a quarter of tau in blocks as long as the dependence, an AR(1) process of 0.9,
        which then rejects 8 % at a level of 5 %. Of four times the length it is a fifteenth.
        """
        if not self.serial.series:
            return 1
        return max(min(4 * self.serial.step, rows // FEWEST_BLOCKS), self.serial.step)

    def _in_order(self) -> tuple[Array, Array]:
        rng = self._rng(4)
        return random_scores(self.x, rng), random_scores(self.y, rng)


def _discrete(x: Rows) -> Mask:
    """Of each column."""
    return np.array([len(np.unique(column)) <= FEW_VALUES * len(x) for column in x.T])


def _read(
    x: Array, y: Array, share: int = 1, asked: int = MOST_ASKED
) -> tuple[float, float, float]:
    """The values with `NEAR` and `FAR` neighbours, and the spread of the former's local values."""
    far = min(FAR, len(x) // 4)
    near = min(NEAR, far)
    local = ksg_by_neighbours(x, y, (near, far), max(asked // share, FEWEST))
    return float(local[0].mean()), float(local[1].mean()), float(local[0].std())


class _Permuted:
    """The nearest-neighbour value of x and a permuted y, with distances computed once."""

    def __init__(self, x: Array, y: Array) -> None:
        import torch

        self.k = min(FAR, len(x) // 4)
        self.x, self.y = (
            torch.cdist(*(torch.from_numpy(side).float(),) * 2, p=math.inf) for side in (x, y)
        )

    def __call__(self, order: npt.NDArray[np.intp]) -> float:
        import torch

        places = torch.from_numpy(np.ascontiguousarray(order))
        y = self.y[places][:, places]
        joint = torch.maximum(self.x, y)
        radius = joint.topk(self.k + 1, dim=1, largest=False).values[:, -1:]
        near = [(side < radius).sum(1).clamp(min=1).numpy() for side in (self.x, y)]
        return float(-digamma(np.stack(near)).sum(0).mean())
