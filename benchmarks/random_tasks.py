"""Pairs made at random whose mutual information is known: as many unseen tasks as one wants.

    python benchmarks/random_tasks.py --page 1 --count 200 --estimators fast --sizes 200,1000,5000

A page is a seed. Each of its tasks has a core, drawn with all its settings (a Gaussian, a mixture,
a channel from x to y, a table, a Boolean function, rows in time, nothing shared, ...), and is
dressed in maps that keep the information: other margins, columns turned, cut up and put together
again, columns of noise. So a page that nobody has looked at is a test of the checks as they stand.
The same counts as `hard_tasks.py`.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from hard_tasks import Array, HardTask, Rng, Sampler, ratio_mean, run, signal_in_noise
from scipy.signal import lfilter
from scipy.special import expit, gammaln, logsumexp, ndtr, ndtri, softmax, xlogy

from infolm.information.exact import CorrelatedGaussian, StudentT, mutual_information, spiral

GRID = (np.arange(4000) + 0.5) / 4000
"""Quantiles of a channel's input: a mean over them is an integral."""
ROWS, POINTS = 200_000, 8_000
"""Of a mean that stands for an integral over a channel's output, and where its density is computed;
between the points it is interpolated."""
MANY = 1_000_000


@dataclass(frozen=True)
class Core:
    """A pair whose information is known.

    continuous: of x and of y, whether all columns are; other columns are classes or counts. benign:
    a good estimator should need no warning.
    """

    name: str
    truth: float
    sample: Sampler
    continuous: tuple[bool, bool] = (True, True)
    benign: bool = False


def columns(a: Array) -> Array:
    return np.asarray(a, float).reshape(len(a), -1)


# Cores


def covariance(rng: Rng, size: int, causes: int, noise: float) -> Array:
    loads = rng.standard_normal((size, causes))
    return np.asarray(loads @ loads.T + noise * np.eye(size))


def gaussian(rng: Rng) -> Core:
    dx, dy = rng.integers(1, 6, 2)
    task = CorrelatedGaussian(
        covariance(rng, dx + dy, int(rng.integers(1, 4)), rng.uniform(0.5, 6)), int(dx)
    )
    name = f"Gaussian {dx} + {dy}"
    return Core(name, task.mutual_information, task.sample, benign=bool(dx + dy <= 6))


def student(rng: Rng) -> Core:
    dx, dy = rng.integers(1, 4, 2)
    within = CorrelatedGaussian(covariance(rng, dx + dy, 1, rng.uniform(1, 8)), int(dx))
    task = StudentT(within, float(rng.uniform(1, 6)))
    return Core(f"t({task.degrees:.1f}) {dx} + {dy}", task.mutual_information, task.sample)


def mixture(rng: Rng) -> Core:
    """Some Gaussian clouds in both sides together."""
    dx, dy = rng.integers(1, 4, 2)
    count, size = int(rng.integers(2, 7)), int(dx + dy)
    weights = rng.dirichlet(np.full(count, 3.0))
    means = rng.uniform(0.5, 4) * rng.standard_normal((count, size))
    covs = np.stack([covariance(rng, size, 2, 0.3) / 2 for _ in range(count)])
    roots = np.linalg.cholesky(covs)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        c = rng.choice(count, n, p=weights)
        z = means[c] + np.einsum("nij,nj->ni", roots[c], rng.standard_normal((n, size)))
        return z[:, :dx], z[:, dx:]

    def log_density(z: Array, part: slice) -> Array:
        each = []
        for weight, mean, cov in zip(weights, means, covs, strict=True):
            root = np.linalg.cholesky(cov[part, part])
            white = np.linalg.solve(root, (z - mean[part]).T)
            norm = np.log(np.diag(root)).sum() + 0.5 * len(root) * math.log(2 * math.pi)
            each.append(math.log(weight) - 0.5 * np.square(white).sum(0) - norm)
        return np.asarray(logsumexp(each, axis=0))

    def log_ratio(x: Array, y: Array) -> Array:
        both = log_density(np.concatenate([x, y], axis=1), slice(None))
        return both - log_density(x, slice(0, dx)) - log_density(y, slice(dx, None))

    return Core(f"{count} clouds {dx} + {dy}", ratio_mean(sample, log_ratio), sample)


