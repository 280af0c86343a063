"""Parallel coordinates of a study: figures 2.5 and 2.6 of Melis's thesis.

One axis a hyperparameter, from the low to the high end of its range, and one for the loss; one line
a complete trial, coloured by its loss. Highlighted are the trials nearest to the best: those that
differ from it by no more than 7.5 % of the range in any hyperparameter, a box of 15 %. Where these
lie close together on the axis of the loss, the result is insensitive to the exact values.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from optuna.trial import FrozenTrial, TrialState

from infolm.reports.curves import INK, LINE, MUTED, STYLE, TRAINING, VALIDATION
from infolm.space import Between, Choices, Space
from infolm.training.checkpoint import atomically

BOX = 0.15
"""The share of each range within which a trial is in the best one's neighbourhood (section 2.B)."""
SHOWN = 0.9
"""The share of trials whose losses span the axis; the worst may be far off, and end at its top."""
FROM_GOOD_TO_BAD = LinearSegmentedColormap.from_list("loss", [TRAINING, "#8fc1de", LINE])
LEGEND = 4.4
"""Inches that the legend takes, however few the axes."""
Line = list[float]


def neighbours(points: Sequence[Line], best: int) -> list[int]:
    """The points within the box around the best; it is among them. Points: (trials, keys)."""
    distance = np.abs(np.array(points) - np.array(points[best]))
    near = (distance <= BOX / 2 + 1e-9).all(axis=1)
    return [int(i) for i in np.flatnonzero(near)]


def draw(space: Space, trials: Sequence[FrozenTrial], path: Path) -> None:
    """Write the picture to `path`, an .svg, and beside it as a .png."""
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        save(picture(space, trials), path)


def save(figure: Figure, path: Path) -> None:
    """As an .svg, and beside it as a .png."""
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    atomically(path, lambda file: figure.savefig(file, format="svg", metadata=nothing))
    png = path.with_suffix(".png")
    atomically(png, lambda file: figure.savefig(file, format="png", dpi=150))


def picture(space: Space, trials: Sequence[FrozenTrial]) -> Figure:
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    losses = [trial.values[0] for trial in complete]
    points = [[each.unit(t.params[key]) for key, each in space.items()] for t in complete]
    width = max(1.25 * (len(space) + 1) + 0.6, LEGEND)
    figure = Figure(figsize=(width, 4.6), layout="constrained")
    axes = figure.subplots()
    _draw_lines(axes, points, losses)
    for x, (key, section) in enumerate(space.items()):
        _draw_axis(axes, x, key.replace(".", ".\n"), _ticks(section), f"axis-{key}")
    _draw_loss_axis(axes, len(space), losses)
    axes.set(xlim=(-0.45, len(space) + 0.65), ylim=(-0.04, 1.04), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.legend(loc="outside lower left", ncols=3)
    return figure


def _span(losses: Sequence[float]) -> tuple[float, float]:
    """The ends of the axis of the loss."""
    low, high = min(losses), float(np.quantile(losses, SHOWN, method="higher"))
    return low, max(high, low + 1e-3)


def _draw_lines(axes: Axes, points: Sequence[Line], losses: Sequence[float]) -> None:
    low, high = _span(losses)
    heights = [min((loss - low) / (high - low), 1.0) for loss in losses]
    best = losses.index(min(losses))
    near = neighbours(points, best)
    for i in range(len(losses)):
        colour, width, layer = to_hex(FROM_GOOD_TO_BAD(heights[i])), 1.0, 1.0 - 0.5 * heights[i]
        if i in near:
            colour, width, layer = VALIDATION, 2.6 if i == best else 1.1, 2
        axes.plot(
            [*points[i], heights[i]], color=colour, linewidth=width, zorder=layer, gid=f"trial-{i}"
        )
    axes.plot([], color=VALIDATION, linewidth=2.6, label="best trial")
    axes.plot([], color=VALIDATION, linewidth=1.1, label=f"within {BOX:.0%} of each range around")


def _ticks(section: Between | Choices) -> list[tuple[float, str]]:
    """(place, text): both ends, and round numbers between them; or every choice."""
    if isinstance(section, Choices):
        return [(section.unit(choice), str(choice)) for choice in section.choices]
    low, high = section.low, section.high
    if section.log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        digits = (1, 2, 5) if len(powers) <= 3 else (1,)
        between = [digit * 10.0**power for power in powers for digit in digits]
    else:
        between = list(MaxNLocator(5, integer=section.integer).tick_values(low, high))
    return _apart([low, high, *between], section)


def _apart(numbers: list[float], section: Between) -> list[tuple[float, str]]:
    """Those numbers that lie in the range and not upon an earlier one."""
    ticks: list[tuple[float, str]] = []
    for number in numbers:
        inside = section.low <= number <= section.high
        if inside and all(abs(section.unit(number) - place) > 0.06 for place, _ in ticks):
            ticks.append((section.unit(number), f"{number + 0.0:.3g}"))
    return ticks


def _draw_axis(
    axes: Axes, x: int, title: str, ticks: Sequence[tuple[float, str]], gid: str
) -> None:
    axes.plot([x, x], [0, 1], color=INK, linewidth=0.8, zorder=4, gid=gid)
    axes.text(x, 1.07, title, ha="center", va="bottom", size=8, color=INK)
    for place, text in ticks:
        axes.plot([x - 0.03, x], [place, place], color=INK, linewidth=0.8, zorder=4)
        _label(axes, x - 0.05, place, text, "right")


def _label(axes: Axes, x: float, y: float, text: str, align: str) -> None:
    """A number beside an axis, on a patch of the page's colour, so that lines do not cross it."""
    patch = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
    axes.text(x, y, text, ha=align, va="center", size=7, color=MUTED, zorder=5, bbox=patch)


def _draw_loss_axis(axes: Axes, x: int, losses: Sequence[float]) -> None:
    """The last axis is painted with the colours it gives the lines; perplexities beside it."""
    low, high = _span(losses)
    title = "validation loss,\nnats | perplexity"
    _draw_axis(axes, x, title, [], "axis-loss")
    strip = np.linspace(0, 1, 256)[:, None]
    axes.imshow(
        strip,
        extent=(x - 0.025, x + 0.025, 0, 1),
        aspect="auto",
        origin="lower",
        cmap=FROM_GOOD_TO_BAD,
        zorder=4,
    )
    for place in np.linspace(0, 1, 5):
        loss = low + place * (high - low)
        above = "≥ " if place == 1 and max(losses) > high else ""
        _label(axes, x - 0.05, place, f"{above}{loss:.3f}", "right")
        _label(axes, x + 0.05, place, f"{above}{math.exp(min(loss, 700.0)):,.1f}", "left")
