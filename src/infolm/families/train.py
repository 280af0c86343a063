"""From a recipe to a trained run."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from infolm import files
from infolm.config import Recipe
from infolm.data import own_text
from infolm.data.corpora import Corpus, types
from infolm.data.corpora import load as load_corpus
from infolm.data.ingest import Report
from infolm.data.pairs import NeighbourPairs
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError, RunError
from infolm.families.base import build_terms, family_of, silent
from infolm.families.demand import of_training, refuse_giants
from infolm.families.recorded import about, check_same, corpus_of
from infolm.models.base import Model
from infolm.nn import gather
from infolm.nn.cells.base import Cell
from infolm.nn.recurrence import native
from infolm.nn.recurrence.driver import choose
from infolm.objectives.base import Learner
from infolm.optimisation.schedule import Schedule
from infolm.training import checkpoint, processes
from infolm.training.device import multiplies_bfloat16, on_cuda, one_device
from infolm.training.loop import Loop, Nobody, Term, Watcher
from infolm.training.run import ReadOnlyRun, RunFolder
from infolm.training.strategy import strategy


def parameters(recipe: Recipe) -> int:
    """The number of parameters of the recipe's model, without building it or reading the corpus."""
    return recipe.model.parameters_of(types(recipe.data))


def train(recipe: Recipe, out: Path, resume: bool, watcher: Watcher, report: Report) -> float:
    """Train `recipe` in the folder `out`; returns the best validation loss in nats per token.

    Nothing is written before the recipe, the text and the model are checked. With `resume` an
    existing run resumes from its last checkpoint, and a finished one does not change.

    Started by torchrun, the processes train one model together, and the first of them writes.
    """
    with processes.together(on_cuda(recipe.train.accelerator)):
        if processes.first():
            return _train(recipe, out, resume, watcher, report)
        return _train(recipe, out, resume, Nobody(), silent)


def _train(recipe: Recipe, out: Path, resume: bool, watcher: Watcher, report: Report) -> float:
    exists = out.exists() and (not out.is_dir() or any(out.iterdir()))
    exists = processes.of_the_first(exists)
    if exists and not resume:
        raise InfolmError(
            f"{out} exists already: add --resume to resume it, or name another folder with --out"
        )
    if exists and processes.first():
        RunFolder.existing(out)
    begun = exists and bool(checkpoint.checkpoints(RunFolder(out).checkpoints))
    begun = processes.of_the_first(begun)
    family = family_of(recipe)
    recipe = family.resolved(recipe, begun)
    with processes.first_goes_ahead():  # it prepares the cached text
        if exists:
            check_same(recipe, RunFolder(out))
            corpus = corpus_of(RunFolder(out), recipe, report)
        else:
            corpus = load_corpus(recipe.data, report, tokenizer=family.vocabulary(recipe))
    _refuse_more_parts_than_columns(recipe)
    fabric = one_device(recipe.train.accelerator, recipe.train.precision)
    torch.manual_seed(recipe.seed)
    tokens = len(corpus.splits["train"].tokens)
    refuse_giants(of_training(recipe, len(corpus.tokenizer), tokens))
    model = recipe.model.build(len(corpus.tokenizer), corpus.tokenizer)
    if len(corpus.splits["valid"].tokens) < 2:
        raise InfolmError("the validation split needs at least two tokens: give more text")
    family.check(recipe, corpus)
    if not begun and (said := family.start(recipe, model)):
        watcher.say(said)
    fabric.to_device(model)
    terms = build_terms(recipe, corpus, model)
    if recipe.start_from is not None:
        watcher.say(_start_from(recipe.start_from, model, terms, corpus))
    cells = _cells(model)
    shared = strategy(recipe.train.strategy, model)
    validate = family.validation(recipe, model, terms[0].objective, corpus)
    run = _folder(out, exists, recipe, corpus)
    with run.locked():
        run.verify(*(path for path in run.defining if path != run.recipe))
        text = recipe.as_yaml()  # a resumed run may have more epochs
        if text != run.manifest().recipe or text != run.recipe.read_text(encoding="utf-8"):
            run.keep(run.recipe, lambda path: path.write_text(text, encoding="utf-8"))
        loop = Loop(
            fabric,
            model,
            terms,
            recipe.optimiser.build(shared.parameters),
            Schedule(recipe.optimiser.schedule),
            recipe.averaging.build(model),
            validate,
            recipe.train,
            recipe.optimiser.clip,
            run,
            watcher,
            family.judge(recipe, model, corpus),
            recipe.optimiser.l2_penalty,
            family.sampler(recipe, model, corpus) if recipe.train.samples else None,
            corpus.splits["train"].words,
            shared,
        )
        watcher.say(_plan(recipe, corpus, model, terms, cells, out))
        if recipe.train.precision == "bf16-mixed" and _slow_in_bfloat16(model):
            watcher.say(
                "this processor has no instructions for bfloat16, so bf16-mixed is slower here "
                "than single precision: train.precision=32-true"
            )
        if done := own_text.described(recipe.data, corpus):
            watcher.say(done)
        if said := _note_build(run, native.build() if cells == "native" else {}, begun):
            watcher.say(said)
        if resume and loop.resume():
            if loop.finished() and loop.losses:
                watcher.say(_finished(loop, recipe, out))
                return min(loop.losses)
            watcher.say(f"resumed at step {loop.step:,}")
        return loop.run()


def _slow_in_bfloat16(model: Model) -> bool:
    return model.device.type == "cpu" and not multiplies_bfloat16()


