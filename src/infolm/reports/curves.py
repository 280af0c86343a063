"""The course of a training as one inline SVG: loss above, speed below, over the same steps.

Text stays text, and colours are the page's variables, so that the plot turns dark with the page.
"""

import io
import math
from collections.abc import Iterator
from html import escape
from itertools import chain, cycle
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from infolm.reports.history import History
from infolm.reports.page import COLOURS

POINTS = 2000
"""A longer series is thinned to at most so many points."""
MARKERS = 60
"""Up to so many validations, each has its dot."""
OPENING = 1 / 50
"""The share of training, at its start, that has no say in the height of the plot: the loss falls
so fast there that the rest would look flat."""
LARGEST = 700.0
"""exp of more nats than this overflows."""

INK, MUTED, LINE, TRAINING, VALIDATION, EVENT = (
    COLOURS[name][0] for name in ("ink", "muted", "line", "training", "validation", "event")
)

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "infolm",
    "font.family": "DejaVu Sans",  # comes with matplotlib; the page puts its own in
    "font.size": 9,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
}


def perplexity_ticks(low: float, high: float) -> list[float]:
    """Round perplexities between exp(low) and exp(high): 1, 2, 5, 10, ... over a wide range,
    evenly spaced ones over a narrow range."""
    low, high = min(low, LARGEST), min(high, LARGEST)
    bottom, top = math.exp(low), math.exp(high)
    if high - low < math.log(10):
        ticks = list(MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(bottom, top))
    else:
        powers = range(math.floor(low / math.log(10)), math.ceil(high / math.log(10)))
        stride = math.ceil(len(powers) / 8)
        digits = (1, 2, 5) if len(powers) <= 3 else (1,)
        ticks = [digit * 10.0**power for power in powers[::stride] for digit in digits]
    return [tick for tick in ticks if bottom <= tick <= top and tick > 0]


def epoch_ticks(epochs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most eight of the (step, epoch), at round epochs."""
    if not epochs:
        return []
    count = epochs[-1][1]
    stride = next(stride for stride in _round_numbers() if count / stride <= 8)
    return [(step, epoch) for step, epoch in epochs if epoch % stride == 0]


def _round_numbers() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ..."""
    scale = 1
    while True:
        yield from (scale, 2 * scale, 5 * scale)
        scale *= 10


def describe(history: History) -> str:
    """The plot in words, for those who cannot see it."""
    losses = history.training.values
    sentences = []
    if len(losses):
        sentences.append(
            f"The training loss goes from {losses[0]:.3f} to {losses[-1]:.3f} nats per token "
            f"by step {history.training.steps[-1]:,}."
        )
    if history.best:
        step, loss = history.best
        sentences.append(
            f"The validation loss is least at step {step:,}, {loss:.3f} nats per token."
        )
    sentences += [f"Event at step {step:,}: {name}." for step, name in history.events[:20]]
    return " ".join(sentences)


def draw(history: History) -> str:
    """The SVG element. `history` has one record of steps or one validation at least."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.4, 5), layout="constrained")
        figure.patch.set_visible(False)
        loss, speed = figure.subplots(2, sharex=True, height_ratios=[4, 1])
        _draw_loss(loss, history)
        _draw_speed(speed, history)
        for axes in (loss, speed):
            axes.patch.set_visible(False)
        figure.legend(loc="outside upper left", ncols=4)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    return _inline(file.getvalue(), "Learning curve and speed", describe(history))


def _draw_loss(axes: Axes, history: History) -> None:
    training, validation = history.training.thinned(POINTS), history.validation.thinned(POINTS)
    axes.plot(
        training.steps,
        training.values,
        color=TRAINING,
        linewidth=0.9,
        marker="." if len(training) == 1 else "",
        label="training",
        gid="training",
    )
    axes.plot(
        validation.steps,
        validation.values,
        color=VALIDATION,
        linewidth=1.6,
        marker="o" if len(validation) <= MARKERS else "",
        markersize=3,
        label="validation",
        gid="validation",
    )
    if history.best:
        step, best = history.best
        axes.plot(
            [step],
            [best],
            color=VALIDATION,
            linestyle="",
            marker="*",
            markersize=9,
            label=f"best validation: perplexity {math.exp(min(best, LARGEST)):,.4g}",
            gid="best",
        )
    _draw_events(axes, history.events)
    axes.set_xlim(0, history.step * 1.01)
    axes.set_ylim(*limits(history))
    axes.set_ylabel("nats per token")
    right = axes.secondary_yaxis("right")
    ticks = perplexity_ticks(*axes.get_ylim())
    right.set_yticks([math.log(tick) for tick in ticks], [f"{tick:,.4g}" for tick in ticks])
    right.set_ylabel("perplexity")
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)
    if marks := epoch_ticks(history.epochs):
        top = axes.secondary_xaxis("top")
        top.set_xticks([step for step, _ in marks], [f"{epoch:,}" for _, epoch in marks])
        top.set_xlabel("epochs complete")
        top.tick_params(length=0)
        top.spines["top"].set_visible(False)


def _draw_events(axes: Axes, events: list[tuple[int, str]]) -> None:
    """A vertical line for each event, dashed in the same way where the name is the same."""
    dashes = cycle(("--", ":", "-."))
    styles: dict[str, str] = {}
    for i, (step, name) in enumerate(events):
        label = "" if name in styles else name  # named once in the legend
        style = styles.setdefault(name, next(dashes) if label else "")
        axes.axvline(
            step, color=EVENT, linewidth=1.2, linestyle=style, label=label, gid=f"event-{i}"
        )


def limits(history: History) -> tuple[float, float]:
    """The lowest and highest loss of the plot, a margin added; see `OPENING`."""
    start = OPENING * history.step
    shown = list(
        chain.from_iterable(
            series.values[series.steps >= start].tolist()
            for series in (history.training.thinned(POINTS), history.validation)
        )
    )
    low, high = min(shown), max(shown)
    margin = max(0.05 * (high - low), 0.02)
    return max(low - margin, 0.0), high + margin


def _draw_speed(axes: Axes, history: History) -> None:
    speed = history.speed.thinned(POINTS)
    axes.plot(
        speed.steps,
        speed.values,
        color=TRAINING,
        linewidth=1,
        marker="." if len(speed) == 1 else "",
        gid="speed",
    )
    axes.set_ylim(0, max(speed.values.max(initial=0) * 1.1, 1))
    axes.set_ylabel("tokens/s")
    axes.set_xlabel("steps")
    axes.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _inline(svg: str, title: str, description: str) -> str:
    """The <svg> element of matplotlib's file, with a name, and the page's colours in it."""
    svg = svg[svg.index("<svg") :]
    for name, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{name})")
    opening, _, rest = svg.partition(">")
    return (
        f'{opening} role="img" aria-labelledby="curve-title curve-description">'
        f'<title id="curve-title">{escape(title)}</title>'
        f'<desc id="curve-description">{escape(description)}</desc>{rest.strip()}'
    )
