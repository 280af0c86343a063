"""A screen for ridges: y follows a wave along one direction of several columns of x.

With z the normal scores of x (N, D), s those of a column of y and V its rank from 0 to 1, one of

    s,   |s|,   e^{2 pi i V}        depends on        e^{i t'z}

for some vector t. No column of x, nor any two of them, need show it, and neighbours see it only
where their distance is below 1 / |t|. The direction is looked for in half of the rows: of many
vectors t the best are kept and improved by gradient ascent. It is tried on the other half, as one
test of one vector, so its p-value needs no correction for all that were tried.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, ndtri

from infolm.information.estimate import Array
from infolm.information.screens import (
    HALF_NORMAL,
    Hit,
    corrected,
    of_resultant,
    of_share,
)

Complex = npt.NDArray[np.complexfloating]
Rows = npt.NDArray[Any]

MOST_COLUMNS = 8
"""Of x: in more the vectors are too many to be tried."""
STARTS, KEPT, STEPS = 12_000, 12, 25
EACH_WAY = 45
"""Starts of two columns are no more than these squared: they lie close enough."""
LONGEST = 25.0
"""Of the vectors, in radians for a standard deviation. A wave is seen from vectors within about 1
of its own, so in many columns the starts do not reach as far."""
MOST_ROWS = 400
"""In which a direction is looked for."""
FEWEST_ROWS = 80
BLOCK = 2_000
ANGLE = 2
"""The kind of target that is an angle."""


def ridges(u: Array, v: Array, rng: np.random.Generator) -> list[Hit]:
    """Waves along a direction of either side, for each kind of target the strongest; none where
    neither side has two columns.

    u, v: ranks from 0 to 1, rows in random order. p-values are corrected for the number of hits.
    """
    if len(u) < FEWEST_ROWS:
        return []
    sides = [(a, b) for a, b in ((u, v), (v, u)) if 1 < a.shape[1] <= MOST_COLUMNS]
    hits = [hit for a, b in sides for hit in _along(ndtri(a), b, rng)]
    return [corrected(hit, len(hits)) for hit in hits]


def _along(z: Array, v: Array, rng: np.random.Generator) -> Iterator[Hit]:
    half = len(z) // 2
    first, second = slice(0, min(half, MOST_ROWS)), slice(half, len(z))
    starts, targets = _starts(z.shape[1], rng), _targets(v)
    lengths = _lengths(z[first], targets[..., first], starts)
    what = f"a wave along a direction of {z.shape[1]} columns"
    for kind, (each, of_kind) in enumerate(zip(targets, lengths, strict=True)):
        t, column = _climbed(z[first], each[:, first], starts, of_kind)
        turn, target = z[second] @ t, each[column, second]
        if kind == ANGLE:
            yield _turned(turn, target, what)
        else:
            yield _explained(turn, target.real, kind * HALF_NORMAL, what)


def _targets(v: Array) -> Complex:
    """What may follow the wave, each of mean 0 and variance 1: s, |s|, e^{2 pi i V}, (3, Dy, N)."""
    s = ndtri(v).T
    real = np.stack([s, np.abs(s)])
    real = (real - real.mean(2, keepdims=True)) / real.std(2, keepdims=True)
    return np.concatenate([real, np.exp(2j * math.pi * v.T)[None]])


def _starts(columns: int, rng: np.random.Generator) -> Array:
    """Vectors (S, D) of all directions, their lengths even."""
    count = min(STARTS, EACH_WAY**columns)
    t = rng.standard_normal((count, columns))
    radius = min((12 * STARTS) ** (1 / columns), LONGEST) * rng.random((count, 1))
    return np.asarray(radius * t / np.linalg.norm(t, axis=1, keepdims=True))


def _lengths(z: Array, targets: Complex, t: Array) -> Rows:
    """|mean of target e^{i t'z}| of all targets and vectors, (3, Dy, S)."""
    z32, flat = z.astype(np.float32), targets.reshape(-1, len(z)).astype(np.complex64)
    blocks = []
    for at in range(0, len(t), BLOCK):
        turn = z32 @ t[at : at + BLOCK].T.astype(np.float32)
        wave = np.empty(turn.shape, np.complex64)  # three times as fast as exp
        np.cos(turn, out=wave.real)
        np.sin(turn, out=wave.imag)
        blocks.append(np.abs(flat @ wave))
    return np.concatenate(blocks, axis=1).reshape(*targets.shape[:2], len(t)) / len(z)


def _climbed(z: Array, targets: Complex, t: Array, lengths: Rows) -> tuple[Array, int]:
    """The vector, and the number of the target, from the best of these lengths (Dy, S) on."""
    best = np.argpartition(lengths, -KEPT, axis=None)[-KEPT:]
    numbers, starts = np.unravel_index(best, lengths.shape)
    t, chosen = t[starts], targets[numbers]
    for _ in range(STEPS):
        t = t + _ascent(z, t, chosen)
    found = np.abs((chosen * np.exp(1j * (t @ z.T))).mean(1))
    at = int(found.argmax())
    return t[at], int(numbers[at])


def _ascent(z: Array, t: Array, targets: Complex) -> Array:
    """A step of each vector up |c|, c = mean of target e^{i t'z}.

    With w = Re(conj(c) target e^{i t'z}) / |c|, |c| is the mean of w, and near its maximum w falls
    with the distance as the cosine does. So this is Newton's step for cos: the gradient, over |c|.
    """
    waves = targets * np.exp(1j * (t @ z.T))
    c = waves.mean(1, keepdims=True)
    turned = np.conj(c) * waves / np.maximum(np.abs(c), 1e-12)
    gradient = -(turned.imag @ z) / len(z)
    return np.asarray(0.7 * gradient / np.maximum(np.abs(c), 0.1))


def _turned(turn: Array, target: Complex, what: str) -> Hit:
    """The angle between the wave and V, which is uniform where nothing is shared."""
    rows, length = len(turn), float(abs(np.mean(target * np.exp(1j * turn))))
    sure = of_resultant(max(length - 2 / math.sqrt(rows), 0.0))
    return Hit(math.exp(-rows * length**2), sure, sure, what)


def _explained(turn: Array, target: Rows, short: float, what: str) -> Hit:
    """What the wave's sine and cosine explain of the target; an F test with two regressors."""
    rows = len(turn)
    waves = np.column_stack([np.cos(turn), np.sin(turn)])
    waves -= waves.mean(0)
    centred = target - target.mean()
    fitted = waves @ np.linalg.lstsq(waves, centred, rcond=None)[0]
    share = min(float(np.square(fitted).sum() / np.square(centred).sum()), 1 - 1e-9)
    p = float(betainc((rows - 3) / 2, 1.0, 1 - share))
    free = 1 - (1 - share) * (rows - 1) / (rows - 3)
    error = math.sqrt(4 * max(free, 0.0) * (1 - free) ** 2 / rows + 4 / rows**2)
    sure = max(of_share(max(free - 2 * error, 0.0)) - short, 0.0)
    return Hit(p, sure, sure, what)
