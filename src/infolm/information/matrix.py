"""The mutual information of all pairs of columns, with p-values corrected for their number.

The p-values are those of Benjamini and Hochberg (1995): calling all pairs with a corrected p-value
of at most q dependent, the expected share of false ones among them is at most q.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm.errors import InfolmError
from infolm.information.estimate import Array, Progress, rows
from infolm.information.panel import Answer, Panel


def corrected(p_values: npt.ArrayLike) -> Array:
    """p-values of M tests after Benjamini and Hochberg: min over j >= rank of p_(j) M / j."""
    p = np.asarray(p_values, float)
    order = np.argsort(p)[::-1]
    ranks = np.arange(len(p), 0, -1)
    found = np.empty_like(p)
    found[order] = np.minimum(np.minimum.accumulate(p[order] * len(p) / ranks), 1.0)
    return found


@dataclass(frozen=True)
class Pair:
    """Two columns, the panel's answer for them, and the corrected p-value."""

    x: str
    y: str
    answer: Answer
    corrected_p: float


def matrix(
    data: npt.ArrayLike, names: Sequence[str], panel: Panel, progress: Progress | None = None
) -> list[Pair]:
    """All pairs of the columns of data (N, D), in their order."""
    columns = rows(data, "the table")
    places = list(combinations(range(columns.shape[1]), 2))
    if not places:
        raise InfolmError("a matrix needs at least two columns: give a file with more")
    answers = []
    for i, j in places:
        answers.append(panel.estimate(columns[:, i], columns[:, j]))
        if progress:
            progress(len(answers), len(places))
    p_values = corrected([answer.p_value for answer in answers])
    return [
        Pair(names[i], names[j], answer, float(p))
        for (i, j), answer, p in zip(places, answers, p_values, strict=True)
    ]


def draw_matrix(pairs: Sequence[Pair], names: Sequence[str], path: Path) -> None:
    """A heat map of the values; a dot where the corrected p-value is at most 0.05."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    size, places = len(names), {name: at for at, name in enumerate(names)}
    values = np.full((size, size), np.nan)
    figure, panel = plt.subplots(figsize=(2.2 + 0.5 * size, 1.6 + 0.5 * size))
    for pair in pairs:
        i, j = places[pair.x], places[pair.y]
        values[i, j] = values[j, i] = pair.answer.value
    image: Any = panel.imshow(values, cmap="viridis", vmin=0)
    for pair in pairs:
        i, j = places[pair.x], places[pair.y]
        if pair.corrected_p <= 0.05:
            panel.plot([i, j], [j, i], "o", color="white", mec="black", mew=0.7, ms=5)
    panel.set_xticks(range(size), names, rotation=60, ha="right", fontsize=8)
    panel.set_yticks(range(size), names, fontsize=8)
    unit = pairs[0].answer.unit
    bar = figure.colorbar(image, shrink=0.8)
    bar.set_label(f"mutual information, {unit}", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    panel.set_title("dot: corrected p at most 0.05", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
