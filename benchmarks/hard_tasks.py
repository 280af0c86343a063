"""Pairs of samples whose mutual information is known, most of them hard on an estimator.

    python benchmarks/hard_tasks.py --estimators panel,ksg --sizes 1000 --tasks rings

A task is `benign` where a good estimator should need no warning: Gaussian or nearly so, of a
moderate dimension.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm.information.exact import (
    CorrelatedGaussian,
    StudentT,
    UniformNoise,
    mutual_information,
    normal_cdf,
    spiral,
    swiss_roll,
)

Array = npt.NDArray[Any]
Rng = np.random.Generator
Sampler = Callable[[int, Rng], tuple[Array, Array]]

LN2 = math.log(2)
GRID = (np.arange(20_000) + 0.5) / 20_000
"""Quantiles: a mean over them is an integral over a uniform variable."""


@dataclass(frozen=True)
class HardTask:
    """A sampler with its mutual information in nats; `inf` where y is a function of x."""

    group: str
    truth: float
    sample: Sampler
    benign: bool = False


TASKS: dict[str, HardTask] = {}


def add(group: str, name: str, truth: float, sample: Sampler, benign: bool = False) -> None:
    TASKS[name] = HardTask(group, truth, sample, benign)


# Truths


def normal_quantiles() -> Array:
    from scipy.special import ndtri

    return ndtri(GRID)


def signal_in_noise(signal: Array, noise: float) -> float:
    """I(S; S + noise Z), Z standard normal, S drawn evenly from `signal`: H(S + noise Z) - H(Z)."""
    low, high = signal.min() - 8 * noise, signal.max() + 8 * noise
    points = np.linspace(low, high, max(4000, int(16 * (high - low) / noise)))
    edges = np.concatenate([points - (points[1] - points[0]) / 2, [points[-1]]])
    # The signal as a histogram on the points, smoothed by the noise.
    counts = np.histogram(signal, edges)[0] / len(signal)
    step = points[1] - points[0]
    reach = np.arange(-int(8 * noise / step), int(8 * noise / step) + 1) * step
    kernel = np.exp(-0.5 * (reach / noise) ** 2)
    kernel /= kernel.sum() * step
    density = np.convolve(counts, kernel, "same")
    seen = density > 0
    entropy = -(density[seen] * np.log(density[seen])).sum() * step
    return float(entropy - 0.5 * math.log(2 * math.pi * math.e * noise**2))


def rounded_gaussian(rho: float, scale: float) -> float:
    """I of a correlated Gaussian pair of standard deviation `scale`, both rounded to integers."""
    from scipy.stats import multivariate_normal

    if rho == 0:
        return 0.0
    reach = math.ceil(5 * scale) + 1
    edges = (np.arange(-reach, reach + 2) - 0.5) / scale
    joint = multivariate_normal(cov=[[1, rho], [rho, 1]])
    corners = joint.cdf(np.stack(np.meshgrid(edges, edges, indexing="ij"), -1).clip(-9, 9))
    cells = np.diff(np.diff(corners, axis=0), axis=1).clip(0)
    return mutual_information(cells / cells.sum())


# Samplers


def gaussian(dx: int, dy: int, rhos: list[float]) -> tuple[float, Sampler]:
    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = rng.standard_normal((n, dx)), rng.standard_normal((n, dy))
        for i, rho in enumerate(rhos):
            y[:, i] = rho * x[:, i] + math.sqrt(1 - rho**2) * y[:, i]
        return x, y

    return sum(-0.5 * math.log(1 - rho**2) for rho in rhos), sample


def dense(dimension: int, nats: float) -> tuple[float, Sampler]:
    task = CorrelatedGaussian.with_information(dimension, nats)
    return nats, task.sample


def mapped(
    task: tuple[float, Sampler], f: Callable[[Array], Array], g: Callable[[Array], Array]
) -> tuple[float, Sampler]:
    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = task[1](n, rng)
        return f(x), g(y)

    return task[0], sample


def same(x: Array) -> Array:
    return x


def student(dimension: int, degrees: float, rho: float = 0.0) -> tuple[float, Sampler]:
    task = StudentT(CorrelatedGaussian.from_correlations([rho] * dimension), degrees)
    return task.mutual_information, task.sample


def sine(periods: float, noise: float, extra: int = 0) -> tuple[float, Sampler]:
    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.random((n, 1 + extra))
        y = np.sin(2 * math.pi * periods * x[:, 0]) + noise * rng.standard_normal(n)
        return x, y

    return signal_in_noise(np.sin(2 * math.pi * GRID), noise), sample


def ring(noise: float, extra: int = 0) -> tuple[float, Sampler]:
    """(x, y) on a circle of radius 1 with Gaussian noise on the radius; by numbers."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        angle = 2 * math.pi * rng.random(n)
        radius = 1 + noise * rng.standard_normal(n)
        x, y = radius * np.cos(angle), radius * np.sin(angle)
        return np.column_stack([x, rng.standard_normal((n, extra))]), y

    # The joint density depends on r alone: (phi((r-1)/s) + phi((r+1)/s)) / (s 2 pi r).
    r = np.linspace(-1 - 9 * noise, 1 + 9 * noise, 400_001)
    phi = np.exp(-0.5 * ((r - 1) / noise) ** 2) / (noise * math.sqrt(2 * math.pi))
    log_joint = np.log(np.maximum(phi, 1e-300)) - np.log(2 * math.pi * np.maximum(abs(r), 1e-12))
    joint = -float((phi * log_joint).sum() * (r[1] - r[0]))
    from scipy.special import ndtri

    radii = 1 + noise * ndtri((np.arange(400) + 0.5) / 400)
    angles = 2 * math.pi * (np.arange(40_000) + 0.5) / 40_000
    x = (radii[:, None] * np.cos(angles)).ravel()
    bins = 600
    counts, edges = np.histogram(x, bins)
    p = counts / counts.sum()
    seen = p > 0
    margin = float(-(p[seen] * np.log(p[seen])).sum() + math.log(edges[1] - edges[0]))
    return 2 * margin - joint, sample


