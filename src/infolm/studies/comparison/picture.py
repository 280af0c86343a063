"""The learning curves of several runs on one plot."""

import math
from collections.abc import Sequence
from itertools import cycle, product
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from infolm.errors import InfolmError
from infolm.reports.curves import LARGEST, OPENING, STYLE, as_svg, perplexity_ticks
from infolm.reports.history import Series
from infolm.studies.comparison.comparison import Comparison, Group
from infolm.training.checkpoint import atomically

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6168")
"""The palette of Okabe and Ito, distinguishable with any colour vision."""
NAMED = 14
"""Groups that the legend names; of more, the first ones."""


def draw(found: Comparison, path: Path) -> None:
    """Write the curves to a .png or an .svg."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in ("png", "svg"):
        raise InfolmError(f"{path} is not a picture's name: end it in .png or .svg")
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type")) if kind == "svg" else None
    with matplotlib.rc_context(STYLE):
        figure = _figure(found)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomically(path, lambda file: figure.savefig(file, format=kind, dpi=150, metadata=nothing))


def inline(found: Comparison) -> str:
    """The <svg> element for a page."""
    described = " ".join(
        f"{group.label}: the least validation loss is "
        f"{min(r.curve.values.min() for r in group.results):.3f}."
        for group in found.groups[:NAMED]
    )
    with matplotlib.rc_context(STYLE):
        figure = _figure(found)
        figure.patch.set_visible(False)
        figure.axes[0].patch.set_visible(False)
        return as_svg(figure, "Learning curves", described, "compare-")


def _figure(found: Comparison) -> Figure:
    figure = Figure(figsize=(7.4, 4.2), layout="constrained")
    axes = figure.subplots()
    styles = cycle((colour, dash) for dash, colour in product(("-", "--", ":", "-."), PALETTE))
    shown: list[float] = []
    for i, (group, (colour, dash)) in enumerate(zip(found.groups, styles, strict=False)):
        label = group.label if i < NAMED else ""
        mean, low, high = band(group)
        few = len(mean) <= 30
        axes.plot(
            mean.steps,
            mean.values,
            color=colour,
            linestyle=dash,
            linewidth=1.4,
            marker="o" if few else "",
            markersize=2.5,
            label=label,
            gid=f"group-{i}",
        )
        if len(group.results) > 1:
            axes.fill_between(mean.steps, low, high, color=colour, alpha=0.18, linewidth=0)
        late = mean.steps >= OPENING * mean.steps[-1]
        shown += [*low[late].tolist(), *high[late].tolist()]
    bottom, top = min(shown), max(shown)
    margin = max(0.05 * (top - bottom), 0.02)
    axes.set_ylim(max(bottom - margin, 0.0), top + margin)
    axes.set_xlabel("steps")
    axes.set_ylabel(f"validation loss, {found.groups[0].results[0].measurements[-1].unit}")
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if all(result.family == "language" for group in found.groups for result in group.results):
        right = axes.secondary_yaxis("right")
        right.set_ylabel("perplexity")
        ticks = perplexity_ticks(*axes.get_ylim())
        right.set_yticks([math.log(tick) for tick in ticks], [f"{tick:,.4g}" for tick in ticks])
    figure.legend(loc="outside upper left", ncols=min(4, len(found.groups)))
    return figure


def band(group: Group) -> tuple[Series, np.ndarray, np.ndarray]:
    """The mean of a group's curves, and one standard deviation below and above it.

    Over the steps up to where the shortest run ended; between validations in a straight line.
    """
    curves: Sequence[Series] = [result.curve for result in group.results]
    end = min(int(curve.steps[-1]) for curve in curves)
    start = max(int(curve.steps[0]) for curve in curves)
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    steps = steps[(steps >= min(start, end)) & (steps <= end)]
    rows = np.stack([np.interp(steps, c.steps, np.minimum(c.values, LARGEST)) for c in curves])
    mean = rows.mean(0)
    spread = rows.std(0, ddof=1) if len(curves) > 1 else np.zeros_like(mean)
    return Series(steps, mean), mean - spread, mean + spread
