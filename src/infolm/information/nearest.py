"""Entropy and mutual information from the distances to the nearest neighbours.

Everywhere the distance of two rows is the largest difference of a column (the max norm) of the
standardised columns, k is the number of neighbours and psi the digamma function.

    entropy          H = psi(N) - psi(k) + D mean ln(2 rho_i)
    information      I = mean of psi(k_i) + psi(N) - psi(n_x,i) - psi(n_y,i)

rho_i is the distance of row i to its k-th neighbour, and the numbers of rows n count those near it
in x and in y alone, itself included; what "near" and k_i are is where the estimators differ
(`ksg_local`, `mixture_local`). Kozachenko and Leonenko (1987); Kraskov, Stögbauer and Grassberger
(2004); Ross (2014); Gao, Kannan, Oh and Viswanath (2017).

Two distances count as equal when they differ by no more than rounding can explain: the columns of
a lattice stay tied after standardising.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree
from scipy.special import digamma

from infolm.errors import InfolmError
from infolm.information.estimate import (
    Array,
    Estimate,
    ceiling,
    joined,
    pairs,
    rows,
    shuffled,
)
from infolm.information.gaussian import tried

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]
Variant = Literal[1, 2]

TREE_COLUMNS = 8
"""Up to this many joint columns a k-d tree is faster than all distances."""
BLOCK = 2**20
"""Bytes of distances at once, so that they stay in the cache of a core."""
TRIAL_ROWS = 5_000
"""Rows for the bias and the permuted value."""
TIED_SHARE = 0.01
"""Of the rows, above which KSG warns."""


class Neighbourhood(Protocol):
    """Some rows (B of them) among all rows, by the columns of their parts (x and y)."""

    def nearest(self, count: int) -> tuple[Floats, Ints]:
        """The distances, ascending, and indices of the nearest rows, by all columns: (B, count).

        A row is among its own neighbours, at distance 0.
        """

    def within(self, radius: Floats, part: int | None = None) -> Ints:
        """How many rows are within the radius (B,), by a part's or by all columns: (B,)."""


