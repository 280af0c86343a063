"""Perplexity against minutes: the validations of the best record of each family, on one plot."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from infolm.errors import InfolmError
from infolm.reports.curves import STYLE, perplexity_ticks
from infolm.studies.comparison.picture import PALETTE
from infolm.studies.race.record import Record
from infolm.training.checkpoint import atomically

NGRAMS = "Kneser-Ney 5-gram"
OPENING = 2.0
"""Above so many times the highest of the final perplexities nothing is drawn: there all curves
fall alike."""


def best_of_each(records: Sequence[Record]) -> dict[str, Record]:
    """By family the record with the lowest validation loss while training, the lowest first."""
    tracks = {record.track for record in records}
    if len(tracks) != 1:
        raise InfolmError(
            f"the records are of {len(tracks)} tracks ({', '.join(sorted(tracks))}), whose "
            "perplexities are not comparable: choose records of one track"
        )
    best: dict[str, Record] = {}
    for record in sorted(records, key=lowest):
        best.setdefault(record.family, record)
    return best


def lowest(record: Record) -> float:
    return min(point.nll for point in record.training.curve)


def draw(records: Sequence[Record], path: Path) -> None:
    """Write the picture to a .png or an .svg."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in ("png", "svg"):
        raise InfolmError(f"{path} is not a picture's name: end it in .png or .svg")
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type")) if kind == "svg" else None
    with matplotlib.rc_context(STYLE):
        figure = _figure(best_of_each(records))
        path.parent.mkdir(parents=True, exist_ok=True)
        atomically(path, lambda file: figure.savefig(file, format=kind, dpi=150, metadata=nothing))


def _figure(best: dict[str, Record]) -> Figure:
    figure = Figure(figsize=(7.4, 4.2), layout="constrained")
    axes = figure.subplots()
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(best) + 1)]
    first = next(iter(best.values()))
    for (family, record), colour in zip(best.items(), colours, strict=False):
        minutes = [point.seconds / 60 for point in record.training.curve]
        losses = [point.nll for point in record.training.curve]
        label = f"{family}, {record.training.size}: {math.exp(min(losses)):.1f}"
        axes.plot(minutes, losses, color=colour, marker="o", markersize=2.5, label=label)
    # The n-gram model is there as soon as it has counted, and gets no better.
    phases = first.times.phases
    ready = (phases.get("start", 0.0) + phases.get("n-grams", 0.0)) / 60
    ends = [record.training.curve[-1].seconds / 60 for record in best.values()]
    level = first.ngrams.valid.nll
    label = f"{NGRAMS}: {first.ngrams.valid.perplexity:.1f}"
    axes.plot([ready, max(ends)], [level, level], color=colours[-1], linestyle="--", label=label)
    ends_at = [lowest(record) for record in best.values()]
    bottom, top = min(*ends_at, level), max(level, max(ends_at) + math.log(OPENING))
    axes.set_ylim(bottom - 0.03, top + 0.03)
    axes.set_xlim(0, None)
    ticks = perplexity_ticks(*axes.get_ylim())
    axes.yaxis.set_major_locator(FixedLocator([math.log(tick) for tick in ticks]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticks([math.log(tick) for tick in ticks], [f"{tick:,.4g}" for tick in ticks])
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("minutes since the start of the process")
    axes.set_ylabel("validation perplexity while training")
    figure.legend(loc="outside upper left", ncols=2)
    return figure
