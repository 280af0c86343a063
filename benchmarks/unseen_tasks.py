"""A third page of pairs whose mutual information is known, made after the checks were set.

    python benchmarks/unseen_tasks.py --estimators fast --sizes 200,1000,5000

The same command and the same counts as `hard_tasks.py`; every kind of column that a table may hold.
"""

import math
from collections.abc import Callable

import numpy as np
from hard_tasks import (
    LN2,
    Array,
    HardTask,
    Rng,
    Sampler,
    curve,
    dense,
    discrete,
    gaussian,
    mapped,
    normal_density,
    normal_quantiles,
    ratio_mean,
    run,
    same,
    signal_in_noise,
    student,
)

from infolm.information.exact import mutual_information

TASKS: dict[str, HardTask] = {}
GRID = (np.arange(20_000) + 0.5) / 20_000
MANY = 2_000_000
"""Rows of a mean that stands for an integral."""


def add(group: str, name: str, task: tuple[float, Sampler], benign: bool = False) -> None:
    TASKS[name] = HardTask(group, *task, benign)


def coin(p: float) -> float:
    """The entropy of a coin, in nats."""
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


def of_rows(truth: float, f: Callable[[int, Rng], tuple[Array, Array]]) -> tuple[float, Sampler]:
    return truth, f


def none(f: Callable[[int, Rng], Array], g: Callable[[int, Rng], Array]) -> tuple[float, Sampler]:
    """Two sides that share nothing."""
    return 0.0, lambda n, rng: (f(n, rng), g(n, rng))


def noisy(
    signal: Callable[[Array], Array], inputs: Callable[[int, Rng], Array], noise: float
) -> tuple[float, Sampler]:
    """y = signal(x) with normal noise; the distribution of the signal by very many rows."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = inputs(n, rng)
        return x, signal(x) + noise * rng.standard_normal(n)

    values = signal(inputs(MANY, np.random.default_rng(5)))
    return signal_in_noise(np.clip(values, *np.quantile(values, [1e-6, 1 - 1e-6])), noise), sample


def normals(columns: int) -> Callable[[int, Rng], Array]:
    return lambda n, rng: rng.standard_normal((n, columns))


def uniforms(columns: int) -> Callable[[int, Rng], Array]:
    return lambda n, rng: rng.random((n, columns))


# Heavy tails


def cauchy_sum(noise: float) -> tuple[float, Sampler]:
    """h of a Cauchy variable of the scale s is ln 4 pi s, and scales add: I = ln (1 + s) / s."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, z = rng.standard_cauchy((2, n))
        return x, x + noise * z

    return math.log1p(1 / noise), sample


def levy_sum(n: int, rng: Rng) -> tuple[Array, Array]:
    """Lévy variables: the square roots of the scales add, so that I = ln 4."""
    x, z = 1 / np.square(rng.standard_normal((2, n)))
    return x, x + z


def mardia(shape: float) -> tuple[float, Sampler]:
    """Pareto variables of one gamma rate: I = ln (1 + 1/a) - 1/(1 + a)."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = rng.exponential(size=(2, n)) / rng.gamma(shape, size=n)
        return x, y

    return math.log1p(1 / shape) - 1 / (1 + shape), sample


# Shapes


def disc(n: int, rng: Rng) -> tuple[Array, Array]:
    """Uniform in a circle: the columns are semicircles, I = ln pi - 1."""
    radius, angle = np.sqrt(rng.random(n)), 2 * math.pi * rng.random(n)
    return radius * np.cos(angle), radius * np.sin(angle)


def diamond(n: int, rng: Rng) -> tuple[Array, Array]:
    """Uniform where |x| + |y| < 1: I = 1 - ln 2."""
    a, b = rng.uniform(-1, 1, (2, n))
    return (a + b) / 2, (a - b) / 2


def ball(size: int) -> tuple[float, Sampler]:
    """Uniform in a ball of twice so many dimensions, halved."""
    from scipy.special import gammaln

    both = 2 * size

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        z = rng.standard_normal((n, both))
        z *= (rng.random((n, 1)) ** (1 / both)) / np.linalg.norm(z, axis=1, keepdims=True)
        return z[:, :size], z[:, size:]

    def volume(d: float) -> float:
        return d / 2 * math.log(math.pi) - float(gammaln(d / 2 + 1))

    # Half of the coordinates: density V_size (1 - r^2)^(size/2) / V_both.
    rng = np.random.default_rng(6)
    x = sample(MANY, rng)[0]
    inside = np.maximum(1 - np.square(x).sum(1), 1e-300)
    half = -(volume(size) - volume(both) + size / 2 * float(np.log(inside).mean()))
    return 2 * half - volume(both), sample


def rings(noise: float) -> tuple[float, Sampler]:
    """Two circles about one centre, of radius 1 and 2, by a table of fine cells."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        radius = rng.integers(1, 3, n) + noise * rng.standard_normal(n)
        angle = 2 * math.pi * rng.random(n)
        return radius * np.cos(angle), radius * np.sin(angle)

    axis = np.linspace(-3, 3, 1501)
    r = np.hypot(*np.meshgrid(axis, axis))
    density = (normal_density(r, 1, noise) + normal_density(r, 2, noise)) / np.maximum(r, 1e-3)
    return mutual_information(density / density.sum()), sample


