"""A worker of `infolm reproduce`: it trains and measures one point after another.

Started as `python -m infolm.studies.reproduction.worker WORKERS`, where so many share the cores. It
reads tasks from standard input, a line of JSON each, and answers on standard output, likewise:
`progress` now and then, `result` or `failure` at the end of each task, `stopped` with a sentence
where it cannot go on.
"""

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch

from infolm.config import Recipe
from infolm.errors import InfolmError
from infolm.families.train import train
from infolm.studies.reproduction.measure import measure
from infolm.studies.tuning.claims import FileClaims
from infolm.studies.workers import Alone, outcome
from infolm.training.loop import Interrupted

EVERY = 0.5
"""Seconds between two lines of progress."""


@dataclass(frozen=True)
class Task:
    """What a worker is told. recipe: as JSON; train: False if that is done."""

    name: str
    folder: str
    claims: str
    recipe: dict[str, Any]
    train: bool
    splits: list[str]
    sentences: int | None
    samples: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Answers:
    """Lines to the command."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._last = file, 0.0

    def say(self, **message: Any) -> None:
        print(json.dumps(message), file=self._file, flush=True)

    def progress(self, stage: str, share: float) -> None:
        if time.monotonic() - self._last >= EVERY:
            self._last = time.monotonic()
            self.say(progress=share, stage=stage)


class Told(Alone):
    """Tells how far a training is."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self._answers = answers

    def step(self, progress: float, nll: float, tokens: int) -> None:
        super().step(progress, nll, tokens)
        self._answers.progress("training", progress)


def work(task: Task, watcher: Told, answers: Answers) -> dict[str, Any]:
    """Train a point, unless that is done, and measure it."""
    began = time.monotonic()
    path = Path(task.folder)
    if task.train:
        recipe = Recipe.model_validate(task.recipe)
        train(recipe, path, True, watcher, lambda stage, done, total: None)
    trained = time.monotonic()
    measured = measure(
        path,
        task.splits,
        task.sentences,
        task.samples,
        lambda split, share: answers.progress(f"measuring on {split}", 1.0),
    )
    seconds = {"training": trained - began, "measuring": time.monotonic() - trained}
    return {**measured, "seconds": {stage: round(s, 1) for stage, s in seconds.items()}}


def main() -> int:
    torch.set_num_threads(max(1, torch.get_num_threads() // int(sys.argv[1])))
    answers = Answers(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # what a library prints is no answer
    watcher = Told(answers)
    try:
        for line in sys.stdin:
            task = Task(**json.loads(line))
            # A worker of a command that was killed may be at its last step there.
            with FileClaims(Path(task.claims)).held(task.name):
                result, failure = outcome(partial(work, task, watcher, answers))
            answers.say(**({"failure": failure} if failure else {"result": result}))
    except (Interrupted, BrokenPipeError):
        return 128 + signal.SIGTERM
    except (InfolmError, OSError) as error:
        answers.say(stopped=str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