Inputs = dict[str, Callable[[Array], Array]]
INPUTS: Inputs = {  # quantiles
    "uniform": lambda u: 2 * u - 1,
    "normal": ndtri,
    "exponential": lambda u: -np.log1p(-u),
    "lognormal": lambda u: np.exp(ndtri(u)),
    "two-humped": lambda u: np.where(u < 0.4, ndtri(u / 0.4), 5 + 0.5 * ndtri((u - 0.4) / 0.6)),
    "arcsine": lambda u: np.sin(math.pi * (u - 0.5)),
    "t(2)": lambda u: (2 * u - 1) / np.sqrt(2 * u * (1 - u)),
}


def function(rng: Rng) -> tuple[str, Callable[[Array], Array]]:
    """Of the quantile u of x, from about -2 to 2."""
    kind = rng.choice(["line", "polynomial", "waves", "steps", "bend", "teeth"])
    if kind == "line":
        return "a line", lambda u: 3 * u - 1.5
    if kind == "polynomial":
        a = rng.standard_normal(4) * [1.5, 2, 3, 4]
        return "a polynomial", lambda u: np.polynomial.legendre.legval(2 * u - 1, a) / 2
    if kind == "waves":
        count = int(2 ** rng.integers(0, 5))
        a, phase = rng.standard_normal(count), 2 * math.pi * rng.random(count)
        a /= np.linalg.norm(a)
        waves = math.pi * np.arange(1, count + 1)
        return (
            f"waves up to {count / 2:g}",
            lambda u: 1.4 * (np.cos(np.multiply.outer(u, waves) + phase) @ a),
        )
    if kind == "steps":
        count = int(rng.integers(2, 12))
        heights = rng.standard_normal(count)
        return f"{count} steps", lambda u: heights[np.minimum((u * count).astype(int), count - 1)]
    if kind == "teeth":
        teeth = int(rng.integers(2, 15))
        return f"{teeth} teeth", lambda u: 3 * ((teeth * u) % 1) - 1.5
    at = rng.uniform(0.2, 0.8)
    return "a bend", lambda u: 4 * np.abs(u - at) - 1


@dataclass(frozen=True)
class Noise:
    """Of a channel: y given the signal s. log_likelihood broadcasts y against s."""

    name: str
    draw: Callable[[Array, Rng], Array]
    log_likelihood: Callable[[Array, Array], Array]
    continuous: bool = True


NOISES = (
    *("normal", "Laplace", "uniform", "t(3)", "uneven", "sign", "gamma"),
    *("counts", "coin", "classes", "binomial", "zeros"),
)


