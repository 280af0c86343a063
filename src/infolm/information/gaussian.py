"""Mutual information of Gaussians, and of data whose copula is Gaussian.

For jointly Gaussian X and Y with canonical correlations rho_i,

    I(X; Y) = -1/2 sum_i ln(1 - rho_i^2).

The copula form first maps every column to its normal scores, which no monotone map of a column
changes. It is exact where those scores are jointly Gaussian; if only those of X alone and of Y
alone are (always so for one column each), it is a lower bound, since a Gaussian has the largest
joint entropy (Ince et al., 2017). Both forms miss other dependence.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import qr
from scipy.optimize import brentq
from scipy.special import digamma, ndtri, polygamma

from infolm.errors import InfolmError
from infolm.information.estimate import (
    Array,
    Estimate,
    ceiling,
    half_width,
    joined,
    pairs,
    rows,
    shuffled,
)

LARGEST = 1 - 1e-9
"""Canonical correlation: beyond it rounding decides, and the information is taken as infinite."""

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class NormalScores:
    """A strictly increasing map of each column that makes it standard normal.

    The training value of average rank r among N goes to the normal quantile of (r - 1/2) / N, equal
    values to one score. New values are interpolated; beyond the training range the map goes on with
    the mean slope of the column.
    """

    values: tuple[Array, ...]  # of each column, different and ascending
    scores: tuple[Array, ...]

    @classmethod
    def fit(cls, x: npt.ArrayLike) -> Self:
        """Learn the map of each column of x (N, D)."""
        values, scores = [], []
        for column in rows(x, "x").T:
            unique, counts = np.unique(column.astype(float), return_counts=True)
            rank = np.cumsum(counts) - (counts - 1) / 2
            values.append(unique)
            scores.append(ndtri((rank - 0.5) / len(column)))
        return cls(tuple(values), tuple(scores))

    def __call__(self, x: npt.ArrayLike) -> Array:
        """The scores of new rows, (N, D) -> (N, D)."""
        array = np.asarray(x, dtype=float)
        columns = array[:, None].T if array.ndim == 1 else array.T
        mapped = zip(columns, self.values, self.scores, strict=True)
        return np.stack([_extended(*each) for each in mapped], axis=1)


def _extended(x: Array, knots: Array, scores: Array) -> Array:
    """Linear between the knots; outside, the line of mean slope through the nearer end."""
    slope = (scores[-1] - scores[0]) / (knots[-1] - knots[0])
    outside = x - np.clip(x, knots[0], knots[-1])
    return np.interp(x, knots, scores) + slope * outside


def _independent(x: Rows, name: str) -> Array:
    """An orthonormal basis Q (N, D) of the centred columns; refuses collinear ones."""
    centred = x - x.mean(0, dtype=np.float64)
    q, r, order = qr(centred / centred.std(0), mode="economic", pivoting=True)
    size = np.abs(np.diag(r))
    rank = int((size > 1e-9 * size[0]).sum())
    if rank < x.shape[1]:
        columns = ", ".join(str(column) for column in sorted(order[rank:].tolist()))
        raise InfolmError(
            f"column {columns} of {name} is a linear combination of the other columns: drop it"
        )
    return q


def canonical_variates(x: Rows, y: Rows) -> tuple[Array, Array, Array]:
    """Coordinates u (N, Dx), v (N, Dy) of unit sample variance, and the correlations (K,).

    Only u_i and v_i of the same i are correlated, by rho_i, descending; K = min(Dx, Dy). From the
    bases Q of both: the singular values of Qx' Qy (Björck and Golub, 1973), so that no covariance
    is inverted.
    """
    qx, qy = _independent(x, "x"), _independent(y, "y")
    left, rho, right = np.linalg.svd(qx.T @ qy)
    scale = math.sqrt(len(x))
    return scale * qx @ left, scale * qy @ right.T, np.minimum(rho, 1.0)


def canonical_correlations(x: npt.ArrayLike, y: npt.ArrayLike) -> Array:
    """The sample canonical correlations of x (N, Dx) and y (N, Dy), descending: (min(Dx, Dy),)."""
    return canonical_variates(*pairs(x, y))[2]


def information(rho: Array) -> float:
    """-1/2 sum ln(1 - rho_i^2), the mutual information of a Gaussian."""
    return 0.5 * float(-np.log1p(-np.square(rho)).sum())


def _halves(samples: int, dx: int, dy: int) -> tuple[Array, Array]:
    """The halved degrees of freedom in ln det of the Wishart matrices of y, and of y given x."""
    of_y = (samples - 1 - np.arange(dy)) / 2
    return of_y, of_y - dx / 2


def sample_bias(samples: int, dx: int, dy: int) -> float:
    """How much the sample correlations of Gaussian data overstate I, whatever the truth.

    With n = N - 1, E[ln det S] = ln det Sigma + sum_{i<D} psi((n - i) / 2) + D ln(2/n), so for
    I = 1/2 (ln det S_x + ln det S_y - ln det S_xy) the truth cancels and

        bias = 1/2 sum_{i<Dy} [psi((n - i) / 2) - psi((n - Dx - i) / 2)],

    symmetric in Dx and Dy and about Dx Dy / 2N. Exact; needs N > Dx + Dy.
    """
    of_y, given_x = _halves(samples, dx, dy)
    return 0.5 * float((digamma(of_y) - digamma(given_x)).sum())


def null_variance(samples: int, dx: int, dy: int) -> float:
    """The exact variance of the sample information of independent Gaussians, about Dx Dy / 2N^2.

    There exp(-2 I) is a product of independent beta variables (Wilks), hence
    1/4 sum_{i<Dy} [psi'((n - Dx - i) / 2) - psi'((n - i) / 2)].
    """
    of_y, given_x = _halves(samples, dx, dy)
    return 0.25 * float((polygamma(1, given_x) - polygamma(1, of_y)).sum())


def gaussian_information(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """I(X; Y) of jointly Gaussian rows, in nats, unbiased: information(rho) - sample_bias."""
    a, b = _enough(x, y)
    return unbiased(_finite(canonical_variates(a, b)[2]), len(a), a.shape[1], b.shape[1])


def unbiased(rho: Array, samples: int, dx: int, dy: int) -> float:
    return information(np.minimum(rho, LARGEST)) - sample_bias(samples, dx, dy)


def _scores(x: Rows, y: Rows) -> tuple[Array, Array]:
    return NormalScores.fit(x)(x), NormalScores.fit(y)(y)


def _of_scores(x: Array, y: Array) -> float:
    """The unbiased estimate from the normal scores, unchecked."""
    rho = canonical_variates(*_scores(x, y))[2]
    return unbiased(rho, len(x), x.shape[1], y.shape[1])


def _enough(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Rows, Rows]:
    """The pairs, checked; more of them than the covariance has columns."""
    a, b = pairs(x, y)
    return pairs(a, b, at_least=a.shape[1] + b.shape[1] + 2)


def _finite(rho: Array) -> Array:
    if rho[0] > LARGEST:
        raise InfolmError(
            "a linear combination of the columns of x equals one of the columns of y, so "
            "their mutual information is infinite: drop one of them, or add the noise you mean"
        )
    return rho


@dataclass(frozen=True)
class Gaussian:
    """I(X; Y) as if the data, or with `copula` their normal scores, were jointly Gaussian.

    Without `copula` the value is unbiased for Gaussian data. The variance is that of the local
    information over N (for Gaussian data sum rho_i^2 / N) and what is left of it at independence,
    where the first vanishes. A joint kurtosis (Mardia, 1970) that a Gaussian sample would not have
    gives a warning.

    Ranks blur strong dependence: by -0.04 of 3 nats in one dimension from 2,000 pairs, -0.45 from
    60, more where columns are nearly collinear. Over repeated samples the blur had a spread of
    half its size, which goes into the error, and a surrogate shows it for the interval.
    """

    copula: bool = False
    seed: int = 0

    @property
    def name(self) -> str:
        return "copula" if self.copula else "gaussian"

    def estimate(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Estimate:
        a, b = _enough(x, y)
        (samples, dx), dy = a.shape, b.shape[1]
        columns = dx + dy
        trial, expected = Trial(0, 0), columns * (columns + 2) * (samples - 1) / (samples + 1)
        if self.copula:
            a, b = _scores(a, b)
            trial = tried(_of_scores, a, b, self.seed)
            # Of ranks too the kurtosis is not quite a Gaussian's.
            expected = _kurtosis(*canonical_variates(*_scores(*surrogate(a, b, self.seed)[:2])))
        u, v, rho = canonical_variates(a, b)
        value = unbiased(_finite(rho), samples, dx, dy)
        stderr = math.hypot(information_stderr(u, v, rho), trial.bias / 2)
        return Estimate(
            self.name,
            value,
            stderr,
            interval=trial.interval(value, stderr, samples),
            permuted=gaussian_information(a, shuffled(b, self.seed)),
            samples=samples,
            warning=joined(
                _strange(_kurtosis(u, v, rho), expected, samples),
                trial.warning,
                ceiling(value, samples),
            ),
        )


def _kurtosis(u: Array, v: Array, rho: Array) -> float:
    """Mardia's, mean of (z' S^-1 z)^2; D (D + 2) (N - 1) / (N + 1) for a Gaussian of D columns."""
    return float(np.square(_distances(u, v, np.minimum(rho, LARGEST))).mean())


def _strange(kurtosis: float, expected: float, samples: int) -> str | None:
    """A warning where the kurtosis is over 25% and four standard errors off."""
    off = abs(kurtosis - expected)
    if off <= 0.25 * expected or off <= 4 * math.sqrt(8 * expected / samples):
        return None
    return (
        f"the dependence is not Gaussian (joint kurtosis {kurtosis:.1f}, a Gaussian's would be "
        f"{expected:.1f}): compare ksg"
    )


def _distances(u: Array, v: Array, rho: Array) -> Array:
    """z' S^-1 z of the joint rows z, from their canonical variates: (N,)."""
    k = len(rho)
    paired = u[:, :k] - rho * v[:, :k]  # what v does not tell about u
    return (
        np.square(u[:, k:]).sum(1)
        + np.square(v).sum(1)
        + (np.square(paired) / (1 - np.square(rho))).sum(1)
    )