def moons(n: int, rng: Rng) -> tuple[Array, Array]:
    """Two arms of a spiral, a class each: ln 2."""
    y, turn = rng.integers(0, 2, n), 4 * math.pi * np.sqrt(rng.random(n))
    radius = turn / (4 * math.pi) + 0.01 * rng.standard_normal(n)
    angle = turn + math.pi * y
    return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)]), y


def corners(apart: float) -> tuple[float, Sampler]:
    """Four clusters; the class is that of the diagonal: neither column tells it alone."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        s = rng.choice([-1.0, 1.0], (n, 2))
        return apart * s + rng.standard_normal((n, 2)), (s.prod(1) > 0).astype(int)

    x = sample(MANY, np.random.default_rng(7))[0]
    q = 0.5 * (1 + np.tanh(apart * x).prod(1))
    entropy = -(q * np.log(np.maximum(q, 1e-300)) + (1 - q) * np.log(np.maximum(1 - q, 1e-300)))
    return LN2 - float(entropy.mean()), sample


def helix(turns: int, noise: float) -> tuple[float, Sampler]:
    """x a place on a helix, y the other two coordinates with noise."""
    from scipy.special import i0e

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.random(n)
        angle = 2 * math.pi * turns * x
        y = np.column_stack([np.cos(angle), np.sin(angle)])
        return x, y + noise * rng.standard_normal((n, 2))

    r = np.linspace(0, 1 + 9 * noise, 200_001)
    p = np.exp(-((r - 1) ** 2) / (2 * noise**2)) * i0e(r / noise**2) / (2 * math.pi * noise**2)
    entropy = -np.trapezoid(2 * math.pi * r * p * np.log(np.maximum(p, 1e-300)), r)
    return float(entropy) - math.log(2 * math.pi * math.e * noise**2), sample


# Parities and remainders


def remainder(dx: int, hidden: int, base: int, wrong: float = 0.0) -> tuple[float, Sampler]:
    """y = the sum of `hidden` of x's digits modulo the base, anything in a share of the rows."""
    kept = 1 - wrong + wrong / base
    rest = wrong / base
    lost = -kept * math.log(kept) - (base - 1) * (rest * math.log(rest) if rest else 0.0)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.integers(0, base, (n, dx))
        any_digit = rng.integers(0, base, n)
        return x, np.where(rng.random(n) < wrong, any_digit, x[:, :hidden].sum(1) % base)

    return math.log(base) - lost, sample


def halves(dx: int, hidden: int) -> tuple[float, Sampler]:
    """x uniform; y the parity of how many of some columns are in their upper half."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.random((n, dx))
        return x, (x[:, :hidden] > 0.5).sum(1) % 2

    return LN2, sample


def both_sides(size: int) -> tuple[float, Sampler]:
    """The product of the signs of x is that of y."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = rng.standard_normal((2, n, size))
        y[:, 0] *= np.sign(x.prod(1) * y.prod(1))
        return x, y

    return LN2, sample


def digit(place: int) -> tuple[float, Sampler]:
    """y the binary digit of x at this place."""
    return LN2, lambda n, rng: ((x := rng.random(n)), (x * 2**place).astype(int) % 2)


def square_wave(periods: int, flip: float) -> tuple[float, Sampler]:
    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.random(n)
        return x, ((2 * periods * x).astype(int) + (rng.random(n) < flip)) % 2

    return LN2 - coin(flip), sample


