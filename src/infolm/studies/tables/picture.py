"""A table as a picture: each arm a row, each seed a point, the mean and its standard error."""

from pathlib import Path
from statistics import mean, stdev

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from infolm.reports.curves import MUTED, STYLE
from infolm.studies.tables.records import Records
from infolm.training.checkpoint import atomically

INK = "#0072b2"
ABREAST = 3
"""Panels beside each other."""


def draw(records: Records, path: Path) -> bool:
    """Write the picture to `path`, a .png; False: nothing is measured yet."""
    table, figures = records.work.table, records.figures
    arms = [name for name in table.arms if figures.get(name)]
    if not arms:
        return False
    with matplotlib.rc_context(STYLE):
        count = len(table.figures)
        columns, rows = min(count, ABREAST), -(-count // ABREAST)
        size = 2.6 + 3.2 * columns, 0.5 + rows * (0.7 + 0.34 * len(arms))
        picture = Figure(figsize=size, layout="constrained")
        panels = list(picture.subplots(rows, columns, sharey=True, squeeze=False).flat)
        for axes, (name, config) in zip(panels, table.figures.items(), strict=False):
            _panel(axes, records, arms, name)
            axes.set_xlabel(config.label)
        for axes in panels[count:]:
            axes.set_visible(False)
        panels[0].set_yticks(range(len(arms)), [table.arms[arm].label for arm in arms])
        panels[0].set_ylim(len(arms) - 0.5, -0.5)
        picture.suptitle(table.title, fontsize="medium", x=0.01, ha="left")
        path.parent.mkdir(parents=True, exist_ok=True)
        atomically(path, lambda file: picture.savefig(file, format="png", dpi=130))
    return True


def _panel(axes: Axes, records: Records, arms: list[str], figure: str) -> None:
    for row, arm in enumerate(arms):
        values = [each[figure] for each in records.figures[arm].values() if figure in each]
        if not values:
            continue
        axes.plot(values, [row] * len(values), "o", color=MUTED, markersize=3, alpha=0.7)
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        axes.errorbar(mean(values), row, xerr=error, fmt="D", color=INK, markersize=5, capsize=3)
    axes.grid(axis="x", alpha=0.3)
