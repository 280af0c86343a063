"""From a recipe to a trained run."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning_fabric import Fabric

from infolm import files
from infolm.averaging.base import Averager
from infolm.averaging.ema import Ema, EmaConfig
from infolm.averaging.tail import (
    NoAverage,
    PolyakConfig,
    SwaConfig,
    Tail,
    TailConfig,
    Triggered,
    TriggeredConfig,
)
from infolm.averaging.two_tailed import TwoTailed, TwoTailedConfig
from infolm.config import Recipe, load_recipe, written_recipe
from infolm.data.corpora import Corpus, types
from infolm.data.corpora import load as load_corpus
from infolm.data.episodes import Episodes, EpisodesConfig, marker, token_number
from infolm.data.ingest import Report
from infolm.data.pairs import HeldOutPairs, SentencePairs, Sentences, segments, sentences
from infolm.data.registry import registry
from infolm.data.sentence_pairs import SentencePairFeed, SentencePairsConfig
from infolm.data.sentences import Lines, SentenceFeed, SentencesConfig, fitting, lines
from infolm.data.sequences import SequenceFeed, SequencesConfig
from infolm.data.stream import Feed, Stream, StreamConfig
from infolm.data.tokens import NO_TOKEN, Tokenizer
from infolm.data.windows import WindowFeed, WindowsConfig
from infolm.errors import InfolmError, RunError
from infolm.evaluation.episodic import episodic_log_probs
from infolm.evaluation.likelihood import parallel_log_probs
from infolm.evaluation.validation import (
    contrastive_validation,
    monte_carlo_validation,
    sentence_validation,
)
from infolm.models.build import AnyModel, LatentModel, build_model
from infolm.models.encoder import Encoder, EncoderConfig
from infolm.models.pretrained import load_pretrained
from infolm.models.recurrent import RecurrentModel
from infolm.models.sentence import SentenceModel
from infolm.models.symbol import SymbolConfig
from infolm.nn.nce import Noise
from infolm.nn.recurrence import native
from infolm.nn.recurrence.driver import choose
from infolm.objectives.base import Learner, Objective
from infolm.objectives.bmi import Bmi, BmiConfig
from infolm.objectives.likelihood import Likelihood, LikelihoodConfig
from infolm.objectives.masked import InfoWord, InfoWordConfig, Masked, MlmConfig, MlmNceConfig
from infolm.objectives.mim import Mim, MimConfig
from infolm.objectives.monte_carlo import MonteCarlo, MonteCarloConfig
from infolm.objectives.nce import Nce, NceConfig, unigram_counts
from infolm.objectives.next_sentence import NextSentence, NextSentenceConfig
from infolm.objectives.permutation import Permutation, PermutationConfig
from infolm.objectives.sentence import Ae, AeConfig, SentenceObjective
from infolm.objectives.skip_gram import SkipGram, SkipGramConfig
from infolm.objectives.vae import Vae, VaeConfig
from infolm.objectives.vq import Vq, VqConfig
from infolm.objectives.words import among
from infolm.training import checkpoint
from infolm.training.loop import Loop, Precision, Term, Validation, Watcher
from infolm.training.manifest import Manifest, altered
from infolm.training.optimisers import build_optimiser
from infolm.training.run import RunFolder
from infolm.training.schedule import Schedule

WARM_UP = 70
"""Tokens that each parallel stream of validation reads before it counts."""

FREE_TO_CHANGE = {
    "epochs",
    "max_steps",
    "stop_patience",
    "checkpoint_seconds",
    "log_every",
    "accelerator",
}
"""Keys of `train` that a resumed run may have otherwise than when it began."""
DESCRIPTIVE = ("title", "paper", "expected", "variants", "tuning")
"""Keys of a recipe that say something of it and change nothing."""


def parameters(recipe: Recipe) -> int:
    """How many weights the recipe's model has, without making them or reading the corpus."""
    with torch.device("meta"):
        model = build_model(recipe.model, types(recipe.data))
    return sum(parameter.numel() for parameter in model.parameters())


def _refuse_giants(recipe: Recipe, types: int) -> None:
    """Refuse a model whose parameters alone are more than the computer's memory."""
    try:
        with torch.device("meta"):
            model = build_model(recipe.model, types)
        size = sum(p.numel() * p.element_size() for p in model.parameters())
    except (RuntimeError, OverflowError, MemoryError):
        size = 2**63  # more than can be counted
    if size > memory():
        raise InfolmError(
            f"the model's parameters take {size / 2**30:,.0f} GB, and this computer has "
            f"{memory() / 2**30:,.0f}: lower sizes such as model.hidden, model.embedding or "
            "data.vocabulary"
        )


