"""The mutual information of two segments of a text, some tokens apart (BMI, section 5.2)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from infolm.errors import InfolmError
from infolm.information.critics import SegmentCritic
from infolm.information.estimate import Estimate, Progress
from infolm.information.neural import (
    CRITICS,
    STEPS,
    CriticKind,
    Kind,
    Prepared,
    Rows,
    cross_fitted,
    fewest_rows,
)

Tokens = npt.NDArray[np.integer]


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
        return cross_fitted(
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

    def _prepare(self, x: Rows, y: Rows) -> Prepared:
        critic = SegmentCritic(self.types, x.shape[1], y.shape[1], CRITICS[self.critic], self.seed)
        return Prepared(_encode, [critic])


def _encode(x: Rows, y: Rows) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))
