"""The trials of a study as jobs of the pool.

What a job trains is decided when it starts, from the study's database: workers on other machines
also take trials, and the next values depend on the finished trials.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from optuna.trial import Trial

from infolm.config import Recipe, load_recipe
from infolm.errors import InfolmError
from infolm.families.train import train
from infolm.studies.pool import Job
from infolm.studies.tuning.study import PER_MILLE, Study, StudyFolder, Task, with_values
from infolm.studies.worker import Reporter, Stop, outcome

PAUSE = 1.0
"""Seconds between two looks for something to do while others work on what is left."""


@dataclass(frozen=True)
class Order:
    """Which study, and how many trials and seeds of the winner it is to have. command: a name of
    its own of the command that gives the order."""

    folder: str
    text: str
    storage: str | None
    trials: int
    seeds: int
    command: str


def jobs(study: Study, order: Order) -> Iterator[Job]:
    """Jobs until the study is finished."""
    for number in count():
        if study.finished(order.trials, order.seeds):
            return
        yield Job(str(number), "infolm.studies.tuning.trials:train_next", asdict(order))


def train_next(arguments: dict[str, Any], reporter: Reporter) -> None:
    """Train what is next in the study of this order."""
    order = Order(**arguments)
    folder = StudyFolder(Path(order.folder))
    try:
        recipe = load_recipe(str(folder.recipe))
        study = Study(folder, recipe, order.text, order.storage, order.command)
        with closing(study), study.answering():
            take_turn(study, order.trials, order.seeds, reporter)
    except InfolmError as error:  # of the study, not of a trial: those are recorded in it
        raise Stop(str(error)) from error


def take_turn(study: Study, trials: int, seeds: int, reporter: Reporter) -> bool:
    """Run one trial if any is unclaimed; False: the study is finished."""
    while not study.finished(trials, seeds):
        task = study.claim(trials, seeds)
        if task is not None:
            try:
                _run(study, task, reporter)
            finally:
                task.release()
            return True
        reporter.progress(0.0, "waiting for the others")
        time.sleep(PAUSE)
    return False


class Pruned(Exception):
    """The trial is pruned."""


class Pruning:
    """A watcher that reports each validation of a trial, and ends the trial where it should be
    pruned."""

    def __init__(self, trial: Trial, reporter: Reporter) -> None:
        self._trial = trial
        self.step, self.say = reporter.step, reporter.say
        # A trial that goes on from a checkpoint may come by validations it has reported before.
        before = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        self._reported = set(before)

    def validated(self, step: int, progress: float, loss: float) -> None:
        at = round(progress * PER_MILLE)
        if at not in self._reported:
            self._trial.report(loss, at)
            self._reported.add(at)
        if progress < 1 and self._trial.should_prune():
            raise Pruned


def _run(study: Study, task: Task, reporter: Reporter) -> None:
    if task.seed is None:
        _run_trial(study, task.number, reporter)
        return
    recipe = with_values(study.recipe, study.values(study.trials()[task.number]))
    again = recipe.model_copy(update={"seed": task.seed})
    run = study.folder.retrained(task.number, task.seed)
    loss, failure = outcome(lambda: _train(again, run.path, reporter))
    study.end_retrained(task.number, task.seed, {"failure": failure} if failure else {"loss": loss})


def _run_trial(study: Study, number: int, reporter: Reporter) -> None:
    def attempt() -> float | None:
        trial = study.begin(number)
        recipe = with_values(study.recipe, study.values(study.trials()[number]))
        try:
            return _train(recipe, study.folder.trial(number).path, Pruning(trial, reporter))
        except Pruned:
            return None

    study.end(number, *outcome(attempt))


def _train(recipe: Recipe, out: Path, watcher: Reporter | Pruning) -> float:
    return train(recipe, out, True, watcher, lambda stage, done, total: None)
