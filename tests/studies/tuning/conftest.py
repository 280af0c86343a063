"""Recipes with ranges, studies of them, and trainings that only pretend."""

import io
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from training_tiny import tiny_tree

from infolm.config import Recipe
from infolm.studies.tuning import trials
from infolm.studies.tuning.study import Study, StudyFolder, prepare_folder
from infolm.studies.tuning.trials import take_turn
from infolm.studies.worker import Reporter
from infolm.training.run import RunFolder

RANGES = {
    "optimiser.learning_rate": {"low": 0.5, "high": 20, "log": True},
    "model.dropout.input": {"low": 0, "high": 0.8},
    "model.layers": {"low": -1, "high": 2, "integer": True, "clamp": 1},
    "data.tokens": {"choices": ["word", "char"]},
}


def tuned_tree(text: Path, **train: Any) -> dict[str, Any]:
    return {**tiny_tree(text, **train), "tuning": RANGES}


def tuned_file(folder: Path, text: Path, **train: Any) -> Path:
    path = folder / "tuned.yaml"
    path.write_text(yaml.safe_dump(tuned_tree(text, **train), sort_keys=False))
    return path


REPORTER = Reporter(io.StringIO())


def work(study: Study, trials: int, seeds: int) -> None:
    """Train what a study has to train, in this process."""
    while take_turn(study, trials, seeds, REPORTER):
        pass


@pytest.fixture
def open_study(tmp_path, small_text):
    """Open the study in a folder, as each worker does."""
    opened: list[Study] = []

    def open_it(storage: str | None = None, out: str = "study", **changes: Any) -> Study:
        recipe = Recipe.model_validate({**tuned_tree(small_text, max_steps=10), **changes})
        folder = StudyFolder(tmp_path / out)
        prepare_folder(folder, recipe, "text")
        opened.append(Study(folder, recipe, "text", storage))
        return opened[-1]

    yield open_it
    for study in opened:
        study.close()


def loss_of(recipe: Recipe) -> float:
    """What a pretended training reaches: best at rate 3 and dropout 0.4, the seed as noise."""
    rate, dropout = recipe.optimiser.learning_rate, recipe.model.dropout.input
    return 4 + math.log(rate / 3) ** 2 / 5 + (dropout - 0.4) ** 2 + 0.01 * recipe.seed


@pytest.fixture
def pretended(monkeypatch):
    """Trainings write a run's files and two validations, and take no time; gives their recipes."""
    trained: list[Recipe] = []

    def train(recipe, out, resume, watcher, report):
        assert resume
        run = RunFolder(out)
        for folder in (run.checkpoints, run.tensorboard):
            folder.mkdir(parents=True, exist_ok=True)
        run.recipe.write_text(recipe.as_yaml())
        for file in (run.model, run.tokenizer, run.corpus, run.metrics):
            file.write_text("")
        trained.append(recipe)
        for step in (1, 2):
            watcher.step(step / 2, 5.0, 1)
            watcher.validated(step, step / 2, loss_of(recipe) + 1 / step)
        return loss_of(recipe)

    monkeypatch.setattr(trials, "train", train)
    monkeypatch.setattr(trials, "PAUSE", 0.01)
    return trained
