"""The learning curves of a training as one inline SVG: loss above, speed below.

Between them, with Two-Tailed Averaging, the losses of both means and the length of the long one;
for a sentence model the validation loss, and statistics of the codes. A regulariser has its own
plot, and so have the validations after the switch.

Text stays text, and colours are the page's variables, so that the plot turns dark with the page.
"""

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from itertools import cycle
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from infolm.averaging.two_tailed import LONG
from infolm.metrics import described
from infolm.objectives.bmi import PHASE_TWO
from infolm.reports.history import Codes, Contrasts, History, Series
from infolm.reports.page import COLOURS

POINTS = 2000
"""Most points of a series; a longer one is thinned."""
MARKERS = 60
"""Up to this many validations, each has a dot."""
OPENING = 1 / 50
"""The share of training at the start that does not affect the plot's height: the loss falls so fast
there that the rest would look flat."""
LARGEST = 700.0
"""exp of more nats than this overflows."""

INK, MUTED, LINE, TRAINING, VALIDATION, EVENT, LONG_MEAN = (
    COLOURS[name][0] for name in ("ink", "muted", "line", "training", "validation", "event", "long")
)
ROUTINE = {"switched": "-", "emptied": "-.", "restarted": ":"}
"""Events of the two means, and their lines: many, so they stand by the length alone."""
IGNORANCE = "an untrained critic"
HELD_OUT = "on the validation split"

Panel = tuple[float, Callable[[Axes], None]]
"""A height in inches, and a drawing function."""

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
    bottom, top = math.exp(min(low, 700)), math.exp(min(high, 700))
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
    unit = "nats" if history.contrasts else "nats per token"
    sentences = []
    if len(losses):
        sentences.append(
            f"The training loss goes from {losses[0]:.3f} to {losses[-1]:.3f} {unit} "
            f"by step {history.training.steps[-1]:,}."
        )
    if history.best:
        step, loss = history.best
        sentences.append(f"The validation loss is least at step {step:,}, {loss:.3f} {unit}.")
    if history.contrasts and len(history.contrasts.information):
        information = history.contrasts.information.values[-1]
        sentences.append(f"At the end the information is {information:.3f} nats.")
    if history.codes and len(history.codes.information):
        kl, information = history.codes.kl.values[-1], history.codes.information.values[-1]
        sentences.append(
            f"At the end the KL is {kl:.3f} and the mutual information {information:.3f} nats per "
            "sentence."
        )
    if len(history.length):
        sentences.append(
            f"The long mean has {history.length.values[-1]:,.0f} iterates at the end and at most "
            f"{history.length.values.max():,.0f}."
        )
    events = [event for event in history.events if event[1] not in ROUTINE]
    sentences += [f"Event at step {step:,}: {name}." for step, name in events[:20]]
    return " ".join(sentences)


def draw(history: History) -> str:
    """The SVG element, with a panel for each quantity with values; empty if there are none."""
    panels: list[Panel] = []
    if len(history.training) or len(history.validation):
        panels.append((4.0, partial(_draw_loss, history=history)))
    if history.codes:
        panels = _panels_of_codes(history, history.codes)
    if history.contrasts:
        panels = _panels_of_contrasts(history, history.contrasts)
    if history.candidates:
        panels.append((2.4, partial(_draw_candidates, history=history)))
    if len(history.length):
        panels.append((1.2, partial(_draw_length, history=history)))
    if len(history.speed):
        panels.append((1.0, partial(_draw_speed, history=history)))
    return _svg(panels, "Learning curve and speed", describe(history)) if panels else ""


def draw_after(history: History, switch: int) -> str:
    """Figure 2 of the BMI paper: the validation perplexities from the step `switch` on, to a scale
    of their own. There is one at least."""
    later = history.validation.since(switch)
    first, last = (math.exp(min(loss, LARGEST)) for loss in later.values[[0, -1]])
    description = (
        f"The validation perplexity goes from {first:.2f} at step {later.steps[0]:,} to {last:.2f} "
        f"at step {later.steps[-1]:,}."
    )
    panel = partial(_draw_after, later=later, history=history)
    return _svg([(2.6, panel)], "Learning curve after the switch", description, "after-")


