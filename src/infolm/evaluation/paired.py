"""Tests of a difference between two models: over seeds, and over blocks of the same text.

Each gives the mean difference b - a, its standard error and a two-sided p. They answer different
questions. Over seeds: would another training of both differ like this? Over the text: would these
trained models differ like this on another text of the same kind?
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

PAIRED, WELCH, TEXT = "paired t over seeds", "Welch t over seeds", "paired t over blocks of text"

BLOCKS = 100
"""Blocks that a text is cut into, as in the standard error of a measurement."""
SHORTEST = 50
"""Tokens that a block has at least: neighbouring losses depend on each other."""
FEWEST = 20
"""Blocks below which there is no test over the text."""


@dataclass(frozen=True)
class Difference:
    """The mean difference b - a and its significance.

    stderr, p: None if there is no spread. number: seeds in pairs, the smaller
    group's seeds, or blocks. df: degrees of freedom of Student's t.
    """

    kind: str
    difference: float
    stderr: float | None
    df: float | None
    p: float | None
    number: int


def paired_t(a: npt.ArrayLike, b: npt.ArrayLike, kind: str = PAIRED) -> Difference:
    """t = mean(d) / (s_d / sqrt(n)), d_i = b_i - a_i, with n - 1 degrees of freedom; n >= 2."""
    d = np.asarray(b, np.float64) - np.asarray(a, np.float64)
    error = float(d.std(ddof=1)) / math.sqrt(len(d))
    return _judged(kind, float(d.mean()), error, len(d) - 1, len(d))


def welch_t(a: npt.ArrayLike, b: npt.ArrayLike) -> Difference:
    """t = (mean b - mean a) / sqrt(s_a^2 / n_a + s_b^2 / n_b), n >= 2 each, with

        df = (v_a + v_b)^2 / (v_a^2 / (n_a - 1) + v_b^2 / (n_b - 1)),  v = s^2 / n

    degrees of freedom (Welch 1947): the variances may differ.
    """
    x, y = (np.asarray(each, np.float64) for each in (a, b))
    parts = [float(each.var(ddof=1)) / len(each) for each in (x, y)]
    below = sum(v * v / (len(each) - 1) for v, each in zip(parts, (x, y), strict=True))
    df = sum(parts) ** 2 / below if below else math.nan
    return _judged(
        WELCH, float(y.mean() - x.mean()), math.sqrt(sum(parts)), df, min(len(x), len(y))
    )


def over_text(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Difference | None:
    """`paired_t` of the mean losses of neighbouring blocks, a and b (N,) of the same N tokens.

    The text is cut into `BLOCKS` blocks, or fewer of `SHORTEST` tokens, so that the dependence of
    neighbouring tokens stays inside a block. None for a text too short for `FEWEST` blocks.
    """
    blocks = min(BLOCKS, len(a) // SHORTEST)
    if blocks < FEWEST:
        return None
    size = len(a) // blocks

    def means(losses: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        whole = np.asarray(losses[: blocks * size], np.float64)
        return whole.reshape(blocks, size).mean(1)

    return paired_t(means(a), means(b), TEXT)


def _judged(kind: str, difference: float, error: float, df: float, number: int) -> Difference:
    # Differences that are equal but for rounding have no spread, and a test no meaning.
    if not error > 1e-12 * max(abs(difference), 1e-300):
        p = None if abs(difference) > 1e-12 else 1.0
        return Difference(kind, difference, 0.0 if p else None, None, p, number)
    from scipy.special import stdtr

    p = float(2 * stdtr(df, -abs(difference / error)))
    return Difference(kind, difference, error, float(df), p, number)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """The p of several tests made at once (Holm 1979): among m of them the smallest times m, the
    next times m - 1 and so on, never decreasing. Tests without a p are ignored."""
    order = sorted((i for i, p in enumerate(ps) if p is not None), key=lambda i: ps[i] or 0.0)
    adjusted: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * (ps[i] or 0.0)))
        adjusted[i] = highest
    return adjusted
