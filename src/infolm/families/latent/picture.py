"""Plots of a model's codes as inline SVGs, in the style of the learning curve."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, StrMethodFormatter

from infolm.evaluation.posterior import Picture
from infolm.reports.curves import STYLE, TRAINING, VALIDATION, as_svg
from infolm.reports.page import COLOURS

BINS = 50
TAIL = 0.01
"""The share of a histogram's values, at either end, that is outside the axis."""
IDLE = COLOURS["raw"][0]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LatentPlots:
    """SVGs: KL by unit, the histograms of figure 3, and those of figures 5 and 6. The first is
    empty if the code is a point, the last if there is no prior either."""

    dimensions: str = ""
    histograms: str = ""
    bounds: str = ""


def draw_latent(picture: Picture, point: bool, prior: bool = True) -> LatentPlots:
    """Draw all plots. Codes that are points have no distribution given a sentence; if they have no
    `prior` either, there is no bound, only the likelihoods."""
    with matplotlib.rc_context(STYLE):
        return LatentPlots(
            "" if point else _dimensions(picture),
            _histograms(picture, point),
            _bounds(picture) if prior else "",
        )


def span(groups: Sequence[Array]) -> tuple[float, float]:
    """An axis that shows every group without its tails.

    A few codes of a narrow posterior can be a million nats off, and would flatten the rest. A
    single value gets a range of one nat.
    """
    finite = [group[np.isfinite(group)] for group in groups]
    ends = np.array([np.quantile(group, (TAIL, 1 - TAIL)) for group in finite if len(group)])
    if not len(ends):
        return 0.0, 1.0
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    margin = 0.02 * (high - low) or 0.5
    return low - margin, high + margin


def _dimensions(picture: Picture) -> str:
    figure, (axes,) = _figure(1.9, 1)
    order = np.argsort(-picture.kl, kind="stable")
    kl, active = picture.kl[order], picture.active[order]
    edges = np.arange(len(kl) + 1) + 0.5
    for name, chosen, colour in (("active", active, TRAINING), ("idle", ~active, IDLE)):
        heights = np.where(chosen, kl, 0.0)
        axes.stairs(heights, edges, fill=True, color=colour, label=name, gid=f"{name}-units")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(float(kl.max()) * 1.05, 1e-3))
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
    units = "variables" if len(picture.classes) else "dimensions"
    axes.set_xlabel(f"{units}, the largest first")
    axes.set_ylabel("KL, nats")
    figure.legend(loc="outside upper left", ncols=2)
    description = (
        f"Of {len(kl):,} {units} {active.sum():,} are active; the KL divergence is "
        f"{kl[0]:.3f} nats in the largest and {kl[-1]:.3f} in the smallest."
    )
    return as_svg(figure, "KL divergence by unit of the code", description, "dimensions-")


def _histograms(picture: Picture, point: bool) -> str:
    figure, panels = _figure(2.5, 1 if point else 2)
    of = "its own", "another's"
    likelihoods = dict(zip(of, (picture.own_likelihood, picture.other_likelihood), strict=True))
    _draw_histograms(panels[0], likelihoods, "likelihood")
    panels[0].set_xlabel("ln p(x|z) of a sentence, nats")
    panels[0].set_ylabel("frequency")
    description = _medians("ln p(x|z)", likelihoods)
    if not point:
        densities = dict(zip(of, (picture.own_density, picture.other_density), strict=True))
        _draw_histograms(panels[1], densities, "density")
        panels[1].set_xlabel("ln q(z|x) of a code, nats")
        description += f" {_medians('ln q(z|x)', densities)}"
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return as_svg(figure, "Sentences and codes that belong together or not", description, "pairs-")


def _bounds(picture: Picture) -> str:
    figure, (left, right) = _figure(2.5, 2)
    bound, error = picture.bound, picture.bound_error
    one = len(bound) == 1
    left.plot(picture.sizes, bound, color=VALIDATION, marker="." if one else "", gid="bound")
    left.fill_between(
        picture.sizes, bound - error, bound + error, color=VALIDATION, alpha=0.25, linewidth=0
    )
    left.set_xscale("log")
    left.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    left.minorticks_off()
    left.set_xlabel("sentences")
    left.set_ylabel("loss by MELBO,\nnats per sentence")
    values = {"ELBO": picture.elbo, "MELBO": picture.melbo - picture.ceiling}
    _draw_histograms(right, values, "sentence")
    for colour, each in zip((TRAINING, VALIDATION), values.values(), strict=True):
        right.axvline(float(each.mean()), color=colour, linewidth=1.2, linestyle="--")
    right.set_xlabel("bound on ln p(x) of a sentence, nats")
    right.set_ylabel("frequency")
    figure.legend(*right.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    description = (
        f"MELBO allows a loss of {bound[-1]:.2f} nats per sentence with {picture.sizes[-1]:,} "
        f"sentences and of {bound[0]:.2f} with {picture.sizes[0]:,}. "
        + _medians("the bound", values)
    )
    return as_svg(figure, "Bounds on the likelihood", description, "bounds-")


def _figure(height: float, panels: int) -> tuple[Figure, list[Axes]]:
    """Panels beside each other; `height` in inches."""
    figure = Figure(figsize=(7.4, height), layout="constrained")
    figure.patch.set_visible(False)
    row = figure.subplots(1, panels, squeeze=False)[0]
    for axes in row:
        axes.patch.set_visible(False)
        axes.set_axisbelow(True)
    return figure, list(row)


def _draw_histograms(axes: Axes, groups: dict[str, Array], prefix: str) -> None:
    """Two histograms over the same bins, each scaled to its own height: one may be a spike."""
    low, high = span(list(groups.values()))
    edges = np.linspace(low, high, BINS + 1)
    for i, (name, values) in enumerate(groups.items()):
        counts, _ = np.histogram(values, edges)
        axes.stairs(
            counts / max(counts.max(), 1),
            edges,
            fill=True,
            color=(TRAINING, VALIDATION)[i],
            alpha=0.55,
            label=name,
            gid=f"{prefix}-{i}",
        )
    axes.set_xlim(low, high)
    axes.set_ylim(0, 1.05)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))


def _medians(what: str, groups: dict[str, Array]) -> str:
    listed = " and ".join(f"{np.median(each):,.1f} ({name})" for name, each in groups.items())
    return f"The medians of {what} are {listed}."
