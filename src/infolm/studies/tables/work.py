"""`infolm reproduce` of tables: train, measure and record what is missing.

Trainings lie in one folder for all tables, each in PAPER/TABLE/ARM-SEED. A training that several
tables have in common is done once. Every result is written as it comes, so that the command may be
killed at any moment: the next one resumes the runs from their checkpoints.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from infolm import files
from infolm.config import Recipe, load_recipe
from infolm.data.corpora import load as load_corpus
from infolm.data.ingest import Report
from infolm.errors import InfolmError
from infolm.studies.pool import Ended, Job, Pool
from infolm.studies.reproduction.plan import identity
from infolm.studies.tables.job import CALL
from infolm.studies.tables.measures.base import MeasureConfig
from infolm.studies.tables.measures.history import HistoryConfig, MomentConfig
from infolm.studies.tables.records import LOSS, Records, Work
from infolm.studies.tables.table import SMALL, TUNING_SEED
from infolm.training.run import RunFolder

Show = Callable[[float, str], None]
Say = Callable[[str], None]


CHOOSING = HistoryConfig(
    figures={LOSS: MomentConfig(label="best validation loss", share=None, decimals=4)}
)
"""What is measured of a training that chooses a value."""


@dataclass(frozen=True)
class Purpose:
    """What a training is for: an arm of a table, or one of the trainings that choose a value."""

    records: Records
    arm: str
    choosing: bool = False

    @property
    def name(self) -> str:
        return f"{self.records.work.name}{', choosing' if self.choosing else ''}"

    @property
    def measure(self) -> MeasureConfig:
        return CHOOSING if self.choosing else self.records.work.table.measure


@dataclass
class Training:
    """A run that is to be trained and measured, or those of a curve. start: the run that it begins
    from."""

    name: str
    runs: dict[Path, Recipe]
    start: Path | None = None
    purposes: list[Purpose] = field(default_factory=list)

    @property
    def recipe(self) -> Recipe:
        """That of the first run."""
        return next(iter(self.runs.values()))

    def job(self, claims: Path) -> Job:
        start = {} if self.start is None else {"start_from": str(self.start)}
        runs = [
            {"folder": str(folder), "recipe": recipe.model_dump(mode="json") | start}
            for folder, recipe in self.runs.items()
        ]
        measures = {each.name: each.measure.model_dump(mode="json") for each in self.purposes}
        arguments = {"name": self.name, "runs": runs, "claims": str(claims), "measures": measures}
        return Job(self.name, CALL, arguments)


class Runs:
    """The folder of all trainings: where one lies, be it another table's, or is to lie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, Path] | None = None

    def place(self, work: Work, name: str, recipe: Recipe, starts: bool = False) -> Path:
        """Where the training lies, or is to be made: beside one of the same name by another recipe,
        which an earlier version of the table had. starts: from another run, and so unlike others.
        """
        own = self.folder / work.name / name
        before = _recipe_in(own)
        if before is None or identity(before) == identity(recipe):
            usual = own
        else:
            usual = own.with_name(f"{own.name}-{identity(recipe)[:8]}")
        if starts or (usual == own and before is not None):
            return usual
        return self.known.setdefault(identity(recipe), usual)

    @property
    def known(self) -> dict[str, Path]:
        """Every run in the folder, by the identity of its recipe."""
        if self._known is None:
            self._known = {}
            for path in sorted(self.folder.glob("**/recipe.yaml")):
                try:
                    self._known.setdefault(identity(load_recipe(str(path))), path.parent)
                except InfolmError:  # of no use to us; it may be being made
                    continue
        return self._known


def _recipe_in(folder: Path) -> Recipe | None:
    """The recipe that a run started with, without its `start_from`; None: there is no run."""
    path = RunFolder(folder).recipe
    if not path.exists():
        return None
    return load_recipe(str(path)).model_copy(update={"start_from": None})


def missing(works: Sequence[Records], seeds: int | None, runs: Runs) -> list[Training]:
    """The trainings that the tables lack, as far as they are known, in the order of the tables, and
    in each by seed. Where a value is to be chosen, the arms follow once that is done.

    seeds: of each table so many; None: as it says.
    """
    found: dict[tuple[Path, ...], Training] = {}

    def add(
        purpose: Purpose, recipes: Sequence[Recipe], names: Sequence[str], start: Path | None = None
    ) -> None:
        work, starts = purpose.records.work, start is not None
        places = {
            runs.place(work, name, recipe, starts): recipe
            for name, recipe in zip(names, recipes, strict=True)
        }
        first = str(next(iter(places)).relative_to(runs.folder))
        training = found.setdefault(tuple(places), Training(first, places, start))
        training.purposes.append(purpose)

    for records in works:
        work, table = records.work, records.work.table
        for number in range(len(table.tuning) if work.scale == SMALL else 0):
            for label, recipe in (records.candidates(number) or {}).items():
                if not records.done(label, recipe, TUNING_SEED):
                    add(Purpose(records, label, choosing=True), [recipe], [_as_name(label)])
        for seed in range(1, (seeds or table.seeds) + 1):
            for arm in table.arms:
                recipes, start, begins = records.recipes(arm, seed), None, table.arms[arm].start
                if not recipes or records.done(arm, recipes[0], seed):
                    continue
                if begins is not None:
                    if not (first := records.recipes(begins, seed)):
                        continue
                    start = runs.place(work, f"{begins}-{seed}", first[0])
                add(Purpose(records, arm), recipes, _names(arm, seed, len(recipes)), start)
    return list(found.values())


