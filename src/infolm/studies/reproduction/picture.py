"""Pareto frontiers of NLL against mutual information, as figures 5.2 to 5.15 of Melis's thesis."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from infolm.reports.curves import MUTED, STYLE
from infolm.studies.reproduction.frontier import Position, frontier
from infolm.studies.reproduction.plan import Plan
from infolm.studies.reproduction.results import (
    Records,
    augmentation,
    full_label,
    optimum,
    positions,
)
from infolm.training.checkpoint import atomically

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6168")
"""After Okabe and Ito, which people with any kind of colour vision can tell apart."""
MARKERS = "osD^vPX"
BEYOND = 1.1
"""Of the entropy of the text; where codes cost more, they tell nothing more, and that is not
shown."""


@dataclass(frozen=True)
class Frontier:
    """One curve. label: in the legend; group: those of one group share a colour and a shape; full:
    whether its markers are filled, as those of the Rényi objective are."""

    label: str
    group: str
    full: bool
    positions: Sequence[Position]


def draw(
    curves: Sequence[Frontier], title: str, split: str, unit: str, optimum: float | None, path: Path
) -> None:
    """Write the picture to `path`, a .png, and beside it as an .svg. optimum: the lowest NLL that
    there can be, and the most that a code can tell, if that is known. Points that others of their
    curve dominate are left out, as in the thesis."""
    groups = list(dict.fromkeys(curve.group for curve in curves))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.4, 4.4), layout="constrained")
        axes = figure.subplots()
        if optimum is not None:
            axes.axhline(optimum, color=MUTED, linewidth=1, linestyle="--", label="optimum")
        for curve in curves:
            number = groups.index(curve.group)
            colour = PALETTE[number % len(PALETTE)]
            edge = [curve.positions[i] for i in frontier(curve.positions)]
            axes.plot(
                [each.information for each in edge],
                [each.nll for each in edge],
                color=colour,
                marker=MARKERS[number % len(MARKERS)],
                markersize=5,
                markerfacecolor=colour if curve.full else "white",
                linewidth=1,
                label=curve.label,
            )
        if optimum is not None:
            _look_at(axes, curves, optimum)
        axes.set_xlabel(f"mutual information of text and code, {unit}")
        axes.set_ylabel(f"NLL of the {split} split, {unit}")
        axes.set_title(title, loc="left", fontsize="medium")
        figure.legend(loc="outside right upper")
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        svg = path.with_suffix(".svg")
        atomically(path, lambda file: figure.savefig(file, format="png", dpi=150))
        atomically(svg, lambda file: figure.savefig(file, format="svg", metadata=nothing))


def _look_at(axes: Axes, curves: Sequence[Frontier], entropy: float) -> None:
    """Show what lies within the entropy of the text, and the rest only as far as it is near."""
    right = BEYOND * entropy
    shown = [each.nll for curve in curves for each in curve.positions if each.information <= right]
    top = max(shown, default=entropy)
    margin = 0.05 * max(top - entropy, 0.02 * entropy)
    axes.set(xlim=(-0.02 * right, right), ylim=(entropy - margin, top + margin))


def draw_figures(plan: Plan, records: Records, out: Path) -> list[Path]:
    """Those figures of a reproduction of which something was measured; gives where they are."""
    paths: list[Path] = []
    for number, figure in plan.reproduction.figures.items():
        curves = [
            Frontier(
                full_label(plan, name),
                plan.reproduction.curves[name].label,
                augmentation(plan, name) != "kl",
                list(places.values()),
            )
            for name in figure.curves
            if (places := positions(plan, records, name, figure.split))
        ]
        if curves:
            path = out / f"figure-{number}.png"
            unit = f"nats per {plan.reproduction.per}"
            draw(curves, figure.title, figure.split, unit, optimum(plan), path)
            paths.append(path)
    return paths
