"""Plots of gradient noise: the ratio of two gradients' variances per parameter (figure 3 of the BMI
paper), and the signal-to-noise ratio of a Monte Carlo objective by the number of samples."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, StrMethodFormatter

from infolm.evaluation.gradient_variance import Comparison
from infolm.evaluation.signal import Signals
from infolm.reports.curves import STYLE
from infolm.reports.page import COLOURS
from infolm.training import checkpoint

BINS_PER_DECADE = 10
RED, GREEN, ORANGE = "#c1121f", "#2a9d3a", "#f28c00"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(value: float) -> str:
    """0.1, 1 and 10 as they are, others as 10⁴."""
    exponent = round(np.log10(value))
    return f"{value:g}" if abs(exponent) <= 1 else f"10{str(exponent).translate(SUPERSCRIPTS)}"


def draw(found: Comparison, pairs: int, path: Path) -> None:
    """The histogram over weights as a PNG; lines at 0.1, 1, 10 and the mean ratio, as the paper
    has them. `found` is of batches of so many `pairs`."""
    logs = found.log_ratios
    low, high = np.floor(min(logs.min(), -1)), np.ceil(max(logs.max(), 1))
    edges = np.linspace(low, high, round((high - low) * BINS_PER_DECADE) + 1)
    counts, _ = np.histogram(logs, edges)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.4, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_axisbelow(True)
        axes.stairs(counts, 10**edges, fill=True, color=COLOURS["training"][0], alpha=0.7)
        axes.axvline(1, color=RED, linestyle=":", linewidth=1.8, label="1: as noisy")
        axes.axvline(0.1, color=GREEN, label="0.1 and 10")
        axes.axvline(10, color=GREEN)
        mean = found.mean_ratio
        axes.axvline(mean, color=ORANGE, linewidth=1.8, label=f"mean ratio, {mean:,.4g}")
        axes.set_xlim(10 ** edges[0], 10 ** edges[-1])
        axes.set_xlabel("gradient variance of a parameter, policy gradient / IW-RAML")
        axes.set_ylabel(f"parameters, in bins of 1/{BINS_PER_DECADE} decade")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.minorticks_off()
        axes.set_title(
            f"{len(logs):,} of {found.weights:,} parameters, {found.batches:,} batches of "
            f"{pairs:,} "
            "pairs of sentences",
            loc="left",
            fontsize="medium",
        )
        figure.legend(loc="outside lower left", ncols=3)
        checkpoint.atomically(path, lambda file: figure.savefig(file, format="png", dpi=150))


def draw_signals(found: Sequence[tuple[str, int, Signals]], path: Path) -> None:
    """The ratio of each estimator against its number of samples, as a PNG: that of the inference
    network's gradient, and of the decoder's."""
    counts = sorted({count for _, count, _ in found})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.4, 3.8), layout="constrained")
        for axes, side in zip(figure.subplots(1, 2), ("encoder", "decoder"), strict=True):
            for estimator in dict.fromkeys(name for name, _, _ in found):
                own = [
                    (count, getattr(each, side)) for name, count, each in found if name == estimator
                ]
                axes.errorbar(
                    [count for count, _ in own],
                    [signal.ratio for _, signal in own],
                    [signal.ratio_stderr for _, signal in own],
                    marker="o",
                    markersize=4,
                    capsize=2,
                    label=estimator if side == "encoder" else None,
                )
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.minorticks_off()
            axes.set_xlabel("samples")
            axes.set_title(f"{side}'s gradient", loc="left", fontsize="medium")
        figure.axes[0].set_ylabel("signal-to-noise ratio, mean over parameters")
        figure.legend(loc="outside lower left", ncols=6)
        checkpoint.atomically(path, lambda file: figure.savefig(file, format="png", dpi=150))