def neighbourhoods(*parts: Floats, asked: int) -> Iterator[tuple[slice, Neighbourhood]]:
    """The first rows, as many as asked, some at a time, among all rows; parts: (N, D_p) each.

    Exact, by a k-d tree or by all distances.
    """
    if sum(part.shape[1] for part in parts) <= TREE_COLUMNS:
        yield slice(0, asked), _Tree(parts, asked)
        return
    samples = len(parts[0])
    size = max(BLOCK // (samples * parts[0].itemsize), 1)
    columns = [np.ascontiguousarray(part.T) for part in parts]
    buffers = [np.empty((size, samples), part.dtype) for part in (*parts, parts[0])]
    for start in range(0, asked, size):
        block = slice(start, min(start + size, asked))
        *distances, spare = (buffer[: block.stop - start] for buffer in buffers)
        for part, out in zip(columns, distances, strict=True):
            _distances(part, block, out, spare)
        yield block, _Block(distances, np.maximum(distances[0], distances[-1], out=spare))


class _Tree:
    def __init__(self, parts: tuple[Floats, ...], asked: int) -> None:
        self.parts, self.joint, self.asked = parts, np.concatenate(parts, axis=1), asked

    def nearest(self, count: int) -> tuple[Floats, Ints]:
        distances, indices = cKDTree(self.joint).query(self.joint[: self.asked], count, p=np.inf)
        return distances, indices

    def within(self, radius: Floats, part: int | None = None) -> Ints:
        x = self.joint if part is None else self.parts[part]
        here = x[: self.asked]
        if x.shape[1] == 1:
            return _within_on_a_line(here[:, 0], np.sort(x[:, 0]), radius)
        return cKDTree(x).query_ball_point(here, radius, p=np.inf, return_length=True)


def _within_on_a_line(here: Floats, ordered: Floats, radius: Floats) -> Ints:
    last = np.searchsorted(ordered, here + radius, side="right")
    return np.maximum(last - np.searchsorted(ordered, here - radius, side="left"), 0)


class _Block:
    def __init__(self, parts: list[Floats], joint: Floats) -> None:
        self.parts, self.joint = parts, joint  # distances, (B, N) each

    def nearest(self, count: int) -> tuple[Floats, Ints]:
        import torch  # whose topk is ten times as fast as NumPy's partition

        found, indices = torch.from_numpy(self.joint).topk(count, dim=1, largest=False)
        return found.numpy(), indices.numpy()

    def within(self, radius: Floats, part: int | None = None) -> Ints:
        distances = self.joint if part is None else self.parts[part]
        return np.count_nonzero(distances <= radius[:, None], axis=1)


def _distances(columns: Floats, block: slice, out: Floats, spare: Floats) -> None:
    """The distances of the rows in the block to all rows; columns (D, N) -> out (B, N)."""
    out[:] = 0
    for column in columns:
        np.subtract(column[block, None], column, out=spare)
        np.abs(spare, out=spare)
        np.maximum(out, spare, out=out)


def _standardised(x: npt.ArrayLike, y: npt.ArrayLike, k: int) -> tuple[Array, Array]:
    """The columns with mean 0 and variance 1; at least k + 1 others for every row."""
    a, b = pairs(x, y, at_least=_positive(k) + 2)
    return _standard(a), _standard(b)


def _standard(x: npt.NDArray[Any]) -> Array:
    x = x.astype(np.float64)
    return (x - x.mean(0)) / x.std(0)


def _positive(neighbours: int) -> int:
    if neighbours < 1:
        raise InfolmError(f"the number of neighbours must be at least 1, not {neighbours}")
    return neighbours


def _slack(*parts: Floats) -> float:
    """The most by which rounding can part two differences of columns that were equal."""
    return float(8 * np.finfo(parts[0].dtype).eps * max(np.abs(part).max() for part in parts))


def kozachenko_leonenko(
    x: npt.ArrayLike, neighbours: int = 3, *, standardise: bool = True
) -> tuple[float, float]:
    """The differential entropy of rows x (N, D), in nats, and its standard error.

        H = psi(N) - psi(k) + mean_i of sum_d ln(2 rho_i s_d),

    s_d the standard deviation of column d, which gives its unit back. The error is sqrt(2 / N)
    times the spread of the local values, as in `_estimate` (1.0 to 1.2 of the true one, from
    500 Gaussian rows). It knows nothing of the bias, which grows with D (0.3 nats for 10
    columns there). Rows that coincide have no density and are refused.

    standardise: else distances are those of the columns as they are, and s_d = 1. The estimate is
    then that of Kraskov et al. (2004, equation 20), which wide columns decide where narrow ones
    stand beside them.
    """
    a = rows(x, "x")
    if len(a) <= _positive(neighbours):
        raise InfolmError(f"{len(a):,} rows are too few for {neighbours} neighbours")
    columns = _standard(a) if standardise else a.astype(np.float64)
    rho = np.empty(len(a))
    for block, hood in neighbourhoods(columns, asked=len(a)):
        rho[block] = hood.nearest(neighbours + 1)[0][:, -1]
    coincide = int((rho <= _slack(columns)).sum())
    if coincide:
        raise InfolmError(
            f"{coincide:,} rows of x equal {neighbours} others, so x has no density: "
            "estimate the entropy of discrete data by plug-in or Miller-Madow"
        )
    local = a.shape[1] * np.log(2 * rho)
    if standardise:
        local += np.log(a.astype(np.float64).std(0)).sum()
    value = digamma(len(a)) - digamma(neighbours) + local.mean()
    return float(value), float(local.std() * math.sqrt(2 / len(a)))


def ksg_local(
    x: npt.ArrayLike, y: npt.ArrayLike, neighbours: int = 3, variant: Variant = 1
) -> Array:
    """The local values (N,) whose mean is I(X; Y) of Kraskov et al. (2004), in nats.

    variant 1 (equation 8): near is closer than rho_i, in x and in y:
        psi(k) + psi(N) - psi(n_x + 1) - psi(n_y + 1), n without row i itself.
    variant 2 (equation 9): near is as far as the farthest of the k neighbours in x, and in y:
        psi(k) - 1/k + psi(N) - psi(n_x) - psi(n_y), n without row i itself.

    Both take X and Y to be continuous. Scaling a column changes nothing.
    """
    a, b = _standardised(x, y, neighbours)
    return (_ksg1 if variant == 1 else _ksg2)(a, b, neighbours, len(a))[0]


def ksg_by_neighbours(x: Floats, y: Floats, neighbours: Sequence[int], asked: int) -> Array:
    """`ksg_local` with each number of neighbours at once, of columns as they are: (K, B).

    Of the first `asked` rows, or of all, among all rows; one search serves every k.
    """
    slack, asked = _slack(x, y), min(asked, len(x))
    local = np.empty((len(neighbours), asked))
    for block, hood in neighbourhoods(x, y, asked=asked):
        nearest, _ = hood.nearest(max(neighbours) + 1)
        for at, k in enumerate(neighbours):
            inside = nearest[:, k] - slack
            near = np.stack([hood.within(inside, part) for part in (0, 1)])
            local[at, block] = digamma(k) + _against(np.maximum(near, 1), len(x))
    return local


def mixture_local(x: npt.ArrayLike, y: npt.ArrayLike, neighbours: int = 3) -> Array:
    """The local values (N,) whose mean is I(X; Y) after Gao et al. (2017), in nats.

    Where row i has more than k others within rho_i (ties, so discrete columns; above all where
    rho_i = 0), near is within rho_i, in x, in y, and for k_i in both:

        psi(k_i) + psi(N) - psi(n_x) - psi(n_y),    all with row i itself.

    Elsewhere it is KSG 1; for a discrete x far apart and a continuous y that is Ross (2014). On a
    discrete table it is the plug-in with psi for ln, thus to first order Miller-Madow. Their
    algorithm 1 has ln for the psi of the n, and takes only rho_i = 0 as tied.
    """
    a, b = _standardised(x, y, neighbours)
    return _mixture(a, b, neighbours, len(a))[0]


def _ksg1(x: Floats, y: Floats, k: int, asked: int) -> tuple[Array, float]:
    slack, near, tied = _slack(x, y), np.empty((2, asked)), np.empty(asked, bool)
    for block, hood in neighbourhoods(x, y, asked=asked):
        nearest, _ = hood.nearest(k + 2)
        tied[block] = _tied(nearest, slack)
        inside = nearest[:, k] - slack
        near[:, block] = hood.within(inside, 0), hood.within(inside, 1)
    near = np.maximum(near, 1)  # a row that equals its k neighbours is not inside rho = 0 itself
    return digamma(k) + _against(near, len(x)), float(tied.mean())


def _ksg2(x: Floats, y: Floats, k: int, asked: int) -> tuple[Array, float]:
    slack, near, tied = _slack(x, y), np.empty((2, asked)), np.empty(asked, bool)
    for block, hood in neighbourhoods(x, y, asked=asked):
        nearest, indices = hood.nearest(k + 2)
        tied[block] = _tied(nearest, slack)
        for part, data in enumerate((x, y)):
            apart = np.abs(data[indices[:, : k + 1]] - data[block, None])
            near[part, block] = hood.within(apart.max(axis=(1, 2)) + slack, part) - 1
    return digamma(k) - 1 / k + _against(near, len(x)), float(tied.mean())


def _mixture(x: Floats, y: Floats, k: int, asked: int) -> tuple[Array, float]:
    slack, near, tied = _slack(x, y), np.empty((2, asked)), np.empty(asked, bool)
    both = np.full(asked, k)
    for block, hood in neighbourhoods(x, y, asked=asked):
        nearest, _ = hood.nearest(k + 2)
        tied[block] = here = _tied(nearest, slack)
        radius = nearest[:, k] + np.where(here, slack, -slack)
        near[:, block] = hood.within(radius, 0), hood.within(radius, 1)
        if here.any():
            both[block] = np.where(here, hood.within(radius), k)
    return digamma(both) + _against(near, len(x)), float(tied.mean())


def classes_local(classes: Ints, y: Floats, neighbours: int, asked: int) -> Array:
    """The local values of the first `asked` rows of I(class; Y), after Ross (2014): (B,).

    classes: (N,), of which only equality counts. y: (N, D), continuous.
    """
    far = 4 * (1 + float(np.ptp(y)))  # classes are farther from each other than any two rows of one
    return _mixture(far * classes[:, None].astype(np.float64), y, neighbours, asked)[0]


def _tied(nearest: Floats, slack: float) -> npt.NDArray[np.bool_]:
    """Whether one more neighbour is as near as the k-th, or the k-th is the row's equal."""
    return (nearest[:, -1] <= nearest[:, -2] + slack) | (nearest[:, -2] <= slack)


def _against(near: Array, samples: int) -> Array:
    """psi(N) - psi(n_x) - psi(n_y); near (2, B) -> (B,)."""
    return digamma(samples) - digamma(near).sum(0)


@dataclass(frozen=True)
class KSG:
    """I(X; Y) of continuous data (Kraskov et al., 2004); `ksg_local` has the equations.

    Fewer neighbours have less bias, more a smaller spread. The bias falls slowly with N and grows
    with the dimension and the information (about -0.8 of 3 nats in 5 + 5 dimensions from 2,000
    pairs), so that the estimator tries itself on a Gaussian surrogate, as `_estimate` says. Tied
    rows give a warning; no noise is added: use `Mixture` for them.
    """

    neighbours: int = 3
    variant: Variant = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.variant not in (1, 2):
            raise InfolmError(f"KSG has the variants 1 and 2, not {self.variant}")

    @property
    def name(self) -> str:
        return "ksg" if self.variant == 1 else "ksg2"

    def estimate(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Estimate:
        local = _ksg1 if self.variant == 1 else _ksg2
        estimate, tied = _estimate(self.name, local, x, y, self.neighbours, self.seed)
        if tied <= TIED_SHARE:
            return estimate
        warning = f"{tied:.0%} of the pairs are tied, but ksg takes them as continuous: use mixture"
        return replace(estimate, warning=joined(warning, estimate.warning))


@dataclass(frozen=True)
class Mixture:
    """I(X; Y) of discrete and continuous data and mixtures of both (Gao et al., 2017).

    `mixture_local` has the equations; on continuous data this is KSG 1. The codes of a discrete
    column are taken as numbers, so that only where neighbours run out do they have an order.
    """

    neighbours: int = 3
    seed: int = 0

    @property
    def name(self) -> str:
        return "mixture"

    def estimate(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Estimate:
        return _estimate(self.name, _mixture, x, y, self.neighbours, self.seed)[0]


Local = Callable[[Floats, Floats, int, int], tuple[Array, float]]
"""x, y (standardised), k, B -> local values of the first B rows (B,), and the share of ties."""


def _estimate(
    name: str, local: Local, x: npt.ArrayLike, y: npt.ArrayLike, k: int, seed: int
) -> tuple[Estimate, float]:
    """The estimate and the share of tied rows.

    stderr: sqrt(2 / N) times the spread of the local values. Local values share neighbours, so that
    the spread over sqrt(N) alone is too small: over repeated Gaussian samples (500 and 2,000
    pairs, 1 to 25 dimensions, 0 to 3 nats) it was 0.5 to 0.9 of the true error, 0.7 to 1.4 with
    the factor. Disjoint blocks (Holmes and Nemenman, 2019) gave 0.6 to 1.0, with a spread of a
    quarter of their own.

    interval: holds the value and the value less the bias on a Gaussian surrogate. The surrogate and
    the shuffled pairs are asked for the local values of `TRIAL_ROWS` rows at most.
    """
    a, b = _standardised(x, y, k)
    values, tied = local(a, b, k, len(a))
    value, stderr = float(values.mean()), float(values.std() * math.sqrt(2 / len(a)))

    def mean(x: Array, y: Array) -> float:
        if x.shape[1] + y.shape[1] > TREE_COLUMNS:  # where single precision is twice as fast
            x, y = x.astype(np.float32), y.astype(np.float32)
        return float(local(x, y, k, min(len(x), TRIAL_ROWS))[0].mean())

    trial = tried(mean, a, b, seed)
    estimate = Estimate(
        name,
        value,
        stderr,
        interval=trial.interval(value, stderr, len(a)),
        permuted=mean(shuffled(a, seed), shuffled(b, seed + 1)),
        samples=len(a),
        warning=joined(trial.warning, ceiling(value, len(a))),
    )
    return estimate, tied