def memory() -> int:
    """Bytes of this computer's memory; where it does not tell, more than any has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**62


def one_device(accelerator: str, precision: Precision = "32-true") -> Fabric:
    """One device. Fabric's own choice would be Apple's, which has no double precision."""
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise InfolmError("train.accelerator is cuda, but PyTorch sees none: use auto or cpu")
    return Fabric(accelerator=accelerator, devices=1, precision=precision)


def build_feed(recipe: Recipe, corpus: Corpus, split: str = "train") -> Feed:
    """A split as the recipe wants it cut."""
    tokens, tokenizer = corpus.splits[split].tokens, corpus.tokenizer
    if isinstance(recipe.feed, SequencesConfig):
        feed = recipe.feed
        if split != "train":  # a short one is read in smaller batches
            most = len(tokens) // (feed.length - 2)
            feed = feed.model_copy(update={"batch": max(2, min(feed.batch, most))})
        return SequenceFeed(tokens, feed, recipe.seed, tokenizer)
    if isinstance(recipe.feed, SentencePairsConfig):
        ends = _ends(recipe.feed.ends, corpus)
        cut = sentences(tokens, tokenizer.eos, ends, _heading(corpus))
        return SentencePairFeed(cut, recipe.feed, recipe.seed, tokenizer.special)
    if isinstance(recipe.feed, WindowsConfig):
        return WindowFeed(tokens, recipe.feed, recipe.seed, tokenizer.eos, word_counts(corpus))
    if isinstance(recipe.feed, EpisodesConfig):
        after = marker(recipe.feed, tokenizer)
        return Episodes(tokens, recipe.feed, recipe.seed, tokenizer.eos, after)
    if isinstance(recipe.feed, SentencesConfig):
        found = lines_of(recipe.feed, corpus, split)
        return SentenceFeed(found, recipe.feed, recipe.seed, tokenizer.unk)
    return Stream(tokens, recipe.feed, recipe.seed)


def lines_of(config: SentencesConfig, corpus: Corpus, split: str) -> Lines:
    """The sentences of a split as a sentence model reads them: with words, and no headings."""
    tokens, tokenizer = corpus.splits[split].tokens, corpus.tokenizer
    found = lines(tokens, tokenizer.eos, _ends(config.ends, corpus), _heading(corpus))
    return fitting(found, config, split)


def _ends(tokens: Sequence[str], corpus: Corpus) -> list[int]:
    """The numbers of the tokens of `feed.ends`. A text may lack one, and is then not cut there."""
    tokenizer = corpus.tokenizer
    lacking = {NO_TOKEN, tokenizer.unk if tokenizer.kind == "wordpiece" else NO_TOKEN}
    return [
        token_number(token, tokenizer, "feed.ends")
        for token in tokens
        if lacking.isdisjoint(tokenizer.lookup(token).tolist())
    ]


def _check_sentences(config: SentencesConfig, corpus: Corpus, single: bool) -> None:
    """Refuse what training, validation or measuring the run would stumble over."""
    found = {split: lines_of(config, corpus, split) for split in ("train", "valid", "test")}
    if len(found["valid"]) < 2:
        raise InfolmError(
            "the validation split needs at least two sentences with a word in them: bring more "
            "text, a sentence a line"
        )
    for split, text in found.items():
        if single and text.lengths.max() > 1:
            raise InfolmError(
                f"model.kind symbol reads lines of one word, and line {text.lengths.argmax() + 1:,}"
                f" of the {split} split has {text.lengths.max()}: take model.kind sentence, or a "
                "text of single words such as data.corpus=uniform"
            )


def build_objective(
    recipe: Recipe, corpus: Corpus, model: AnyModel, device: torch.device
) -> Objective:
    """The objective that the recipe names. For nce, or if the recipe says so, `model` begins with
    the words' frequencies."""
    config = recipe.objective
    if isinstance(recipe.model, EncoderConfig):
        return _encoder_objective(recipe, corpus, device)
    assert not isinstance(model, Encoder)
    if isinstance(config, NceConfig) or recipe.model.softmax.bias == "unigram":
        found = unigram_counts(corpus.splits["train"].tokens, len(corpus.tokenizer))
        counts = torch.from_numpy(found).to(device)
        model.softmax.begin_with(counts)
    match config:
        case NceConfig():
            return Nce(config, counts)
        case MimConfig():
            return Mim()
        case VaeConfig():
            return Vae(config)
        case AeConfig():
            return Ae()
        case MonteCarloConfig():
            return MonteCarlo(config)
        case VqConfig():
            return Vq(config)
        case LikelihoodConfig():
            return Likelihood(config)
        case _:
            raise AssertionError(config.kind)  # the recipe was checked


