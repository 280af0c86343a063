"""How often a p-value of independence is at most 0.05 where the truth is 0.

    OMP_NUM_THREADS=1 python benchmarks/false_positives.py --runs 200

Right is 0.05 or less; a test by ranks of 99 permutations has exactly 0.05 for rows in any order.
The error is the binomial standard error at 0.05. `given` is conditional information given a common
cause z, `transfer` transfer entropy against the direction of the influence.
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm.information.conditional import conditional_information, transfer_entropy
from infolm.information.evidence import Evidence

Array = npt.NDArray[Any]
Rng = np.random.Generator
ALPHA, PERMUTATIONS = 0.05, 99


def normal(rows: int, columns: int = 1) -> Callable[[Rng], Array]:
    return lambda rng: rng.standard_normal((rows, columns))


def autoregressive(phi: float, rows: int) -> Callable[[Rng], Array]:
    def sample(rng: Rng) -> Array:
        from scipy.signal import lfilter

        return np.asarray(lfilter([1.0], [1.0, -phi], rng.standard_normal(rows + 300))[300:])

    return sample


def chain(kept: float, rows: int) -> Callable[[Rng], Array]:
    """Bits that stay as they were with the probability `kept`."""
    return lambda rng: (np.cumsum(rng.random(rows) > kept) + rng.integers(2)) % 2


def average(width: int, rows: int) -> Callable[[Rng], Array]:
    return lambda rng: np.convolve(rng.standard_normal(rows + width - 1), np.ones(width), "valid")


def tails(rows: int, columns: int) -> Callable[[Rng], Array]:
    """Cauchy columns that share a scale."""
    return lambda rng: rng.standard_normal((rows, columns)) / rng.standard_normal((rows, 1))


def signs(rows: int) -> Callable[[Rng], Array]:
    """Three columns, the sign of the third the product of those of the others."""

    def sample(rng: Rng) -> Array:
        x = rng.standard_normal((rows, 3))
        x[:, 2] = abs(x[:, 2]) * np.sign(x[:, 0] * x[:, 1])
        return x

    return sample


def mixed(rows: int) -> Callable[[Rng], Array]:
    """A count, a class, a price with many zeros and a heavy tail."""

    def sample(rng: Rng) -> Array:
        price = np.round(np.exp(rng.standard_normal(rows)), 2) * (rng.random(rows) < 0.5)
        return np.column_stack(
            [rng.poisson(2, rows), rng.integers(0, 4, rows), price, rng.standard_t(1, rows)]
        )

    return sample


def rare(rows: int) -> Callable[[Rng], Array]:
    return lambda rng: (rng.permutation(rows) < rows * 0.03).astype(int)


PAIRS: dict[str, tuple[Callable[[Rng], Array], Callable[[Rng], Array]]] = {
    "Gaussian 1 + 1, 50 rows": (normal(50), normal(50)),
    "Gaussian 1 + 1, 200 rows": (normal(200), normal(200)),
    "Gaussian 1 + 1, 1,000 rows": (normal(1000), normal(1000)),
    "Gaussian 5 + 5, 300 rows": (normal(300, 5), normal(300, 5)),
    "Gaussian 20 + 20, 300 rows": (normal(300, 20), normal(300, 20)),
    "heavy tails 1 + 1, 300 rows": (tails(300, 1), tails(300, 1)),
    "heavy tails 4 + 4, one scale a side, 300 rows": (tails(300, 4), tails(300, 4)),
    "signs that depend within a side, 3 + 3, 300 rows": (signs(300), signs(300)),
    "classes 4 x 6, 200 rows": (
        lambda rng: rng.integers(0, 4, 200),
        lambda rng: rng.integers(0, 6, 200),
    ),
    "100 x 2 classes, 300 rows": (
        lambda rng: rng.integers(0, 100, 300),
        lambda rng: rng.integers(0, 2, 300),
    ),
    "words after Zipf, 300 rows": (lambda rng: rng.zipf(1.6, 300), lambda rng: rng.zipf(1.6, 300)),
    "rounded to integers, 200 rows": (
        lambda rng: np.round(2 * rng.standard_normal(200)),
        lambda rng: np.round(2 * rng.standard_normal(200)),
    ),
    "rounded 2 + 2, 300 rows": (
        lambda rng: np.round(3 * rng.standard_normal((300, 2))),
        lambda rng: np.round(rng.exponential(3, (300, 2))),
    ),
    "a rare bit beside a Cauchy column, 300 rows": (
        lambda rng: rng.standard_cauchy(300),
        rare(300),
    ),
    "mixed 4 + 4, 300 rows": (mixed(300), mixed(300)),
    "mixed 4 + normal 1, 300 rows": (mixed(300), normal(300)),
    "AR(1) 0.5, 500 rows": (autoregressive(0.5, 500), autoregressive(0.5, 500)),
    "AR(1) 0.9, 500 rows": (autoregressive(0.9, 500), autoregressive(0.9, 500)),
    "AR(1) 0.97, 500 rows": (autoregressive(0.97, 500), autoregressive(0.97, 500)),
    "AR(1) 0.9 beside independent rows, 500": (autoregressive(0.9, 500), normal(500)),
    "series of bits, 1,000 rows": (chain(0.95, 1000), chain(0.95, 1000)),
    "moving averages of 20, 500 rows": (average(20, 500), average(20, 500)),
}


def common(
    f: Callable[[Array], Array], g: Callable[[Array], Array], noise: float, causes: int = 1
) -> Callable[[Rng, int], float]:
    """x = f(z) and y = g(z), each with noise of its own: nothing is left given z."""

    def p_value(rng: Rng, seed: int) -> float:
        z = rng.standard_normal((300, causes))
        x, y = (h(z).sum(1) + noise * rng.standard_normal(300) for h in (f, g))
        return conditional_information(x, y, z, seed=seed, permutations=PERMUTATIONS).p_value

    return p_value


def by_class(rng: Rng, seed: int) -> float:
    z = rng.integers(0, 5, 300)
    x, y = z + rng.standard_normal((2, 300))
    return conditional_information(x, y, z, seed=seed, permutations=PERMUTATIONS).p_value


def driven(rng: Rng, seed: int) -> float:
    """y drives x, not x y."""
    y = autoregressive(0.7, 400)(rng)
    x = np.r_[0, 0.9 * y[:-1]] + 0.3 * rng.standard_normal(400)
    return transfer_entropy(x, y, seed=seed, permutations=PERMUTATIONS).p_value


def apart(rng: Rng, seed: int) -> float:
    x, y = (autoregressive(0.7, 400)(rng) for _ in "xy")
    return transfer_entropy(x, y, seed=seed, permutations=PERMUTATIONS).p_value


def of_panel(x: Callable[[Rng], Array], y: Callable[[Rng], Array]) -> Callable[[Rng, int], float]:
    return lambda rng, seed: Evidence(x(rng), y(rng), seed).p_value(PERMUTATIONS)


CASES: dict[str, Callable[[Rng, int], float]] = {
    **{name: of_panel(*pair) for name, pair in PAIRS.items()},
    "given: x, y = z with noise 0.5": common(np.array, np.array, 0.5),
    "given: x, y = z with noise 0.1": common(np.array, np.array, 0.1),
    "given: z^2 and cos 2z with noise 0.3": common(np.square, lambda z: np.cos(2 * z), 0.3),
    "given: three causes, noise 0.5": common(np.array, np.array, 0.5, 3),
    "given: a class": by_class,
    "transfer: AR(1) 0.7, independent": apart,
    "transfer: y drives x": driven,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--cases", default="", help="those whose name holds this")
    args = parser.parse_args()
    error = math.sqrt(ALPHA * (1 - ALPHA) / args.runs)
    print(f"| truth 0, {args.runs} runs | p <= 0.05 | ± | above by | CPU s a run |")
    print("| --- | --- | --- | --- | --- |")
    for name, p_value in CASES.items():
        if args.cases not in name:
            continue
        start = time.process_time()
        found = [p_value(np.random.default_rng([7, run]), run) for run in range(args.runs)]
        rate, seconds = sum(p <= ALPHA for p in found) / args.runs, time.process_time() - start
        print(
            f"| {name} | {rate:.3f} | {error:.3f} | {max(rate - ALPHA, 0) / error:.1f} errors "
            f"| {seconds / args.runs:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
