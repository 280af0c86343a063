"""Known amounts of information planted in your columns, and the estimators' results.

Information is planted into copies of the columns: their values stay, only the rows of y change
place. Let t be the normal scores of x along a direction, s those of y, and g noise. The rows of y
are put such that s has the order of

    rho t + sqrt(1 - rho^2) g,    rho = sqrt(1 - e^{-2 I}).

Then t and s are a Gaussian pair of I nats, and nothing else joins x and y: I(X; Y) = I, exactly for
continuous columns. Where ties leave t or s partly to chance it is I at most. The columns of a side
keep their values and their dependence on each other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm.information.estimate import Array, Progress, pairs
from infolm.information.ranks import random_scores

PLANTED = (0.0, 0.1, 0.5, 1.0, 2.0)

Rows = npt.NDArray[Any]
Read = Callable[[Rows, Rows], Any]
"""x, y -> an object with a value and an interval."""


def planted(x: Rows, y: Rows, nats: float, seed: int = 0) -> tuple[Rows, Rows]:
    """x, and the rows of y in an order that shares `nats` with those of x."""
    rng = np.random.default_rng(seed)
    t, s = (_direction(side, rng) for side in (x, y))
    rho = np.sqrt(-np.expm1(-2 * nats))
    noise = random_scores(rng.standard_normal((len(x), 1)), rng)[:, 0]
    wanted = rho * t + np.sqrt(1 - rho**2) * noise
    order = np.empty(len(x), np.intp)
    order[np.argsort(wanted)] = np.argsort(s)
    return x, y[order]


def _direction(x: Rows, rng: np.random.Generator) -> Array:
    """The first principal component of the normal scores, itself as normal scores: (N,)."""
    scores = random_scores(x, rng)
    _, _, axes = np.linalg.svd(scores - scores.mean(0), full_matrices=False)
    return random_scores((scores @ axes[0])[:, None], rng)[:, 0]


@dataclass(frozen=True)
class Reading:
    """An estimator's result for a planted amount, in nats."""

    estimator: str
    planted: float
    value: float
    interval: tuple[float, float]
    warning: str | None

    @property
    def held(self) -> bool:
        """Whether the interval holds it."""
        return self.interval[0] <= self.planted <= self.interval[1]


def proved(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    estimators: Mapping[str, Read],
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Reading]:
    """The reading of every estimator at every amount of `PLANTED`."""
    a, b = pairs(x, y)
    readings: list[Reading] = []
    for nats in PLANTED:
        copy = planted(a, b, nats, seed)
        for name, read in estimators.items():
            found = read(*copy)
            reading = Reading(name, nats, found.value, found.interval, found.warning)
            readings.append(reading)
            if progress:
                progress(len(readings), len(PLANTED) * len(estimators))
    return readings


def sentence(readings: Sequence[Reading], name: str, samples: int) -> str:
    """A summary sentence for a paper."""
    own = [reading for reading in readings if reading.estimator == name]
    right = [reading for reading in own if reading.held or reading.warning]
    read = ", ".join(f"{reading.value:.2f}" for reading in own)
    amounts = ", ".join(f"{reading.planted:g}" for reading in own)
    return (
        f"of {amounts} nats planted into these columns with {samples:,} rows, {name} reads {read}; "
        f"its interval holds them or it warns in {len(right)} of {len(own)}"
    )


def draw(readings: Sequence[Reading], path: Path) -> None:
    """Readings against what was planted, a line an estimator."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(reading.estimator for reading in readings))
    figure, panel = plt.subplots(figsize=(6, 4.2))
    most = max(PLANTED)
    panel.plot([0, most], [0, most], color="0.6", lw=1, label="truth")
    for at, name in enumerate(names):
        own = [reading for reading in readings if reading.estimator == name]
        shift = 0.03 * (at - (len(names) - 1) / 2)
        places = [reading.planted + shift for reading in own]
        ends = np.array([reading.interval for reading in own])
        values = np.array([reading.value for reading in own])
        reach = np.abs(np.stack([values - ends[:, 0], ends[:, 1] - values]))
        panel.errorbar(places, values, reach, fmt="o-", ms=4, lw=1, capsize=2, label=name)
    panel.set(xlabel="nats planted", ylabel="nats read")
    panel.legend(frameon=False, fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