def _encoder_objective(recipe: Recipe, corpus: Corpus, device: torch.device) -> Objective:
    """An objective of the InfoNCE family."""
    config, noise = recipe.objective, None
    if getattr(config, "negatives", None) == "unigram":
        counts = torch.from_numpy(word_counts(corpus)).to(device)
        noise = Noise(counts, getattr(config, "power", 1.0))
    match config:
        case SkipGramConfig():
            return SkipGram(config, noise)
        case NextSentenceConfig():
            return NextSentence(config)
        case PermutationConfig():
            return Permutation()
        case MlmConfig():
            return Masked(among("vocabulary", None, 0))
        case MlmNceConfig():
            return Masked(among(config.negatives, noise, config.noise))
        case InfoWordConfig():
            chosen = among(config.negatives, noise, config.noise)
            return InfoWord(config, chosen, corpus.tokenizer.special.pad)
        case _:
            raise AssertionError(config.kind)  # the recipe was checked


def word_counts(corpus: Corpus) -> npt.NDArray[np.int64]:
    """How often each word is in the training split, (V,); the end of a line is none."""
    counts = unigram_counts(corpus.splits["train"].tokens, len(corpus.tokenizer))
    counts[corpus.tokenizer.eos] = 0
    return counts


BMI = "bmi"
"""The term's name, in the recipe, the metrics and the run's folder."""


def build_terms(
    recipe: Recipe, corpus: Corpus, model: AnyModel, device: torch.device
) -> list[Term]:
    """What training adds up: the objective, and the regularisers that the recipe names.

    `model` is on `device`.
    """
    objective = build_objective(recipe, corpus, model, device)
    terms = [Term(recipe.objective.kind, build_feed(recipe, corpus), objective)]
    if (config := recipe.regularisers.bmi) and isinstance(model, RecurrentModel):
        text = sentences_of(config, corpus)
        feed = SentencePairs(text, config.batch, config.geometric, recipe.seed)
        bmi = Bmi(config, model, held_out_pairs(config, corpus, "valid"))
        terms.append(Term(BMI, feed, bmi, config.weight))
    return terms


def held_out_pairs(config: BmiConfig, corpus: Corpus, split: str) -> HeldOutPairs | None:
    """Pairs of a split that the regulariser's critic is read on; None where there are too few."""
    text = _cut_into_sentences(config, corpus, split)
    return HeldOutPairs.draw(text, config.batch, config.segment or config.longest)


def _cut_into_sentences(config: BmiConfig, corpus: Corpus, split: str) -> Sentences:
    tokens, tokenizer = corpus.splits[split].tokens, corpus.tokenizer
    if config.segment:
        return segments(tokens, config.segment)
    ends = [token_number(end, tokenizer, "regularisers.bmi.ends") for end in config.ends]
    return sentences(tokens, tokenizer.eos, ends, _heading(corpus))


def sentences_of(config: BmiConfig, corpus: Corpus) -> Sentences:
    """The training split as the sentences that the regulariser reads, none above its limit."""
    found = _cut_into_sentences(config, corpus, "train")
    if config.segment:
        return found
    sizes = np.diff(found.bounds)
    if sizes.max(initial=0) > config.longest:
        raise InfolmError(
            f"sentence {sizes.argmax() + 1:,} of the training split has {sizes.max():,} tokens, "
            f"more than regularisers.bmi.longest, {config.longest:,}: raise that, name tokens that "
            'end a sentence, as in regularisers.bmi.ends=\'[".", "?"]\', or cut the text into '
            "equal stretches by regularisers.bmi.segment=40"
        )
    return found