def _names(arm: str, seed: int, count: int) -> list[str]:
    """Of an arm's run, or of the runs of a curve."""
    if count == 1:
        return [f"{arm}-{seed}"]
    return [f"{arm}-{seed}/{number}" for number in range(1, count + 1)]


def _as_name(label: str) -> str:
    """'lstm, optimiser.learning_rate=0.005' -> 'lstm-learning_rate-0.005-11'."""
    arm, changes = label.split(", ", 1)
    key, value = changes.split()[0].split("=", 1)
    return re.sub(r"[^\w.-]+", "-", f"{arm}-{key.rpartition('.')[2]}-{value}-{TUNING_SEED}")


class Queue(Iterator[Job]):
    """The jobs, each looked for when a worker is free: what is known by then decides. It may be at
    its end while others work, and have more when they are done.

    given: what is being trained, by name. failed: what is not tried again by this command.
    """

    def __init__(self, works: Sequence[Records], seeds: int | None, runs: Runs) -> None:
        self._works, self._seeds, self._runs = works, seeds, runs
        self.given: dict[str, Training] = {}
        self.failed: set[str] = set()

    def missing(self) -> list[Training]:
        return missing(self._works, self._seeds, self._runs)

    def __next__(self) -> Job:
        left = self.missing()
        unfinished = {folder for each in left for folder in each.runs}
        for training in left:
            waits = training.start in unfinished
            if not waits and training.name not in self.given.keys() | self.failed:
                self.given[training.name] = training
                return training.job(self._runs.folder / ".claims")
        raise StopIteration

    def ended(self, result: Ended) -> Training:
        """Take a training back."""
        if result.failure:
            self.failed.add(result.job.name)
        return self.given.pop(result.job.name)


def reproduce(
    works: Sequence[Records],
    runs: Runs,
    seeds: int | None,
    workers: int,
    seconds: float | None,
    written: Callable[[Records], None],
    show: Show,
    say: Say,
    report: Report,
) -> bool:
    """Train and measure what is missing, first of the first table; whether all of it was done.

    seconds: end after so many. written: called with a table of which something new is known.
    KeyboardInterrupt passes; all is saved then.
    """
    queue = Queue(works, seeds, runs)
    left = queue.missing()
    if not left:
        return True
    files.make_folder(runs.folder)
    ended = 0

    def watch(pool: Pool) -> None:
        show(*_progress(ended, max(len(left), ended + len(queue.given)), pool))

    with _locked(runs.folder):
        _prepare(left, report)
        with Pool(workers, seconds=seconds) as pool:
            for result in pool.run(queue, watch):
                ended += 1
                for line in _keep(queue.ended(result), result, written):
                    say(line)
    return not queue.missing()


def _keep(training: Training, ended: Ended, written: Callable[[Records], None]) -> list[str]:
    """Record the result of a training in every table that needs it."""
    lines = []
    for purpose in training.purposes:
        records, seed = purpose.records, training.recipe.seed
        if ended.failure:
            result: dict[str, Any] = {"failure": ended.failure}
            lines.append(f"{training.name} failed: {ended.failure}")
        else:
            figures = ended.result["figures"][purpose.name]
            result = {"figures": figures, "seconds": ended.result["seconds"]}
            told = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            lines.append(f"{records.work.name}, {purpose.arm}, seed {seed}: {told}")
        records.keep(purpose.arm, training.recipe, seed, result)
        if former := records.write():
            lines.append(former_kept(records, former))
        written(records)
    return lines


def former_kept(records: Records, former: Path) -> str:
    """What is said when earlier measurements of a table do not fit it any more."""
    return (
        f"{records.path} had measurements by another recipe or measure than the table has now: "
        f"they are kept in {former}"
    )


def _prepare(trainings: Sequence[Training], report: Report) -> None:
    """Tokenise each text once, before the workers start."""
    found = [recipe.data for each in trainings for recipe in each.runs.values()]
    for data in {data.model_dump_json(): data for data in found}.values():
        load_corpus(data, report)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder for one command; the lock ends with the process."""
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise InfolmError(
            f"another command is working in {folder}: wait for it, or name another with --runs"
        ) from None


def _progress(done: int, total: int, pool: Pool) -> tuple[float, str]:
    now = [f"{job.name} {worker.stage} {worker.share:.0%}" for job, worker in pool.busy]
    share = (done + sum(worker.share for _, worker in pool.busy)) / max(total, 1)
    return min(share, 1.0), f"{done} of {total} trainings  {', '.join(now)}"
