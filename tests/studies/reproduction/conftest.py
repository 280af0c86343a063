"""A reproduction that is trained in a second."""

from pathlib import Path
from typing import Any

import pytest
import yaml

TINY = [
    "data.uniform.symbols=8",
    "model.hidden=8",
    "model.latent.size=2",
    "train.max_steps=5",
    "train.log_every=1",
]


def tiny(**changes: Any) -> dict[str, Any]:
    recipe = "monte-carlo/synthetic-continuous-small"
    lambdas = {"objective.lambda": [0.2, 0.8]}
    one = "objective.samples=1 objective.augment=kl objective.alpha=1"
    return {
        "title": "tiny",
        "samples": 10,
        "curves": {
            "dreg-1": {"label": "DReG 1", "recipe": recipe, "set": one, "sweep": lambdas},
            "dreg-4-kl": {
                "label": "DReG 4",
                "recipe": recipe,
                "set": "objective.samples=4 objective.augment=kl objective.alpha=1",
                "sweep": {"objective.lambda": [0.2]},
            },
            "dreg-4-renyi": {
                "label": "DReG 4",
                "recipe": recipe,
                "set": "objective.samples=4",
                "sweep": {"objective.lambda": [0.2], "objective.alpha": [1.5]},
            },
            "same": {"label": "the same", "recipe": recipe, "set": f"{one} objective.lambda=0.8"},
        },
        "figures": {
            "1": {"title": "all", "curves": ["dreg-1", "dreg-4-kl", "dreg-4-renyi"]},
            "2": {"title": "one", "curves": ["same"]},
        },
        **changes,
    }


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    return written(tmp_path)


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny(**changes), sort_keys=False))
    return path