def information_stderr(u: Array, v: Array, rho: Array) -> float:
    """sqrt(Var[local] / N + null variance).

    The local information is, up to a constant, 1/2 (u'u + v'v - z' S^-1 z): it is also the
    influence function of the estimate, so its variance holds for data that are not Gaussian.
    Chance correlations add Dx Dy / N to that variance, which is taken off.
    """
    (samples, dx), dy = u.shape, v.shape[1]
    local = 0.5 * (np.square(u).sum(1) + np.square(v).sum(1) - _distances(u, v, rho))
    variance = max(float(local.var()) - dx * dy / samples, 0.0)
    return math.sqrt(variance / samples + null_variance(samples, dx, dy))


@dataclass(frozen=True)
class _Latent:
    """Independent standard rows behind a surrogate: x' = u @ to_x, y' = v @ to_y."""

    u: Array  # (N, rank of x)
    v: Array  # (N, rank of y)
    to_x: Array
    to_y: Array
    rho: Array  # correlations of u_i and v_i


def surrogate(x: npt.ArrayLike, y: npt.ArrayLike, seed: int = 0) -> tuple[Array, Array, float]:
    """Gaussian rows that resemble (x, y), and their exact mutual information.

    The rows have the shape of x and y and the covariance of their normal scores (singular ones
    too), save that all canonical correlations are shrunk by one factor so that the
    information is what `gaussian_information` finds in the scores, not what chance has added. An
    estimator can try itself on them: there the truth is known.
    """
    latent = _latent(*pairs(x, y), seed)
    return latent.u @ latent.to_x, latent.v @ latent.to_y, information(latent.rho)