def noise(rng: Rng) -> Noise:
    kind = rng.choice(NOISES)
    w = float(np.exp(rng.uniform(math.log(0.1), math.log(1.5))))
    half_log = 0.5 * math.log(2 * math.pi)

    def normal(y: Array, mean: Array, wide: float | Array) -> Array:
        return -0.5 * np.square((y - mean) / wide) - np.log(wide) - half_log

    if kind == "normal":
        return Noise(
            f"normal {w:.2f}",
            lambda s, r: s + w * r.standard_normal(len(s)),
            lambda y, s: normal(y, s, w),
        )
    if kind == "Laplace":
        return Noise(
            f"Laplace {w:.2f}",
            lambda s, r: s + r.laplace(0, w, len(s)),
            lambda y, s: -np.abs(y - s) / w - math.log(2 * w),
        )
    if kind == "uniform":
        return Noise(
            f"uniform {w:.2f}",
            lambda s, r: s + w * r.random(len(s)),
            lambda y, s: np.where((y >= s) & (y < s + w), -math.log(w), -np.inf),
        )
    if kind == "t(3)":
        return Noise(
            f"t(3) {w:.2f}",
            lambda s, r: s + w * r.standard_t(3, len(s)),
            lambda y, s: (
                math.log(2 / (math.pi * math.sqrt(3) * w))
                - 2 * np.log1p(np.square((y - s) / w) / 3)
            ),
        )
    if kind == "uneven":  # the width changes with the signal
        return Noise(
            f"uneven {w:.2f}",
            lambda s, r: s + w * np.exp(s / 2) * r.standard_normal(len(s)),
            lambda y, s: normal(y, s, w * np.exp(s / 2)),
        )
    if kind == "sign":  # y is s or -s
        return Noise(
            f"either sign, {w:.2f}",
            lambda s, r: s * r.choice([-1, 1], len(s)) + w * r.standard_normal(len(s)),
            lambda y, s: np.logaddexp(normal(y, s, w), normal(y, -s, w)) - math.log(2),
        )
    if kind == "gamma":
        shape = float(rng.uniform(0.5, 8))
        return Noise(
            f"gamma of shape {shape:.1f}",
            lambda s, r: r.gamma(shape, np.exp(s), len(s)),
            lambda y, s: (
                ((shape - 1) * np.log(np.maximum(y, 1e-300)) - y * np.exp(-s) - shape * s)
                - float(gammaln(shape))
            ),
        )
    if kind == "zeros":  # counts with more zeros than they should have
        more = rng.uniform(0.1, 0.6)

        def inflated(y: Array, s: Array) -> Array:
            mean = np.exp(s + 1)
            plain = xlogy(y, mean) - mean - gammaln(y + 1)
            return np.logaddexp(
                math.log(1 - more) + plain, np.where(y == 0, math.log(more), -np.inf)
            )

        return Noise(
            f"counts with {more:.0%} zeros",
            lambda s, r: r.poisson(np.exp(s + 1)) * (r.random(len(s)) >= more),
            inflated,
            False,
        )
    if kind == "counts":
        scale = float(np.exp(rng.uniform(-1, 3)))
        return Noise(
            f"counts about {scale:.1f}",
            lambda s, r: r.poisson(scale * np.exp(s / 2)),
            lambda y, s: xlogy(y, scale * np.exp(s / 2)) - scale * np.exp(s / 2) - gammaln(y + 1),
            False,
        )
    if kind == "coin":
        steep = float(rng.uniform(0.5, 5))
        return Noise(
            f"a coin, {steep:.1f}",
            lambda s, r: (r.random(len(s)) < expit(steep * s)).astype(int),
            lambda y, s: -np.log1p(np.exp(-steep * s * (2 * y - 1))),
            False,
        )
    if kind == "binomial":
        count = int(rng.integers(3, 30))
        return Noise(
            f"successes of {count}",
            lambda s, r: r.binomial(count, expit(s)),
            lambda y, s: (
                (gammaln(count + 1) - gammaln(y + 1) - gammaln(count - y + 1) + y * s)
                - count * np.logaddexp(0, s)
            ),
            False,
        )
    kinds = int(rng.integers(3, 9))
    slope, start = 2 * rng.standard_normal((2, kinds))

    def drawn(s: Array, r: Rng) -> Array:
        p = softmax(np.multiply.outer(s, slope) + start, axis=-1)
        return np.minimum((p.cumsum(1) < r.random((len(s), 1))).sum(1), kinds - 1)

    def log_likelihood(y: Array, s: Array) -> Array:
        logits = np.multiply.outer(s, slope) + start
        norm = logsumexp(logits, axis=-1)
        return slope[y.astype(int)] * s + start[y.astype(int)] - norm

    return Noise(f"one of {kinds} classes", drawn, log_likelihood, False)


