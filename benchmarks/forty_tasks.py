"""Samples of the forty tasks of Czyz et al. (NeurIPS 2023), with their true mutual information.

    python benchmarks/mutual_information.py --tasks forty --runs 120 --estimators fast
    python benchmarks/forty_tasks.py runs/forty   # the samples of one seed as files

Drawn by ourselves from the definitions in the paper. Their package needs old versions of JAX and
NumPy; `--package` draws from it, in an environment of its own, to compare:

    python3 -m venv tasks
    tasks/bin/pip install benchmark-mi jax==0.4.20 jaxlib==0.4.20 'scipy<1.13'
    tasks/bin/python benchmarks/forty_tasks.py runs/package --package
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES, SEED = 10_000, 0


def of_package() -> Iterator[tuple[str, float, Any, Any]]:
    from bmi.benchmark import BENCHMARK_TASKS  # type: ignore[import-not-found]

    for name, task in BENCHMARK_TASKS.items():
        x, y = task.sample(SAMPLES, SEED)
        yield name, float(task.mutual_information), np.asarray(x), np.asarray(y)


def of_paper() -> Iterator[tuple[str, float, Any, Any]]:
    for at, (name, task) in enumerate(tasks().items()):
        x, y = task.sample(SAMPLES, np.random.default_rng([SEED, at]))
        yield name, task.mutual_information, x, y


def tasks() -> dict[str, Any]:
    """The forty tasks by the names that the package gives them."""
    from infolm.information import exact
    from infolm.information.exact import CorrelatedGaussian, StudentT, Transformed, UniformNoise

    normal = CorrelatedGaussian.from_correlations([0.75])
    uniform = Transformed(normal, exact.normal_cdf, exact.normal_cdf)
    cauchy = StudentT(CorrelatedGaussian.from_correlations([0.0]), 1)

    def both(task: Any, f: Callable[[Any], Any]) -> Any:
        return Transformed(task, f, f)

    def dense(size: int) -> Any:
        covariance = np.full((2 * size, 2 * size), 0.5) + 0.5 * np.eye(2 * size)
        return CorrelatedGaussian(covariance, size)

    def pairs(size: int) -> Any:
        """Two pairs of columns correlate by 0.8, all else is independent."""
        return CorrelatedGaussian.from_correlations([0.8] * 2 + [0.0] * (size - 2))

    def student(size: int, degrees: int) -> Any:
        return StudentT(CorrelatedGaussian.from_correlations([0.0] * size), degrees)

    def turned(task: Any, size: int) -> Any:
        """x in the plane of its first two columns, y in that of its second and third."""

        def of_y(y: Any) -> Any:
            order = [1, 2, 0, *range(3, size)]
            return exact.spiral(y[:, order], 1 / size)[:, np.argsort(order)]

        return Transformed(task, lambda x: exact.spiral(x, 1 / size), of_y)

    found: dict[str, Any] = {
        "1v1-normal-0.75": normal,
        "normal_cdf-1v1-normal-0.75": uniform,
        "1v1-additive-0.1": UniformNoise(0.1),
        "1v1-additive-0.75": UniformNoise(0.75),
        "1v1-bimodal-0.75": Transformed(
            uniform, modes([(0.3, 0), (0.7, 5)]), modes([(0.5, -1), (0.5, 3)])
        ),
        "wiggly-1v1-normal-0.75": Transformed(normal, wiggly_x, wiggly_y),
        "half_cube-1v1-normal-0.75": both(normal, exact.half_cube),
        "student-identity-1-1-1": cauchy,
        "asinh-student-identity-1-1-1": both(cauchy, exact.asinh),
        "swissroll_x-normal_cdf-1v1-normal-0.75": Transformed(uniform, exact.swiss_roll),
    }
    for size in (2, 3, 5, 25, 50):
        found[f"multinormal-dense-{size}-{size}-0.5"] = dense(size)
    for size in (2, 3, 5, 25):
        found[f"multinormal-sparse-{size}-{size}-2-2.0"] = pairs(size)
    for size, degrees in ((2, 1), (2, 2), (3, 2), (3, 3), (5, 2), (5, 3)):
        found[f"student-identity-{size}-{size}-{degrees}"] = student(size, degrees)
    for size in (3, 5, 25):
        plain, name = pairs(size), f"multinormal-sparse-{size}-{size}-2-2.0"
        flat = both(plain, exact.normal_cdf)
        found[f"normal_cdf-{name}"] = flat
        found[f"half_cube-{name}"] = both(plain, exact.half_cube)
        found[f"spiral-{name}"] = turned(plain, size)
        found[f"spiral-normal_cdf-{name}"] = turned(flat, size)
    for size, degrees in ((2, 1), (3, 2), (5, 2)):
        found[f"asinh-student-identity-{size}-{size}-{degrees}"] = both(
            student(size, degrees), exact.asinh
        )
    return found


def modes(parts: list[tuple[float, float]]) -> Callable[[Any], Any]:
    """The quantile function of a mixture of unit normals, (weight, mean) each."""
    from scipy.special import ndtr

    grid = np.linspace(-12, 16, 400_001)
    distribution = sum(weight * ndtr(grid - mean) for weight, mean in parts)
    return lambda u: np.interp(u, distribution, grid)


def wiggly_x(x: Any) -> Any:
    return x + 0.4 * np.sin(x) + 0.2 * np.sin(1.7 * x + 1) + 0.03 * np.sin(3.3 * x - 2.5)


def wiggly_y(y: Any) -> Any:
    waves = -0.4 * np.sin(0.4 * y) + 0.17 * np.sin(1.3 * y + 3.5) + 0.02 * np.sin(4.3 * y - 2.5)
    return y + waves


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    index = []
    for name, truth, x, y in of_package() if "--package" in sys.argv else of_paper():
        np.savez(folder / f"{name}.npz", x=x, y=y)
        index.append({"name": name, "mutual_information": truth})
    (folder / "tasks.json").write_text(json.dumps(index, indent=1))


if __name__ == "__main__":
    main()
