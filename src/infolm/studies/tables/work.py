"""`infolm reproduce` of tables: what is missing is trained, measured and written down.

Trainings lie in one folder for all tables, each in PAPER/TABLE/ARM-SEED. A training that several
tables have in common is done once. Every result is written as it comes, so that the command may be
killed at any moment: the next one resumes the runs from their checkpoints.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from infolm.config import Recipe, load_recipe
from infolm.data.corpora import load as load_corpus
from infolm.data.ingest import Report
from infolm.errors import InfolmError
from infolm.studies.pool import Ended, Job, Pool
from infolm.studies.reproduction.plan import identity
from infolm.studies.tables.job import CALL
from infolm.studies.tables.records import Records, Work
from infolm.studies.tables.table import recipe_of
from infolm.training.run import RunFolder

Show = Callable[[float, str], None]
Say = Callable[[str], None]


@dataclass
class Training:
    """A run that is to be trained and measured. wanted: for which arms of which tables."""

    name: str
    folder: Path
    recipe: Recipe
    start: Path | None = None
    wanted: list[tuple[Records, str]] = field(default_factory=list)
    minutes: float = 0.0

    @property
    def seed(self) -> int:
        return self.recipe.seed

    def job(self, claims: Path, priority: int) -> Job:
        recipe = self.recipe.model_dump(mode="json")
        if self.start is not None:
            recipe["start_from"] = str(self.start)
        measures = {
            records.work.name: records.work.table.measure.model_dump(mode="json")
            for records, _ in self.wanted
        }
        arguments = {
            "name": self.name,
            "recipe": recipe,
            "folder": str(self.folder),
            "claims": str(claims),
            "measures": measures,
        }
        return Job(self.name, CALL, arguments, priority, self.minutes)


class Runs:
    """The folder of all trainings: where one lies, be it another table's, or is to lie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, Path] | None = None

    def place(self, work: Work, arm: str, recipe: Recipe) -> Path:
        """Where the training lies, or is to be made: beside one of the same name by another recipe,
        which an earlier version of the table had."""
        own = self.folder / work.name / f"{arm}-{recipe.seed}"
        before = _recipe_in(own)
        if before is None or identity(before) == identity(recipe):
            usual = own
        else:
            usual = own.with_name(f"{own.name}-{identity(recipe)[:8]}")
        if (usual == own and before is not None) or work.table.arms[arm].start is not None:
            return usual
        return self.known.get(identity(recipe), usual)

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
    """What a run was begun with, whichever folder it started from; None: there is no run."""
    path = RunFolder(folder).recipe
    if not path.exists():
        return None
    return load_recipe(str(path)).model_copy(update={"start_from": None})


def missing(works: Sequence[Records], seeds: int | None, runs: Runs) -> list[Training]:
    """The trainings that the tables lack, in their order, and in each by seed.

    seeds: of each table so many; None: as it says.
    """
    found: dict[Path, Training] = {}
    for records in works:
        work, table = records.work, records.work.table
        for seed in range(1, (seeds or table.seeds) + 1):
            for arm in table.arms:
                recipe = recipe_of(table, work.scale, arm, seed, list(work.overrides))
                if records.done(arm, recipe, seed):
                    continue
                place = runs.place(work, arm, recipe)
                if place not in found:
                    name = str(place.relative_to(runs.folder))
                    minutes = table.scales[work.scale].minutes or 0.0
                    found[place] = Training(name, place, recipe, minutes=minutes)
                    if begins := table.arms[arm].start:
                        first = recipe_of(table, work.scale, begins, seed, list(work.overrides))
                        found[place].start = runs.place(work, begins, first)
                found[place].wanted.append((records, arm))
    return list(found.values())


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
    todo = missing(works, seeds, runs)
    if not todo:
        return True
    runs.folder.mkdir(parents=True, exist_ok=True)
    with _locked(runs.folder):
        _prepare(todo, report)
        ended = 0
        with Pool(workers, seconds=seconds) as pool:

            def watch(pool: Pool) -> None:
                show(*_progress(ended, len(todo), pool))

            # Those that start from another run come when it is there.
            for later in (False, True):
                batch = [each for each in todo if (each.start is not None) == later]
                if pool.out_of_time:
                    break
                by_name = {each.name: each for each in batch}
                for result in pool.run(_jobs(batch, runs.folder / ".claims"), watch):
                    ended += 1
                    training = by_name[result.job.name]
                    for line in _keep(training, result, written):
                        say(line)
        return ended == len(todo)


def _jobs(trainings: Sequence[Training], claims: Path) -> Iterator[Job]:
    for number, each in enumerate(trainings):
        if each.start is not None and not RunFolder(each.start).model.exists():
            continue  # what it starts from has failed
        yield each.job(claims, number)


def _keep(training: Training, ended: Ended, written: Callable[[Records], None]) -> list[str]:
    """Write down what has become of a training, in every table that wants it."""
    lines = []
    for records, arm in training.wanted:
        if ended.failure:
            result: dict[str, Any] = {"failure": ended.failure}
            lines.append(f"{training.name} failed: {ended.failure}")
        else:
            figures = ended.result["figures"][records.work.name]
            result = {"figures": figures, "seconds": ended.result["seconds"]}
            told = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            lines.append(f"{records.work.name}, {arm}, seed {training.seed}: {told}")
        records.keep(arm, training.recipe, training.seed, result)
        records.write()
        written(records)
    return lines


def _prepare(trainings: Sequence[Training], report: Report) -> None:
    """Tokenise each text once, before the workers start."""
    found = [each.recipe.data for each in trainings]
    for data in {data.model_dump_json(): data for data in found}.values():
        load_corpus(data, report)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One command works in a folder; the lock falls with the process."""
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise InfolmError(
            f"another command is at work in {folder}: wait for it, or name another with --runs"
        ) from None


def _progress(done: int, total: int, pool: Pool) -> tuple[float, str]:
    now = [f"{job.name} {worker.stage} {worker.share:.0%}" for job, worker in pool.busy]
    share = (done + sum(worker.share for _, worker in pool.busy)) / max(total, 1)
    return min(share, 1.0), f"{done} of {total} trainings  {', '.join(now)}"