def draw_regulariser(history: History, name: str) -> str:
    """The quantities of the regulariser `name`, a panel for those that share an axis."""
    axes: dict[str, dict[str, Series]] = {}
    for each, series in history.regularisers[name].items():
        axes.setdefault(str(described(f"{name}/{each}").axis), {})[each] = series
    if len(axes) > 1:
        axes.pop("", None)
    held_out = history.held_out.get(name, {})
    description = " ".join(
        f"{described(f'{name}/{each}').label}: from {series.values[0]:.3f} to "
        f"{series.values[-1]:.3f} by step {series.steps[-1]:,}."
        for curves in axes.values()
        for each, series in curves.items()
    )
    panels: list[Panel] = [
        (
            1.2 + 0.6 * len(curves),
            partial(_draw_quantities, history=history, term=name, curves=curves, held_out=held_out),
        )
        for curves in axes.values()
    ]
    return _svg(panels, f"Course of the regulariser {name}", description, f"{name}-")


def _svg(panels: Sequence[Panel], title: str, description: str, prefix: str = "") -> str:
    """The panels below each other, over the same steps. Identities in it begin with `prefix`."""
    heights = [height for height, _ in panels]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.4, sum(heights)), layout="constrained")
        figure.patch.set_visible(False)
        rows = figure.subplots(len(panels), sharex=True, height_ratios=heights, squeeze=False)[:, 0]
        for axes, (_, panel) in zip(rows, panels, strict=True):
            panel(axes)
            axes.patch.set_visible(False)
        rows[-1].set_xlabel("steps")
        rows[-1].xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
        rows[-1].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        named = {str(line.get_label()): line for axes in rows for line in axes.lines}
        shown = [line for label, line in named.items() if label and not label.startswith("_")]
        figure.legend(handles=shown, loc="outside upper left", ncols=4)
        return as_svg(figure, title, description, prefix)


def _draw_losses(axes: Axes, training: Series, validation: Series) -> None:
    training, validation = training.thinned(POINTS), validation.thinned(POINTS)
    if len(training):
        axes.plot(
            training.steps,
            training.values,
            color=TRAINING,
            linewidth=0.9,
            marker="." if len(training) == 1 else "",
            label="training",
            gid="training",
        )
    if len(validation):
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


def _draw_best(axes: Axes, history: History, label: str) -> None:
    if history.best:
        step, best = history.best
        axes.plot(
            [step],
            [best],
            color=VALIDATION,
            linestyle="",
            marker="*",
            markersize=9,
            label=label,
            gid="best",
        )


def _draw_named_events(axes: Axes, history: History) -> None:
    """All events but those of the two means."""
    dashes = cycle(("--", ":", "-."))
    names = dict.fromkeys(name for _, name in history.events if name not in ROUTINE)
    _draw_events(axes, history, {name: next(dashes) for name in names}, width=1.2)


def _draw_loss(axes: Axes, history: History) -> None:
    _draw_losses(axes, history.training, history.validation)
    best = history.best[1] if history.best else 0.0
    _draw_best(axes, history, f"best validation: perplexity {math.exp(min(best, LARGEST)):,.4g}")
    _draw_named_events(axes, history)
    axes.set_xlim(0, history.step * 1.01)
    axes.set_ylim(*limits(history))
    axes.set_ylabel("nats per token")
    right = axes.secondary_yaxis("right")
    ticks = perplexity_ticks(*axes.get_ylim())
    right.set_yticks([math.log(tick) for tick in ticks], [f"{tick:,.4g}" for tick in ticks])
    right.set_ylabel("perplexity")
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)
    _mark_epochs(axes, history.epochs)


def _panels_of_codes(history: History, codes: Codes) -> list[Panel]:
    """The losses of a sentence model; below them KL, information, and a weight that changes."""
    panels: list[Panel] = []
    if len(history.training) or len(codes.reconstruction):
        panels.append((3.2, partial(_draw_reconstruction, history=history, codes=codes)))
    if len(history.validation):
        panels.append((1.4, partial(_draw_objective, history=history)))
    courses = {
        "KL, nats": {"kl": codes.kl, "training-kl": codes.training_kl},
        "information,\nnats": {"information": codes.information},
    }
    if len(set(codes.weight.values)) > 1:
        courses["KL weight"] = {"kl-weight": codes.weight}
    for label, curves in courses.items():
        if any(len(series) for series in curves.values()):
            panel = partial(_draw_small, history=history, curves=curves, label=label, least=0.1)
            panels.append((1.2, panel))
    return panels


