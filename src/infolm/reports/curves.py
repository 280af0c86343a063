"""The course of a training as one inline SVG over the same steps: loss above, speed below.

Between them, where there are two means, the losses of both and the length of the long one.

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

from infolm.averaging.two_tailed import LONG
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

INK, MUTED, LINE, TRAINING, VALIDATION, EVENT, LONG_MEAN = (
    COLOURS[name][0] for name in ("ink", "muted", "line", "training", "validation", "event", "long")
)
ROUTINE = {"switched": "-", "emptied": "-.", "restarted": ":"}
"""Events of the two means, and their lines: many, so they stand by the length alone."""

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
    if len(history.length):
        sentences.append(
            f"The long mean is of {history.length.values[-1]:,.0f} iterates at the end and of "
            f"{history.length.values.max():,.0f} at most."
        )
    events = [event for event in history.events if event[1] not in ROUTINE]
    sentences += [f"Event at step {step:,}: {name}." for step, name in events[:20]]
    return " ".join(sentences)


def draw(history: History) -> str:
    """The SVG element. `history` has one record of steps or one validation at least."""
    with matplotlib.rc_context(STYLE):
        panels = {_draw_loss: 4.0, _draw_speed: 1.0}  # and their heights
        if history.candidates:
            panels = {_draw_loss: 4.0, _draw_candidates: 2.4, _draw_length: 1.2, _draw_speed: 1.0}
        figure = Figure(figsize=(7.4, sum(panels.values())), layout="constrained")
        figure.patch.set_visible(False)
        rows = figure.subplots(len(panels), sharex=True, height_ratios=list(panels.values()))
        for axes, panel in zip(rows, panels, strict=True):
            panel(axes, history)
            axes.patch.set_visible(False)
        rows[-1].set_xlabel("steps")
        rows[-1].xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
        rows[-1].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
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
    dashes = cycle(("--", ":", "-."))
    names = dict.fromkeys(name for _, name in history.events if name not in ROUTINE)
    _draw_events(axes, history, {name: next(dashes) for name in names}, width=1.2)
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


def _draw_events(axes: Axes, history: History, styles: dict[str, str], width: float) -> None:
    """A vertical line for each event that has a style, by its name."""
    unnamed = set(styles)
    for i, (step, name) in enumerate(history.events):
        if name in styles:
            label = name if name in unnamed else ""  # named once in the legend
            unnamed.discard(name)
            style = styles[name]
            axes.axvline(
                step, color=EVENT, linewidth=width, linestyle=style, label=label, gid=f"event-{i}"
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
    _few_round_ticks(axes)


def _draw_candidates(axes: Axes, history: History) -> None:
    """The validation losses of the iterate and of both means, as they are in the second half of
    the training: they differ by little, next to how far they fall before."""
    late: list[float] = []
    for name, series in history.candidates.items():
        thin = series.thinned(POINTS)
        axes.plot(
            thin.steps,
            thin.values,
            color=COLOURS[name][0],
            linewidth=1.6 if name == LONG else 0.9,
            marker="." if len(thin) <= MARKERS else "",
            markersize=3,
            label=name,
            gid=name,
        )
        late += series.values[series.steps >= history.step / 2].tolist()
    low, high = min(late, default=0.0), max(late, default=1.0)
    margin = max(0.1 * (high - low), 1e-3)
    axes.set_ylim(low - margin, high + margin)
    axes.set_ylabel("nats per token")


def _draw_length(axes: Axes, history: History) -> None:
    """Figure 3.4 of Melis (2023): a saw-tooth whose teeth grow as the iterates settle."""
    length = history.length.thinned(POINTS)
    axes.plot(
        length.steps,
        length.values,
        color=LONG_MEAN,
        linewidth=1.2,
        marker="." if len(length) <= MARKERS else "",
        markersize=4,
        gid="length",
    )
    _draw_events(axes, history, ROUTINE, width=0.7)
    axes.set_ylim(0, max(length.values.max(initial=0) * 1.1, 1))
    axes.set_ylabel("iterates in\nthe long mean")
    _few_round_ticks(axes)


def _few_round_ticks(axes: Axes) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


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
