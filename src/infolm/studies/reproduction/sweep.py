"""`infolm reproduce`: every point of a sweep is trained and measured, once.

A reproduction's folder:

points.json     what was measured of each point, or why it failed; written after every point
runs/NAME/      a point's run, without its checkpoints once it is measured
summary.json    the numbers that compare the curves
figure-N.png    the frontiers (and .svg)

The command owns the folder, under a lock, and hands points to workers. So it may be killed at any
moment: the next one resumes from `points.json` and the runs' checkpoints.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from infolm import files
from infolm.config import load_recipe
from infolm.data.corpora import load as load_corpus
from infolm.data.ingest import Report
from infolm.errors import InfolmError
from infolm.section import nearest
from infolm.studies.pool import Ended, Job, Pool, share_of_cores
from infolm.studies.reproduction.measure import CONVENTION
from infolm.studies.reproduction.plan import Plan, Point, identity
from infolm.studies.reproduction.point import Task
from infolm.training import checkpoint
from infolm.training.run import RunFolder
from infolm.trees import fits

CALL = "infolm.studies.reproduction.point:train_and_measure"

Show = Callable[[float, str], None]
Say = Callable[[str], None]


class SweepFolder:
    """The names of a reproduction's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points = path / "points.json"
        self.claims = path / ".claims"

    def run(self, point: Point) -> RunFolder:
        return RunFolder(self.path / "runs" / point.name)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for one command; the lock ends with the process."""
        try:
            with FileLock(self.path / ".lock", timeout=0):
                yield
        except Timeout:
            raise InfolmError(
                f"another command is working in {self.path}: wait for it, or name another folder "
                "with --out"
            ) from None


class Records:
    """`points.json`: a record of each point that was measured or failed, by name."""

    def __init__(self, folder: SweepFolder, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self.how = plan.reproduction.model_dump(include={"splits", "sentences", "samples"})
        self.points: dict[str, dict[str, Any]] = {}
        if folder.points.exists():
            self.points = self._read()["points"]

    def _read(self) -> dict[str, Any]:
        path, plan = self._folder.path, self._plan
        try:
            before: dict[str, Any] = json.loads(self._folder.points.read_bytes())
            source, overrides = before["reproduction"], before["overrides"]
            if not fits(dict[str, dict[str, Any]], before["points"]):
                raise TypeError("a point has no record")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise InfolmError(
                f"{self._folder.points} is damaged: put a copy of it back, or move it away, and "
                "all points are measured again"
            ) from None
        if source != plan.source:
            raise InfolmError(
                f"{path} holds {source}, not {plan.source}: name another folder with --out"
            )
        if overrides != plan.overrides:
            raise InfolmError(
                f"{path} was started with {_spelt(overrides)}, and now has "
                f"{_spelt(plan.overrides)}: resume it as it was started, or name another folder "
                "with "
                "--out"
            )
        return before

    def write(self) -> None:
        """Keep them, in the order of the plan."""
        order = [name for name in self._plan.points if name in self.points]
        others = [name for name in self.points if name not in self._plan.points]
        tree = {
            "reproduction": self._plan.source,
            "overrides": self._plan.overrides,
            "convention": CONVENTION,
            "points": {name: self.points[name] for name in [*order, *others]},
        }
        text = json.dumps(tree, indent=2) + "\n"
        checkpoint.atomically(
            self._folder.points, lambda path: path.write_text(text, encoding="utf-8")
        )


def _spelt(overrides: list[str]) -> str:
    return " ".join(overrides) or "no KEY=VALUE"


def sweep(
    plan: Plan,
    out: Path,
    workers: int,
    only: str | None,
    show: Show,
    say: Say,
    report: Report,
) -> dict[str, dict[str, Any]]:
    """Train and measure the missing points; returns the records of all points, by name.

    only: of the curves whose name matches this pattern. `show` gets the share done and a text now
    and then, `say` a line for each point. KeyboardInterrupt passes when a person ends it; all is
    saved then.
    """
    wanted = _wanted(plan, only)
    folder = SweepFolder(out)
    if out.exists() and (not out.is_dir() or _holds_something_else(folder)):
        raise InfolmError(f"{out} holds something else: name another folder with --out")
    files.make_folder(out)
    files.refuse_links(out)
    files.sweep(out)
    with folder.locked():
        records = Records(folder, plan)
        tasks = [task for point in wanted if (task := _task(point, folder, records))]
        _prepare(plan, tasks, report)
        records.write()
        left = {task.name for task in tasks}
        for point in wanted:  # a command that was killed, or a bad disk, may have left some
            if point.name not in left and "failure" not in records.points[point.name]:
                folder.run(point).drop_state()

        def watch(pool: Pool) -> None:
            show(*_progress(len(wanted) - len(left), len(wanted), pool))

        with Pool(workers, share_of_cores(workers)) as pool:
            for ended in pool.run([Job(task.name, CALL, asdict(task)) for task in tasks], watch):
                point = plan.points[ended.job.name]
                left.remove(point.name)
                records.points[point.name] = _record(point, ended, records.how)
                records.write()
                if not ended.failure:
                    folder.run(point).drop_state()
                say(describe(point.name, records.points[point.name], plan.reproduction.per))
        return records.points


def _prepare(plan: Plan, tasks: Sequence[Task], report: Report) -> None:
    """Tokenise each text once, before the workers start."""
    found = [plan.points[task.name].recipe.data for task in tasks]
    for data in {data.model_dump_json(): data for data in found}.values():
        load_corpus(data, report)


def _wanted(plan: Plan, only: str | None) -> list[Point]:
    if only is None:
        return list(plan.points.values())
    curves = [name for name in plan.reproduction.curves if fnmatchcase(name, only)]
    if not curves:
        raise InfolmError(
            f"--only {only} matches none of the curves{nearest(only, plan.reproduction.curves)} "
            f"(there are {', '.join(plan.reproduction.curves)})"
        )
    return [point for point in plan.points.values() if point.values.keys() & set(curves)]


def _holds_something_else(folder: SweepFolder) -> bool:
    entries = [entry for entry in folder.path.iterdir() if not entry.name.startswith(".")]
    return bool(entries) and not folder.points.exists()


def _task(point: Point, folder: SweepFolder, records: Records) -> Task | None:
    """What there is to do for a point; None: nothing.

    A point that failed is tried again if its run was deleted, or never came about.
    """
    run, before = folder.run(point), records.points.get(point.name)
    begun = run.recipe.exists()
    same = before is not None and before["recipe"] == identity(point.recipe)
    if begun and not same:
        _check_same(point, run)
    how = records.how
    train = True
    if before is not None and (same or begun):
        failed = "failure" in before
        if (failed and begun) or (not failed and before["measured"] == how):
            return None
        train = failed or not run.model.exists()
    recipe = point.recipe.model_dump(mode="json")
    return Task(point.name, str(run.path), str(folder.claims), recipe, train, **how)


def _check_same(point: Point, run: RunFolder) -> None:
    if identity(load_recipe(str(run.recipe))) != identity(point.recipe):
        raise InfolmError(
            f"{run.path} was started with another recipe than the present one: delete it to train "
            "it again, or name another folder with --out"
        )


def _record(point: Point, ended: Ended, how: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a point that has ended."""
    about = {"curves": point.values, "recipe": identity(point.recipe)}
    if ended.failure:
        return {**about, "failure": ended.failure}
    return {**about, "measured": how, **ended.result}


def describe(name: str, record: dict[str, Any], per: str) -> str:
    """A point that has ended, in a line."""
    if "failure" in record:
        return f"{name} failed: {record['failure']}"
    said = [
        f"{split} NLL {found['nll'][f'per_{per}']:.4f}, information "
        f"{found['information'][f'per_{per}']:.4f}"
        for split, found in record["splits"].items()
    ]
    return f"{name}: {'; '.join(said)} nats per {per}"


def _progress(done: int, points: int, pool: Pool) -> tuple[float, str]:
    """The share of all that is done, and what is being done."""
    now = [f"{job.name} {worker.stage} {worker.share:.0%}" for job, worker in pool.busy]
    share = (done + sum(worker.share for _, worker in pool.busy)) / points
    return min(share, 1.0), f"{done} of {points} points  {', '.join(now)}"