def _heading(corpus: Corpus) -> int | None:
    """The token on either side of a heading, where the corpus marks them."""
    info, tokenizer = registry().get(corpus.name), corpus.tokenizer
    if not info or not info.heading or tokenizer.kind not in ("word", "wordpiece"):
        return None
    return token_number(info.heading, tokenizer, f"the headings of {corpus.name}")


def build_averager(recipe: Recipe, model: AnyModel) -> Averager:
    """The averager that the recipe names."""
    match recipe.averaging:
        case PolyakConfig() | TailConfig() | SwaConfig() as config:
            return Tail(model, config)
        case TriggeredConfig() as config:
            return Triggered(model, config)
        case EmaConfig() as config:
            return Ema(model, config)
        case TwoTailedConfig() as config:
            return TwoTailed(model, config)
        case _:
            return NoAverage(model)


def train(recipe: Recipe, out: Path, resume: bool, watcher: Watcher, report: Report) -> float:
    """Train `recipe` in the folder `out`; returns the best validation loss in nats per token.

    Nothing is written before the recipe, the text and the model have proved sound. With `resume`
    a run that is there goes on from its last checkpoint, and a finished one is left as it is.
    """
    exists = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if exists and not resume:
        raise InfolmError(
            f"{out} exists already: add --resume to resume it, or name another with --out"
        )
    if exists:
        RunFolder.existing(out)
    begun = exists and bool(checkpoint.checkpoints(RunFolder(out).checkpoints))
    recipe = _with_checkpoint(recipe, begun)
    if exists:
        _check_same(recipe, RunFolder(out))
        corpus = corpus_of(RunFolder(out), recipe, report)
    else:
        corpus = load_corpus(recipe.data, report, tokenizer=given_vocabulary(recipe))
    fabric = one_device(recipe.train.accelerator, recipe.train.precision)
    torch.manual_seed(recipe.seed)
    _refuse_giants(recipe, len(corpus.tokenizer))
    model = build_model(recipe.model, len(corpus.tokenizer), corpus.tokenizer)
    if len(corpus.splits["valid"].tokens) < 2:
        raise InfolmError("the validation split needs at least two tokens: bring more text")
    if isinstance(recipe.feed, SentencesConfig):
        _check_sentences(recipe.feed, corpus, isinstance(recipe.model, SymbolConfig))
    if isinstance(model, Encoder) and model.config.checkpoint and not begun:
        watcher.say(load_pretrained(model.config.checkpoint, model))
    fabric.to_device(model)
    terms = build_terms(recipe, corpus, model, fabric.device)
    if recipe.start_from is not None:
        watcher.say(_start_from(recipe.start_from, model, terms, corpus))
    cells = "" if isinstance(model, Encoder) else choose(model.embedding, steps=2)
    validate = _validation(recipe, model, terms[0].objective, corpus)
    run = RunFolder(out) if exists else _create(out, recipe, corpus)
    with run.locked():
        run.verify(*(path for path in run.defining if path != run.recipe))
        text = recipe.as_yaml()  # a resumed run may have been given more epochs
        if text != run.manifest().recipe or text != run.recipe.read_text(encoding="utf-8"):
            run.keep(run.recipe, lambda path: path.write_text(text, encoding="utf-8"))
        loop = Loop(
            fabric,
            model,
            terms,
            build_optimiser(recipe.optimiser, model.parameters()),
            Schedule(recipe.optimiser.schedule),
            build_averager(recipe, model),
            validate,
            recipe.train,
            recipe.optimiser.clip,
            run,
            watcher,
            _judge(recipe, model, corpus),
            recipe.optimiser.l2_penalty,
        )
        watcher.say(_plan(recipe, corpus, model, terms, cells, out))
        if said := _note_build(run, native.build() if cells == "native" else {}, begun):
            watcher.say(said)
        if resume and loop.resume():
            if loop.finished() and loop.losses:
                watcher.say(_finished(loop, recipe, out))
                return min(loop.losses)
            watcher.say(f"resumed at step {loop.step:,}")
        return loop.run()


def _finished(loop: Loop, recipe: Recipe, out: Path) -> str:
    """That there is nothing left to train, and how to train longer."""
    settings, epochs = recipe.train, loop.terms[0].feed.epoch
    longer = []
    if loop.stopped:
        longer.append("train.stop_patience=null")
    if settings.max_steps is not None and loop.step >= settings.max_steps:
        longer.append(f"train.max_steps={2 * settings.max_steps}")
    if epochs >= settings.epochs:
        longer.append(f"train.epochs={2 * settings.epochs}")
    per = "pair" if isinstance(recipe.model, EncoderConfig) else "token"
    return (
        f"{out} is finished, and nothing was trained: {loop.step:,} steps, {epochs:,} passes over "
        f"the text, best validation {min(loop.losses):.4f} nats per {per}; train longer with, for "
        f"instance, infolm train {out} --resume {' '.join(longer)}"
    )


