"""The mutual information of two segments of a text, some tokens apart (BMI, section 5.2)."""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view
from scipy.sparse import csr_array
from torch import Tensor

from infolm.errors import InfolmError
from infolm.information.critics import SegmentCritic
from infolm.information.estimate import Array, Estimate, Progress, joined
from infolm.information.neural import (
    CRITICS,
    NOTHING,
    STEPS,
    CriticKind,
    Kind,
    Prepared,
    Rows,
    cross_fitted,
    fewest_rows,
)

Tokens = npt.NDArray[np.integer]

RECOVERED = 0.9
"""The least share that critics have read of the information of languages where it is known (91 to
97 %, `results/information.md`): no interval of a lower bound ends below the value over it."""
BINS = 2**14
"""Of neighbouring tokens, to which their pairs are hashed."""
ITERATIONS = 20
"""Of the power method: a weaker pair of directions shows less, and claims no more."""
WIDE = 3.0
"""Standard errors by which the value of a table is lowered: a chance of one in a thousand."""


def check_segments(length: int, gap: int, stride: int | None = None) -> None:
    """Refuse impossible segments."""
    if length < 1:
        raise InfolmError(f"a segment has at least one token, not {length}")
    if gap < 0:
        raise InfolmError(f"the gap between two segments is 0 tokens or more, not {gap}")
    if stride is not None and stride < 1:
        raise InfolmError(f"the stride from pair to pair is 1 token or more, not {stride}")


def segment_pairs(
    tokens: Tokens, length: int, gap: int, stride: int | None = None
) -> tuple[Tokens, Tokens]:
    """All pairs of segments of `length` tokens with `gap` between, a pair every `stride` tokens.

    tokens: (T,). Gives x and y, (N, length) each. By default a pair begins where the last one
    ends, so that no token is used twice.
    """
    check_segments(length, gap, stride)
    span = 2 * length + gap
    if len(tokens) < span:
        raise InfolmError(
            f"the text has {len(tokens):,} tokens, too few for two segments of {length} and a gap "
            f"of {gap}: give a longer text or shorter segments"
        )
    windows = sliding_window_view(tokens, span)[:: stride or span]
    return windows[:, :length], windows[:, length + gap :]


@dataclass(frozen=True)
class Segments:
    """I(X; Y) of token segments, rows in the order of the text, by a bound and a critic.

    The defaults are BMI's way to measure text: small critics trained by the Jensen-Shannon proxy
    (eq. 6), stopped where the Donsker-Varadhan bound (eq. 4) of a validation part is best, which
    is then read on a test part; ten folds. The folds are stretches of the text.

    types: of tokens, 0 to types - 1. overlap: how many rows on share tokens with a row: so many are
    left out beside every cut. Critics learn from rows that overlap, and are validated and read on
    rows that do not.
    """

    types: int
    bound: Kind = "js-dv"
    critic: CriticKind = "bilinear"
    folds: int = 10
    steps: int = STEPS
    overlap: int = 0
    seed: int = 0
    progress: Progress | None = None

    @property
    def name(self) -> str:
        return self.bound

    def estimate(self, x: Tokens, y: Tokens, apart: npt.NDArray[np.intp] | None = None) -> Estimate:
        """x: (N, L), y: (N, M). apart: indices of the rows to read on, ascending, of which no two
        share a token; by default one row in overlap + 1."""
        x, y = np.asarray(x), np.asarray(y)
        apart = np.arange(0, len(x), self.overlap + 1) if apart is None else apart
        for side in (x, y):
            if side.ndim != 2 or side.dtype.kind not in "iu":
                raise InfolmError(
                    f"segments of shape {side.shape} and type {side.dtype}: give (N, L) integers"
                )
            if side.size and not 0 <= side.min() <= side.max() < self.types:
                raise InfolmError(
                    f"tokens from {side.min()} to {side.max()} are not among {self.types:,} types, "
                    "0 and up: give as many types as the vocabulary has"
                )
        fewest = fewest_rows(self.folds)
        if len(x) != len(y):
            raise InfolmError(
                f"there are {len(x):,} and {len(y):,} segments: give as many of each, in pairs"
            )
        if len(apart) < fewest:
            raise InfolmError(
                f"{len(apart):,} pairs of segments that share no token: this needs at least "
                f"{fewest:,}; give a longer text, shorter segments or fewer folds"
            )
        if self.bound == "club":
            raise InfolmError("club needs rows of numbers, not tokens: choose another bound")
        found = cross_fitted(
            self.name,
            x,
            y,
            self._prepare,
            self.bound,
            self.folds,
            self.overlap,
            self.steps,
            self.seed,
            self.progress,
            apart,
        )
        if found.bound == "lower":
            low, high = found.interval
            found = replace(found, interval=(low, max(high, found.value / RECOVERED)))
        return replace(found, warning=joined(found.warning, _unseen(found, x[apart], y[apart])))

    def _prepare(self, x: Rows, y: Rows) -> Prepared:
        critic = SegmentCritic(self.types, x.shape[1], y.shape[1], CRITICS[self.critic], self.seed)
        return Prepared(_encode, [critic])


