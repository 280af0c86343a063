"""A run of a model with a latent code: evaluation, generation, neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    SCALES,
    Aggregated,
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
from infolm.families.base import Evaluation, Run, Table, Writing
from infolm.families.latent.options import LatentEvaluateOptions, LatentGenerateOptions
from infolm.families.options import flag
from infolm.generation.latent import (
    GREEDY,
    MEAN,
    PERTURBED,
    SAMPLE,
    Answer,
    SentenceWriter,
    read_sentences,
    reconstruct,
)
from infolm.generation.sampling import SamplingSettings
from infolm.models.codes.base import Uniform
from infolm.models.codes.gaussian import NORMAL
from infolm.models.latent import LatentModel
from infolm.models.sentence import SentenceModel
from infolm.objectives.sentence import LatentObjectiveConfig

NO_SAMPLES = (
    "samples and --perturb need a distribution of codes, and an auto-encoder learns none: "
    "choose a run of objective.kind mim or vae"
)
NO_WIDTH = (
    "only Gaussian codes have a width, and this run's codes are classes: use --aggregated, "
    "--interpolate or plain samples, or choose a run whose model.latent.kind is gaussian"
)
CODES = {
    "mean": "the mean of q(z | x)",
    "likeliest": "the likeliest classes of q(z | x)",
    "nearest": "the nearest entries of the codebooks",
    "drawn": "a code drawn from q(z | x)",
}
"""The codes that a sentence can be reconstructed from."""


@dataclass(frozen=True)
class LatentRun(Run):
    """A run of a model with a latent code of any kind."""

    model: LatentModel

    @property
    def unscored(self) -> str:
        return (
            f"{self.folder.path} has a latent code, so the probability of a text is an "
            "integral over codes: `infolm evaluate` gives bounds on it; to score tokens, choose a "
            "run of a language model"
        )

    @classmethod
    def refusal(cls, run: Run) -> str:
        return (
            f"has no latent code, since its model.kind is {run.recipe.model.kind}: choose a run "
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
        """Whether codes have a distribution and a prior; an auto-encoder's have neither."""
        return self.objective.has_distribution

    def check_distribution(self, option: str) -> None:
        """Refuse an option that draws codes if they are points."""
        if not self.has_distribution or self.model.config.latent.certain:
            raise InfolmError(
                f"{option} draws codes from q(z | x), and the codes of {self.folder.path} are "
                "points: leave it out, or choose a run of objective.kind mim or vae"
            )

    @property
    def scales(self) -> dict[str, float]:
        """The codes for reconstructions, by name, as the scales of `generation.latent`."""
        latent = self.model.config.latent
        scales = {latent.middle: MEAN}
        if self.has_distribution and not latent.certain:
            scales["drawn"] = SAMPLE
            if not latent.classes:
                scales[f"{PERTURBED:g} times"] = PERTURBED
        return scales

    @property
    def deviation(self) -> float:
        """The standard deviation of the codes N(0, deviation^2) of samples: the prior's; for MIM,
        whose codes are not spread like the prior, the paper's value (appendix D.3)."""
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
        """Encodes and decodes texts; longest: maximum tokens of a decoded text, by default as in
        training."""
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
        """The number of different codes at the centre of q(z | x); None for Gaussian codes, which
        all differ."""
        if self._gaussian:
            return None
        return len(encoded(self.model, lines).places.unique(dim=0))

    # -- evaluation -------------------------------------------------------------------------

    def measure(self, options: LatentEvaluateOptions, report: Report) -> Evaluation:
        """Bounds, codes and reconstructions of the splits, or the ranking of a file's answers; kept
        in the run's folder too."""
        if options.rank:
            return self._rank(options.rank, options, report)
        settings = LatentSettings(
            samples=options.nz,
            weighted_samples=options.codes,
            weighted_sentences=options.sentences,
            eos=not options.no_eos,
            seed=options.seed,
            competitor=options.competitor,
            sampled_words=options.bleu_words == "sampled",
        )
        results: list[Measurement] = []
        remarks: list[str] = []
        weightings = self._weightings(settings, report)
        for split in options.splits:
            lines = self.lines(split)
            # The aggregated prior contains the codes of the training sentences themselves.
            fair = [w for w in weightings if split != "train" or w.prior.source is None]
            found, said = latent_measurements(
                self.model, lines, split, settings, fair, not self.has_distribution, report
            )
            results += [*found, *self._reconstructions(lines, split, settings, report)]
            remarks += said
        measurement.keep(self.folder.measurements, results)
        return Evaluation(results, remarks)

    def _reconstructions(
        self, lines: Lines, split: str, settings: LatentSettings, report: Report
    ) -> list[Measurement]:
        """BLEU of reconstructions from the centre of q(z | x) and from a draw. For the former also
        two controls that show whether the code is used: BLEU against another sentence, and the
        share of different ones."""
        scales = {name: scale for name, scale in self.scales.items() if scale != PERTURBED}
        words, method = "the likeliest words", METHOD
        decoding = GREEDY
        if settings.sampled_words:
            words, method = "words drawn", f"{METHOD}, sampled words"
            decoding = SamplingSettings()
        sentences = [sentence.tolist() for sentence in lines]
        results: list[Measurement] = []
        for done, (name, scale) in enumerate(scales.items()):
            report(f"reconstructing the {split} split", done, len(scales))
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
        """The priors of codes. Gaussian codes: N(0, 1) and the aggregated posterior of the training
        sentences, with the proposal (and for the latter the width) that is best on the validation
        split. Categorical codes: the uniform prior. Points: none."""
        latent = self.model.config.latent
        if latent.certain or not self.has_distribution:
            return []
        if latent.classes:
            return [Weighting(Uniform(latent.variables, latent.classes))]
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

    def _rank(self, path: Path, options: LatentEvaluateOptions, report: Report) -> Evaluation:
        """Rank the candidate answers of each question in a file: by the codes, by the words shared
        with the question, by length, by chance."""
        sampled = options.z == "sampled"
        if not self.model.ends or not self._gaussian:
            raise InfolmError(
                f"answers are ranked by Gaussian codes of sentences, and {self.folder.path} has "
                "none: choose a run with model.kind sentence and model.latent.kind gaussian"
            )
        questions, notes = read_questions(path)
        stage = partial(report, "ranking answers")
        unit = not self.has_distribution
        if sampled:
            self.check_distribution("--z sampled")
        drawn = options.seed if sampled else None
        model = cast(SentenceModel, self.model)
        found = rank(model, self.tokenizer, questions, sampled=drawn, unit=unit, report=stage)
        results: list[Measurement] = []
        for method, ranking in (
            (f"{METHOD}, sampled codes" if sampled else METHOD, found),
            ("word overlap", overlap(questions)),
            ("shortest answer", shortest(questions)),
            ("chance", chance(questions)),
        ):
            results += ranking_measurements(ranking, split=path.name, method=method, notes=notes)
        measurement.keep(self.folder.measurements, results)
        return Evaluation(results)

    # -- generation -------------------------------------------------------------------------

    def write(self, options: LatentGenerateOptions, report: Report) -> Writing:
        """Sentences from codes."""
        settings = options.settings(self.tokenizer)
        settings = settings if options.drawing else replace(settings, greedy=True)
        writer = self.writer(settings, options.seed, options.longest, options.unknown)
        if not self._gaussian:
            wide = {"perturb": options.perturb, "deviation": options.deviation is not None}
            if widths := [flag(name) for name, value in wide.items() if value]:
                raise InfolmError(f"{', '.join(widths)}: {NO_WIDTH}")
        scale = MEAN
        if options.z == "sampled":
            self.check_distribution("--z sampled")
            scale = SAMPLE
        if options.interpolate:
            texts = writer.interpolate(*options.interpolate, options.steps, scale)
            return _lines(texts, [{"step": i, "text": text} for i, text in enumerate(texts)])
        if options.reconstruct:
            return self._written_anew(writer, options.reconstruct)
        if options.neighbours:
            return self._neighbours(writer, options.neighbours, options.num, report)
        if options.answer:
            return _answers(writer.answer(options.answer, scale=scale))
        if not self.has_distribution:
            raise InfolmError(NO_SAMPLES)
        if options.perturb:
            texts = writer.perturb(options.perturb, options.num, options.scale)
            return _lines(texts, [{"sentence": options.perturb, "text": text} for text in texts])
        if options.aggregated:
            texts = writer.sample_aggregated(self.lines("train"), options.num)
        else:
            deviation = self.deviation if options.deviation is None else options.deviation
            texts = writer.sample(options.num, deviation)
        return _lines(texts, [{"text": text} for text in texts])

    def _written_anew(self, writer: SentenceWriter, path: Path) -> Writing:
        """Reconstruct the sentences of a file, from the centre of q(z | x) and from draws."""
        scales = self.scales
        lines = writer.read(read_sentences(path))
        found = writer.reconstruct(lines, list(scales.values()))
        records = [
            {"sentence": each.sentence, **dict(zip(scales, each.written, strict=True))}
            for each in found
        ]
        width = max(map(len, ["sentence", *scales]))
        shown = [
            "\n".join(f"{name:{width}}  {text}" for name, text in record.items())
            for record in records
        ]
        return Writing([each.written[0] for each in found], records, "\n\n".join(shown))

    def _neighbours(
        self, writer: SentenceWriter, sentence: str, num: int, report: Report
    ) -> Writing:
        """Training sentences whose codes are nearest, with their distances."""
        stage = partial(report, "encoding the train split")
        (near,) = writer.neighbours([sentence], self.lines("train"), num, stage)
        digits = 3 if self._gaussian else 0  # a distance of classes counts variables
        shown = [f"{each.distance:8.{digits}f}  {each.sentence}" for each in near]
        texts = [each.sentence for each in near]
        return Writing(texts, [each._asdict() for each in near], "\n".join(shown))

    @property
    def _gaussian(self) -> bool:
        return not self.model.config.latent.classes


def _lines(texts: list[str], records: list[dict[str, Any]]) -> Writing:
    return Writing(texts, records, "\n".join(texts))


def _answers(answers: Sequence[Answer]) -> Writing:
    rows = [[str(a.words), a.text or "(no '?' was written)", a.written] for a in answers]
    shown = Table(["words", "answer", "written"], rows, frozenset({0}))
    return Writing([a.text for a in answers], [a._asdict() for a in answers], shown)