def parity(dx: int, dy: int, hidden: int) -> tuple[float, Sampler]:
    """Gaussian columns; the sign of y's first is the product of the signs of `hidden` of x's."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = rng.standard_normal((n, dx)), rng.standard_normal((n, dy))
        y[:, 0] = abs(y[:, 0]) * np.sign(x[:, :hidden].prod(1))
        return x, y

    return LN2, sample


def bits(dx: int, hidden: int, flip: float = 0.0) -> tuple[float, Sampler]:
    """x bits; y the parity of some of them, flipped now and then."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.integers(0, 2, (n, dx))
        return x, (x[:, :hidden].sum(1) + (rng.random(n) < flip)) % 2

    lost = 0.0 if flip == 0 else -flip * math.log(flip) - (1 - flip) * math.log(1 - flip)
    return LN2 - lost, sample


def autoregressive(phi: float, rho: float) -> tuple[float, Sampler]:
    """Two AR(1) series whose innovations correlate: so do the rows, by rho."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        from scipy.signal import lfilter

        a, b = rng.standard_normal((2, n + 500))
        b = rho * a + math.sqrt(1 - rho**2) * b
        x, y = (lfilter([1.0], [1.0, -phi], z)[500:] for z in (a, b))
        return x, y

    return -0.5 * math.log(1 - rho**2), sample


def walks(n: int, rng: Rng) -> tuple[Array, Array]:
    return rng.standard_normal(n).cumsum(), rng.standard_normal(n).cumsum()


def volatile(n: int, rng: Rng) -> tuple[Array, Array]:
    """Two independent series whose variances swing slowly."""
    from scipy.signal import lfilter

    a, b = (lfilter([0.3], [1.0, -0.97], rng.standard_normal(n + 500))[500:] for _ in "xy")
    return np.exp(a) * rng.standard_normal(n), np.exp(b) * rng.standard_normal(n)


def seasons(n: int, rng: Rng) -> tuple[Array, Array]:
    """Two independent daily cycles of random phase, 24 rows a day, and noise."""
    hours = 2 * math.pi * np.arange(n) / 24
    x, y = (np.sin(hours + 7 * rng.random()) + 0.5 * rng.standard_normal(n) for _ in "xy")
    return x, y


def ordered(n: int, rng: Rng) -> tuple[Array, Array]:
    x = np.sort(rng.standard_normal(n))
    return x, 0.8 * x + 0.6 * rng.standard_normal(n)


def twice(n: int, rng: Rng) -> tuple[Array, Array]:
    """Every row twice: half as many rows as there seem to be."""
    x, y = gaussian(1, 1, [0.6])[1](n // 2, rng)
    order = rng.permutation(n // 2 * 2)
    return np.repeat(x, 2, 0)[order], np.repeat(y, 2, 0)[order]


def discrete(p: Array) -> tuple[float, Sampler]:
    p = p / p.sum()

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = np.unravel_index(rng.choice(p.size, n, p=p.ravel()), p.shape)
        return x, y

    return mutual_information(p), sample


def diagonal(size: int, kept: float) -> Array:
    """x evenly one of `size`; y is x with the probability kept, else any."""
    return (kept * np.eye(size) + (1 - kept) / size) / size


def zipf(size: int, kept: float) -> Array:
    p = 1 / np.arange(1, size + 1)
    p /= p.sum()
    return kept * np.diag(p) + (1 - kept) * np.outer(p, p)


def classes(count: int, apart: float, columns: int = 1) -> tuple[float, Sampler]:
    """x a class, y normal about its number times `apart`, in the first of its columns."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = rng.integers(0, count, n), rng.standard_normal((n, columns))
        y[:, 0] += apart * x
        return x, y

    signal = np.repeat(apart * np.arange(count), 1000)
    return signal_in_noise(signal, 1.0), sample


def zero_inflated(n: int, rng: Rng) -> tuple[Array, Array]:
    """Both are 0 together in half of the rows, else independent and log-normal: ln 2."""
    on = rng.random(n) < 0.5
    x, y = np.exp(rng.standard_normal((2, n)))
    return x * on, y * on


def censored(n: int, rng: Rng) -> tuple[Array, Array]:
    """Independent normals below 0 set to 0."""
    x, y = np.maximum(rng.standard_normal((2, n)), 0)
    return x, y


def poisson(share: float) -> tuple[float, Sampler]:
    """Counts with a common part: x = c + a, y = c + b."""
    from scipy.stats import poisson as law

    counts = np.arange(60)
    common, own = law.pmf(counts, 4 * share), law.pmf(counts, 4 * (1 - share))
    joint = np.zeros((60, 60))
    for c, p in enumerate(common):
        part = np.pad(own, (c, 0))[:60]
        joint += p * np.outer(part, part)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        c = rng.poisson(4 * share, n)
        return c + rng.poisson(4 * (1 - share), n), c + rng.poisson(4 * (1 - share), n)

    return (mutual_information(joint / joint.sum()) if share else 0.0), sample