def _panels_of_contrasts(history: History, contrasts: Contrasts) -> list[Panel]:
    """The losses of an encoder; below them the information of words and of n-grams."""
    panels: list[Panel] = []
    if len(history.training) or len(contrasts.nll):
        panels.append((3.2, partial(_draw_contrast, history=history, contrasts=contrasts)))
    if contrasts.weighted and len(history.validation):
        panels.append((1.4, partial(_draw_objective, history=history)))
    courses = {
        "information,\nnats": {
            "information": contrasts.information,
            "training-information": contrasts.training_information,
        },
        "of n-grams,\nnats": {
            "ngrams": contrasts.ngrams,
            "training-ngrams": contrasts.training_ngrams,
        },
    }
    for label, curves in courses.items():
        if any(len(series) for series in curves.values()):
            panel = partial(_draw_small, history=history, curves=curves, label=label, least=0.1)
            panels.append((1.2, panel))
    return panels


def _draw_contrast(axes: Axes, history: History, contrasts: Contrasts) -> None:
    """The cross entropies, without a perplexity: most are not among all words."""
    _draw_losses(axes, history.training, contrasts.nll)
    if not contrasts.weighted:
        best = history.best[1] if history.best else 0.0
        _draw_best(axes, history, f"best validation, {best:,.4g}")
    _draw_named_events(axes, history)
    axes.set_xlim(0, history.step * 1.01)
    axes.set_ylim(*_limits(history, [history.training.thinned(POINTS), contrasts.nll]))
    axes.set_ylabel("cross entropy, nats")
    _mark_epochs(axes, history.epochs)


def _draw_reconstruction(axes: Axes, history: History, codes: Codes) -> None:
    _draw_losses(axes, history.training, codes.reconstruction)
    _draw_named_events(axes, history)
    axes.set_xlim(0, history.step * 1.01)
    axes.set_ylim(*_limits(history, [history.training.thinned(POINTS), codes.reconstruction]))
    axes.set_ylabel(f"{codes.nll},\nnats per token")
    _mark_epochs(axes, history.epochs)


def _draw_objective(axes: Axes, history: History) -> None:
    """The validation loss, which may have any sign, so without a perplexity."""
    best = history.best[1] if history.best else 0.0
    _draw_small(axes, history, {"objective": history.validation}, "validation\nloss")
    _draw_best(axes, history, f"best validation loss, {best:,.4g}")


def _draw_small(
    axes: Axes, history: History, curves: dict[str, Series], label: str, least: float | None = None
) -> None:
    """Courses to the scale that they have after the opening, or from 0 to `least` or more, so that
    small values look small; training curves are thin."""
    shown: list[float] = []
    for name, series in curves.items():
        thin, training = series.thinned(POINTS), name.startswith("training-") or name == "kl-weight"
        axes.plot(
            thin.steps,
            thin.values,
            color=TRAINING if training else VALIDATION,
            linewidth=0.9 if training else 1.6,
            marker="." if len(thin) == 1 or (len(thin) <= MARKERS and not training) else "",
            gid=name,
        )
        shown += thin.since(math.ceil(OPENING * history.step)).values.tolist()
    if least is not None:
        shown += [0.0, least]
    low, high = min(shown, default=0.0), max(shown, default=1.0)
    margin = max(0.08 * (high - low), 0.01)
    axes.set_ylim(low - margin, high + margin)
    axes.set_ylabel(label)
    axes.yaxis.set_major_locator(MaxNLocator(4))


def _mark_epochs(axes: Axes, epochs: list[tuple[int, int]]) -> None:
    if marks := epoch_ticks(epochs):
        top = axes.secondary_xaxis("top")
        top.set_xticks([step for step, _ in marks], [f"{epoch:,}" for _, epoch in marks])
        top.set_xlabel("epochs complete")
        top.tick_params(length=0)
        top.spines["top"].set_visible(False)


