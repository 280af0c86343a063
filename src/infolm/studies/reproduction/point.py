"""A point of a sweep as a job of the pool: trained, then measured."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infolm.config import Recipe
from infolm.families.train import train
from infolm.studies.claims import FileClaims
from infolm.studies.reproduction.measure import measure
from infolm.studies.worker import Reporter


@dataclass(frozen=True)
class Task:
    """What is to be done for a point. recipe: as JSON; train: False if that is done."""

    name: str
    folder: str
    claims: str
    recipe: dict[str, Any]
    train: bool
    splits: list[str]
    sentences: int | None
    samples: int


def train_and_measure(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """The task of these fields: where the point lies, and the seconds that each stage took."""
    task = Task(**arguments)
    # A worker of a command that was killed may be at its last step there.
    with FileClaims(Path(task.claims)).held(task.name):
        began = time.monotonic()
        path = Path(task.folder)
        if task.train:
            recipe = Recipe.model_validate(task.recipe)
            train(recipe, path, True, reporter, lambda stage, done, total: None)
        trained = time.monotonic()
        measured = measure(
            path,
            task.splits,
            task.sentences,
            task.samples,
            lambda split, share: reporter.progress(1.0, f"measuring on {split}"),
        )
    seconds = {"training": trained - began, "measuring": time.monotonic() - trained}
    return {**measured, "seconds": {stage: round(s, 1) for stage, s in seconds.items()}}