def rounded(rho: float, scale: float) -> tuple[float, Sampler]:
    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = gaussian(1, 1, [rho])[1](n, rng)
        return np.round(scale * x), np.round(scale * y)

    return rounded_gaussian(rho, scale), sample


def nearly(noise: float) -> tuple[float, Sampler]:
    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.standard_normal(n)
        return x, x + noise * rng.standard_normal(n)

    return 0.5 * math.log(1 + noise**-2), sample


def function(f: Callable[[Array], Array]) -> Sampler:
    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.standard_normal(n)
        return x, f(x)

    return sample


def curve(f: Callable[[Array], Array], noise: float, extra: int = 0) -> tuple[float, Sampler]:
    """y = f(x_1) + noise, x normal with `extra` columns of noise."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.standard_normal((n, 1 + extra))
        return x, f(x[:, 0]) + noise * rng.standard_normal(n)

    return signal_in_noise(f(normal_quantiles()), noise), sample


def checkerboard(size: int) -> tuple[float, Sampler]:
    """Uniform on the black squares."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        i = rng.integers(0, size, n)
        j = 2 * rng.integers(0, size // 2, n) + i % 2
        x, y = (i + rng.random(n)) / size, (j + rng.random(n)) / size
        return x, y

    return LN2, sample


def independent(f: Callable[[Rng, int], Array], g: Callable[[Rng, int], Array]) -> Sampler:
    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        return f(rng, n), g(rng, n)

    return sample


def contaminated(n: int, rng: Rng) -> tuple[Array, Array]:
    """A Gaussian pair; in one row of a hundred both are a thousand times as large."""
    x, y = gaussian(1, 1, [0.8])[1](n, rng)
    wild = np.where(rng.random((n, 1)) < 0.01, 1000.0, 1.0)
    return x * wild, y * wild


def contaminated_truth() -> float:
    """By a mean over many rows of the log ratio of densities."""
    rng, rho, wild = np.random.default_rng(0), 0.8, 1000.0
    x, y = (side[:, 0] for side in gaussian(1, 1, [rho])[1](400_000, rng))
    s = np.where(rng.random(400_000) < 0.01, wild, 1.0)
    x, y = x * s, y * s

    def joint(t: float) -> Array:
        q = (x**2 - 2 * rho * x * y + y**2) / (1 - rho**2)
        return np.exp(-0.5 * q / t**2) / (2 * math.pi * math.sqrt(1 - rho**2) * t**2)

    def margin(z: Array, t: float) -> Array:
        return np.exp(-0.5 * (z / t) ** 2) / (math.sqrt(2 * math.pi) * t)

    both = 0.99 * joint(1) + 0.01 * joint(wild)
    px, py = (0.99 * margin(z, 1) + 0.01 * margin(z, wild) for z in (x, y))
    return float(np.mean(np.log(both / (px * py))))


def scale_of(n: int, rng: Rng) -> tuple[Array, Array]:
    """y = x z, z normal: x decides the spread of y only."""
    x = np.exp(rng.standard_normal(n))
    return x, x * rng.standard_normal(n)


def scale_truth() -> float:
    """H(y) - E[H(y | x)], by a grid of ln x."""
    x = np.exp(normal_quantiles()[::5])
    y = np.concatenate([-np.geomspace(60, 1e-7, 6000), np.geomspace(1e-7, 60, 6000)])
    density = np.mean(
        [np.exp(-0.5 * (y / s) ** 2) / (math.sqrt(2 * math.pi) * s) for s in x], axis=0
    )
    entropy = -np.trapezoid(density * np.log(np.maximum(density, 1e-300)), y)
    return float(entropy - 0.5 * math.log(2 * math.pi * math.e) - np.log(x).mean())


def _fill() -> None:
    benign = [
        ("Gaussian 1+1, no information", gaussian(1, 1, [])),
        ("Gaussian 1+1, rho 0.3", gaussian(1, 1, [0.3])),
        ("Gaussian 1+1, rho 0.6", gaussian(1, 1, [0.6])),
        ("Gaussian 1+1, rho 0.9", gaussian(1, 1, [0.9])),
        ("Gaussian 2+2, rho 0.5 each", gaussian(2, 2, [0.5, 0.5])),
        ("Gaussian 3+3, one rho 0.8", gaussian(3, 3, [0.8])),
        ("Gaussian 3+1, no information", gaussian(3, 1, [])),
        ("Gaussian 5+5, 0.5 nats", dense(5, 0.5)),
        ("Gaussian 5+5, no information", gaussian(5, 5, [])),
        ("Gaussian 10+10, 1 nat", dense(10, 1.0)),
        ("uniform scores of a Gaussian", mapped(gaussian(1, 1, [0.6]), normal_cdf, normal_cdf)),
    ]
    for name, (truth, sample) in benign:
        add("benign", name, truth, sample, benign=True)
    add(
        "benign",
        "uniform, independent",
        0.0,
        independent(lambda r, n: r.random(n), lambda r, n: r.random(n)),
        benign=True,
    )
    for name, (truth, sample) in [
        ("Student t(1) 1+1", student(1, 1)),
        ("Student t(2) 2+2", student(2, 2)),
        ("Student t(3) 5+5", student(5, 3)),
        ("Student t(2) 3+3, rho 0.5", student(3, 2, 0.5)),
        ("fifth powers", mapped(gaussian(1, 1, [0.7]), lambda x: x**5, lambda y: y**5)),
        ("log-normal", mapped(gaussian(1, 1, [0.7]), lambda x: np.exp(3 * x), same)),
        (
            "tangents 2+2",
            mapped(
                gaussian(2, 2, [0.7, 0.3]),
                lambda x: np.tan(math.pi * (normal_cdf(x) - 0.5)),
                lambda y: np.tan(math.pi * (normal_cdf(y) - 0.5)),
            ),
        ),
        ("contaminated", (contaminated_truth(), contaminated)),
        ("x sets the scale of y", (scale_truth(), scale_of)),
    ]:
        add("heavy tails", name, truth, sample)
    for periods in (1, 5, 20, 100, 1000):
        add("frequency", f"sine of {periods} periods", *sine(periods, 0.2))
    add("frequency", "sine of 5 periods, 4 columns of noise", *sine(5, 0.2, 4))
    add("frequency", "sine of 20 periods, noise 1", *sine(20, 1.0))
    for noise in (0.3, 0.1, 0.02):
        add("rings", f"ring, noise {noise}", *ring(noise))
    add("rings", "ring, noise 0.1, 4 columns of noise", *ring(0.1, 4))
    for dx, dy, hidden in (
        (1, 1, 1),
        (2, 1, 2),
        (3, 2, 2),
        (5, 5, 2),
        (20, 20, 2),
        (5, 1, 3),
        (39, 1, 3),
    ):
        add("parity", f"parity of {hidden} of {dx} + {dy} columns", *parity(dx, dy, hidden))
    add("parity", "exclusive or of 2 bits", *bits(2, 2, 0.1))
    add("parity", "parity of 3 of 39 bits", *bits(39, 3))
    add("parity", "parity of 39 bits", *bits(39, 39))
    add("mixed", "both zero together", LN2, zero_inflated)
    add("mixed", "censored, independent", 0.0, censored)
    add("mixed", "3 classes, 2 apart", *classes(3, 2.0))
    add("mixed", "10 classes, 0.5 apart, 3 columns", *classes(10, 0.5, 3))
    for rho, scale in ((0.0, 1.0), (0.0, 10.0), (0.6, 1.0), (0.6, 3.0), (0.6, 10.0), (0.9, 30.0)):
        add("rounded", f"rounded, scale {scale:g}, rho {rho}", *rounded(rho, scale))
    add("ties", "counts with a common part", *poisson(0.6))
    add("ties", "counts, independent", *poisson(0.0))
    add("ties", "every row twice", gaussian(1, 1, [0.6])[0], twice)
    for name, p in [
        ("table 3 x 3", diagonal(3, 0.5)),
        ("table 10 x 10", diagonal(10, 0.5)),
        ("table 10 x 10, independent", diagonal(10, 0.0)),
        ("table 100 x 100", diagonal(100, 0.7)),
        ("words, 500 types", zipf(500, 0.3)),
        ("words, 500 types, independent", zipf(500, 0.0)),
    ]:
        add("tables", name, *discrete(p))
    for noise in (1e-1, 1e-2, 1e-4, 1e-8):
        add("nearly deterministic", f"y = x, noise {noise:g}", *nearly(noise))
    add("nearly deterministic", "y = x", math.inf, function(same))
    add("nearly deterministic", "y = x^2", math.inf, function(np.square))
    add("nearly deterministic", "y = x^2, noise 0.01", *curve(np.square, 0.01))
    add("time", "random walks, independent", 0.0, walks)
    for phi, rho in ((0.5, 0.0), (0.95, 0.0), (0.95, 0.6), (0.5, 0.6)):
        add("time", f"AR(1) {phi}, rho {rho}", *autoregressive(phi, rho))
    add("time", "swinging variances, independent", 0.0, volatile)
    add("time", "daily cycles", 0.0, seasons)
    add("time", "rows in the order of x", gaussian(1, 1, [0.8])[0], ordered)
    add("dimension", "Gaussian 25+25, 1 nat", *dense(25, 1.0))
    add("dimension", "Gaussian 50+50, no information", *gaussian(50, 50, []))
    add("dimension", "Gaussian 20+20, one rho 0.9", *gaussian(20, 20, [0.9]))
    add("dimension", "square in 20 + 1 columns", *curve(np.square, 0.5, 19))
    add("dimension", "Gaussian 5+5, 3 nats", *dense(5, 3.0))
    for noise in (0.1, 0.75):
        task = UniformNoise(noise)
        add("edges", f"uniform noise {noise}", task.mutual_information, task.sample)
    add("edges", "checkerboard 4", *checkerboard(4))
    add("edges", "checkerboard 20", *checkerboard(20))
    sparse = CorrelatedGaussian.from_correlations([0.8, 0.8, 0])
    add(
        "edges",
        "spiral 3+3",
        *mapped((sparse.mutual_information, sparse.sample), lambda x: spiral(x, 1 / 2), same),
    )
    add(
        "edges",
        "Swiss roll",
        *mapped(gaussian(1, 1, [0.75]), lambda x: swiss_roll(normal_cdf(x)), normal_cdf),
    )
    add("edges", "absolute value", *curve(np.abs, 0.2))
    add("edges", "cross", _cross_truth(), _cross)


def _cross(n: int, rng: Rng) -> tuple[Array, Array]:
    """A Gaussian pair of rho 0.9 or of -0.9, by a coin."""
    x = rng.standard_normal(n)
    rho = 0.9 * rng.choice([-1.0, 1.0], n)
    return x, rho * x + math.sqrt(1 - 0.81) * rng.standard_normal(n)


def _cross_truth() -> float:
    rng = np.random.default_rng(0)
    x, y = _cross(400_000, rng)

    def ratio(rho: float) -> Array:
        rest = 1 - rho**2
        return np.exp(-0.5 * ((y - rho * x) ** 2 / rest - y**2)) / math.sqrt(rest)

    return float(np.mean(np.log(0.5 * (ratio(0.9) + ratio(-0.9)))))


_fill()


# Tasks on which nothing was tuned


def _fill_fresh() -> None:
    def laplace(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.laplace(size=n)
        return x, x + rng.laplace(size=n)

    def arcs(n: int, rng: Rng) -> tuple[Array, Array]:
        """One of two arcs by the sign of x's second column, which y's sign follows in 9 of 10."""
        x = rng.standard_normal((n, 2))
        sign = np.sign(x[:, 1]) * np.where(rng.random(n) < 0.9, 1, -1)
        return x, sign * rng.exponential(size=n)

    def moving(n: int, rng: Rng) -> tuple[Array, Array]:
        """Moving averages of 20 independent rows each."""
        a, b = (np.convolve(rng.standard_normal(n + 19), np.ones(20), "valid") for _ in "xy")
        return a, b

    def prices(n: int, rng: Rng) -> tuple[Array, Array]:
        """Independent, log-normal with two decimals."""
        x, y = np.round(np.exp(rng.standard_normal((2, n))), 2)
        return x, y

    def ages(n: int, rng: Rng) -> tuple[Array, Array]:
        """A rounded column beside a class that it does not tell of."""
        return np.round(40 + 15 * rng.standard_normal(n)), rng.integers(0, 4, n)

    def switch(n: int, rng: Rng) -> tuple[Array, Array]:
        """y is x's first or second column by the sign of the third: sum of what each tells."""
        x = rng.standard_normal((n, 3))
        return x, np.where(x[:, 2] > 0, x[:, 0], x[:, 1]) + 0.5 * rng.standard_normal(n)

    def doubled(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = rng.standard_normal((2, n - n // 5))
        again = rng.integers(0, len(x), n // 5)
        return np.concatenate([x, x[again]]), np.concatenate([y, y[again]])

    def in_noise(f: Callable[[Array], Array], quantiles: Array, noise: float) -> float:
        return signal_in_noise(f(quantiles), noise)

    # The sum of two Laplace variables has the density (1 + |s|) e^-|s| / 4.
    s = np.linspace(-40, 40, 400_001)
    density = (1 + np.abs(s)) * np.exp(-np.abs(s)) / 4
    sum_entropy = float(-(density * np.log(density)).sum() * (s[1] - s[0]))
    add("fresh", "Laplace and Laplace noise", sum_entropy - (1 + LN2), laplace)
    coin = LN2 + 0.9 * math.log(0.9) + 0.1 * math.log(0.1)
    add("fresh", "a sign of 2 columns, 9 of 10", coin, arcs)
    add("fresh", "moving averages, independent", 0.0, moving)
    add("fresh", "prices, independent", 0.0, prices)
    add("fresh", "ages and classes, independent", 0.0, ages)
    normal = normal_quantiles()
    add("fresh", "a switch of 3 columns", in_noise(same, normal, 0.5), switch)
    add("fresh", "a fifth of the rows again", 0.0, doubled)
    add("fresh", "cosine of 50 x", *curve(lambda x: np.cos(50 * x), 0.3))
    add("fresh", "cube, noise 0.5", *curve(lambda x: x**3, 0.5))
    add("fresh", "W", *curve(lambda x: np.abs(np.abs(x) - 1), 0.1))
    add("fresh", "step of 4 levels", *curve(lambda x: np.clip(np.floor(x + 2), 0, 3), 0.2))
    add("fresh", "parity of 4 of 6 + 2 columns", *parity(6, 2, 4))
    add("fresh", "Student t(1.5) 2+2, rho 0.8", *student(2, 1.5, 0.8))
    add("fresh", "y = x, noise 0.001, exponentials", *mapped(nearly(1e-3), np.exp, same))
    add("fresh", "classes 6, 1.5 apart, 5 columns", *classes(6, 1.5, 5))
    for name, (truth, sample) in [
        ("Gaussian 1+1, rho 0.45", gaussian(1, 1, [0.45])),
        ("Gaussian 4+2, rho 0.6 and 0.3", gaussian(4, 2, [0.6, 0.3])),
        ("Gaussian 8+8, 0.8 nats", dense(8, 0.8)),
        ("Gaussian 6+6, no information", gaussian(6, 6, [])),
        ("logistic scores of a Gaussian", mapped(gaussian(1, 1, [0.5]), np.tanh, np.exp)),
    ]:
        add("fresh", name, truth, sample, benign=True)


_fill_fresh()


# More tasks of many kinds, a second page on which nothing was tuned


def ratio_mean(
    sample: Sampler, log_ratio: Callable[[Array, Array], Array], rows: int = 400_000
) -> float:
    """The mean over many rows of ln p(x, y) / p(x) p(y): for densities that are known."""
    x, y = sample(rows, np.random.default_rng(0))
    return float(np.mean(log_ratio(x, y)))


def normal_density(x: Array, mean: float | Array = 0.0, scale: float = 1.0) -> Array:
    return np.exp(-0.5 * ((x - mean) / scale) ** 2) / (math.sqrt(2 * math.pi) * scale)


def wrapped(columns: int, periods: int, width: float) -> tuple[float, Sampler]:
    """y = periods (x_1 + ... + x_c) + w mod 1, all uniform, w up to `width`: I = -ln width."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.random((n, columns))
        return x, (periods * x.sum(1) + width * rng.random(n)) % 1

    return -math.log(width), sample


def angles(turns: int, kappa: float) -> tuple[float, Sampler]:
    """Two points on circles; y's angle is x's times `turns` with von Mises noise.

    I = ln 2 pi - H(noise) = kappa A - ln I_0(kappa), A = I_1 / I_0."""
    from scipy.special import i0e, i1e

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        a = 2 * math.pi * rng.random(n)
        b = turns * a + rng.vonmises(0, kappa, n)
        return np.column_stack([np.cos(a), np.sin(a)]), np.column_stack([np.cos(b), np.sin(b)])

    nats = kappa * i1e(kappa) / i0e(kappa) - (math.log(i0e(kappa)) + kappa)
    return float(nats), sample


def rates(shape: float) -> tuple[float, Sampler]:
    """x gamma, y exponential with the rate x (a Pareto): I = psi(shape + 1) - ln shape."""
    from scipy.special import digamma

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.gamma(shape, size=n)
        return x, rng.exponential(size=n) / x

    return float(digamma(shape + 1) - math.log(shape)), sample


def clayton(theta: float) -> tuple[float, Sampler]:
    """A copula whose small values go together; one side with Pareto tails."""

    def uniform(n: int, rng: Rng) -> tuple[Array, Array]:
        u, w = rng.random((2, n))
        v = (u**-theta * (w ** (-theta / (1 + theta)) - 1) + 1) ** (-1 / theta)
        return u, v

    def log_density(u: Array, v: Array) -> Array:
        inner = u**-theta + v**-theta - 1
        return math.log1p(theta) - (1 + theta) * np.log(u * v) - (2 + 1 / theta) * np.log(inner)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        u, v = uniform(n, rng)
        return u ** (-1 / 0.8), v

    return ratio_mean(uniform, log_density), sample


def seldom(share: float, noise: float) -> tuple[float, Sampler]:
    """In a share of the rows y is x but for a little noise; else both are independent."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = rng.standard_normal((2, n))
        tied = rng.random(n) < share
        return x, np.where(tied, x + noise * y, y)

    def log_ratio(x: Array, y: Array) -> Array:
        wide = math.sqrt(1 + noise**2)
        margin = share * normal_density(y, 0, wide) + (1 - share) * normal_density(y)
        given = share * normal_density(y, x, noise) + (1 - share) * normal_density(y)
        return np.log(given / margin)

    return ratio_mean(sample, log_ratio), sample


def squares(size: int, noise: float) -> tuple[float, Sampler]:
    """y_i = x_i^2 with noise, in every one of several columns."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.standard_normal((n, size))
        return x, x**2 + noise * rng.standard_normal((n, size))

    return size * signal_in_noise(normal_quantiles() ** 2, noise), sample


def last_digit(n: int, rng: Rng) -> tuple[Array, Array]:
    """x a number below 1,000, y its last digit: ln 10."""
    x = rng.integers(0, 1000, n)
    return x, x % 10


def around(count: int, radius: float) -> tuple[float, Sampler]:
    """x one of `count` classes in a mixed order; y normal about a place on a circle."""
    order = np.random.default_rng(1).permutation(count)
    at = 2 * math.pi * np.arange(count) / count
    places = radius * np.column_stack([np.cos(at), np.sin(at)])

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.integers(0, count, n)
        return x, places[order[x]] + rng.standard_normal((n, 2))

    def log_ratio(x: Array, y: Array) -> Array:
        each = -0.5 * np.square(y[:, None] - places[order]).sum(2)
        own = each[np.arange(len(x)), x]
        return own - np.log(np.exp(each).mean(1))

    return ratio_mean(sample, log_ratio, 100_000), sample


def scales(columns: int) -> tuple[float, Sampler]:
    """Independent normals times one scale that is 1 or 5: they share the scale alone."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        s = rng.choice([1.0, 5.0], (n, 1))
        return s * rng.standard_normal((n, columns)), s * rng.standard_normal((n, columns))

    def log_ratio(x: Array, y: Array) -> Array:
        def log_density(size: int, squared: Array) -> Array:
            parts = [-0.5 * squared / s**2 - size * math.log(s) for s in (1.0, 5.0)]
            return np.logaddexp(*parts) - LN2

        a, b = np.square(x).sum(1), np.square(y).sum(1)
        return log_density(2 * columns, a + b) - log_density(columns, a) - log_density(columns, b)

    return ratio_mean(sample, log_ratio), sample


def clusters(n: int, rng: Rng) -> tuple[Array, Array]:
    """Two round clusters, four standard deviations apart on both axes."""
    side = 4.0 * rng.integers(0, 2, n)
    return side + rng.standard_normal(n), side + rng.standard_normal(n)


def clusters_truth() -> float:
    def log_ratio(x: Array, y: Array) -> Array:
        (a, b), (c, d) = ((normal_density(side), normal_density(side, 4.0)) for side in (x, y))
        return np.log(2 * (a * c + b * d) / ((a + b) * (c + d)))

    return ratio_mean(clusters, log_ratio)


def clipped(rho: float) -> tuple[float, Sampler]:
    """A Gaussian pair whose negative values are set to 0."""
    from scipy.special import ndtr

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = gaussian(1, 1, [rho])[1](n, rng)
        return np.maximum(x, 0), np.maximum(y, 0)

    def log_ratio(x: Array, y: Array) -> Array:
        x, y, rest = x[:, 0], y[:, 0], math.sqrt(1 - rho**2)
        both = 0.25 + math.asin(rho) / (2 * math.pi)
        found = np.empty(len(x))
        for a, b in product((True, False), repeat=2):
            here = ((x > 0) == a) & ((y > 0) == b)
            u, v = x[here], y[here]
            if a and b:
                found[here] = np.log(normal_density(v, rho * u, rest) / normal_density(v))
            elif a or b:
                found[here] = np.log(ndtr(-rho * np.maximum(u, v) / rest) / 0.5)
            else:
                found[here] = math.log(both / 0.25)
        return found

    return ratio_mean(sample, log_ratio), sample


def chain(kept: float) -> Sampler:
    """Two independent series of 0 and 1 that keep their value with this probability."""

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x, y = (np.cumsum(rng.random(n) > kept) + rng.integers(2) for _ in "xy")
        return x % 2, y % 2

    return sample


def chaos(n: int, rng: Rng) -> tuple[Array, Array]:
    """Two independent series of the logistic map: each row sets the next, by no correlation."""
    x = np.empty((n, 2))
    x[0] = rng.random(2)
    for at in range(1, n):
        x[at] = np.clip(3.99999 * x[at - 1] * (1 - x[at - 1]), 1e-9, 1 - 1e-9)
    return x[:, 0], x[:, 1]


def trends(n: int, rng: Rng) -> tuple[Array, Array]:
    """Two series that oscillate slowly, each for itself, with noise as strong."""
    time = np.arange(n) / n
    x, y = (np.sin(2 * math.pi * (3 * time + rng.random())) + rng.standard_normal(n) for _ in "xy")
    return x, y


def _fill_strange() -> None:
    for name, (truth, sample) in [
        ("sum mod 1 of 1 + 1, width 0.3", wrapped(1, 1, 0.3)),
        ("sum mod 1 of 2 + 1, width 0.3", wrapped(2, 1, 0.3)),
        ("sum mod 1 of 3 + 1, width 0.3", wrapped(3, 1, 0.3)),
        ("saw of 7 teeth", wrapped(1, 7, 0.2)),
        ("saw of 40 teeth", wrapped(1, 40, 0.2)),
        ("circles, one turn", angles(1, 4.0)),
        ("circles, 3 turns", angles(3, 4.0)),
        ("circles, 8 turns", angles(8, 4.0)),
        ("rates, gamma 1", rates(1.0)),
        ("rates, gamma 0.2", rates(0.2)),
        ("Clayton copula, Pareto", clayton(2.0)),
        ("y = x in 5 % of the rows, noise 0.001", seldom(0.05, 1e-3)),
        ("y = x in 30 % of the rows, noise 0.01", seldom(0.3, 1e-2)),
        ("y = x in 30 % of the rows", (math.inf, seldom(0.3, 1e-14)[1])),
        ("squares in 4 + 4 columns", squares(4, 1.0)),
        ("squares in 10 + 10 columns", squares(10, 1.0)),
        ("last digit", (math.log(10), last_digit)),
        ("8 classes around a circle", around(8, 3.0)),
        ("one scale, 1 + 1", scales(1)),
        ("one scale, 5 + 5", scales(5)),
        ("two clusters", (clusters_truth(), clusters)),
        ("clipped Gaussian, rho 0.8", clipped(0.8)),
        ("product of 2 columns, noise 0.5", _product_task(2, 0.5)),
        ("product of 3 columns, noise 0.5", _product_task(3, 0.5)),
        ("mixed order of 50 classes", discrete(diagonal(50, 0.6)[_mixed(50)])),
        ("parity of 5 of 10 bits, 1 of 10 wrong", bits(10, 5, 0.1)),
        ("a rare common jump", (_coin_entropy(0.02), _jump)),
        ("Student t(1) 4+4", student(4, 1)),
        ("the same column twice", (gaussian(1, 1, [0.7])[0], _again)),
        ("noise 0.03 in 3 + 3 columns", _turned_task(0.03)),
    ]:
        add("strange", name, truth, sample)
    for name, sample in [
        ("Cauchy and a rare bit", _rare_bit),
        ("counts and heavy tails, independent", _counts_and_tails),
        ("10 + 10 columns of heavy tails, independent", _tails),
        ("series of bits, independent", chain(0.95)),
        ("logistic maps, independent", chaos),
        ("slow oscillations, independent", trends),
        ("rounded columns 4 + 4, independent", _rounded_columns),
    ]:
        add("strange", name, 0.0, sample)


def _product_task(columns: int, noise: float) -> tuple[float, Sampler]:
    """y the product of normal columns, with noise."""
    rng = np.random.default_rng(2)
    signal = rng.standard_normal((2_000_000, columns)).prod(1)

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.standard_normal((n, columns))
        return x, x.prod(1) + noise * rng.standard_normal(n)

    return signal_in_noise(np.clip(signal, -40, 40), noise), sample


def _mixed(size: int) -> Array:
    return np.random.default_rng(3).permutation(size)


def _coin_entropy(p: float) -> float:
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


def _jump(n: int, rng: Rng) -> tuple[Array, Array]:
    """In one row of fifty both x and y are 20 above what they would be."""
    up = 20.0 * (rng.random(n) < 0.02)
    return up + rng.standard_normal(n), up + rng.standard_normal(n)


def _again(n: int, rng: Rng) -> tuple[Array, Array]:
    """x holds one column three times, in other units."""
    x, y = gaussian(1, 1, [0.7])[1](n, rng)
    return np.column_stack([x, 2 * x + 1, -x]), y


def _turned_task(noise: float) -> tuple[float, Sampler]:
    """y is x turned in space, with a little noise."""
    turn = np.linalg.qr(np.random.default_rng(4).standard_normal((3, 3)))[0]

    def sample(n: int, rng: Rng) -> tuple[Array, Array]:
        x = rng.standard_normal((n, 3))
        return x, x @ turn + noise * rng.standard_normal((n, 3))

    return 1.5 * math.log1p(noise**-2), sample


def _rare_bit(n: int, rng: Rng) -> tuple[Array, Array]:
    y = rng.random(n) < 0.03
    y[:2] = [True, False]
    return rng.standard_cauchy(n), y.astype(int)


def _counts_and_tails(n: int, rng: Rng) -> tuple[Array, Array]:
    x = np.column_stack([rng.poisson(0.7, n), rng.pareto(0.9, n)])
    return x, np.column_stack([rng.geometric(0.3, n), rng.standard_t(1, n)])


def _tails(n: int, rng: Rng) -> tuple[Array, Array]:
    """Columns of a side share a scale; the sides share nothing."""
    x, y = (rng.standard_normal((n, 10)) / np.sqrt(rng.gamma(0.5, size=(n, 1))) for _ in "xy")
    return x, y


def _rounded_columns(n: int, rng: Rng) -> tuple[Array, Array]:
    return np.round(2 * rng.standard_normal((n, 4))), np.round(rng.exponential(3, (n, 4)))


_fill_strange()


# The battery


def measured(
    task: HardTask, name: str, size: int, seed: int, estimator_name: str
) -> dict[str, Any]:
    """One estimate of a task: whether its interval holds the truth, whether it warns."""
    from infolm.errors import InfolmError
    from infolm.information.panel import Panel
    from infolm.information.registry import estimator

    x, y = task.sample(size, np.random.default_rng([seed, size, len(name)]))
    start = time.process_time()
    record = {"task": name, "size": size, "seed": seed, "estimator": estimator_name}
    record |= {"benign": task.benign, "group": task.group}
    try:
        if estimator_name in ("panel", "fast"):
            found: Any = Panel(fast=estimator_name == "fast", seed=seed).estimate(x, y)
        else:
            found = estimator(estimator_name, seed=seed).estimate(x, y)
    except InfolmError as error:
        return record | {"refused": str(error)}
    return record | {
        "truth": task.truth,
        "value": found.value,
        "interval": found.interval,
        "warning": found.warning,
        "seconds": time.process_time() - start,
    }


def outcome(record: dict[str, Any]) -> str:
    if "refused" in record:
        return "refused"
    low, high = record["interval"]
    holds = low <= record["truth"] + 1e-9 and record["truth"] <= high + 1e-9
    if holds and not record["warning"]:
        return "holds"
    if not holds:
        return "misses, warned" if record["warning"] else "misses, silent"
    return "benign, warned" if record["benign"] else "holds, warned"


OUTCOMES = (
    *("holds", "holds, warned", "misses, warned", "misses, silent"),
    *("benign, warned", "refused"),
)


def table(records: list[dict[str, Any]], by: Callable[[dict[str, Any]], str]) -> str:
    lines = [["", "runs", *OUTCOMES, "median CPU s"]]
    lines.append(["---"] * len(lines[0]))
    for group in dict.fromkeys(map(by, records)):
        some = [record for record in records if by(record) == group]
        counts = [sum(outcome(record) == each for record in some) for each in OUTCOMES]
        seconds = np.median([record.get("seconds", 0.0) for record in some])
        lines.append([group, str(len(some)), *map(str, counts), f"{seconds:.1f}"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def run(tasks: dict[str, HardTask], arguments: Sequence[str] | None = None) -> None:
    """The command: every task by every estimator named, and what came out."""
    parser = argparse.ArgumentParser(description="Every task by every estimator named.")
    parser.add_argument("--estimators", default="fast")
    parser.add_argument("--sizes", default="300,1000,3000")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tasks", default="", help="those whose name or group holds this")
    parser.add_argument("--records", type=Path, default=Path("runs/hard_tasks.jsonl"))
    args = parser.parse_args(arguments)
    args.records.parent.mkdir(parents=True, exist_ok=True)
    lines = args.records.read_text().splitlines() if args.records.exists() else []
    kept = {_key(record): record for record in map(json.loads, lines)}
    records = []
    with args.records.open("a") as file:
        for estimator_name, size, seed, name in product(
            args.estimators.split(","),
            map(int, args.sizes.split(",")),
            range(args.seeds),
            [name for name, task in tasks.items() if args.tasks in f"{name}|{task.group}"],
        ):
            key = (name, size, seed, estimator_name)
            if key not in kept:
                kept[key] = measured(tasks[name], *key)
                print(json.dumps(kept[key]), file=file, flush=True)
            records.append(kept[key])
    print(table(records, lambda record: f"{record['estimator']}, {record['size']:,} pairs"))
    print()
    print(table(records, lambda record: str(record["group"])))
    print()
    for record in records:
        if outcome(record) in ("misses, silent", "benign, warned"):
            low, high = record["interval"]
            print(
                f"- {outcome(record)}: {record['task']}, {record['size']:,} pairs, seed "
                f"{record['seed']}, {record['estimator']}: truth {record['truth']:.3f}, "
                f"{record['value']:.3f}, {low:.3f} to {high:.3f} {record['warning'] or ''}"
            )


def _key(record: dict[str, Any]) -> tuple[str, int, int, str]:
    return record["task"], record["size"], record["seed"], record["estimator"]


if __name__ == "__main__":
    run(TASKS)
