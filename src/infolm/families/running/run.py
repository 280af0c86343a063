"""A run's folder opened for use: its model, measured by methods tuned on its validation split."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from infolm.data.corpora import truth
from infolm.data.episodes import EpisodesConfig, marker
from infolm.data.ingest import Report
from infolm.data.stream import StreamConfig
from infolm.errors import InfolmError, RunError
from infolm.evaluation import dynamic, measurement, suite
from infolm.evaluation.dynamic import (
    FORMER_STATISTICS,
    USUAL,
    DynamicSettings,
    MeanOver,
    Rule,
    Statistics,
    StatisticsSettings,
)
from infolm.evaluation.generated import least_tokens
from infolm.evaluation.likelihood import Progress
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.method import STATIC, Method
from infolm.evaluation.monte_carlo import AdaptedBy, MonteCarloSettings
from infolm.evaluation.neural_cache import CacheSettings, WordChange
from infolm.evaluation.reverse import LEAST_TOKENS, SMALL, Rows, Yardstick, stretches
from infolm.evaluation.scoring import ScoredSentence
from infolm.evaluation.suite import Subject
from infolm.families.base import Evaluation, Run, chosen, family_of, silent
from infolm.families.running.scoring import NeuralScorer, ScoreSettings, sentences_of
from infolm.generation.sampling import SamplingSettings
from infolm.generation.text import STREAMS, write, write_long
from infolm.models.language import LanguageModel
from infolm.nn.softmax import Tempering
from infolm.objectives.bmi import Bmi, BmiConfig
from infolm.training import checkpoint
from infolm.training.device import one_device

BMI = BmiConfig.kind
WORDS_OF_SETTINGS = {"rule", "mean"}
"""Settings that are words; all others are numbers."""
TUNE, TUNED = "tune", "tuned"
"""Requests for settings found on the validation split: now, or before if they still hold."""

WRITTEN = "generated"
"""The split of what a model wrote."""

WORDS, LETTERS = (20, 10, 5), (50, 20)
SEGMENTS = {"word": WORDS, "bpe": WORDS, "wordpiece": WORDS, "char": LETTERS, "byte": LETTERS}
"""Tokens of a segment of dynamic evaluation: the first by default, the others are tried too."""
STARTS = {
    "rms": DynamicSettings(rate=3e-4, decay=1e-2),
    "sgd": DynamicSettings(rate=0.1, decay=1e-3, rule="sgd"),
}
"""Where the tuning of dynamic evaluation begins."""
CHUNK = 200
"""Tokens that a model reads at a time."""
GENERATED = 200_000
"""Tokens that are written to be measured; BMI takes six million."""


@dataclass(frozen=True)
class Asked:
    """What a person wants measured besides the static model; None, 0 or False: not that.

    temperature, dynamic, cache: TUNE, TUNED or values. monte_carlo: the number of masks; rate: the
    factor on the dropout rates, TUNE, TUNED or a number. segment: None for the usual, or tuned.
    reverse, information: of `generated` tokens that the model writes; real: of as many of the
    training text too. yardstick: the size of the model that learns from them; stride: tokens from
    pair to pair of segments.
    """

    temperature: str | None = None
    tempering: Tempering = "mixture"
    dynamic: str | None = None
    rule: Rule = "rms"
    segment: int | None = None
    mean: MeanOver = "all"
    statistics: StatisticsSettings = USUAL
    monte_carlo: int = 0
    rate: str = "1"
    adaptation: AdaptedBy = "own"
    seed: int = 1
    cache: str | None = None
    episodic: bool = False
    reverse: bool = False
    information: bool = False
    generated: int = GENERATED
    real: bool = False
    yardstick: Yardstick = SMALL
    stride: int | None = None


@dataclass(frozen=True)
class LanguageRun(Run):
    """A run of a language model opened for use."""

    model: LanguageModel

    @classmethod
    def refusal(cls, run: Run) -> str:
        return (
            f"is {family_of(run.recipe).a}, and this needs a language model that reads a running "
            "text: take another run"
        )

    def bmi(self) -> Bmi:
        """The run's regulariser, with the critic that it has learnt."""
        config, folder = self.recipe.regularisers.chosen().get(BMI), self.folder
        if not isinstance(config, BmiConfig):
            raise InfolmError(
                f"{folder.path} was trained without BMI, and has no critic to reward sentences: "
                "train one with regularisers.bmi.weight=0.1"
            )
        if not folder.learner(BMI).exists():
            raise InfolmError(
                f"{folder.learner(BMI)}, the critic, is missing: bring it back, or train the run "
                "anew"
            )
        bmi = Bmi(config, self.model)
        bmi.load_state_dict(folder.load_learner(BMI))
        bmi.critic.eval()
        return bmi

    # -- what is tuned ----------------------------------------------------------------------

    def cache_settings(
        self, request: str, chunk: int, report: Report, method: Method = STATIC
    ) -> CacheSettings:
        """The neural cache that `request` asks for on top of `method`: 'WINDOW,LAMBDA,THETA' as
        given; 'tuned' as found on the validation split, now or before; 'tune' as found there now.
        """
        if request not in (TUNE, TUNED):
            try:
                window, weight, flatness = request.split(",")
                return CacheSettings(int(window), float(weight), float(flatness))
            except ValueError:
                raise InfolmError(
                    f"'{request}' is not WINDOW,LAMBDA,THETA: try 2000,0.1,1"
                ) from None
        subject = self._subject(chunk, report, method)
        found = self._kept(
            request,
            self.folder.tuned("cache", *method.parts),
            str(method),
            lambda: asdict(suite.tuned_cache(subject, self._valid, method)),
        )
        return _built(CacheSettings, found, "cache")

    def temperature(
        self,
        request: str,
        chunk: int,
        report: Report,
        method: Method,
        tempering: Tempering = "mixture",
    ) -> float:
        """The softmax's temperature that `request` asks for, within the walk of `method`."""
        if request not in (TUNE, TUNED):
            return _number(request, "--temperature", positive=True)
        subject = self._subject(chunk, report, method)
        found = self._kept(
            request,
            self.folder.tuned("temperature", *method.parts),
            _basis(method, tempering),
            lambda: {
                "temperature": suite.tuned_temperature(subject, self._valid, method, tempering)
            },
        )
        return _built(_Temperature, found, "temperature").temperature

    def dropout_factor(
        self, request: str, samples: MonteCarloSettings, chunk: int, report: Report
    ) -> float:
        """What `request` says that the dropout rates are multiplied by in Monte Carlo dropout."""
        if request not in (TUNE, TUNED):
            return _number(request, "--mc-rate", positive=False)
        subject = self._subject(chunk, report)
        found = self._kept(
            request,
            self.folder.tuned("mc"),
            f"{samples.samples} masks, drawn anew every {samples.span} tokens, seed {samples.seed}",
            lambda: {"rate": suite.tuned_dropout_factor(subject, self._valid, samples)},
        )
        return float(found["rate"])

    def dynamic_settings(
        self,
        request: str,
        rule: Rule,
        segment: int | None,
        report: Report,
        mean: MeanOver = "all",
        statistics: StatisticsSettings = USUAL,
    ) -> DynamicSettings:
        """The settings of dynamic evaluation that `request` asks for: 'RATE,DECAY[,EPSILON]' as
        given, else as tuned. segment: its length; None: the usual one, or tuned too."""
        usual, *shorter = SEGMENTS[self.tokenizer.kind]
        start = replace(STARTS[rule], segment=segment or usual, mean=mean, statistics=statistics)
        if request not in (TUNE, TUNED):
            try:
                rate, decay, *rest = (float(number) for number in request.split(","))
                (epsilon,) = rest or [start.epsilon]
            except ValueError:
                raise InfolmError(
                    f"'{request}' is not RATE,DECAY or RATE,DECAY,EPSILON: try "
                    f"{start.rate},{start.decay}"
                ) from None
            return replace(start, rate=rate, decay=decay, epsilon=epsilon)

        def tuned() -> dict[str, Any]:
            stage = "tuning dynamic evaluation on the validation split"
            settings = dynamic.tune(
                self.model,
                self._valid,
                start,
                self.statistics(start, report),
                () if segment else shorter,
                lambda done, total: report(stage, done, total),
            )
            return asdict(settings)

        variant = [*(["sgd"] if rule == "sgd" else []), *([str(segment)] if segment else [])]
        path = self.folder.tuned("dynamic", *variant)
        basis = str(STATIC)
        if rule == "rms" and (mean, statistics) != ("all", FORMER_STATISTICS):
            basis += f", mean of RMS over {mean}, RMS of {statistics}"
        found = {"kept": self._kept(request, path, basis, tuned)}
        return _built(DynamicSettings.read, found, "dynamic")

    def statistics(self, settings: DynamicSettings | None, report: Report) -> Statistics | None:
        """The mean square gradients of the training split that dynamic evaluation needs, from
        before or, if those are of other settings, now; none for sgd, or without settings."""
        if settings is None or settings.rule == "sgd":
            return None
        wanted, kept = settings.statistics, self.folder.gradients
        squares = _kept_statistics(kept, wanted) if _newer(kept, self.folder.model) else None
        if squares is None:
            stage = "collecting gradients on the training split"
            squares = dynamic.gradient_statistics(
                self.model,
                self.corpus.splits["train"].tokens,
                wanted,
                lambda done, total: report(stage, done, total),
            )
            try:
                checkpoint.save(kept, {"settings": asdict(wanted), "squares": squares})
            except RunError as error:
                print(f"{error}.", file=sys.stderr)
        device = self.model.device
        return {name: square.to(device) for name, square in squares.items()}

    def _kept(
        self, request: str, path: Path, basis: str, tune: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Settings found before on top of `basis`, or those that `tune` finds now, to be kept."""
        # Settings older than the weights were found for weights that training has since replaced.
        if request == TUNED and _newer(path, self.folder.model):
            found = _settings(path)
            if found.pop("with", basis) == basis:
                return found
        found = tune()
        text = json.dumps({**found, "with": basis})
        try:
            checkpoint.atomically(
                path, lambda temporary: temporary.write_text(text, encoding="utf-8")
            )
        except RunError as error:  # what was found serves now, if not the next time
            print(f"{error}.", file=sys.stderr)
        return found

    @property
    def _valid(self) -> Any:
        return self.corpus.splits["valid"].tokens

    def _subject(self, chunk: int, report: Report, method: Method = STATIC) -> Subject:
        statistics = self.statistics(method.dynamic, report)
        return Subject(self.model, self.tokenizer, chunk, report, statistics)

    def _episodes(self, asked: Asked, chunk: int, report: Report) -> tuple[int | None, list[float]]:
        """What counts in a sentence that is read by itself, and the temperatures to measure."""
        feed = self.recipe.feed
        after = marker(feed, self.tokenizer) if isinstance(feed, EpisodesConfig) else None
        if asked.temperature is None:
            return after, [1.0]
        if asked.temperature not in (TUNE, TUNED):
            return after, [1.0, _number(asked.temperature, "--temperature", positive=True)]
        tempering = self._tempering(asked)
        subject = self._subject(chunk, report)
        found = self._kept(
            asked.temperature,
            self.folder.tuned("temperature", "episodic"),
            "each sentence by itself" + WITHIN[tempering],
            lambda: {
                "temperature": suite.tuned_episodic_temperature(
                    subject, self._valid, after, tempering
                )
            },
        )
        return after, [1.0, _built(_Temperature, found, "temperature").temperature]

    def _tempering(self, asked: Asked) -> Tempering:
        """With one expert, the softmax is the mixture."""
        return asked.tempering if self.model.softmax.experts > 1 else "mixture"

    # -- what is measured -------------------------------------------------------------------

    def methods(self, asked: Asked, chunk: int, report: Report) -> list[Method]:
        """The static model, each method asked for alone, and all of them together.

        Tuned in this order: dynamic evaluation and the dropout rates, each by itself; then, each
        with the ones before it in place, the temperature and the cache.
        """
        adapting = samples = None
        tempering = self._tempering(asked)
        if asked.dynamic:
            adapting = self.dynamic_settings(
                asked.dynamic, asked.rule, asked.segment, report, asked.mean, asked.statistics
            )
        if asked.monte_carlo:
            span = self.recipe.feed.bptt if isinstance(self.recipe.feed, StreamConfig) else chunk
            samples = MonteCarloSettings(
                asked.monte_carlo, span=span, seed=asked.seed, adaptation=asked.adaptation
            )
            rate = self.dropout_factor(asked.rate, samples, chunk, report)
            samples = replace(samples, rate=rate)
        lines = [STATIC, Method(dynamic=adapting), Method(monte_carlo=samples)]
        together = Method(dynamic=adapting, monte_carlo=samples)
        if request := asked.temperature:
            both = dict.fromkeys((STATIC, together))
            taus = {
                each: self.temperature(request, chunk, report, each, tempering) for each in both
            }
            lines.append(replace(STATIC, temperature=taus[STATIC], tempering=tempering))
            together = replace(together, temperature=taus[together], tempering=tempering)
        if request := asked.cache:
            both = dict.fromkeys((STATIC, together))
            caches = {each: self.cache_settings(request, chunk, report, each) for each in both}
            lines.append(replace(STATIC, cache=caches[STATIC]))
            together = replace(together, cache=caches[together])
        return list(dict.fromkeys([*lines, together]))

    def measure(
        self, splits: Sequence[str], options: Mapping[str, Any], report: Report = silent
    ) -> Evaluation:
        """By the fields of `Asked`, and `chunk`, `streams` and `baseline` of `evaluate`."""
        of_reading = {"chunk": CHUNK, "streams": 1, "baseline": False}
        asked = chosen(Asked, {k: v for k, v in options.items() if k not in of_reading})
        read = {name: options.get(name, usual) for name, usual in of_reading.items()}
        return self.evaluate(splits, asked, **read, report=report)

    def score(self, texts: str | Sequence[str], **options: Any) -> list[ScoredSentence]:
        """By the fields of `ScoreSettings`: context, eos, unit, top, and methods."""
        settings = chosen(ScoreSettings, options)
        return NeuralScorer(self).score(sentences_of(texts), settings)

    def write(self, num: int, seed: int, options: Mapping[str, Any]) -> list[str]:
        """Continuations of `prompt`, of `tokens` tokens, by the fields of `SamplingSettings`."""
        own = {"prompt": "", "tokens": 100}
        prompt, tokens = (options.get(name, usual) for name, usual in own.items())
        settings = {name: value for name, value in options.items() if name not in own}
        sampling = chosen(SamplingSettings, settings)
        return write(self.model, self.tokenizer, prompt, tokens, num, seed, sampling)

    def evaluate(
        self,
        splits: Sequence[str],
        asked: Asked,
        chunk: int,
        streams: int,
        baseline: bool,
        report: Report,
    ) -> Evaluation:
        """The model as it is, by each method asked for, and what it writes; see `suite`."""
        episodic = asked.episodic or isinstance(self.recipe.feed, EpisodesConfig)
        _check(asked, streams, episodic)
        self._check_text(asked)
        known = truth(self.recipe.data, self.tokenizer)
        true = suite.true_log_probs(known, self.corpus, splits)
        results: list[Measurement] = []
        changes: list[WordChange] = []
        if baseline:
            results += suite.baseline(self.corpus, splits, true, report)
        after, temperatures = self._episodes(asked, chunk, report) if episodic else (None, [])
        methods = [] if episodic else self.methods(asked, chunk, report)
        subject = self._subject(chunk, report, *methods[-1:])
        for name in splits:
            split = self.corpus.splits[name]
            if episodic:
                results += suite.evaluate_episodic(
                    subject, split, name, after, temperatures, self._tempering(asked)
                )
            elif streams > 1:
                results += suite.evaluate_parallel(subject, split, name, streams, true.get(name))
            else:
                measured, changes = suite.evaluate(subject, split, name, methods, true.get(name))
                results += measured
        results += suite.language(known, true)
        results += self._of_critic(subject, splits)
        found, warnings = self._of_texts(subject, splits, asked, true)
        results += found
        order = [*splits, WRITTEN, "train"]
        results.sort(key=lambda result: order.index(result.split))
        measurement.keep(self.folder.measurements, results)
        return Evaluation(results, warnings, {"words": changes})

    def _of_critic(self, subject: Subject, splits: Sequence[str]) -> list[Measurement]:
        """Of a run with BMI, what its critic knows of each split; nothing where there is none."""
        config = self.recipe.regularisers.chosen().get(BMI)
        if not isinstance(config, BmiConfig) or not self.folder.learner(BMI).exists():
            return []
        bmi, results = self.bmi(), []
        for name in splits:
            if pairs := config.held_out(self.corpus, name):
                results += suite.critic(subject, bmi, pairs, name)
        return results

    def _check_text(self, asked: Asked) -> None:
        """Refuse a text that cannot be written or is too short, before any work."""
        if not (asked.reverse or asked.information):
            return
        if isinstance(self.recipe.feed, EpisodesConfig):
            raise InfolmError(
                "--reverse and --mi need a running text, and this run was trained on single "
                "sentences: leave them out, or train it with feed.kind=stream"
            )
        least = least_tokens(STREAMS, asked.stride) if asked.information else LEAST_TOKENS
        if asked.generated < least:
            raise InfolmError(
                f"--generated {asked.generated} is too short a text to measure: take {least} at "
                "least"
            )
        there = len(self.corpus.splits["train"].tokens)
        if asked.real and there < STREAMS * -(-asked.generated // STREAMS):
            raise InfolmError(
                f"--real compares with as many tokens of the training text, which has {there:,}: "
                f"take --generated {there // STREAMS * STREAMS} at most, or leave out --real"
            )

    def _of_texts(
        self, subject: Subject, splits: Sequence[str], asked: Asked, true: suite.TrueLogProbs
    ) -> tuple[list[Measurement], list[str]]:
        """What was asked of the text that the model writes and of real text, and warnings."""
        results: list[Measurement] = []
        warnings: list[str] = []
        measured_on = {name: self.corpus.splits[name] for name in splits}
        for split, source, text in self._texts(asked, subject.progress("writing")):
            if asked.reverse:
                fabric = one_device("auto")
                results += suite.reverse(
                    subject, text, source, measured_on, true, asked.seed, fabric, asked.yardstick
                )
            if asked.information:
                found, said = suite.information(
                    subject, text, split, source, asked.seed, asked.stride
                )
                results += found
                warnings += said
        return results, warnings

    def _texts(self, asked: Asked, progress: Progress) -> Iterator[tuple[str, str, Rows]]:
        """The texts to measure, (STREAMS, T): of which split, what it is, and its tokens."""
        if not (asked.reverse or asked.information):
            return
        seed = asked.seed
        written = write_long(self.model, self.tokenizer.eos, asked.generated, seed, progress)
        yield WRITTEN, f"{written.size:,} tokens that the model wrote (seed {seed})", written
        if asked.real:
            source = f"{written.size:,} tokens of the training text itself (seed {seed})"
            yield "train", source, stretches(self.corpus.splits["train"].tokens, *written.shape)


@dataclass(frozen=True)
class _Temperature:
    temperature: float


Settings = TypeVar("Settings")


def _built(kind: Callable[..., Settings], found: dict[str, Any], option: str) -> Settings:
    """Settings of a kind from a file that has others or none of them, or a clear refusal."""
    try:
        settings = kind(**found)
        fields = asdict(settings)  # type: ignore[call-overload]
        strange = [
            k for k, v in fields.items() if isinstance(v, str) and k not in WORDS_OF_SETTINGS
        ]
        if strange:
            raise TypeError(f"{strange[0]} is a word")
    except (TypeError, AttributeError) as error:
        raise InfolmError(
            f"the settings tuned before are not those of --{option} ({error}): tune again with "
            f"--{option} tune"
        ) from error
    return settings


def _settings(path: Path) -> dict[str, Any]:
    """Settings that were tuned before: numbers and words by name, or settings of their own."""
    try:
        found = json.loads(path.read_bytes())
        if not _are_settings(found):
            raise ValueError("no numbers by name")
    except (ValueError, RecursionError) as error:
        raise InfolmError(
            f"{path} holds no tuned settings ({error}): `infolm repair {path.parent}` puts it "
            "aside, or tune again, as in --cache tune"
        ) from error
    return found


def _are_settings(found: Any) -> bool:
    return isinstance(found, dict) and all(
        value is None or isinstance(value, int | float | str) or _are_settings(value)
        for value in found.values()
    )


def _check(asked: Asked, streams: int, episodic: bool) -> None:
    walks = bool(asked.dynamic or asked.monte_carlo or asked.cache)
    if episodic and (walks or streams > 1):
        raise InfolmError(
            "where each sentence is read by itself only the temperature can be added: leave out "
            "--dynamic, --mc, --cache and --streams"
        )
    if streams > 1 and (walks or asked.temperature):
        raise InfolmError("the static model alone is read in parallel: leave out --streams")


WITHIN = {"mixture": "", "expert": ", temperature within each expert"}
"""What the basis of a tuned temperature says of it."""


def _basis(method: Method, tempering: Tempering) -> str:
    return f"{method}{WITHIN[tempering]}"


def _number(text: str, option: str, positive: bool) -> float:
    """The number in `text`, above 0 or from 0 on."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf or (positive and not value):
        wanted = "a number above 0" if positive else "a factor of 0 or more"
        raise InfolmError(f"{option} is tune or {wanted}, not '{text}'")
    return value


def statistics_settings(text: str) -> StatisticsSettings:
    """Of 'BATCHES[,COLUMNS[,STEPS]]', where BATCHES may be all."""
    batches, *rest = text.split(",")
    try:
        number = None if batches == "all" else int(batches)
        columns, steps = [*map(int, rest), *(USUAL.columns, USUAL.steps)[len(rest) :]]
    except ValueError:
        raise InfolmError(
            f"'{text}' is not BATCHES[,COLUMNS[,STEPS]]: try all,1024 or {USUAL.batches}"
        ) from None
    return StatisticsSettings(number, columns, steps)


def _kept_statistics(path: Path, wanted: StatisticsSettings) -> dict[str, Any] | None:
    """The mean square gradients in a file, if they are those of `wanted`."""
    state = checkpoint.load(path)
    if "squares" not in state:  # written before there was a choice
        state = {"settings": asdict(FORMER_STATISTICS), "squares": state}
    return state["squares"] if StatisticsSettings(**state["settings"]) == wanted else None


def _newer(path: Path, than: Path) -> bool:
    """Whether `path` is there and was written after the other."""
    return path.exists() and path.stat().st_mtime_ns >= than.stat().st_mtime_ns
