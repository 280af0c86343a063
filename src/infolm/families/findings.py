"""All that a report tells of a run, gathered from the run's folder and its corpus."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from infolm.config import Recipe, load_recipe
from infolm.data.corpora import Corpus, truth
from infolm.data.sentences import Lines
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation import measurement, suite
from infolm.evaluation.latent import some
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.posterior import picture
from infolm.evaluation.reading import Reading, reading
from infolm.evaluation.suite import BASELINE, TrueLogProbs
from infolm.families.contrastive.report import is_encoder
from infolm.families.latent.report import LatentFindings, LatentPlots, has_codes
from infolm.families.latent.run import LatentRun
from infolm.families.recorded import corpus_of, recipe_of
from infolm.families.running.run import LanguageRun
from infolm.generation.latent import GREEDY, MEAN, reconstruct
from infolm.generation.sampling import SamplingSettings
from infolm.generation.text import write
from infolm.models.encoder_decoder import EncoderDecoder
from infolm.objectives.sentence import AeConfig
from infolm.objectives.vq import VqConfig
from infolm.reports.history import History
from infolm.reports.regularisers import warnings
from infolm.training import checkpoint
from infolm.training.run import RunFolder, read_metrics

BASELINE_TOKENS = 10_000_000
"""The n-grams of a longer training split take minutes and gigabytes: too much for a report."""
SAMPLES, SAMPLE_TOKENS, SAMPLE_SEED = 3, 60, 1
RECONSTRUCTIONS, INTERPOLATION = 5, 9
"""Sentences of the validation split that are written anew, and the steps between two of them."""
READ = 200
"""Sentences that are written anew to see what the decoder makes of their codes."""


@dataclass(frozen=True)
class Plots:
    """Each an SVG. course: of the training. after: the validations after the switch, for a run with
    a regulariser; empty before there are two. regularisers: by name. latent: of a model with
    codes, once there are weights."""

    course: str = ""
    after: str = ""
    regularisers: dict[str, str] = field(default_factory=dict)
    latent: LatentPlots | None = None


@dataclass(frozen=True)
class Findings:
    """What is known of a run.

    plots: empty where nothing is recorded yet. step: steps taken, those after the last
    record too. corpus: None where it cannot be loaded, for the reason `missing`. samples: none
    before the first validation. latent: of a sentence model, where there are weights and a corpus.
    entropy: of the language that the corpus was drawn from, where it is known; reachable: that
    language's own loss on the validation split. What is known of running text, entropy, baseline
    and all, is not set beside a sentence model or an encoder.
    """

    folder: RunFolder
    recipe: Recipe
    tokenizer: Tokenizer
    history: History
    plots: Plots
    step: int
    going_on: bool
    corpus: Corpus | None
    missing: str
    measurements: list[Measurement]
    samples: list[str]
    latent: LatentFindings | None
    entropy: float | None
    reachable: float | None

    @classmethod
    def of(cls, run: Path) -> "Findings":
        folder = RunFolder.existing(run)
        folder.verify(folder.tokenizer)
        recipe, tokenizer = recipe_of(folder), Tokenizer.load(folder.tokenizer)
        history = History.of(read_metrics(folder.metrics))
        drawn = plots(history)  # first: without matplotlib, all else would be in vain
        saved = [int(p.stem.split("-")[1]) for p in checkpoint.checkpoints(folder.checkpoints)]
        try:
            corpus, missing = corpus_of(folder, recipe), ""
        except InfolmError as error:
            corpus, missing = None, str(error).rstrip(".")
        measurements = measurement.read(folder.measurements)
        codes = latent(folder, corpus) if has_codes(recipe) else None
        if codes:
            drawn = replace(drawn, latent=latent_plots(codes, recipe))
        running = corpus and not has_codes(recipe) and not is_encoder(recipe)
        known = truth(recipe.data, tokenizer) if running else None
        true: TrueLogProbs = {}
        if corpus and running:
            true = suite.true_log_probs(known, corpus, ["valid", "test"])
            measurements += baseline(corpus, measurements, true)
            measurements = measurement.merge(measurements, suite.language(known, true))
        return cls(
            folder,
            recipe,
            tokenizer,
            history,
            drawn,
            max(history.step, *saved, 0),
            is_locked(folder),
            corpus,
            missing,
            measurements,
            list(codes.samples) if codes else samples(folder),
            codes,
            known.entropy if known else None,
            -float(true["valid"].mean()) if true else None,
        )

    @property
    def weights(self) -> int:
        return self.recipe.model.parameters_of(len(self.tokenizer))

    @property
    def finished(self) -> bool:
        """Whether training came to the end that the recipe sets, and validated there."""
        config, history = self.recipe.train, self.history
        if not len(history.validation) or history.validation.steps[-1] < history.step:
            return False
        return (
            any(name == "stopped" for _, name in history.events)
            or history.epoch >= config.epochs
            or (config.max_steps is not None and history.step >= config.max_steps)
        )

    def settings(self, regulariser: str) -> dict[str, Any]:
        """The regulariser's section of the recipe."""
        return self.recipe.regularisers.model_dump().get(regulariser) or {}

    def warnings(self, regulariser: str) -> list[str]:
        """What a person should be told of it."""
        settings = self.settings(regulariser)
        return warnings(regulariser, settings, self.history, self.finished)


