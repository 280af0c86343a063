"""From a recipe to a trained run."""

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from infolm.config import Recipe, load_recipe
from infolm.data.corpora import Corpus, types
from infolm.data.corpora import load as load_corpus
from infolm.data.ingest import Report
from infolm.data.pairs import SentencePairs
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError, RunError
from infolm.families.base import build_terms, corpus_of, family_of
from infolm.models.base import Model
from infolm.nn.cells.base import Cell
from infolm.nn.recurrence.driver import choose
from infolm.objectives.base import Learner
from infolm.optimisation.schedule import Schedule
from infolm.training import checkpoint
from infolm.training.device import one_device
from infolm.training.loop import Loop, Term, Watcher
from infolm.training.run import RunFolder

FREE_TO_CHANGE = {"epochs", "max_steps", "checkpoint_seconds", "log_every", "accelerator"}
"""Keys of `train` that a resumed run may have otherwise than when it began."""


def parameters(recipe: Recipe) -> int:
    """How many parameters the recipe's model has, without making them or reading the corpus."""
    return recipe.model.parameters_of(types(recipe.data))


def train(recipe: Recipe, out: Path, resume: bool, watcher: Watcher, report: Report) -> float:
    """Train `recipe` in the folder `out`; returns the best validation loss in nats per token.

    Nothing is written before the recipe, the text and the model have proved sound. With `resume`
    a run that is there goes on from its last checkpoint, and a finished one is left as it is.
    """
    exists = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if exists and not resume:
        raise InfolmError(
            f"{out} exists already: add --resume to go on with it, or name another with --out"
        )
    begun = exists and bool(checkpoint.checkpoints(RunFolder(out).checkpoints))
    family = family_of(recipe)
    recipe = family.resolved(recipe, begun)
    if exists:
        _check_same(recipe, RunFolder.existing(out))
        corpus = corpus_of(RunFolder(out), recipe, report)
    else:
        corpus = load_corpus(recipe.data, report, tokenizer=family.vocabulary(recipe))
    fabric = one_device(recipe.train.accelerator, recipe.train.precision)
    torch.manual_seed(recipe.seed)
    model = recipe.model.build(len(corpus.tokenizer), corpus.tokenizer)
    if len(corpus.splits["valid"].tokens) < 2:
        raise InfolmError("the validation split needs at least two tokens: bring more text")
    family.check(recipe, corpus)
    if not begun and (said := family.start(recipe, model)):
        watcher.say(said)
    fabric.to_device(model)
    terms = build_terms(recipe, corpus, model)
    if recipe.start_from is not None:
        watcher.say(_start_from(recipe.start_from, model, terms, corpus))
    cells = _cells(model)
    run = RunFolder(out) if exists else _create(out, recipe, corpus)
    with run.locked():
        text = recipe.as_yaml()  # a resumed run may have been given more epochs
        checkpoint.atomically(run.recipe, lambda path: path.write_text(text, encoding="utf-8"))
        loop = Loop(
            fabric,
            model,
            terms,
            recipe.optimiser.build(model.parameters()),
            Schedule(recipe.optimiser.schedule),
            recipe.averaging.build(model),
            family.validation(recipe, model, terms[0].objective, corpus),
            recipe.train,
            recipe.optimiser.clip,
            run,
            watcher,
        )
        watcher.say(_plan(recipe, corpus, model, terms, cells, out))
        if resume and loop.resume():
            watcher.say(f"resumed at step {loop.step:,}")
        return loop.run()


def _cells(model: Model) -> str:
    """By which path recurrent cells run, where the model has any."""
    cells = [module for module in model.modules() if isinstance(module, Cell)]
    return choose(next(cells[0].parameters()), steps=2) if cells else ""


def _plan(
    recipe: Recipe,
    corpus: Corpus,
    model: Model,
    terms: Sequence[Term],
    cells: str,
    out: Path,
) -> str:
    """What training is going to do, in a line."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    tokens, types = len(corpus.splits["train"].tokens), len(corpus.tokenizer)
    steps = recipe.train.max_steps
    length = f"{steps:,} steps at most" if steps else f"{recipe.train.epochs:,} epochs"
    pairs = [
        f"{term.name} on {term.feed.pairs:,} pairs of sentences, "
        for term in terms
        if isinstance(term.feed, SentencePairs)
    ]
    brought = f", with {recipe.brought}" if recipe.brought else ""
    return (
        f"{weights:,} weights, {corpus.name} ({tokens:,} tokens, {types:,} types), {length}, "
        f"{''.join(pairs)}on {model.device}{cells and f' ({cells} cells)'}, into {out}{brought}"
    )


def _create(out: Path, recipe: Recipe, corpus: Corpus) -> RunFolder:
    """Make the run's folder whole under another name, then rename it into being."""
    making = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        making.chmod(0o755)
        RunFolder(making).recipe.write_text(recipe.as_yaml(), encoding="utf-8")
        corpus.tokenizer.save(RunFolder(making).tokenizer)
        RunFolder(making).corpus.write_text(json.dumps(_about(corpus), indent=2) + "\n")
        os.replace(making, out)
    except OSError as error:
        if making is not None:
            shutil.rmtree(making, ignore_errors=True)
        raise RunError(f"{out} cannot be made ({error}): choose another --out") from error
    return RunFolder(out)


def _about(corpus: Corpus) -> dict[str, Any]:
    tokens = {name: len(split.tokens) for name, split in corpus.splits.items()}
    return {"name": corpus.name, "sha256": corpus.source, "tokens": tokens}


def _check_same(recipe: Recipe, run: RunFolder) -> None:
    """Refuse to resume a run with another recipe than it began with."""
    before = load_recipe(str(run.recipe)).model_dump(mode="json")  # with keys that are newer
    now = recipe.model_dump(mode="json")
    for tree in (before, now):
        for key in FREE_TO_CHANGE:
            tree["train"].pop(key, None)
        for key in ("title", "paper", "expected", "variants", "tuning"):
            tree.pop(key, None)
    difference = _first_difference(before, now)
    if difference:
        raise InfolmError(
            f"{run.path} was begun with another recipe ({difference}): resume it as "
            f"`infolm train {run.path} --resume`, or name another folder with --out"
        )


def _first_difference(before: Any, now: Any, path: str = "") -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            inner = f"{path}.{key}" if path else str(key)
            found = _first_difference(before.get(key), now.get(key), inner)
            if found:
                return found
        return ""
    return "" if before == now else f"{path} was {before} and is now {now}"


def _start_from(source: Path, model: Model, terms: Sequence[Term], corpus: Corpus) -> str:
    """Take the weights of another run, and what its regularisers learnt; says so."""
    run = RunFolder.existing(source)
    if Tokenizer.load(run.tokenizer).to_json() != corpus.tokenizer.to_json():
        raise InfolmError(f"start_from: {source} has another vocabulary than this recipe's corpus")
    checkpoint.load_weights(run.model, model)
    said = f"starting from {source}"
    for term in terms:
        if not isinstance(term.objective, Learner):
            continue
        if run.learner(term.name).exists():
            term.objective.load_state_dict(run.load_learner(term.name))
            said += f", with what {term.name} learnt there"
        else:
            said += f"; {term.name} begins anew, as that run had none"
    return said
