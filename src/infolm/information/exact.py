"""Exact values for testing estimators: discrete information, and tasks with a known answer.

A task is a sampler that carries its true mutual information, in nats:

    task = CorrelatedGaussian.with_information(dimension=5, nats=1.0)
    x, y = task.sample(10_000, np.random.default_rng(0))     # rows are pairs
    task.mutual_information                                   # 1.0

The tasks and transformations are those of Czyz et al., "Beyond normal: on the evaluation of mutual
information estimators" (NeurIPS 2023).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from infolm.errors import InfolmError

Array = npt.NDArray[np.float64]
Map = Callable[[Array], Array]
"""An injective function of the rows (N, D), to (N, D')."""

SUM_TOLERANCE = 1e-9


class Task(Protocol):
    """Pairs (x, y) whose mutual information in nats is known."""

    @property
    def name(self) -> str: ...

    @property
    def mutual_information(self) -> float: ...

    def sample(self, n: int, rng: np.random.Generator) -> tuple[npt.NDArray[Any], ...]:
        """x (N, D_x) or (N,) and y (N, D_y) or (N,): row i of both is one pair."""


# Discrete tables


def probabilities(p: npt.ArrayLike, name: str, axis: int | None = None) -> Array:
    """p as an array, checked: not negative, and of sum one, in all or along `axis`."""
    array = np.array(p, np.float64)
    if not array.size or not np.isfinite(array).all() or (array < 0).any():
        raise InfolmError(f"{name} must hold probabilities: finite numbers, none below zero")
    sums = array.sum(axis, keepdims=True)
    wrong = np.argwhere(np.abs(sums - 1) > SUM_TOLERANCE)
    if len(wrong):
        where = f"row {wrong[0][0]} of {name}" if axis is not None else name
        raise InfolmError(f"{where} sums to {sums[tuple(wrong[0])]:.9g}: it must sum to 1")
    return array / sums


def entropy(p: npt.ArrayLike, axis: int | tuple[int, ...] | None = None) -> Any:
    """H = -sum p ln p over all of p, or over `axis`; 0 ln 0 = 0."""
    p = np.asarray(p, np.float64)
    return -(p * np.log(p, where=p > 0, out=np.zeros_like(p))).sum(axis)


def mutual_information(p: npt.ArrayLike) -> float:
    """I(X; Y) = H(X) + H(Y) - H(X, Y) of the joint table p (X, Y)."""
    p = np.asarray(p, np.float64)
    return float(entropy(p.sum(1)) + entropy(p.sum(0)) - entropy(p))


def conditional_entropy(p: npt.ArrayLike) -> float:
    """H(Y | X) = H(X, Y) - H(X) of the joint table p (X, Y)."""
    p = np.asarray(p, np.float64)
    return float(entropy(p) - entropy(p.sum(1)))


def conditional_mutual_information(p: npt.ArrayLike) -> float:
    """I(X; Y | Z) = H(X, Z) + H(Y, Z) - H(Z) - H(X, Y, Z) of the joint table p (X, Y, Z)."""
    p = np.asarray(p, np.float64)
    return float(entropy(p.sum(1)) + entropy(p.sum(0)) - entropy(p.sum((0, 1))) - entropy(p))


def total_correlation(p: npt.ArrayLike) -> float:
    """sum of H(X_i) minus H(X_1, ..., X_k), of a joint table with k axes; I(X; Y) for two."""
    p = np.asarray(p, np.float64)
    axes = range(p.ndim)
    margins = [p.sum(tuple(axis for axis in axes if axis != kept)) for kept in axes]
    return float(sum(map(entropy, margins)) - entropy(p))


def kullback_leibler(p: npt.ArrayLike, q: npt.ArrayLike) -> float:
    """KL(p || q) = sum p ln p / q; infinite if q is 0 where p is not."""
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    here = p > 0
    if (q[here] == 0).any():
        return math.inf
    return float((p[here] * np.log(p[here] / q[here])).sum())


@dataclass(frozen=True, eq=False)
class Table:
    """Two discrete variables with the joint probabilities p (X, Y); samples are row and column."""

    p: Array
    name: str = "discrete table"

    def __post_init__(self) -> None:
        if np.ndim(self.p) != 2:
            raise InfolmError(f"a joint table of two variables has two axes, not {np.ndim(self.p)}")
        object.__setattr__(self, "p", probabilities(self.p, "the joint table"))

    @cached_property
    def mutual_information(self) -> float:
        return mutual_information(self.p)

    def sample(
        self, n: int, rng: np.random.Generator
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        x, y = np.unravel_index(rng.choice(self.p.size, n, p=self.p.ravel()), self.p.shape)
        return x, y


# Gaussians and related distributions


def gaussian_entropy(covariance: npt.ArrayLike) -> float:
    """1/2 ln det(2 pi e S) of a covariance S (D, D)."""
    covariance = np.atleast_2d(np.asarray(covariance, np.float64))
    return 0.5 * (len(covariance) * math.log(2 * math.pi * math.e) + _log_det(covariance))


def gaussian_information(
    covariance: npt.ArrayLike, x: Sequence[int], y: Sequence[int], given: Sequence[int] = ()
) -> float:
    """I(X; Y | Z) of a Gaussian; x, y and `given` name the columns of each.

    I(X; Y | Z) = 1/2 ln (det S_xz det S_yz / det S_z det S_xyz); without Z, det S_z = 1.
    """
    covariance = np.asarray(covariance, np.float64)

    def log_det(*groups: Sequence[int]) -> float:
        columns = [column for group in groups for column in group]
        return _log_det(covariance[np.ix_(columns, columns)])

    return 0.5 * (log_det(x, given) + log_det(y, given) - log_det(given) - log_det(x, y, given))


def _log_det(covariance: Array) -> float:
    """ln det by Cholesky, which a covariance alone admits; 0 for no columns at all."""
    return 2 * float(np.log(np.diag(_root(covariance))).sum())


def _root(covariance: Array) -> Array:
    try:
        return np.linalg.cholesky(covariance).astype(np.float64)
    except np.linalg.LinAlgError:
        raise InfolmError(
            "the covariance is not positive definite: keep every correlation below 1, and give "
            "a symmetric matrix"
        ) from None


@dataclass(frozen=True, eq=False)
class CorrelatedGaussian:
    """A Gaussian of mean zero; X is its first `width` columns and Y the others."""

    covariance: Array
    width: int
    name: str = "Gaussian"

    def __post_init__(self) -> None:
        covariance = np.array(self.covariance, np.float64)
        if covariance.shape != covariance.T.shape or not np.allclose(covariance, covariance.T):
            raise InfolmError("the covariance must be a symmetric matrix")
        if not 0 < self.width < len(covariance):
            raise InfolmError(
                f"X cannot have {self.width} of {len(covariance)} columns: leave some to each"
            )
        object.__setattr__(self, "covariance", covariance)
        _root(covariance)

    @classmethod
    def from_correlations(cls, correlations: npt.ArrayLike, name: str = "Gaussian") -> Self:
        """Unit variances; X_i and Y_i correlate by correlations[i], all else is independent."""
        r = np.diag(np.asarray(correlations, np.float64))
        one = np.eye(len(r))
        return cls(np.block([[one, r], [r, one]]), len(r), name)

    @classmethod
    def with_information(cls, dimension: int, nats: float, sparse: bool = False) -> Self:
        """`dimension` columns each, and I = -1/2 sum ln(1 - r_i^2) = `nats`.

        Dense: every pair (X_i, Y_i) has the same correlation. Sparse: the first pair alone has all
        the information.
        """
        if dimension < 1 or not 0 <= nats < math.inf:
            raise InfolmError("a Gaussian needs a dimension of 1 at least, and finite nats")
        pairs = 1 if sparse else dimension
        correlations = np.zeros(dimension)
        correlations[:pairs] = math.sqrt(-math.expm1(-2 * nats / pairs))
        kind = "sparse" if sparse else "dense"
        name = f"Gaussian, {dimension} x {dimension}, {kind}, {nats:g} nats"
        return cls.from_correlations(correlations, name)

    @cached_property
    def mutual_information(self) -> float:
        columns = range(len(self.covariance))
        return gaussian_information(self.covariance, columns[: self.width], columns[self.width :])

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        rows = rng.standard_normal((n, len(self.covariance))) @ _root(self.covariance).T
        return rows[:, : self.width], rows[:, self.width :]


@dataclass(frozen=True, eq=False)
class StudentT:
    """The multivariate t distribution: a Gaussian's rows, each divided by sqrt(chi^2_v / v).

    With f(u) = ln Gamma(u/2) - u/2 psi(u/2), and m and n columns,

        I = I(Gaussian) + f(v) + f(v + m + n) - f(v + m) - f(v + n)

    (Arellano-Valle, Contreras-Reyes and Genton, 2013). X and Y depend on each other through the
    common divisor even where they do not correlate. v -> infinity is the Gaussian.
    """

    gaussian: CorrelatedGaussian
    degrees: float

    def __post_init__(self) -> None:
        if not self.degrees > 0:
            raise InfolmError(f"{self.degrees} degrees of freedom are not possible: give some > 0")

    @property
    def name(self) -> str:
        return f"Student t with {self.degrees:g} degrees of freedom, {self.gaussian.name}"

    @cached_property
    def mutual_information(self) -> float:
        from scipy.special import gammaln, psi

        def f(u: float) -> float:
            return float(gammaln(u / 2) - u / 2 * psi(u / 2))

        m, v = self.gaussian.width, self.degrees
        n = len(self.gaussian.covariance) - m
        return self.gaussian.mutual_information + f(v) + f(v + m + n) - f(v + m) - f(v + n)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x, y = self.gaussian.sample(n, rng)
        divisor = np.sqrt(rng.chisquare(self.degrees, (n, 1)) / self.degrees)
        return x / divisor, y / divisor


# Uniforms


@dataclass(frozen=True)
class UniformSquare:
    """X and Y independent and uniform on [0, side]: no information, and H(X, Y) = ln side^2."""

    side: float = 1.0
    name: str = "uniform on a square"
    mutual_information: float = 0.0

    @property
    def entropy(self) -> float:
        return 2 * math.log(self.side)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        return self.side * rng.random((n, 1)), self.side * rng.random((n, 1))


@dataclass(frozen=True)
class UniformNoise:
    """X uniform on [0, 1], Y = X + N with N uniform on [-noise, noise]: a band in the square.

    H(Y) - H(N) = noise - ln(2 noise) for noise <= 1/2, and 1 / (4 noise) above.
    """

    noise: float

    def __post_init__(self) -> None:
        if not self.noise > 0:
            raise InfolmError(f"noise of {self.noise} would leave infinite information: give > 0")

    @property
    def name(self) -> str:
        return f"uniform with uniform noise of {self.noise:g}"

    @property
    def mutual_information(self) -> float:
        if self.noise <= 0.5:
            return self.noise - math.log(2 * self.noise)
        return 1 / (4 * self.noise)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.random((n, 1))
        return x, x + rng.uniform(-self.noise, self.noise, (n, 1))


# Transformations that preserve information


def identity(x: Array) -> Array:
    return x


def half_cube(x: Array) -> Array:
    """x sqrt|x|: heavier tails."""
    return x * np.sqrt(np.abs(x))


def asinh(x: Array) -> Array:
    """ln(x + sqrt(x^2 + 1)): lighter tails."""
    return np.arcsinh(x)


def normal_cdf(x: Array) -> Array:
    """Makes the margins of a standard Gaussian uniform on [0, 1]."""
    from scipy.special import ndtr

    return ndtr(x)


def spiral(x: Array, speed: float = 1 / 80) -> Array:
    """Turns the first two of D >= 2 columns by the angle speed |x|^2.

    The norm of a row, and so the angle, can be read off the result: it can be turned back.
    """
    angle = speed * (x**2).sum(1)
    cos, sin = np.cos(angle), np.sin(angle)
    turned = x.copy()
    turned[:, 0] = cos * x[:, 0] - sin * x[:, 1]
    turned[:, 1] = sin * x[:, 0] + cos * x[:, 1]
    return turned


def swiss_roll(x: Array) -> Array:
    """Rolls up [0, 1] in the plane: (N, 1) -> (N, 2), t (cos t, sin t) / 21, t = 1.5 pi (1 + 2 x).

    The distance from the middle is t / 21, so x can be read off. 21 brings it near unit size.
    """
    t = 1.5 * math.pi * (1 + 2 * x)
    return np.concatenate([t * np.cos(t), t * np.sin(t)], 1) / 21


@dataclass(frozen=True, eq=False)
class Transformed:
    """f(X) and g(Y) for injective f and g: I(f(X); g(Y)) = I(X; Y)."""

    base: Task
    f: Map = identity
    g: Map = identity

    @property
    def name(self) -> str:
        maps = [getattr(m, "__name__", "map").replace("_", "-") for m in (self.f, self.g)]
        return f"{self.base.name}, x by {maps[0]}, y by {maps[1]}"

    @property
    def mutual_information(self) -> float:
        return self.base.mutual_information

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x, y = self.base.sample(n, rng)
        return self.f(x), self.g(y)