def _draw_events(
    axes: Axes, history: History, styles: dict[str, str], width: float, prefix: str = ""
) -> None:
    """A vertical line for each event that has a style, by its name."""
    for i, (step, name) in enumerate(history.events):
        if name in styles:
            axes.axvline(
                step,
                color=EVENT,
                linewidth=width,
                linestyle=styles[name],
                label=name,
                gid=f"{prefix}event-{i}",
            )


def limits(history: History) -> tuple[float, float]:
    """The lowest and highest loss of the plot, a margin added; see `OPENING`."""
    return _limits(history, [history.training.thinned(POINTS), history.validation])


def _limits(history: History, shown: Sequence[Series]) -> tuple[float, float]:
    start = OPENING * history.step
    values = [value for each in shown for value in each.values[each.steps >= start].tolist()]
    low, high = min(values, default=0.0), max(values, default=1.0)
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


def _draw_after(axes: Axes, later: Series, history: History) -> None:
    thin = later.thinned(POINTS)
    perplexities = [math.exp(min(loss, LARGEST)) for loss in thin.values]
    axes.plot(
        thin.steps,
        perplexities,
        color=VALIDATION,
        linewidth=1.6,
        marker="o" if len(thin) <= MARKERS else "",
        markersize=3,
        label="validation",
        gid="validation",
    )
    axes.set_ylabel("perplexity")
    _mark_epochs(axes, [mark for mark in history.epochs if mark[0] >= later.steps[0]])


def _draw_quantities(
    axes: Axes, history: History, term: str, curves: dict[str, Series], held_out: dict[str, Series]
) -> None:
    """Curves of a term's quantities of one axis, with circles what each is on the validation split,
    dashed what it is of a critic that knows nothing, and the switch."""
    first = next(iter(curves))
    shown: list[float] = []
    colours = cycle((TRAINING, LONG_MEAN, VALIDATION))
    for name, series in curves.items():
        thin, colour = series.thinned(POINTS), next(colours)
        known = described(f"{term}/{name}")
        axes.plot(
            thin.steps,
            thin.values,
            color=colour,
            linewidth=1.2,
            marker="." if len(thin) == 1 else "",
            label=known.label if len(curves) > 1 else "",  # else the axis says it
            gid=name,
        )
        shown += thin.since(math.ceil(OPENING * history.step)).values.tolist()
        if name in held_out:
            unseen = held_out[name].thinned(MARKERS)
            style: dict[str, Any] = {"linewidth": 0.8, "linestyle": ":", "marker": "o"}
            style["markersize"] = 3
            axes.plot(unseen.steps, unseen.values, color=colour, gid=f"{name}-held-out", **style)
            axes.plot([], [], color=MUTED, label=HELD_OUT, **style)
            shown += unseen.values.tolist()
        if known.ignorance is not None:
            level, gid = known.ignorance, f"{name}-ignorance"
            axes.axhline(level, color=colour, linewidth=0.8, linestyle="--", gid=gid)
            axes.plot([], [], color=MUTED, linewidth=0.8, linestyle="--", label=IGNORANCE)
            shown.append(level)
    _draw_events(axes, history, {PHASE_TWO: "--"}, width=1.2, prefix=f"{first}-")
    low, high = min(shown, default=0.0), max(shown, default=1.0)
    margin = max(0.08 * (high - low), 0.01)
    axes.set_xlim(0, history.step * 1.01)
    axes.set_ylim(low - margin, high + margin)
    axes.set_ylabel(described(f"{term}/{first}").axis or first)


def _few_round_ticks(axes: Axes) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def as_svg(figure: Figure, title: str, description: str, prefix: str) -> str:
    """The <svg> element of a figure in the `STYLE`, with a name, and the page's colours in it.

    `prefix` keeps the identities of several plots on a page apart.
    """
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing)
    svg = file.getvalue()[file.getvalue().index("<svg") :]
    for name, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{name})")
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{prefix}", svg)
    opening, _, rest = svg.partition(">")
    named, described = f"{prefix}curve-title", f"{prefix}curve-description"
    return (
        f'{opening} role="img" aria-labelledby="{named} {described}">'
        f'<title id="{named}">{escape(title)}</title>'
        f'<desc id="{described}">{escape(description)}</desc>{rest.strip()}'
    )
