"""Checks of a run's recorded text and recipe against the present ones."""

import json
import sys
from typing import Any

from infolm.config import Recipe, load_recipe, written_recipe
from infolm.data.corpora import Corpus, load
from infolm.data.ingest import Report
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.training.manifest import Manifest, altered
from infolm.training.run import RunFolder
from infolm.trees import mapping

FREE_TO_CHANGE = {
    "epochs",
    "max_steps",
    "stop_patience",
    "checkpoint_seconds",
    "log_every",
    "samples",
    "exposure",
    "accelerator",
}
"""Keys of `train` that may change when a run is resumed."""
DESCRIPTIVE = ("title", "paper", "expected", "variants", "tuning")
"""Keys of a recipe that only describe it."""


def about(corpus: Corpus) -> str:
    """The text of `corpus.json`."""
    tokens = {name: len(split.tokens) for name, split in corpus.splits.items()}
    tree = {"name": corpus.name, "sha256": corpus.source, "tokens": tokens}
    return json.dumps(tree, indent=2) + "\n"


def corpus_of(run: RunFolder, recipe: Recipe, report: Report | None = None) -> Corpus:
    """The text a run is trained on, in the run's vocabulary; refused if it has changed."""
    run.verify(run.tokenizer, run.corpus)
    corpus = load(recipe.data, report, tokenizer=Tokenizer.load(run.tokenizer))
    if source_of(run) != corpus.source:
        raise InfolmError(
            f"the text of {corpus.name} is no longer the one that {run.path} was trained on: "
            "restore that text, or train again with another --out"
        )
    return corpus


def source_of(run: RunFolder) -> str:
    """The SHA-256 of the text that the run started with."""
    try:
        return str(json.loads(run.corpus.read_bytes())["sha256"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InfolmError(
            f"{run.corpus} is damaged ({' '.join(str(error).split())}): restore it from a copy, "
            f"or try `infolm repair {run.path}`"
        ) from error


def recipe_of(run: RunFolder) -> Recipe:
    """The recipe of a run, if infolm wrote it or if only permitted keys were edited.

    Permitted are the keys that `infolm train RUN --resume` may change, and the path of the text,
    which `corpus.json` identifies. Any other change would be another run.
    """
    now, written = load_recipe(str(run.recipe)), Manifest.read(run.path)
    if not written or not written.recipe or not altered(run.recipe):
        return now
    before = written_recipe(str(run.recipe), written.recipe)
    edit = _first_difference(before.model_dump(mode="json"), now.model_dump(mode="json"))
    was, is_now = _identity(before), _identity(now)
    for tree in (was, is_now):
        tree["data"].pop("path", None)
    if difference := _first_difference(was, is_now):
        raise InfolmError(
            f"{run.recipe} was edited by hand ({difference}), and the run was trained without "
            f"this change: undo it, by hand or with `infolm repair {run.path}`; to train with it, "
            "name another folder with --out"
        )
    if edit:
        print(f"{run.recipe} was edited by hand ({edit}): the edit is used.", file=sys.stderr)
    return now


def _identity(recipe: Recipe) -> dict[str, Any]:
    """The part of a recipe that may not change during a run."""
    tree = recipe.model_dump(mode="json")
    for key in FREE_TO_CHANGE:
        tree["train"].pop(key, None)
    for key in DESCRIPTIVE:
        tree.pop(key, None)
    return tree


def check_same(recipe: Recipe, run: RunFolder) -> None:
    """Refuse to resume a run with another recipe than it started with."""
    difference = _first_difference(_identity(recipe_of(run)), _identity(recipe))
    if difference:
        raise InfolmError(
            f"{run.path} was started with another recipe ({difference}): resume it with "
            f"`infolm train {run.path} --resume`, or name another folder with --out"
        )


def _first_difference(before: Any, now: Any, path: str = "") -> str:
    if mapping(before) is not None and mapping(now) is not None:
        for key in {**before, **now}:
            inner = f"{path}.{key}" if path else str(key)
            found = _first_difference(before.get(key), now.get(key), inner)
            if found:
                return found
        return ""
    return "" if before == now else f"{path} was {before} and is now {now}"
