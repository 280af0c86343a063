"""Conditional information I(X; Y | Z) and transfer entropy, by neighbours or by counts.

Continuous columns (Frenzel and Pompe, 2007), as random normal scores, with n the rows strictly
nearer than the k-th neighbour of the joint rows, each row itself included:

    I(X; Y | Z) = psi(k) + mean of psi(n_z) - psi(n_xz) - psi(n_yz).

With a constant Z it is KSG 1. Discrete columns, by the entropies of Miller and Madow:

    I(X; Y | Z) = H(X, Z) + H(Y, Z) - H(Z) - H(X, Y, Z).

The transfer entropy from a series X to Y (Schreiber, 2000) is the information of the past of X
about the next y beyond the past of Y: I(X_{t-h+1..t}; Y_{t+1} | Y_{t-h+1..t}).

The p-value of conditional independence permutes x among rows of nearly the same z (Runge, 2018).
Nearly the same is not the same: if z almost determines x, rows that take the x of a neighbour lose
what x and y share through z, and too many true hypotheses are rejected. But given z a function of z
is a constant, so that

    I(X; Y | Z) = I(X - f(Z); Y - g(Z) | Z)

for all f and g. With f and g fits around each z, residuals are permuted, on which z has hardly any
influence left. Rows at the rim of z, where a fit spans too much, are left out of the test:
independence given z holds for any z.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from scipy.spatial import cKDTree
from scipy.special import digamma

from infolm.errors import InfolmError
from infolm.information.discrete import PAIRS_PER_CELL, miller_madow_entropy
from infolm.information.estimate import Array, joined, pairs, rows
from infolm.information.exact import gaussian_information
from infolm.information.nearest import neighbourhoods
from infolm.information.panel import ALPHA, WIDTH, Answer
from infolm.information.ranks import random_scores
from infolm.information.serial import serial

Rows = npt.NDArray[Any]

NEIGHBOURS = 5
PERMUTATIONS = 99
DISTINCT = 0.05
"""Columns with at most this share of distinct values are treated as discrete."""
FITTED = 20
"""Neighbours of a local fit."""
INNER = 0.8
"""The share of rows that the p-value of continuous columns is from."""
CONTINUOUS = 0.6
"""Columns with at least this share of distinct values are fitted."""
OFF = 0.1
"""Nats of bias on Gaussian rows that are worth a warning."""


def frenzel_pompe(x: Array, y: Array, z: Array, neighbours: int = NEIGHBOURS) -> Array:
    """The local values (N,) of I(X; Y | Z), without rescaling columns."""
    xz, yz = np.concatenate([x, z], axis=1), np.concatenate([y, z], axis=1)
    local = np.empty(len(x))
    for block, hood in neighbourhoods(xz, z, yz, asked=len(x)):
        inside = np.nextafter(hood.nearest(neighbours + 1)[0][:, -1], 0)
        near = [np.maximum(hood.within(inside, part), 1) for part in (0, 1, 2)]
        local[block] = digamma(neighbours) + digamma(near[1]) - digamma(near[0]) - digamma(near[2])
    return local


def counted(x: Rows, y: Rows, z: Rows) -> tuple[float, int]:
    """I(X; Y | Z) of discrete rows by Miller and Madow, and the number of cells seen."""

    def entropy(*parts: Rows) -> tuple[float, int]:
        counts = np.unique(np.concatenate(parts, axis=1), axis=0, return_counts=True)[1]
        return miller_madow_entropy(counts), len(counts)

    both, cells = entropy(x, y, z)
    return entropy(x, z)[0] + entropy(y, z)[0] - entropy(z)[0] - both, cells


def conditional_information(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    z: npt.ArrayLike,
    *,
    neighbours: int = NEIGHBOURS,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Answer:
    """I(X; Y | Z) of rows x (N, Dx), y (N, Dy) and z (N, Dz), in nats."""
    a, b = pairs(x, y, at_least=50)
    c = rows(z, "z")
    if len(c) != len(a):
        raise InfolmError(f"z has {len(c):,} rows and x has {len(a):,}: row i of all is one sample")
    dependent = serial(a, b).warning if serial(a, c).series or serial(b, c).series else None
    return _answer(a, b, c, neighbours, permutations, np.random.default_rng(seed), dependent)


def transfer_entropy(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    history: int = 1,
    neighbours: int = NEIGHBOURS,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Answer:
    """The information of the last `history` rows of x about the next row of y beyond those of y, in
    nats."""
    a, b = pairs(x, y, at_least=50 + history)
    if history < 1:
        raise InfolmError(f"a history has at least one row, not {history}")
    past_x, past_y = (_past(side, history) for side in (a, b))
    rng = np.random.default_rng(seed)
    return _answer(past_x, b[history:], past_y, neighbours, permutations, rng, None)


def _past(x: Rows, history: int) -> Rows:
    """The rows t-history+1 to t beside each other, for every t that has a next row."""
    windows = sliding_window_view(x, history, axis=0)[:-1]  # (N - history, D, history)
    return windows.reshape(len(windows), -1)


def _answer(
    x: Rows,
    y: Rows,
    z: Rows,
    k: int,
    permutations: int,
    rng: np.random.Generator,
    of_rows: str | None,
) -> Answer:
    samples = len(x)
    discrete = all(
        len(np.unique(column)) <= DISTINCT * samples for side in (x, y, z) for column in side.T
    )
    warning = None
    sx, sy, sz = (random_scores(side, rng) for side in (x, y, z))
    if discrete:
        beside = _neighbours_in(sz, k)
        value, cells = counted(x, y, z)
        observed = value
        spread = _local_spread(x, y, z)
        stderr, bias = spread / math.sqrt(samples) + cells / samples / 4, 0.0
        if samples < PAIRS_PER_CELL * cells:
            warning = f"undersampled: {samples:,} rows fall into {cells:,} cells"

        def permuted() -> float:
            return counted(x[_among(beside, rng)], y, z)[0]

    else:
        local = frenzel_pompe(sx, sy, sz, k)
        value, stderr = float(local.mean()), float(local.std() * math.sqrt(2 / samples))
        bias, gaussian = _trial(sx, sy, sz, k, rng)
        if abs(bias) > OFF:
            warning = f"on Gaussian rows of the same covariance neighbours are off by {bias:+.2f}"
        elif gaussian - WIDTH * stderr > value - bias + OFF:
            warning = f"a Gaussian of these correlations has {gaussian:.2f} nats"

        inner = _inner(sz)
        rx, ry = (
            random_scores(_residuals(scores, sz, side, z)[inner], rng)
            for scores, side in ((sx, x), (sy, y))
        )
        rz = sz[inner]
        near = _neighbours_in(rz, k)
        observed = float(frenzel_pompe(rx, ry, rz, k).mean())

        def permuted() -> float:
            return float(frenzel_pompe(rx[_among(near, rng)], ry, rz, k).mean())

    above = sum(permuted() >= observed for _ in range(permutations))
    p_value = (above + 1) / (permutations + 1)
    low, high = (min(value, value - bias), max(value, value - bias))
    interval = (
        max(low - WIDTH * stderr, 0.0) if p_value <= ALPHA else 0.0,
        max(high, 0.0) + WIDTH * stderr + WIDTH**2 / (2 * samples),
    )
    return Answer(
        max(value - bias, 0.0),
        interval,
        p_value,
        "about" if p_value <= ALPHA else "none",
        joined(of_rows, warning),
        samples,
    )


def _trial(x: Array, y: Array, z: Array, k: int, rng: np.random.Generator) -> tuple[float, float]:
    """The bias on Gaussian rows of the same covariance, and their information."""
    joint = np.concatenate([x, y, z], axis=1)
    samples, dx, dy = len(x), x.shape[1], y.shape[1]
    covariance = np.cov(joint.T) + 1e-9 * np.eye(joint.shape[1])
    columns = range(joint.shape[1])
    groups = columns[:dx], columns[dx : dx + dy], columns[dx + dy :]
    truth = gaussian_information(covariance, *groups)
    drawn = rng.standard_normal(joint.shape) @ np.linalg.cholesky(covariance).T
    gx, gy, gz = (drawn[:, group.start : group.stop] for group in groups)
    of_rows = gaussian_information(np.cov(drawn.T) + 1e-9 * np.eye(joint.shape[1]), *groups)
    chance = dx * dy / (2 * samples)  # by which sample correlations overstate it
    return float(frenzel_pompe(gx, gy, gz, k).mean()) - (of_rows - chance), truth - chance


def _local_spread(x: Rows, y: Rows, z: Rows) -> float:
    """The standard deviation of ln p(x, y | z) / p(x | z) p(y | z) over the rows."""

    def log_counts(*parts: Rows) -> Array:
        _, numbers, counts = np.unique(
            np.concatenate(parts, axis=1), axis=0, return_inverse=True, return_counts=True
        )
        return np.log(counts[numbers.reshape(-1)])

    local = log_counts(x, y, z) + log_counts(z) - log_counts(x, z) - log_counts(y, z)
    return float(local.std())


def _neighbours_in(z: Array, count: int) -> npt.NDArray[np.intp]:
    """The indices of the nearest rows by z, (N, count)."""
    count = min(count, len(z) - 1)
    found: npt.NDArray[np.intp] = cKDTree(z).query(z, count + 1)[1][:, 1:]
    return found


def _inner(z: Array) -> npt.NDArray[np.intp]:
    """The rows, INNER of all, whose neighbours are nearest."""
    width = cKDTree(z).query(z, min(FITTED, len(z)))[0][:, -1]
    return np.flatnonzero(width <= np.quantile(width, INNER))


def _residuals(sx: Array, sz: Array, x: Rows, z: Rows) -> Array:
    """Scores of x less fits in those of z around each row, the row itself left out, (N, Dx); as
    they are where values repeat. Fits are linear, of a single z quadratic: more terms of several
    columns would take more neighbours than are near."""
    samples = len(sz)
    width = 2 if sz.shape[1] == 1 else sz.shape[1]
    count = min(FITTED + 2 * width, samples - 1)
    repeated = any(len(np.unique(each)) < CONTINUOUS * samples for each in (*x.T, *z.T))
    if repeated or count <= 2 * width:
        return sx
    near = _neighbours_in(sz, count)
    dz = sz[near] - sz[:, None]
    terms = np.concatenate([dz, dz**2], axis=2)[:, :, :width]
    mean_terms, mean_x = terms.mean(1), sx[near].mean(1)
    terms, dx = terms - mean_terms[:, None], sx[near] - mean_x[:, None]
    square = np.einsum("nkz,nkw->nzw", terms, terms)
    ridge = 1e-9 * np.trace(square, axis1=1, axis2=2)[:, None, None] * np.eye(width)
    fitted = np.linalg.solve(square + ridge, np.einsum("nkz,nkx->nzx", terms, dx))
    # At the row itself all terms are 0.
    return sx - (mean_x - np.einsum("nzx,nz->nx", fitted, mean_terms))


def _among(beside: npt.NDArray[np.intp], rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Rows in random pairs of nearly the same z, each in the place of the other.

    No row is used twice, which neighbours would detect; the few without a partner stay.
    """
    order = np.arange(len(beside))
    free = np.ones(len(beside), bool)
    choices = rng.permuted(beside, axis=1)
    for row in rng.permutation(len(beside)):
        partners = choices[row][free[choices[row]]]
        if free[row] and len(partners):
            other = partners[0]
            order[row], order[other] = other, row
            free[row] = free[other] = False
    return order