def _finished(loop: Loop, recipe: Recipe, out: Path) -> str:
    """A message that nothing is left to train, and how to train longer."""
    settings, epochs = recipe.train, loop.terms[0].feed.epoch
    longer = []
    if loop.stopped:
        longer.append("train.stop_patience=null")
    if settings.max_steps is not None and loop.step >= settings.max_steps:
        longer.append(f"train.max_steps={2 * settings.max_steps}")
    if epochs >= settings.epochs:
        longer.append(f"train.epochs={2 * settings.epochs}")
    return (
        f"{out} is finished, and nothing was trained: {loop.step:,} steps, {epochs:,} passes over "
        f"the text, best validation {min(loop.losses):.4f} nats per {family_of(recipe).per}; train "
        f"longer with, for instance, infolm train {out} --resume {' '.join(longer)}"
    )


def _note_build(run: RunFolder, build: dict[str, str], begun: bool) -> str:
    """Record which build of the cells trains the run; returns a warning if it has changed."""
    manifest = run.manifest()
    before = manifest.native
    if before == build:
        return ""
    manifest.native = build
    if processes.first():
        manifest.write(run.path)
    if not begun:
        return ""
    changed = [key for key in {**before, **build} if before.get(key) != build.get(key)]
    told = "; ".join(
        f"{key} was {before.get(key) or 'none'} and is {build.get(key) or 'none'}"
        for key in changed
        if key != "library" or changed == ["library"]
    )
    return (
        f"the cells are computed by another build than before ({told}): the run resumes correctly, "
        "but its bytes may differ from those of the former build"
    )


def _cells(model: Model) -> str:
    """The implementation of the recurrent cells, if the model has any."""
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
    """The training to come, in one line."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    tokens, types = len(corpus.splits["train"].tokens), len(corpus.tokenizer)
    steps = recipe.train.max_steps
    length = f"at most {steps:,} steps" if steps else f"{recipe.train.epochs:,} epochs"
    pairs = [
        f"{term.name} on {term.feed.pairs:,} pairs of sentences, "
        for term in terms
        if isinstance(term.feed, NeighbourPairs)
    ]
    brought = f", with {recipe.brought}" if recipe.brought else ""
    parts = _parts_in_words(recipe)
    return (
        f"{weights:,} parameters, {corpus.name} ({tokens:,} tokens, {types:,} types), {length}, "
        f"{''.join(pairs)}on {model.device}{cells and f' ({cells} cells)'}{parts}, into {out}"
        f"{brought}"
    )


def _parts_in_words(recipe: Recipe) -> str:
    """How batches are divided, and its consequences; empty if they are not."""
    count, accumulate = gather.processes()[1], recipe.train.accumulate
    words = f", {count} processes" if count > 1 else ""
    if count > 1 and recipe.train.strategy == "fully_shard":
        words += " with a share of each layer"
    if accumulate > 1:
        words += f", each batch in {accumulate} parts one after another"
        terms: list[Any] = [recipe.objective, *recipe.regularisers.chosen().values()]
        if differs := [*filter(None, (each.by_parts(recipe.model) for each in terms))]:
            words += f" ({', '.join(differs)}: not quite as the whole batch)"
    return words


def _folder(out: Path, exists: bool, recipe: Recipe, corpus: Corpus) -> RunFolder:
    """The run's manifest, created by the first process if necessary."""
    with processes.first_goes_ahead():
        if processes.first() and not exists:
            _create(out, recipe, corpus)
    return RunFolder(out) if processes.first() else ReadOnlyRun(out)


def _refuse_more_parts_than_columns(recipe: Recipe) -> None:
    """Check that each part of a batch has at least one column."""
    parts = gather.processes()[1] * recipe.train.accumulate
    least = {"feed.batch": (getattr(recipe.feed, "batch", parts), parts)}
    for name, each in recipe.regularisers.chosen().items():  # which compare columns
        least[f"regularisers.{name}.batch"] = (getattr(each, "batch", 2 * parts), 2 * parts)
    for key, (batch, fewest) in least.items():
        if parts > 1 and batch < fewest:
            raise InfolmError(
                f"{key} is {batch}, too few for {parts} parts (processes times train.accumulate): "
                f"raise it to {fewest} or more, or start fewer processes"
            )


def _create(out: Path, recipe: Recipe, corpus: Corpus) -> RunFolder:
    """Create the run's folder under a temporary name, then rename it."""
    try:
        files.make_folder(out.parent)
        files.sweep(out.parent, out.name)
        with files.scratch_folder(out.parent, f".{out.name}") as making:
            making.chmod(0o755)
            run = RunFolder(making)
            run.recipe.write_text(recipe.as_yaml(), encoding="utf-8")
            corpus.tokenizer.save(run.tokenizer)
            run.corpus.write_text(about(corpus), encoding="utf-8")
            for path in run.defining:
                files.flush(path)
            run.manifest()
            os.replace(making, out)
        files.flush_folder(out.parent)
    except OSError as error:
        raise RunError(f"{out} cannot be created ({error}): choose another --out") from error
    return RunFolder(out)


def _start_from(source: Path, model: Model, terms: Sequence[Term], corpus: Corpus) -> str:
    """Load the weights of another run and of its regularisers; returns a message."""
    run = RunFolder.existing(source)
    if Tokenizer.load(run.tokenizer).to_json() != corpus.tokenizer.to_json():
        raise InfolmError(
            f"start_from: {source} has another vocabulary than this recipe's "
            "corpus: choose another run"
        )
    run.verify(run.tokenizer, run.model)
    checkpoint.load_weights(run.model, model)
    said = f"starting from {source}"
    for term in terms:
        if not isinstance(term.objective, Learner):
            continue
        if run.learner(term.name).exists():
            term.objective.load_state_dict(run.load_learner(term.name))
            said += f", with the {term.name} trained there"
        else:
            said += f"; {term.name} starts untrained, as that run had none"
    return said