@dataclass(frozen=True)
class Trial:
    """An estimator's result on Gaussian rows that resemble the data, where the truth is known."""

    bias: float
    stderr: float  # of the information the data have by a Gaussian, which the surrogate was given

    def interval(self, value: float, stderr: float, samples: int) -> tuple[float, float]:
        """The interval of the truth: around the value, around the value - bias, and between them.

        The bias is known on Gaussian data only, so that the value is not corrected for it. About
        value - bias there is the error of the value, and that of the bias: of the surrogate's
        sample and of its truth, together not above the size of the bias. Near independence errors
        grow with the square root of I; hence z^2 / 2N more upwards, z the quantile.
        """
        width, corrected = half_width(stderr), value - self.bias
        more = min(half_width(math.hypot(stderr, self.stderr)), abs(self.bias))
        wider = math.hypot(width, more)
        low = min(value - width, corrected - wider)
        high = max(value + width, corrected + wider, 0.0)
        return max(low, 0.0), high + half_width(1.0) ** 2 / (2 * samples)

    @property
    def warning(self) -> str | None:
        """A warning if the bias is over 0.1 nats."""
        if abs(self.bias) <= 0.1:
            return None
        return (
            "on Gaussian data with the same covariance this estimator is off by "
            f"{self.bias:+.2f} nats"
        )