def _note_build(run: RunFolder, build: dict[str, str], begun: bool) -> str:
    """Record which build of the cells trains the run; what is to be said if it is another one."""
    manifest = run.manifest()
    before = manifest.native
    if before == build:
        return ""
    manifest.native = build
    manifest.write(run.path)
    if not begun or not before:
        return ""
    changed = [key for key in {**before, **build} if before.get(key) != build.get(key)]
    told = "; ".join(
        f"{key} was {before.get(key) or 'none'} and is {build.get(key) or 'none'}"
        for key in changed
        if key != "library" or changed == ["library"]
    )
    return (
        f"the cells are computed by another build than before ({told}): the run goes on soundly, "
        "but not with the very bytes that the former build would give"
    )


def _with_checkpoint(recipe: Recipe, begun: bool) -> Recipe:
    """The recipe with the sizes of the BERT that its encoder starts from, if there is one.

    A run that has begun has them already, and can do without the folder.
    """
    model, folder = recipe.model, getattr(recipe.model, "checkpoint", None)
    if not isinstance(model, EncoderConfig) or not folder or (begun and not folder.exists()):
        return recipe
    if recipe.start_from or model.architecture != "bert":
        other = "start_from is another start" if recipe.start_from else "model.architecture is not"
        raise InfolmError(f"model.checkpoint is a BERT's, and {other}: leave one of them out")
    found, length = model.resolved(), getattr(recipe.feed, "length", 0)
    if length > found.length and not isinstance(recipe.feed, WindowsConfig):
        raise InfolmError(
            f"feed.length is {length}, and the BERT in {folder} reads {found.length} tokens at "
            "most: lower it"
        )
    return recipe.model_copy(update={"model": found})


def given_vocabulary(recipe: Recipe) -> Tokenizer | None:
    """That of the BERT that an encoder starts from; for other models the text gives one."""
    folder = getattr(recipe.model, "checkpoint", None)
    return Tokenizer.from_bert(folder) if folder else None


