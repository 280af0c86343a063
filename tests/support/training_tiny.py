"""A recipe that trains in a second, for tests."""

from pathlib import Path
from typing import Any

import yaml

from infolm.config import Recipe


def tiny_tree(text: Path, **train: Any) -> dict[str, Any]:
    return {
        "data": {"path": str(text)},
        "feed": {"batch": 4, "bptt": 8},
        "model": {
            "embedding": 8,
            "hidden": 12,
            "layers": 2,
            "weight_drop": 0.3,
            "dropout": {"embedding": 0.1, "input": 0.2, "hidden": 0.2, "output": 0.2},
        },
        "objective": {"ar": 1, "tar": 1},
        "optimiser": {"kind": "sgd", "learning_rate": 5, "clip": 0.25, "weight_decay": 1e-6},
        "averaging": {"kind": "triggered", "patience": 1, "latest": 0.4},
        "train": {"validate_every": 5, "validation_streams": 3, "log_every": 3, **train},
    }


def tiny_sentences(text: Path, **train: Any) -> dict[str, Any]:
    """Of a sentence model."""
    return {
        "data": {"path": str(text)},
        "feed": {"kind": "sentences", "batch": 16},
        "model": {
            "kind": "sentence",
            "embedding": 8,
            "latent": {"size": 3},
            "encoder": {"hidden": 12},
            "decoder": {"hidden": 12, "dropout": {"input": 0.3, "locked": False}},
        },
        "objective": {"kind": "mim"},
        "optimiser": {"kind": "adam", "learning_rate": 0.02},
        "train": {"validate_every": 10, "log_every": 3, **train},
    }


def tiny_recipe(text: Path, **train: Any) -> Recipe:
    return Recipe.model_validate(tiny_tree(text, **train))


def tiny_file(folder: Path, text: Path, **train: Any) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_tree(text, **train)))
    return path


class Silent:
    """A watcher that says nothing and remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def step(self, progress: float, nll: float, tokens: int) -> None:
        pass

    def validated(self, step: int, progress: float, loss: float) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)


def quiet(stage: str, done: int, total: int) -> None:
    pass
