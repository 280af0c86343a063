"""A run's recipe, results and curve for a comparison, without its weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infolm.config import Recipe
from infolm.data.corpora import splits_contractions
from infolm.errors import InfolmError
from infolm.evaluation import measurement
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.suite import BASELINE, LANGUAGE
from infolm.families.base import family_of
from infolm.families.recorded import DESCRIPTIVE, recipe_of, source_of
from infolm.reports.history import Series, series_of
from infolm.training.manifest import sha256
from infolm.training.run import RunFolder, read_validations
from infolm.trees import leaves

IDLE = {f"train.{key}" for key in ("checkpoint_seconds", "log_every", "samples", "accelerator")}
"""Keys that do not affect the result."""
IN_TRAINING = "best validation while training"
"""The method name of the validation loss, which every run has."""


@dataclass(frozen=True)
class Result:
    """A run's results. settings: the recipe by dotted keys, without seed and what only describes.
    text, vocabulary: SHA-256 of each. curve: the validation losses."""

    path: Path
    recipe: Recipe
    settings: dict[str, Any]
    measurements: list[Measurement]
    curve: Series
    text: str
    vocabulary: str

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def family(self) -> str:
        return self.recipe.model.capability


def read(path: Path) -> Result:
    """The results in a folder; refused where there are none yet."""
    folder = RunFolder.existing(path)
    recipe = recipe_of(folder)
    curve = series_of(read_validations(folder.metrics), "loss")
    if not len(curve):
        raise InfolmError(
            f"{path} has no validation yet, so nothing to compare: train it further with "
            f"`infolm train {path} --resume`"
        )
    return Result(
        path,
        recipe,
        settings_of(recipe, source_of(folder)),
        [*_measured(folder), *_validated(recipe, curve)],
        curve,
        source_of(folder),
        sha256(folder.tokenizer),
    )


def settings_of(recipe: Recipe, text: str) -> dict[str, Any]:
    """'model.hidden' -> 256 and so on: what is trained on what and how, but for the seed.

    The text is named with the start of its SHA-256, wherever its file lies.
    """
    tree = recipe.model_dump(mode="json")
    tree = {key: value for key, value in tree.items() if key not in (*DESCRIPTIVE, "seed")}
    found = {key: value for key, value in leaves(tree).items() if key not in IDLE}
    found["data.contractions"] = splits_contractions(recipe.data)  # by default as the text needs it
    path, corpus = found.pop("data.path", None), found.pop("data.corpus", None)
    return {"text": f"{Path(path).stem if path else corpus} ({text[:8]})", **found}


def _measured(folder: RunFolder) -> list[Measurement]:
    """The results of `infolm evaluate` for the model itself."""
    found = measurement.read(folder.measurements)
    return [m for m in found if m.method not in (BASELINE, LANGUAGE)]


def _validated(recipe: Recipe, curve: Series) -> list[Measurement]:
    """The best validation as a measurement."""
    per = f"nats per {family_of(recipe).per}"
    loss = float(curve.values.min())
    about = "the best of the validations while training, as metrics.jsonl has them"
    return [Measurement("validation_loss", loss, per, None, 0, "valid", IN_TRAINING, about)]