def plots(history: History) -> Plots:
    """All that there is to draw."""
    try:
        from infolm.reports.curves import draw, draw_after, draw_regulariser
    except ModuleNotFoundError:
        raise InfolmError(
            "a report needs matplotlib: install it with `pip install 'infolm[report]'`"
        ) from None
    if not len(history.training) and not len(history.validation):
        return Plots()
    after, switch = "", history.switch
    if history.regularisers and switch is not None and len(history.validation.since(switch)) > 1:
        after = draw_after(history, switch)
    regularisers = {name: draw_regulariser(history, name) for name in history.regularisers}
    return Plots(draw(history), after, regularisers)


def latent(folder: RunFolder, corpus: Corpus | None) -> LatentFindings | None:
    """What the codes of the validation split are like, and what the best weights write from codes;
    None where there are no weights yet, or no corpus."""
    if corpus is None or not folder.model.exists():
        return None
    run = LatentRun.open(folder.path)
    text = run.feed.lines(corpus, "valid")
    chosen = some(text, RECONSTRUCTIONS, SAMPLE_SEED)
    longest = 2 * int(chosen.lengths.max())  # a spoilt code may have no end
    writer = run.writer(seed=SAMPLE_SEED, longest=longest, unknown=True)
    first, second = (run.tokenizer.decode(chosen[i]) for i in (0, -1))
    return LatentFindings(
        picture(run.model, text),
        writer.reconstruct(chosen, list(run.scales.values())),
        writer.interpolate(first, second, INTERPOLATION),
        writer.sample(SAMPLES, run.deviation) if run.has_distribution else [],
        run.deviation,
        list(run.scales),
        read_anew(run, some(text, READ, SAMPLE_SEED)) if run.model.ends else None,
    )


def read_anew(run: LatentRun, lines: Lines) -> Reading:
    """What the decoder makes of the codes of sentences."""
    longest = int(lines.lengths.max())
    written = reconstruct(run.model, lines, MEAN, GREEDY, longest, SAMPLE_SEED)
    anew, sentences = ([each.tolist() for each in side] for side in (written, lines))
    return reading(anew, sentences, run.different_codes(lines))


def latent_plots(found: LatentFindings, recipe: Recipe) -> LatentPlots:
    from infolm.families.latent.picture import draw_latent

    prior = not isinstance(recipe.objective, AeConfig)
    return draw_latent(found.picture, isinstance(recipe.objective, AeConfig | VqConfig), prior)


def is_locked(folder: RunFolder) -> bool:
    """Whether a process is training in the folder at this moment."""
    try:
        with folder.locked():
            return False
    except InfolmError:
        return True
    except OSError:  # a folder that may only be read: nobody trains there
        return False


def baseline(corpus: Corpus, known: Sequence[Measurement], true: TrueLogProbs) -> list[Measurement]:
    """The Kneser-Ney model of the training split, on the splits where `known` lacks it."""
    measured = {m.split for m in known if m.method == BASELINE}
    missing = [
        name
        for name in ("valid", "test")
        if name not in measured and len(corpus.splits[name].tokens) > 1
    ]
    if not missing or len(corpus.splits["train"].tokens) > BASELINE_TOKENS:
        return []
    return suite.baseline(corpus, missing, true)


def samples(folder: RunFolder) -> list[str]:
    """What `infolm generate` writes with the best weights; nothing where there are none yet."""
    if not folder.model.exists():
        return []
    recipe = load_recipe(str(folder.recipe))
    if has_codes(recipe) or is_encoder(recipe):  # see `latent`; an encoder writes nothing
        return []
    run = LanguageRun.open(folder.path)
    if isinstance(run.model, EncoderDecoder):  # which writes only what it has read
        return []
    settings = SamplingSettings()
    return write(run.model, run.tokenizer, "", SAMPLE_TOKENS, SAMPLES, SAMPLE_SEED, settings)