def tried(
    estimator: Callable[[Array, Array], float], x: npt.ArrayLike, y: npt.ArrayLike, seed: int = 0
) -> Trial:
    """The trial of an estimator on a surrogate of (x, y).

    It is compared with the unbiased Gaussian estimate from those very rows instead of the truth:
    both have the same expectation, but the estimate shares the sampling error with an estimator
    that is not far off.
    """
    latent = _latent(*pairs(x, y), seed)
    (samples, dx), dy = latent.u.shape, latent.v.shape[1]
    expected, variance = information(latent.rho), float(np.square(latent.rho).sum()) / samples
    if samples > dx + dy:
        expected = unbiased(canonical_variates(latent.u, latent.v)[2], samples, dx, dy)
        variance += null_variance(samples, dx, dy)
    bias = estimator(latent.u @ latent.to_x, latent.v @ latent.to_y) - expected
    return Trial(bias, math.sqrt(variance))


def _latent(x: Rows, y: Rows, seed: int) -> _Latent:
    (ux, to_x), (uy, to_y) = (whitened(side) for side in _scores(x, y))
    left, rho, right = np.linalg.svd(ux.T @ uy)
    rho = _shrunk(np.minimum(rho, LARGEST), len(x), len(left), len(right))
    generator = np.random.default_rng(seed)
    u = generator.standard_normal((len(x), len(left)))
    v = generator.standard_normal((len(x), len(right)))
    k = len(rho)
    v[:, :k] = rho * u[:, :k] + np.sqrt(1 - np.square(rho)) * v[:, :k]
    return _Latent(u, v, left.T @ to_x, right @ to_y, rho)


def whitened(x: Array) -> tuple[Array, Array]:
    """u (N, R), orthonormal, and W (R, D) with centred x = sqrt(N) u W, R its rank."""
    u, size, axes = np.linalg.svd(x - x.mean(0), full_matrices=False)
    keep = size > 1e-9 * size[0]
    return u[:, keep], size[keep, None] * axes[keep] / math.sqrt(len(x))


def _shrunk(rho: Array, samples: int, dx: int, dy: int) -> Array:
    """c rho with the c in [0, 1] that takes the sample bias off their information."""
    if samples <= dx + dy:
        return rho
    target = information(rho) - sample_bias(samples, dx, dy)
    if target <= 0:
        return np.zeros_like(rho)
    return float(brentq(lambda c: information(c * rho) - target, 0.0, 1.0)) * rho
