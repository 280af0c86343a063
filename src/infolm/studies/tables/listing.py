"""The list of tables and sweeps, with cost and progress."""

from pathlib import Path
from typing import Any

from infolm.errors import InfolmError
from infolm.studies.reproduction.plan import load as load_sweep
from infolm.studies.tables import table as tables
from infolm.studies.tables.records import Records, Work
from infolm.studies.tables.table import SMALL, ScaleName
from infolm.studies.tables.verdict import of_table


def opened(
    out: Path, scale: ScaleName, sources: list[str] | None = None, overrides: tuple[str, ...] = ()
) -> list[Records]:
    """The records of tables at a scale; sources: none: of all that have the scale."""
    found = {source: tables.load(source) for source in sources or tables.names()}
    if sources is None:
        found = {source: table for source, table in found.items() if scale in table.scales}
    for source, table in found.items():
        if scale not in table.scales:
            raise InfolmError(
                f"{source} has no settings for --scale {scale} (there are "
                f"{', '.join(table.scales)})"
            )
    return [Records(Work(source, table, scale, overrides), out) for source, table in found.items()]


def minutes(records: Records) -> float | None:
    """Of one core for one training and its measurement: the longest of those done, as one that was
    resumed, or found trained, took less than a whole one; before that, what the table says."""
    seconds = [
        sum(found["seconds"].values())
        for arm in records.arms.values()
        for found in arm["seeds"].values()
        if "seconds" in found
    ]
    stated = records.work.table.scales[records.work.scale].minutes
    return max(seconds) / 60 if seconds else stated


def hours_left(records: Records, seeds: int | None = None) -> float | None:
    """Of one core, for the trainings that are not measured; None: unknown."""
    table = records.work.table
    of_one = minutes(records)
    wanted = len(table.arms) * (seeds or table.seeds)
    if records.work.scale == SMALL:
        wanted += sum(
            len(tuning.values)
            for number, tuning in enumerate(table.tuning)
            if records.losses(number) is None
        )
    done = sum(min(len(each), seeds or table.seeds) for each in records.figures.values())
    if wanted == done:
        return 0.0
    return None if of_one is None else of_one * (wanted - done) / 60


def rows(out: Path, runs: Path) -> list[dict[str, Any]]:
    """The list, as JSON."""
    found = []
    for records in opened(out, SMALL):
        work, table = records.work, records.work.table
        measured = sum(len(each) for each in records.figures.values())
        folder = runs / work.name
        begun = len(list(folder.glob("*/recipe.yaml"))) if folder.is_dir() else 0
        at_paper = table.scales.get("paper")
        trainings = len(table.arms) * table.seeds
        found.append(
            {
                "reproduction": work.source,
                "title": table.title,
                "paper": table.paper,
                "claim": table.claim,
                "trainings": trainings,
                "measured": measured,
                "begun": begun,
                "hours_left": hours_left(records),
                "hours_paper_scale": at_paper
                and at_paper.minutes
                and at_paper.minutes * trainings / 60,
                "verdict": of_table([each.word for each in records.verdicts()]),
            }
        )
    for name in sweeps():
        sweep = load_sweep(name)
        points = sum(len(curve.combinations()) for curve in sweep.curves.values())
        found.append(
            {
                "reproduction": name,
                "title": sweep.title,
                "paper": sweep.paper,
                "claim": sweep.claim,
                "trainings": points,
                "points": points,
                "hours_left": sweep.hours,
                "verdict": "a sweep",
            }
        )
    return found


def sweeps() -> list[str]:
    """Those of the list that are sweeps, and no tables."""
    return [name for name in tables.TABLES.names() if not tables.is_table(name)]