def _plan(
    recipe: Recipe,
    corpus: Corpus,
    model: AnyModel,
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
    return (
        f"{weights:,} weights, {corpus.name} ({tokens:,} tokens, {types:,} types), {length}, "
        f"{''.join(pairs)}on {model.embedding.device}{cells and f' ({cells} cells)'}, into {out}"
    )


def _validation(
    recipe: Recipe, model: AnyModel, objective: Objective, corpus: Corpus
) -> Callable[[], Validation]:
    tokens, feed = corpus.splits["valid"].tokens, recipe.feed
    if isinstance(model, Encoder):
        held_out = build_feed(recipe, corpus, "valid")
        return lambda: contrastive_validation(model, objective, held_out)
    if not isinstance(model, RecurrentModel):
        return _latent_validation(recipe, model, objective, corpus)
    assert isinstance(feed, StreamConfig | EpisodesConfig)

    def validate() -> Validation:
        if isinstance(feed, EpisodesConfig):
            eos, after = corpus.tokenizer.eos, marker(feed, corpus.tokenizer)
            log_p = episodic_log_probs(model, tokens, eos, after)
        else:
            chunk, streams = feed.bptt, recipe.train.validation_streams
            log_p = parallel_log_probs(model, tokens, streams, WARM_UP, chunk)
        return Validation(-float(log_p.mean()))

    return validate


def _judge(recipe: Recipe, model: AnyModel, corpus: Corpus) -> Callable[[], float] | None:
    """The training loss, without dropout, where Two-Tailed Averaging goes by that."""
    averaging, feed = recipe.averaging, recipe.feed
    if not isinstance(averaging, TwoTailedConfig) or averaging.switch_on == "valid":
        return None
    assert isinstance(model, RecurrentModel)  # the recipe was checked
    assert isinstance(feed, StreamConfig)
    tokens = corpus.splits["train"].tokens[: averaging.switch_tokens]
    # Streams as long as those of the validation split, so that a pass takes as many steps.
    shorter = len(tokens) / len(corpus.splits["valid"].tokens)
    streams = max(1, round(recipe.train.validation_streams * shorter))
    return lambda: -float(parallel_log_probs(model, tokens, streams, WARM_UP, feed.bptt).mean())


def _latent_validation(
    recipe: Recipe, model: LatentModel, objective: Objective, corpus: Corpus
) -> Callable[[], Validation]:
    assert isinstance(recipe.feed, SentencesConfig)
    text = lines_of(recipe.feed, corpus, "valid")
    if isinstance(objective, MonteCarlo | Vq):
        return lambda: monte_carlo_validation(model, objective, text)
    assert isinstance(model, SentenceModel)
    assert isinstance(objective, SentenceObjective)
    return lambda: sentence_validation(model, objective, text)


def _create(out: Path, recipe: Recipe, corpus: Corpus) -> RunFolder:
    """Make the run's folder whole under another name, then rename it into being."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        files.sweep(out.parent, out.name)
        with files.scratch_folder(out.parent, f".{out.name}") as making:
            making.chmod(0o755)
            run = RunFolder(making)
            run.recipe.write_text(recipe.as_yaml(), encoding="utf-8")
            corpus.tokenizer.save(run.tokenizer)
            run.corpus.write_text(about(corpus))
            for path in run.defining:
                files.flush(path)
            run.manifest()
            os.replace(making, out)
        files.flush_folder(out.parent)
    except OSError as error:
        raise RunError(f"{out} cannot be made ({error}): choose another --out") from error
    return RunFolder(out)


def about(corpus: Corpus) -> str:
    """The text of `corpus.json`."""
    tokens = {name: len(split.tokens) for name, split in corpus.splits.items()}
    tree = {"name": corpus.name, "sha256": corpus.source, "tokens": tokens}
    return json.dumps(tree, indent=2) + "\n"


def corpus_of(run: RunFolder, recipe: Recipe, report: Report | None = None) -> Corpus:
    """The text a run is trained on, in the run's vocabulary; refused if it is no longer that."""
    run.verify(run.tokenizer, run.corpus)
    corpus = load_corpus(recipe.data, report, tokenizer=Tokenizer.load(run.tokenizer))
    if _source(run) != corpus.source:
        raise InfolmError(
            f"the text of {corpus.name} is no longer the one that {run.path} was trained on: "
            "bring that text back, or train anew with another --out"
        )
    return corpus


def _source(run: RunFolder) -> str:
    """The SHA-256 of the text that the run was begun with."""
    try:
        return str(json.loads(run.corpus.read_bytes())["sha256"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InfolmError(
            f"{run.corpus} is damaged ({' '.join(str(error).split())}): bring it back from a copy, "
            f"or try `infolm repair {run.path}`"
        ) from error


def recipe_of(run: RunFolder) -> Recipe:
    """The recipe of a run, where it is the one that infolm wrote or was edited soundly.

    By hand one may change what `infolm train RUN --resume` may be given otherwise, and the place
    of the text, which `corpus.json` knows. Anything else would be another run.
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
            f"{run.recipe} was edited by hand ({difference}), and the run was trained otherwise: "
            f"undo that, by hand or with `infolm repair {run.path}`; to train so, name another "
            "folder with --out"
        )
    if edit:
        print(f"{run.recipe} was edited by hand ({edit}): it is taken so.", file=sys.stderr)
    return now


def _identity(recipe: Recipe) -> dict[str, Any]:
    """What may not change while a run lasts."""
    tree = recipe.model_dump(mode="json")
    for key in FREE_TO_CHANGE:
        tree["train"].pop(key, None)
    for key in DESCRIPTIVE:
        tree.pop(key, None)
    return tree


def _check_same(recipe: Recipe, run: RunFolder) -> None:
    """Refuse to resume a run with another recipe than it began with."""
    difference = _first_difference(_identity(recipe_of(run)), _identity(recipe))
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


def _start_from(source: Path, model: AnyModel, terms: Sequence[Term], corpus: Corpus) -> str:
    """Take the weights of another run, and what its regularisers learnt; says so."""
    run = RunFolder.existing(source)
    if Tokenizer.load(run.tokenizer).to_json() != corpus.tokenizer.to_json():
        raise InfolmError(f"start_from: {source} has another vocabulary than this recipe's corpus")
    run.verify(run.tokenizer, run.model)
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
