"""A worker: one process that trains a study's trials, one after another, until none is left.

Started by `tune` as `python -m infolm.studies.tuning.worker`, with its order as JSON on standard
input. It ends with code 0 when all is done, `STOPPED` with a sentence on standard output when it
cannot go on, and any other code when it was killed: then another takes its place.
"""

import json
import signal
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from optuna.trial import Trial

from infolm.config import Recipe, load_recipe
from infolm.errors import InfolmError
from infolm.families.train import train
from infolm.studies.tuning.study import PER_MILLE, Study, StudyFolder, Task, with_values
from infolm.studies.workers import Alone, outcome
from infolm.training.loop import Interrupted

STOPPED = 3
PAUSE = 1.0
"""Seconds between two looks for something to do while others work on what is left."""


@dataclass(frozen=True)
class Order:
    """What a worker is told."""

    folder: str
    text: str
    storage: str | None
    trials: int
    seeds: int
    workers: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Pruned(Exception):
    """The trial is not worth going on with."""


class Pruning(Alone):
    """Reports each validation of a trial, and ends the trial where it should be pruned."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self._trial = trial
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


def work(study: Study, trials: int, seeds: int) -> None:
    """Do what is to be done until all is."""
    while not study.finished(trials, seeds):
        task = study.claim(trials, seeds)
        if task is None:
            time.sleep(PAUSE)
            continue
        try:
            _run(study, task)
        finally:
            task.release()


def _run(study: Study, task: Task) -> None:
    if task.seed is None:
        _run_trial(study, task.number)
        return
    recipe = with_values(study.recipe, study.values(study.trials()[task.number]))
    again = recipe.model_copy(update={"seed": task.seed})
    run = study.folder.retrained(task.number, task.seed)
    loss, failure = outcome(lambda: _train(again, run.path, Alone()))
    found = {"failure": failure} if failure else {"loss": loss}
    study.end_retrained(task.number, task.seed, found)


def _run_trial(study: Study, number: int) -> None:
    def attempt() -> float | None:
        trial = study.begin(number)
        recipe = with_values(study.recipe, study.values(study.trials()[number]))
        try:
            return _train(recipe, study.folder.trial(number).path, Pruning(trial))
        except Pruned:
            return None

    study.end(number, *outcome(attempt))


def _train(recipe: Recipe, out: Path, watcher: Alone) -> float:
    return train(recipe, out, True, watcher, lambda stage, done, total: None)


def main() -> int:
    order = Order(**json.load(sys.stdin))
    torch.set_num_threads(max(1, torch.get_num_threads() // order.workers))
    folder = StudyFolder(Path(order.folder))
    try:
        recipe = load_recipe(str(folder.recipe))
        study = Study(folder, recipe, order.text, order.storage)
        with closing(study), study.answering():
            work(study, order.trials, order.seeds)
    except Interrupted:
        return 128 + signal.SIGTERM
    except (InfolmError, OSError) as error:
        print(error)
        return STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