def channel(rng: Rng) -> Core:
    """y given f(x), both of one column."""
    of_input = str(rng.choice(list(INPUTS)))
    what, f = function(rng)
    through = noise(rng)
    quantile = INPUTS[of_input]
    signals = f(GRID)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        u = rng.uniform(1e-9, 1 - 1e-9, n)
        return quantile(u), through.draw(f(u), rng)

    rng = np.random.default_rng(1)
    s = f((np.arange(ROWS) + rng.random(ROWS)) / ROWS)
    y = np.asarray(through.draw(s, rng), float)
    each = through.log_likelihood(y, s)
    points = np.unique(y)
    if len(points) > POINTS:
        points = np.sort(y)[np.linspace(0, ROWS - 1, POINTS).astype(int)]
    of_points = [
        logsumexp(through.log_likelihood(some[:, None], signals[None]), axis=1)
        for some in np.array_split(points, max(len(points) // 500, 1))
    ]
    log_density = np.concatenate(of_points) - math.log(len(GRID))
    truth = float(np.mean(each - np.interp(y, points, log_density)))
    name = f"{of_input}, {what}, {through.name}"
    return Core(name, max(truth, 0.0), sample, (True, through.continuous))


def seldom(rng: Rng) -> Core:
    """A Gaussian pair in a share of the rows, nothing shared in the others."""
    share, rho = rng.uniform(0.1, 0.7), rng.uniform(0.6, 0.98)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, z = rng.standard_normal((2, n))
        with_x = np.where(rng.random(n) < share, rho, 0.0)
        return x, with_x * x + np.sqrt(1 - with_x**2) * z

    def log_ratio(x: Array, y: Array) -> Array:
        free = 1 - rho**2
        together = -0.5 * (np.square(y - rho * x) / free - np.square(y)) - 0.5 * math.log(free)
        return np.log(share * np.exp(together) + 1 - share)

    name = f"correlation {rho:.2f} in {share:.0%} of the rows"
    return Core(name, ratio_mean(sample, log_ratio), sample)


def many_inputs(rng: Rng) -> Core:
    """y a function of several columns, with normal noise."""
    dx, w = int(rng.integers(2, 7)), float(rng.uniform(0.1, 0.8))
    kind = str(rng.choice(["network", "product", "largest", "norm", "waves", "tree"]))
    first, second = rng.standard_normal((dx, 12)), rng.standard_normal(12) / 3
    shift, leaves = rng.standard_normal(12), rng.standard_normal(8)

    def signal(x: Array) -> Array:
        if kind == "network":
            return np.asarray(np.tanh(1.5 * x @ first + shift) @ second)
        if kind == "product":
            return np.asarray(x[:, 0] * x[:, 1])
        if kind == "largest":
            return np.asarray(x.max(1))
        if kind == "norm":
            return np.asarray(np.linalg.norm(x, axis=1))
        if kind == "waves":
            return np.asarray(np.sin(2 * x @ first[:, 0] + shift[0]))
        bits = x @ first[:, :3] > shift[:3]
        return np.asarray(leaves[bits @ [1, 2, 4]])

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.standard_normal((n, dx))
        return x, signal(x) + w * rng.standard_normal(n)

    values = signal(np.random.default_rng(2).standard_normal((MANY, dx)))
    truth = signal_in_noise(np.clip(values, *np.quantile(values, [1e-6, 1 - 1e-6])), w)
    return Core(f"{kind} of {dx} columns, noise {w:.2f}", truth, sample)


def table(rng: Rng) -> Core:
    a, b = rng.integers(2, 13, 2)
    p = rng.dirichlet(np.full(b, float(np.exp(rng.uniform(-1.5, 2.5)))), a)
    p *= rng.dirichlet(np.full(a, 2.0))[:, None]
    codes = rng.permutation(b)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        cell = rng.choice(p.size, n, p=p.ravel())
        return cell // b, codes[cell % b]

    benign = bool(a * b <= 12)
    return Core(f"table {a} x {b}", mutual_information(p), sample, (False, False), benign)


def groups(rng: Rng) -> Core:
    """Classes in a table; each side sees its class, or a cloud of columns about it."""
    a, b = rng.integers(2, 7, 2)
    p = rng.dirichlet(np.full(a * b, float(rng.uniform(0.3, 2)))).reshape(a, b)
    dx, dy = rng.integers(1, 4), rng.integers(0, 4)
    places = [
        rng.uniform(0.8, 3) * rng.standard_normal((size, d)) for size, d in ((a, dx), (b, dy))
    ]

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        cell = rng.choice(p.size, n, p=p.ravel())
        x = places[0][cell // b] + rng.standard_normal((n, dx))
        return x, places[1][cell % b] + rng.standard_normal((n, dy)) if dy else cell % b

    def log_each(side: Array, means: Array) -> Array:
        return -0.5 * np.square(side[:, None] - means).sum(2)

    def log_ratio(x: Array, y: Array) -> Array:
        of_x = np.exp(log_each(x, places[0]))
        of_y = np.exp(log_each(y, places[1])) if dy else np.eye(b)[y]
        both = np.einsum("na,ab,nb->n", of_x, p, of_y)
        return np.log(both) - np.log(of_x @ p.sum(1)) - np.log(of_y @ p.sum(0))

    name = f"{a} x {b} groups, {dx} + {dy or 'a class'}"
    return Core(name, ratio_mean(sample, log_ratio, 200_000), sample, (True, bool(dy)))


def boolean(rng: Rng) -> Core:
    """y a random function of some of x's bits, wrong in some rows; the bits may be signs."""
    bits, more, flip = int(rng.integers(2, 5)), int(rng.integers(0, 4)), rng.uniform(0, 0.2)
    real = bool(rng.random() < 0.5)
    outcomes = rng.permutation(np.arange(2**bits) % 2)
    if rng.random() < 0.3:
        outcomes = np.array([k.bit_count() % 2 for k in range(2**bits)])
    p = np.stack([np.where(outcomes, flip, 1 - flip), np.where(outcomes, 1 - flip, flip)], 1)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.integers(0, 2, (n, bits + more))
        y = outcomes[x[:, :bits] @ (1 << np.arange(bits))] ^ (rng.random(n) < flip)
        return (2 * x - 1) * np.abs(rng.standard_normal(x.shape)) if real else x, y

    name = f"Boolean of {bits} of {bits + more} {'signs' if real else 'bits'}, {flip:.0%} wrong"
    return Core(name, mutual_information(p / p.sum()), sample, (real, False))


def wrapped(rng: Rng) -> Core:
    """y = the fraction of a sum of multiples of x's columns and noise."""
    dx = int(rng.integers(1, 4))
    times, w = rng.integers(1, 5, dx), float(rng.uniform(0.03, 0.25))
    turns = np.arange(-5, 6)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.random((n, dx))
        return x, (x @ times + w * rng.standard_normal(n)) % 1

    grid = (np.arange(20_000) + 0.5) / 20_000 - 0.5
    density = np.exp(-0.5 * np.square((grid[:, None] + turns) / w)).sum(1)
    density /= density.mean()
    name = f"fraction of {'+'.join(map(str, times))} columns' turns, {w:.2f}"
    return Core(name, float(xlogy(density, density).mean()), sample)


def rounded(rng: Rng) -> Core:
    """A Gaussian pair, one side or both rounded."""
    rho, both = rng.uniform(0, 0.97), bool(rng.random() < 0.6)
    step = float(np.exp(rng.uniform(math.log(0.05), math.log(1.5))))
    reach, fine = math.ceil(6 / step), math.ceil(step / 0.01)
    edges = step * (np.arange(-reach, reach + 2) - 0.5)
    z = edges[0] + step / fine * (np.arange(fine * (2 * reach + 1)) + 0.5)
    below = ndtr((edges[:, None] - rho * z) / math.sqrt(1 - rho**2))
    cells = np.diff(below, axis=0).clip(0) * np.exp(-0.5 * z**2)  # of y and fine ones of x
    if both:
        cells = cells.reshape(len(cells), -1, fine).sum(2)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, e = rng.standard_normal((2, n))
        y = rho * x + math.sqrt(1 - rho**2) * e
        return (np.round(x / step) * step if both else x), np.round(y / step) * step

    name = f"Gaussian {rho:.2f}, {'both' if both else 'y'} rounded to {step:.2f}"
    return Core(name, mutual_information(cells / cells.sum()), sample, (not both, False))


def series(rng: Rng) -> Core:
    """Stationary Gaussian rows in time, whose pairs correlate; or walks that share nothing."""
    phi = float(rng.uniform(0.2, 0.97))
    rho = float(rng.choice([0.0, rng.uniform(0.2, 0.9)]))
    kind = str(rng.choice(["AR", "MA", "walk", "season"]))
    if kind in ("walk", "season"):
        rho = 0.0

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = rng.standard_normal((2, n + 1000))
        y = rho * x + math.sqrt(1 - rho**2) * y
        if kind == "walk":
            return x[:n].cumsum(), y[:n].cumsum()
        if kind == "season":
            t = np.arange(n)
            turn = 2 * math.pi * (np.array([[1.0], [math.sqrt(2)]]) * t / 40 + rng.random((2, 1)))
            return np.sin(turn[0]) + 0.5 * x[:n], np.sin(turn[1]) + 0.5 * y[:n]
        weights = ([1.0], [1.0, -phi]) if kind == "AR" else (np.ones(int(30 * phi)), [1.0])
        return lfilter(*weights, x)[1000:], lfilter(*weights, y)[1000:]

    return Core(f"{kind} {phi:.2f}, rho {rho:.2f}", -0.5 * math.log1p(-(rho**2)), sample)


def nothing(rng: Rng) -> Core:
    """Two sides that share nothing, of odd margins."""

    def side(rng: Rng) -> tuple[str, Callable[[int, Rng], Array], bool]:
        kind = str(
            rng.choice(["normal", "Cauchy", "counts", "classes", "ring", "chain", "zeros", "few"])
        )
        d, k = int(rng.integers(1, 6)), int(rng.integers(2, 40))
        radius = 1 + 0.1 * rng.standard_normal()
        draws: dict[str, Callable[[int, Rng], Array]] = {
            "normal": lambda n, r: r.standard_normal((n, d)),
            "Cauchy": lambda n, r: r.standard_cauchy((n, d)),
            "counts": lambda n, r: r.negative_binomial(1, 0.3, (n, d)),
            "classes": lambda n, r: r.integers(0, k, n),
            "ring": lambda n, r: (
                np.column_stack([np.cos(t := 2 * math.pi * r.random(n)), np.sin(t)])
                * (radius + 0.05 * r.standard_normal((n, 1)))
            ),
            "chain": lambda n, r: r.standard_normal((n, d)).cumsum(1),
            "zeros": lambda n, r: r.exponential(size=(n, d)) * (r.random((n, d)) < 0.4),
            "few": lambda n, r: np.round(r.standard_normal((n, d)), 1),
        }
        return kind, draws[kind], kind in ("normal", "Cauchy", "ring", "chain")

    (a, draw_x, smooth_x), (b, draw_y, smooth_y) = side(rng), side(rng)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        return draw_x(n, rng), draw_y(n, rng)

    return Core(f"nothing: {a} and {b}", 0.0, sample, (smooth_x, smooth_y), a == b == "normal")


def together(rng: Rng) -> Core:
    """Two cores side by side: their information adds up."""
    parts = [channel, gaussian, mixture, table, wrapped, seldom, rounded]
    one, other = (part(rng) for part in rng.choice(np.array(parts, object), 2))

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        (a, b), (c, d) = one.sample(n, rng), other.sample(n, rng)
        return (
            np.concatenate([columns(a), columns(c)], 1),
            np.concatenate([columns(b), columns(d)], 1),
        )

    smooth = [a and b for a, b in zip(one.continuous, other.continuous, strict=True)]
    truth = one.truth + other.truth
    return Core(f"{one.name} & {other.name}", truth, sample, (smooth[0], smooth[1]))


CORES: list[tuple[float, Callable[[Rng], Core]]] = [
    (2, gaussian), (1, student), (1.5, mixture), (5, channel), (1, seldom), (2, many_inputs),
    (1.5, table), (1.5, groups), (1, boolean), (1, wrapped), (1.5, rounded), (1, series),
    (2, nothing), (2, together),
]  # fmt: skip


# Dresses


def ranked(x: Array) -> Array:
    return np.asarray((x.argsort(0).argsort(0) + 0.5) / len(x))


def exchanged(pieces: int, order: Array) -> Callable[[Array], Array]:
    """The ranks of each column cut into pieces that change places."""

    def change(x: Array) -> Array:
        u = pieces * ranked(x)
        piece = np.minimum(u.astype(int), pieces - 1)
        return np.asarray(order[piece] + (u - piece))

    return change


def robust(x: Array) -> Array:
    return np.asarray(x / np.maximum(np.median(np.abs(x), axis=0), 1e-12))


def dress(rng: Rng, smooth: bool, mild: bool) -> tuple[str, Callable[[Array], Array]]:
    """A map of one side that keeps what it says of the other."""
    margins: dict[str, Callable[[Array], Array]] = {
        "units": lambda x: 1e6 + 1e-3 * x,
        "exp": lambda x: np.exp(np.clip(robust(x), -20, 20)),
        "cubes": lambda x: x**3,
        "ranks": ranked,
    }
    if not smooth:
        by = {"units": margins["units"], "labels": lambda x: -3 * x + 0.25, "none": lambda x: x}
        kind = str(rng.choice(list(by)))
        return kind, by[kind]
    if mild:
        kind = str(rng.choice(["units", "cubes", "exp"]))
        return kind, margins[kind]
    pieces = int(rng.integers(2, 6))
    order = rng.permutation(pieces)
    turn = rng.standard_normal((40, 40))
    extra = int(rng.integers(1, 4))
    seed = int(rng.integers(2**31))

    def noisy(x: Array) -> Array:
        more = np.random.default_rng([seed, len(x)]).standard_normal((len(x), extra))
        return np.concatenate([x, more], axis=1)

    def mixed(x: Array) -> Array:
        d = x.shape[1]
        return np.asarray(x @ np.linalg.qr(turn[:d, :d])[0])

    by = margins | {
        "pieces": exchanged(pieces, order),
        "wiggles": lambda x: robust(x) + 0.9 * np.sin(robust(x)),
        "turned": mixed,
        "noise columns": noisy,
        "spiral": lambda x: spiral(robust(x), 0.3) if x.shape[1] > 1 else x,
        "twice": lambda x: np.concatenate([x, x[:, :1]], axis=1),
        "asinh": lambda x: np.arcsinh(x),
    }
    kind = str(rng.choice(list(by)))
    return kind, by[kind]


def dressed(core: Core, rng: Rng) -> Core:
    sides = []
    for smooth in core.continuous:
        some = [
            dress(rng, smooth, core.benign)
            for _ in range(int(rng.integers(0, 2 if core.benign or not smooth else 3)))
        ]
        sides.append(some)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = (columns(side) for side in core.sample(n, rng))
        for _, f in sides[0]:
            x = columns(f(x))
        for _, f in sides[1]:
            y = columns(f(y))
        return x, y

    worn = [
        f"{side}: {', '.join(kind for kind, _ in some)}"
        for side, some in zip("xy", sides, strict=True)
        if some
    ]
    return replace(core, name="; ".join([core.name, *worn]), sample=sample)


def page(seed: int, count: int) -> dict[str, HardTask]:
    """The tasks of a page, by their names."""
    weights = np.array([weight for weight, _ in CORES])
    tasks = {}
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        make = CORES[rng.choice(len(CORES), p=weights / weights.sum())][1]
        core = dressed(make(rng), rng)
        task = HardTask(make.__name__, core.truth, core.sample, core.benign)
        tasks[f"{seed}.{number} {core.name}"] = task
    return tasks


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Tasks made at random.", add_help=False)
    parser.add_argument("--page", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    known, rest = parser.parse_known_args(arguments)
    run(page(known.page, known.count), rest)


if __name__ == "__main__":
    main()
