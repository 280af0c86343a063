"""A run of a model with a latent code opened for use: measured, written with, compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from infolm.data.answers import read_questions
from infolm.data.ingest import Report
from infolm.data.sentences import Lines, SentencesConfig
from infolm.errors import InfolmError
from infolm.evaluation import measurement
from infolm.evaluation.bleu import bleu_measurements
from infolm.evaluation.latent import (
    NORMAL,
    SCALES,
    Aggregated,
    Uniform,
    Weighting,
    encoded,
    posteriors,
    tuned_weighting,
)
from infolm.evaluation.latent_suite import (
    METHOD,
    LatentSettings,
    latent_measurements,
)
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.ranking import (
    chance,
    overlap,
    rank,
    ranking_measurements,
    shortest,
)
from infolm.evaluation.reading import reading_measurements
from infolm.families.base import Evaluation, Run, chosen, silent
from infolm.generation.latent import (
    GREEDY,
    MEAN,
    PERTURBED,
    SAMPLE,
    SentenceWriter,
    places,
    reconstruct,
)
from infolm.generation.sampling import SamplingSettings
from infolm.models.latent import CategoricalConfig, GaussianConfig, LatentModel
from infolm.models.sentence import SentenceModel
from infolm.objectives.sentence import LatentObjectiveConfig

NO_SAMPLES = (
    "samples and --perturb need a distribution of codes, and an auto-encoder learns none: "
    "take a run of objective.kind mim or vae"
)
CODES = {
    "mean": "the mean of q(z | x)",
    "likeliest": "the likeliest classes of q(z | x)",
    "nearest": "the nearest entries of the codebooks",
    "drawn": "a code drawn from q(z | x)",
}
"""What a sentence is written anew from."""


@dataclass(frozen=True)
class LatentRun(Run):
    """A run of a model with a latent code of any kind."""

    model: LatentModel

    @property
    def unscored(self) -> str:
        return (
            f"{self.folder.path} has a latent code, so that the probability of a text is an "
            "integral over codes: `infolm evaluate` gives bounds on it; to score each token take a "
            "run of a language model"
        )

    @classmethod
    def refusal(cls, run: Run) -> str:
        return (
            f"has no latent code, its model being of kind {run.recipe.model.kind}: take a run "
            "whose model.kind is sentence, such as one of sentence-mim/demo"
        )

    @property
    def objective(self) -> LatentObjectiveConfig:
        return cast(LatentObjectiveConfig, self.recipe.objective)

    @property
    def feed(self) -> SentencesConfig:
        return cast(SentencesConfig, self.recipe.feed)

    @property
    def has_distribution(self) -> bool:
        """Whether codes have a distribution, given a sentence and without; an auto-encoder's have
        none."""
        return self.objective.has_distribution

    def check_distribution(self, option: str) -> None:
        """Refuse an option that draws codes, where they are points."""
        if not self.has_distribution or self.model.config.latent.kind == "quantised":
            raise InfolmError(
                f"{option} draws codes from q(z | x), and the codes of {self.folder.path} are "
                "points: leave it out, or take a run of objective.kind mim or vae"
            )

    @property
    def scales(self) -> dict[str, float]:
        """What a sentence can be written anew from, by name, as the scales of
        `generation.latent`."""
        match self.model.config.latent:
            case GaussianConfig() if self.has_distribution:
                return {"mean": MEAN, "drawn": SAMPLE, f"{PERTURBED:g} times": PERTURBED}
            case GaussianConfig():
                return {"mean": MEAN}
            case CategoricalConfig():
                return {"likeliest": MEAN, "drawn": SAMPLE}
            case _:
                return {"nearest": MEAN}

    @property
    def deviation(self) -> float:
        """Of the codes N(0, deviation^2) that samples are written from: the prior's, but for MIM,
        whose codes are not spread like the prior, what the paper takes (appendix D.3)."""
        return self.objective.spread

    def lines(self, split: str) -> Lines:
        """The sentences of a split, as the run's recipe reads them."""
        return self.feed.lines(self.corpus, split)

    def writer(
        self,
        settings: SamplingSettings = GREEDY,
        seed: int = 1,
        longest: int | None = None,
        unknown: bool = False,
    ) -> SentenceWriter:
        """From text to text; longest: tokens of what is written, as in training if not given."""
        return SentenceWriter(
            self.model,
            self.tokenizer,
            self.feed,
            longest or self.feed.longest,
            settings,
            seed,
            unknown,
        )

    def different_codes(self, lines: Lines) -> int | None:
        """How many codes in the middle of q(z | x) the sentences have; None of Gaussian ones, which
        are as many as the sentences."""
        if isinstance(self.model.config.latent, GaussianConfig):
            return None
        return len(places(encoded(self.model, lines)).unique(dim=0))

    # -- what is measured -------------------------------------------------------------------

    def measure(
        self, splits: Sequence[str], options: Mapping[str, Any], report: Report = silent
    ) -> Evaluation:
        """By the fields of `LatentSettings`."""
        return Evaluation(*self.evaluate(splits, chosen(LatentSettings, options), report))

    def write(self, num: int, seed: int, options: Mapping[str, Any]) -> list[str]:
        """Sentences from codes of the prior, by the fields of `SamplingSettings`; without any, of
        the likeliest words."""
        if not self.has_distribution:
            raise InfolmError(NO_SAMPLES)
        settings = chosen(SamplingSettings, options) if options else GREEDY
        return self.writer(settings, seed).sample(num, self.deviation)

    def evaluate(
        self, splits: Sequence[str], settings: LatentSettings, report: Report
    ) -> tuple[list[Measurement], list[str]]:
        """Bounds, codes and reconstructions of the splits, and what is to be said of them; kept in
        the run's folder too."""
        results: list[Measurement] = []
        remarks: list[str] = []
        weightings = self._weightings(settings, report)
        for split in splits:
            lines = self.lines(split)
            # The codes of training sentences are in the prior that is made of them.
            fair = [
                w for w in weightings if split != "train" or not isinstance(w.prior, Aggregated)
            ]
            found, said = latent_measurements(
                self.model, lines, split, settings, fair, not self.has_distribution, report
            )
            results += [*found, *self._reconstructions(lines, split, settings, report)]
            remarks += said
        measurement.keep(self.folder.measurements, results)
        return results, remarks

    def _reconstructions(
        self, lines: Lines, split: str, settings: LatentSettings, report: Report
    ) -> list[Measurement]:
        """BLEU of the sentences written anew, from the middle of q(z | x) and from a draw of it. Of
        the former also what tells them from a text that is the same for all codes: BLEU beside
        another sentence, and the share of different ones."""
        scales = {name: scale for name, scale in self.scales.items() if scale != PERTURBED}
        words, method = "the likeliest words", METHOD
        decoding = GREEDY
        if settings.sampled_words:
            words, method = "words drawn", f"{METHOD}, sampled words"
            decoding = SamplingSettings()
        sentences = [sentence.tolist() for sentence in lines]
        results: list[Measurement] = []
        for done, (name, scale) in enumerate(scales.items()):
            report(f"writing the {split} split anew", done, len(scales))
            longest, seed = self.feed.longest, settings.seed
            found = reconstruct(self.model, lines, scale, decoding, longest, seed)
            written = [sentence.tolist() for sentence in found]
            called = "sampled" if name == "drawn" else name
            how = f"{words} from {CODES[name]}"
            results += bleu_measurements(written, sentences, called, split, method, how)
            if scale == MEAN:
                codes = self.different_codes(lines)
                results += reading_measurements(written, sentences, split, method, how, codes, seed)
        return results

    def _weightings(self, settings: LatentSettings, report: Report) -> list[Weighting]:
        """What codes are weighed by. Of Gaussian ones N(0, 1) and the aggregated posterior of the
        training sentences as the prior, with the proposal, and of the latter the width, that is
        best on the validation split; of categorical ones the uniform prior. Of points, none."""
        latent = self.model.config.latent
        if isinstance(latent, CategoricalConfig):
            return [Weighting(Uniform(latent.variables, latent.classes))]
        if not isinstance(latent, GaussianConfig) or not self.has_distribution:
            return []
        stage = partial(report, "encoding the train split")
        training = posteriors(self.model, self.lines("train"), stage)
        choices = {
            NORMAL.name: [Weighting(NORMAL, scale) for scale in SCALES],
            "training sentences": [
                Weighting(Aggregated(training, "training", scale), scale) for scale in SCALES
            ],
        }
        valid = self.lines("valid")
        return [
            tuned_weighting(
                self.model,
                valid,
                each,
                seed=settings.seed,
                report=partial(report, f"choosing a proposal on the valid split ({prior})"),
            )
            for prior, each in choices.items()
        ]

    def rank(
        self, path: Path, report: Report, sampled: bool = False, seed: int = 1
    ) -> list[Measurement]:
        """Which candidate of each question in a file is the right answer: by the codes, by the
        words that it shares with the question, by its length, by chance.

        sampled: codes are drawn from q(z | x), as in the paper, and else are its means."""
        if not isinstance(self.model, SentenceModel) or self.model.config.latent.kind != "gaussian":
            raise InfolmError(
                f"answers are ranked by Gaussian codes of sentences, which {self.folder.path} has "
                "not: take a run with model.kind sentence and model.latent.kind gaussian"
            )
        questions, notes = read_questions(path)
        stage = partial(report, "ranking answers")
        unit = not self.has_distribution
        if sampled:
            self.check_distribution("--z sampled")
        drawn = seed if sampled else None
        found = rank(self.model, self.tokenizer, questions, sampled=drawn, unit=unit, report=stage)
        results: list[Measurement] = []
        for method, ranking in (
            (f"{METHOD}, sampled codes" if sampled else METHOD, found),
            ("word overlap", overlap(questions)),
            ("shortest answer", shortest(questions)),
            ("chance", chance(questions)),
        ):
            results += ranking_measurements(ranking, split=path.name, method=method, notes=notes)
        measurement.keep(self.folder.measurements, results)
        return results
