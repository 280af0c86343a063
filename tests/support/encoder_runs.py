"""Runs of encoders with every head, trained in a second, for tests of what is done with them."""

from pathlib import Path

import pytest
from training_tiny import Silent, quiet

from infolm.config import Recipe
from infolm.families.train import train

NOUNS = ["cat", "dog", "bird", "fish", "child", "king", "river", "stone"]
SEQUENCES = {"kind": "sequences", "length": 16}
KINDS = {  # objective: sections of the recipe
    "mlm": ({**SEQUENCES, "masking": "tokens"}, {}),
    "infoword": ({**SEQUENCES, "masking": "spans"}, {}),
    "permutation": ({**SEQUENCES, "masking": "order"}, {"architecture": "xlnet"}),
    "nsp": ({"kind": "sentence-pairs", "length": 24}, {"head": "next"}),
    "skip-gram": ({"kind": "windows", "length": 16}, {"head": "context"}),
}


def recipe(text: Path, kind: str) -> Recipe:
    feed, model = KINDS[kind]
    sizes = {"kind": "encoder", "layers": 2, "hidden": 16, "heads": 2, "length": 24}
    return Recipe.model_validate(
        {
            "data": {"path": str(text), "tokens": "wordpiece", "vocabulary": 150},
            "feed": {"batch": 4, **feed},
            "model": sizes | model,
            "objective": {"kind": kind},
            "optimiser": {"kind": "adamw", "learning_rate": 1e-2},
            "train": {"max_steps": 4, "validate_every": 2, "log_every": 1},
        }
    )


def train_encoders(folder: Path) -> Path:
    """A run of each kind, in a folder of its name."""
    text = folder / "text.txt"
    text.write_text(
        "".join(f"the {NOUNS[i % 8]} sees a {NOUNS[i % 3]} . number {i % 13}\n" for i in range(500))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        for kind in KINDS:
            train(recipe(text, kind), folder / kind, False, Silent(), quiet)
    return folder