# Mixed, rounded, counted


def levels(rho: float, cuts: list[float], of_y: bool) -> tuple[float, Sampler]:
    """A Gaussian pair; x, or both, told by levels."""
    from scipy.special import ndtr
    from scipy.stats import multivariate_normal

    edges = np.array([-9.0, *cuts, 9.0])

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = (side[:, 0] for side in gaussian(1, 1, [rho])[1](n, rng))
        return np.digitize(x, cuts), np.digitize(y, cuts) if of_y else y

    if of_y:
        joint = multivariate_normal(cov=[[1, rho], [rho, 1]])
        corners = joint.cdf(np.stack(np.meshgrid(edges, edges, indexing="ij"), -1))
        cells = np.diff(np.diff(corners, axis=0), axis=1).clip(0)
        return mutual_information(cells / cells.sum()), sample
    y = normal_quantiles()
    below = ndtr((edges[:, None] - rho * y) / math.sqrt(1 - rho**2))
    cells = np.diff(below, axis=0).clip(1e-300)
    return mutual_information(cells / cells.sum()), sample


def thinned(mean: float, share: float) -> tuple[float, Sampler]:
    """x a Poisson count, y those of them that are kept."""
    from scipy.stats import binom, poisson

    counts = np.arange(int(mean + 12 * math.sqrt(mean)))
    joint = poisson.pmf(counts, mean)[:, None] * binom.pmf(counts[None], counts[:, None], share)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.poisson(mean, n)
        return x, rng.binomial(x, share)

    return mutual_information(joint / joint.sum()), sample


def counted(shape: float, zeros: float = 0.0) -> tuple[float, Sampler]:
    """x gamma, y a Poisson count of that mean, or 0 in a share of the rows whatever x is."""
    from scipy.stats import gamma, poisson

    x = gamma.ppf(GRID[::20], shape)
    cells = (1 - zeros) * poisson.pmf(np.arange(200)[:, None], x[None])
    cells[0] += zeros

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.gamma(shape, size=n)
        return x, rng.poisson(x) * (rng.random(n) >= zeros)

    return mutual_information(cells / cells.sum()), sample


def gaps(share: float, together: bool) -> tuple[float, Sampler]:
    """A Gaussian pair, rho 0.8; -999 for what is missing, in x alone or in both."""
    whole = -0.5 * math.log(1 - 0.64)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = gaussian(1, 1, [0.8])[1](n, rng)
        gone = rng.random((n, 1)) < share
        return np.where(gone, -999, x), np.where(gone & together, -999, y)

    return (1 - share) * whole + (coin(share) if together else 0.0), sample


def wild(n: int, rng: Rng) -> tuple[Array, Array]:
    """One x in a hundred is an outlier that has nothing to do with y."""
    x, y = gaussian(1, 1, [0.8])[1](n, rng)
    return np.where(rng.random((n, 1)) < 0.01, 1e6 + 1e5 * rng.standard_normal((n, 1)), x), y


def grouped(count: int, groups: int) -> Sampler:
    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.integers(0, count, n)
        return x, (x * 7919 % count) % groups

    return sample


def table_and_normal(n: int, rng: Rng) -> tuple[Array, Array]:
    """A class with a kept copy beside a Gaussian pair: 0.347 + 0.223 nats."""
    c = rng.integers(0, 4, n)
    d = np.where(rng.random(n) < 0.6, c, rng.integers(0, 4, n))
    x, y = gaussian(1, 1, [0.6])[1](n, rng)
    return np.column_stack([c, x]), np.column_stack([d, y])


def table_and_normal_truth() -> float:
    p = (0.6 * np.eye(4) + 0.4 / 4) / 4
    return mutual_information(p) - 0.5 * math.log(1 - 0.36)


# Rows


def again(n: int, rng: Rng) -> tuple[Array, Array]:
    """A bootstrap sample of Gaussian rows."""
    x, y = gaussian(1, 1, [0.5])[1](n, rng)
    chosen = rng.integers(0, n, n)
    return x[chosen], y[chosen]


def filtered(poles: list[float], n: int, rng: Rng) -> Array:
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], poles, rng.standard_normal(n + 500))[500:])