def _unseen(found: Estimate, x: Tokens, y: Tokens) -> str | None:
    """A warning where the critics, which read tokens one by one, miss what pairs of them show, or
    see nothing."""
    shown = shared_by_pairs(x, y)
    if shown > found.interval[1]:
        return (
            f"pairs of neighbouring tokens show at least {shown:.2f} nats, which the critics do "
            "not see"
        )
    if found.interval[0] == 0 and NOTHING not in (found.warning or ""):
        return NOTHING.replace("nothing", "nothing for certain")
    return None


def shared_by_pairs(x: Tokens, y: Tokens) -> float:
    """Nats that counts of neighbouring tokens in x (N, L) and y (N, M) show at least; 0: nothing.

    u and v, weights of the pairs of tokens in x and y, are the first singular vectors of the
    covariance of both counts over the first half of the rows, each count divided by the square
    root of its mean. Functions of x and y share no more than x and y do: the value is that of the
    table of both weighted counts, above their mean or not, over the other half of the rows, less
    its bias and WIDE standard errors. It is at most ln 2.
    """
    half = len(x) // 2
    if min(x.shape[1], y.shape[1]) < 2 or half < 50:
        return 0.0
    (x1, x2), (y1, y2) = (_pair_counts(side, half) for side in (x, y))
    mean_x, mean_y = (np.asarray(side.mean(0)).ravel() for side in (x1, y1))
    v = np.random.default_rng(0).standard_normal(BINS)
    for _ in range(ITERATIONS):  # the power method
        u = x1.T @ (y1 @ v) / half - mean_x * (mean_y @ v)
        v = y1.T @ (x1 @ u) / half - mean_y * (mean_x @ u)
        v /= np.linalg.norm(v) or 1.0
    a, b = x2 @ u, y2 @ v
    left, right = a > (x1 @ u).mean(), b > (y1 @ v).mean()
    sides = (False, True)
    joint = np.array([[np.mean((left == i) & (right == j)) for j in sides] for i in sides])
    independent = joint.sum(1, keepdims=True) * joint.sum(0)
    local = np.log(np.where(joint > 0, joint, 1) / np.where(joint > 0, independent, 1))
    value = float((joint * local).sum())
    stderr = math.sqrt(max(float((joint * local**2).sum()) - value**2, 0.0) / len(a))
    return max(value - WIDE * stderr - 1 / (2 * len(a)), 0.0)


def _pair_counts(x: Tokens, half: int) -> tuple[csr_array, csr_array]:
    """Counts of hashed neighbours, divided by the square root of their mean, of both halves."""
    left, right = x[:, :-1].astype(np.uint64), x[:, 1:].astype(np.uint64)
    mixed = left * np.uint64(0x9E3779B97F4A7C15) + right * np.uint64(0xC2B2AE3D27D4EB4F)
    bins = ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(BINS)).astype(np.int64)
    rows = np.repeat(np.arange(len(x)), bins.shape[1])
    counts = csr_array((np.ones(bins.size), (rows, bins.ravel())), shape=(len(x), BINS))
    mean: Array = np.asarray(counts[:half].mean(0)).ravel()
    scaled = counts.multiply(1 / np.sqrt(np.maximum(mean, 1 / half))).tocsr()
    return scaled[:half], scaled[half:]


def _encode(x: Rows, y: Rows) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))