def echoes(n: int, rng: Rng) -> tuple[Array, Array]:
    """x an AR(1) series of variance 1, y = x with white noise: a Gaussian pair of rho 0.707."""
    x = filtered([1.0, -0.9], n, rng) * math.sqrt(1 - 0.81)
    return x, x + rng.standard_normal(n)


def trends(n: int, rng: Rng) -> tuple[Array, Array]:
    t = 3 * np.arange(n) / n
    return t + rng.standard_normal(n), t**2 + rng.standard_normal(n)


def repeated(n: int, rng: Rng) -> tuple[Array, Array]:
    """Persons measured twenty times in a row, with means of their own: nothing is shared."""
    of_person = np.repeat(rng.standard_normal((n // 20 + 1, 2)), 20, 0)[:n]
    x, y = (of_person + 0.5 * rng.standard_normal((n, 2))).T
    return x, y


# Copulas and mixtures


def copula(
    draw: Callable[[int, Rng], tuple[Array, Array]], log_density: Callable[[Array, Array], Array]
) -> tuple[float, Sampler]:
    return ratio_mean(draw, log_density, MANY), draw


def frank(theta: float) -> tuple[float, Sampler]:
    rest = -math.expm1(-theta)

    def draw(n: int, rng: Rng) -> tuple[Array, Array]:
        u, w = rng.random((2, n))
        a = np.exp(-theta * u)
        return u, -np.log1p(-w * rest / (w * (1 - a) + a)) / theta

    def log_density(u: Array, v: Array) -> Array:
        a, b = -np.expm1(-theta * u), -np.expm1(-theta * v)
        return math.log(theta * rest) - theta * (u + v) - 2 * np.log(rest - a * b)

    return copula(draw, log_density)


def morgenstern(n: int, rng: Rng) -> tuple[Array, Array]:
    """The density 1 + (1 - 2u)(1 - 2v): as much as such a weak copula can share."""
    u, w = rng.random((2, n))
    a = 1 - 2 * u
    return u, 2 * w / (1 + a + np.sqrt(np.square(1 + a) - 4 * a * w))


def gumbel(theta: float) -> tuple[float, Sampler]:
    """Large values go together; drawn by a positive stable variable."""

    def draw(n: int, rng: Rng) -> tuple[Array, Array]:
        alpha = 1 / theta
        angle, e = math.pi * rng.random(n), rng.exponential(size=n)
        stable = np.sin(alpha * angle) / np.sin(angle) ** theta
        stable *= (np.sin((1 - alpha) * angle) / e) ** (theta - 1)
        u, v = np.exp(-((rng.exponential(size=(2, n)) / stable) ** alpha))
        return u, v

    def log_density(u: Array, v: Array) -> Array:
        a, b = -np.log(u), -np.log(v)
        s = a**theta + b**theta
        t = s ** (1 / theta)
        return (
            (-t + (theta - 1) * np.log(a * b) + a + b)
            + (2 / theta - 2) * np.log(s)
            + np.log1p((theta - 1) / t)
        )

    return copula(draw, log_density)


def shocks(n: int, rng: Rng) -> tuple[Array, Array]:
    """Lives that a common shock may end at once: x = y in a third of the rows, I is infinite."""
    a, b, c = rng.exponential(size=(3, n))
    return np.minimum(a, c), np.minimum(b, c)


def clouds(count: int, wide: float) -> tuple[float, Sampler]:
    """Clusters whose places in x and in y have nothing in common but that each is one cluster."""
    places = np.random.default_rng(8).permutation(count)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        c = rng.integers(0, count, n)
        x, y = c + wide * rng.standard_normal(n), places[c] + wide * rng.standard_normal(n)
        return x, y

    def log_ratio(x: Array, y: Array) -> Array:
        px = np.stack([normal_density(x, c, wide) for c in range(count)])
        py = np.stack([normal_density(y, places[c], wide) for c in range(count)])
        return np.log((px * py).mean(0) / (px.mean(0) * py.mean(0)))

    return ratio_mean(sample, log_ratio), sample


def circular(turns: int, kappa: float) -> tuple[float, Sampler]:
    """Angles from -pi to pi as they are, cut open."""
    from scipy.special import i0e, i1e

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.uniform(-math.pi, math.pi, n)
        y = turns * x + rng.vonmises(0, kappa, n)
        return x, (y + math.pi) % (2 * math.pi) - math.pi

    return float(kappa * i1e(kappa) / i0e(kappa) - math.log(i0e(kappa)) - kappa), sample


def turned_sign(n: int, rng: Rng) -> tuple[Array, Array]:
    """The class says whether y follows x or -x."""
    c, x = rng.integers(0, 2, n), rng.standard_normal(n)
    return np.column_stack([c, x]), (2 * c - 1) * 0.8 * x + 0.6 * rng.standard_normal(n)


def folded(size: int, noise: float) -> tuple[float, Sampler]:
    """y_i = |x_i| with noise, in all columns."""
    one = signal_in_noise(np.abs(normal_quantiles()), noise)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.standard_normal((n, size))
        return x, np.abs(x) + noise * rng.standard_normal((n, size))

    return size * one, sample


def network(x: Array) -> Array:
    """A fixed random network of 16 hidden units."""
    rng = np.random.default_rng(9)
    first, second = rng.standard_normal((x.shape[1], 16)), rng.standard_normal(16)
    return np.asarray(np.tanh(2 * x @ first + rng.standard_normal(16)) @ second / 2)


def equal_within(size: int, rho: float) -> tuple[float, Sampler]:
    """Columns of a side correlate by 0.7; one common cause ties the sides."""
    from infolm.information.exact import CorrelatedGaussian

    cov = np.full((2 * size, 2 * size), rho)
    cov[:size, :size] = cov[size:, size:] = 0.7
    np.fill_diagonal(cov, 1.0)
    task = CorrelatedGaussian(cov, size)
    return task.mutual_information, task.sample


def scaled(n: int, rng: Rng) -> tuple[Array, Array]:
    x, y = gaussian(3, 3, [0.7, 0.4])[1](n, rng)
    return x * [1e-9, 1.0, 1e9] + [0.0, 1e6, 0.0], y * [1e12, 1e-3, 1.0]


def _fill() -> None:
    whole = gaussian(1, 1, [0.8])[0]
    for task in [
        ("Cauchy and Cauchy noise", cauchy_sum(1.0)),
        ("Cauchy, noise 0.05", cauchy_sum(0.05)),
        ("Lévy and Lévy noise", of_rows(math.log(4), levy_sum)),
        ("Pareto of one rate, shape 0.5", mardia(0.5)),
        ("Pareto of one rate, shape 3", mardia(3.0)),
        ("exp 5x in 3 + 3", mapped(gaussian(3, 3, [0.8, 0.5]), lambda x: np.exp(5 * x), same)),
        ("t(3) 1+1, rho 0.5", student(1, 3, 0.5)),
        ("t(1) 10+10", student(10, 1)),
    ]:
        add("heavy tails", *task)
    for task in [
        ("sin 7x", curve(lambda x: np.sin(7 * x), 0.3)),
        ("sin 30x", curve(lambda x: np.sin(30 * x), 0.3)),
        ("sin 200x", curve(lambda x: np.sin(200 * x), 0.5)),
        ("sine of 3 (u + v)", noisy(lambda x: np.sin(6 * math.pi * x.sum(1)), uniforms(2), 0.2)),
        ("sine of 15 (u + v)", noisy(lambda x: np.sin(30 * math.pi * x.sum(1)), uniforms(2), 0.2)),
        ("chirp", noisy(lambda x: np.sin(40 * math.pi * x[:, 0] ** 2), uniforms(1), 0.2)),
        ("square wave of 10 periods", square_wave(10, 0.1)),
        ("square wave of 60 periods", square_wave(60, 0.1)),
        ("third binary digit", digit(3)),
        ("seventh binary digit", digit(7)),
    ]:
        add("frequency", *task)
    for task in [
        ("disc", of_rows(math.log(math.pi) - 1, disc)),
        ("diamond", of_rows(1 - LN2, diamond)),
        ("ball 3 + 3", ball(3)),
        ("two rings", rings(0.1)),
        ("arms of a spiral", of_rows(LN2, moons)),
        ("clusters in four corners, 3", corners(3.0)),
        ("clusters in four corners, 1", corners(1.0)),
        ("helix of 1 turn", helix(1, 0.2)),
        ("helix of 5 turns", helix(5, 0.2)),
        ("max of 2 columns", noisy(lambda x: x.max(1), normals(2), 0.2)),
        ("distance of 2 columns", noisy(lambda x: abs(x[:, 0] - x[:, 1]), normals(2), 0.2)),
        ("network of 3 columns", noisy(network, normals(3), 0.3)),
        ("network of 8 columns", noisy(network, normals(8), 0.3)),
    ]:
        add("shapes", *task)
    for task in [
        ("sum of 2 digits mod 3", remainder(2, 2, 3)),
        ("sum of 3 of 6 digits mod 3", remainder(6, 3, 3)),
        ("sum of 3 digits mod 5, 2 of 10 any", remainder(3, 3, 5, 0.2)),
        ("parity of 3 of 10 halves", halves(10, 3)),
        ("parity of 2 of 30 halves", halves(30, 2)),
        ("product of signs, 3 + 3", both_sides(3)),
        ("product of signs, 6 + 6", both_sides(6)),
    ]:
        add("parity", *task)
    thirds = [-0.43, 0.43]
    for task in [
        ("5 levels of both, rho 0.6", levels(0.6, [-1.5, -0.5, 0.5, 1.5], True)),
        ("3 levels of x, rho 0.8", levels(0.8, thirds, False)),
        ("5 levels of x, independent", levels(0.0, [-1.5, -0.5, 0.5, 1.5], False)),
        ("y = x rounded", of_rows(_rounded_entropy(), lambda n, r: _with_round(n, r, 0))),
        (
            "y = x to 2 decimals",
            of_rows(1.4189385 + math.log(100), lambda n, r: _with_round(n, r, 2)),
        ),
        ("x thinned by half", thinned(10, 0.5)),
        ("large counts thinned", thinned(100, 0.3)),
        ("gamma and Poisson counts", counted(2.0)),
        ("gamma and counts with zeros", counted(1.0, 0.3)),
        ("-999 in a fifth of x", gaps(0.2, False)),
        ("-999 in a fifth of both", gaps(0.2, True)),
        ("-999 in 1 of 50 of both", gaps(0.02, True)),
        ("outliers in x", of_rows(0.99 * whole, wild)),
        ("a class and a Gaussian pair", of_rows(table_and_normal_truth(), table_and_normal)),
        ("a class turns the sign", of_rows(whole, turned_sign)),
        ("y = 1 where x > 2", of_rows(coin(0.0227501), lambda n, r: _rare(n, r))),
    ]:
        add("mixed", *task)
    for task in [
        ("200 levels in 5 groups", of_rows(math.log(5), grouped(200, 5))),
        ("30 x 30, half kept", discrete(_shuffled_table(30, 0.5))),
        ("8 x 8 levels and 8", discrete(_wide_table())),
        (
            "1,000 levels and a bit",
            none(lambda n, r: r.integers(0, 1000, n), lambda n, r: r.integers(0, 2, n)),
        ),
        ("300 levels and a normal", none(lambda n, r: r.integers(0, 300, n), normals(1))),
        ("names and a bit", none(lambda n, r: r.permutation(n), lambda n, r: r.integers(0, 2, n))),
    ]:
        add("classes", *task)
    for task in [
        ("y = x^3, noise 0.001", curve(lambda x: x**3, 0.001)),
        ("turned by 45 degrees, noise 0.01", of_rows(math.log1p(1e4), _turned)),
        ("y's first column is x's, 5 + 5", of_rows(math.inf, _same_first)),
        ("common shocks", of_rows(math.inf, shocks)),
        (
            "y = a linear map of x, 3 + 1",
            of_rows(
                math.inf, lambda n, r: ((x := r.standard_normal((n, 3))), x @ [1.0, 2.0, -1.0])
            ),
        ),
        (
            "y = sin x1 x2, exactly",
            of_rows(math.inf, lambda n, r: ((x := r.standard_normal((n, 2))), np.sin(x.prod(1)))),
        ),
    ]:
        add("nearly deterministic", *task)
    for task in [
        ("a bootstrap sample", of_rows(gaussian(1, 1, [0.5])[0], again)),
        ("AR(2) that swings, independent", none(_swing, _swing)),
        ("a series and its noisy copy", of_rows(0.5 * LN2, echoes)),
        ("trends", of_rows(0.0, trends)),
        ("repeated measures, independent", of_rows(0.0, repeated)),
        (
            "random walk and a bit",
            none(lambda n, r: r.standard_normal(n).cumsum(), lambda n, r: r.integers(0, 2, n)),
        ),
    ]:
        add("rows", *task)
    for task in [
        ("Gaussian 20+20, 2 nats", dense(20, 2.0)),
        ("Gaussian 30+30, no information", gaussian(30, 30, [])),
        ("squares in 50 + 1 columns", noisy(lambda x: np.square(x[:, 0]), normals(50), 0.5)),
        ("product of 2 of 40", noisy(lambda x: x[:, 0] * x[:, 1], normals(40), 0.3)),
        ("folded 15 + 15", folded(15, 0.5)),
        ("t(3) 20+20", student(20, 3)),
    ]:
        add("dimension", *task)
    for task in [
        ("Frank copula", frank(8.0)),
        (
            "Morgenstern copula",
            copula(morgenstern, lambda u, v: np.log1p((1 - 2 * u) * (1 - 2 * v))),
        ),
        ("Gumbel copula", gumbel(2.0)),
        ("5 clusters", clouds(5, 0.1)),
        ("8 clusters, wide", clouds(8, 0.4)),
        ("25 clusters", clouds(25, 0.1)),
        ("angles", circular(1, 2.0)),
        ("angles, twice", circular(2, 5.0)),
        ("angles, 6 times", circular(6, 5.0)),
    ]:
        add("copulas", *task)
    for task in [
        ("Gaussian, rho -0.5", gaussian(1, 1, [-0.5])),
        ("Gaussian 2 + 1, rho 0.7", gaussian(2, 1, [0.7])),
        ("Gaussian 5 + 5, 0.2 nats", dense(5, 0.2)),
        ("columns alike, 3 + 3", equal_within(3, 0.4)),
        (
            "scales from 1e-9 to 1e12",
            of_rows(sum(gaussian(1, 1, [r])[0] for r in (0.7, 0.4)), scaled),
        ),
        ("sum of 10 columns", noisy(lambda x: x.sum(1), normals(10), 3.0)),
        ("exponentials of a Gaussian", mapped(gaussian(1, 1, [0.6]), np.exp, np.exp)),
        ("cubes of a Gaussian", mapped(gaussian(1, 1, [0.6]), lambda x: x**3, lambda x: x**3)),
        (
            "t(2) columns, independent",
            none(lambda n, r: r.standard_t(2, (n, 3)), lambda n, r: r.standard_t(2, n)),
        ),
        ("Gaussian 7 + 7, no information", gaussian(7, 7, [])),
        ("class of 2, normals 1 apart", _two_classes()),
        ("table 2 x 3", discrete(np.array([[0.3, 0.1, 0.1], [0.05, 0.15, 0.3]]))),
    ]:
        add("benign", *task, benign=True)


def _rounded_entropy() -> float:
    from scipy.special import ndtr

    p = np.diff(ndtr(np.arange(-9, 10) - 0.5))
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def _with_round(n: int, rng: Rng, decimals: int) -> tuple[Array, Array]:
    x = rng.standard_normal(n)
    return x, np.round(x, decimals)


def _rare(n: int, rng: Rng) -> tuple[Array, Array]:
    x = rng.standard_normal(n)
    x[:2] = [2.5, 0.0]
    return x, (x > 2).astype(int)


def _shuffled_table(size: int, kept: float) -> Array:
    p = (kept * np.eye(size) + (1 - kept) / size) / size
    return p[np.random.default_rng(10).permutation(size)]


def _wide_table() -> Array:
    return np.random.default_rng(11).dirichlet(np.full(8, 0.5), 64) / 64


def _turned(n: int, rng: Rng) -> tuple[Array, Array]:
    x = rng.standard_normal((n, 2))
    turn = np.array([[1.0, 1.0], [1.0, -1.0]]) / math.sqrt(2)
    return x, x @ turn + 0.01 * rng.standard_normal((n, 2))


def _same_first(n: int, rng: Rng) -> tuple[Array, Array]:
    x, y = rng.standard_normal((2, n, 5))
    y[:, 0] = x[:, 0]
    return x, y


def _swing(n: int, rng: Rng) -> Array:
    return filtered([1.0, -1.6, 0.9], n, rng)


def _two_classes() -> tuple[float, Sampler]:
    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        c = rng.integers(0, 2, n)
        return c, c + rng.standard_normal(n)

    return signal_in_noise(np.repeat([0.0, 1.0], 1000), 1.0), sample


_fill()

if __name__ == "__main__":
    run(TASKS)
