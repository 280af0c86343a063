"""A run's folder opened for use: its model, measured by methods tuned on its validation split."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from infolm.data.corpora import Split, load, read_text, registry, truth
from infolm.data.episodes import EpisodesConfig, marker
from infolm.data.ingest import Report
from infolm.data.stream import StreamConfig
from infolm.data.tokens import Tokenizer
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
from infolm.evaluation.kneser_ney import KneserNey
from infolm.evaluation.likelihood import Progress
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.method import STATIC, Method
from infolm.evaluation.monte_carlo import MonteCarloSettings
from infolm.evaluation.neural_cache import CacheSettings, WordChange
from infolm.evaluation.reverse import LEAST_TOKENS, Rows, Yardstick, stretches
from infolm.evaluation.scoring import ScoredSentence
from infolm.evaluation.suite import Subject
from infolm.families.base import Evaluation, Run, Table, Writing, family_of, settings_of
from infolm.families.running.options import (
    TUNE,
    TUNED,
    LanguageEvaluateOptions,
    LanguageGenerateOptions,
)
from infolm.families.running.scoring import NeuralScorer, ScoreSettings, sentences_of
from infolm.generation.text import STREAMS, write, write_long
from infolm.models.language import LanguageModel
from infolm.nn.softmax import Tempering
from infolm.objectives.bmi import Bmi, BmiConfig
from infolm.section import nearest
from infolm.training import checkpoint
from infolm.training.device import one_device

BMI = BmiConfig.kind
WORDS_OF_SETTINGS = {"rule", "mean"}
"""Settings that are words; all others are numbers."""

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

    def _episodes(
        self, options: LanguageEvaluateOptions, report: Report
    ) -> tuple[int | None, list[float]]:
        """What counts in a sentence that is read by itself, and the temperatures to measure."""
        feed = self.recipe.feed
        after = marker(feed, self.tokenizer) if isinstance(feed, EpisodesConfig) else None
        if options.temperature is None:
            return after, [1.0]
        if options.temperature not in (TUNE, TUNED):
            return after, [1.0, _number(options.temperature, "--temperature", positive=True)]
        tempering = self._tempering(options)
        subject = self._subject(options.chunk, report)
        found = self._kept(
            options.temperature,
            self.folder.tuned("temperature", "episodic"),
            "each sentence by itself" + WITHIN[tempering],
            lambda: {
                "temperature": suite.tuned_episodic_temperature(
                    subject, self._valid, after, tempering
                )
            },
        )
        return after, [1.0, _built(_Temperature, found, "temperature").temperature]

    def _tempering(self, options: LanguageEvaluateOptions) -> Tempering:
        """With one expert, the softmax is the mixture."""
        return options.tempering if self.model.softmax.experts > 1 else "mixture"

    # -- what is measured -------------------------------------------------------------------

    def methods(self, options: LanguageEvaluateOptions, report: Report) -> list[Method]:
        """The static model, each method asked for alone, and all of them together.

        Tuned in this order: dynamic evaluation and the dropout rates, each by itself; then, each
        with the ones before it in place, the temperature and the cache.
        """
        adapting, samples, chunk = None, None, options.chunk
        tempering = self._tempering(options)
        if options.dynamic:
            adapting = self.dynamic_settings(
                options.dynamic,
                options.dynamic_rule,
                options.segment,
                report,
                options.dynamic_mean,
                statistics_settings(options.dynamic_statistics),
            )
        if options.mc:
            span = self.recipe.feed.bptt if isinstance(self.recipe.feed, StreamConfig) else chunk
            samples = MonteCarloSettings(
                options.mc, span=span, seed=options.seed, adaptation=options.mc_adaptation
            )
            rate = self.dropout_factor(options.mc_rate, samples, chunk, report)
            samples = replace(samples, rate=rate)
        lines = [STATIC, Method(dynamic=adapting), Method(monte_carlo=samples)]
        together = Method(dynamic=adapting, monte_carlo=samples)
        if request := options.temperature:
            both = dict.fromkeys((STATIC, together))
            taus = {
                each: self.temperature(request, chunk, report, each, tempering) for each in both
            }
            lines.append(replace(STATIC, temperature=taus[STATIC], tempering=tempering))
            together = replace(together, temperature=taus[together], tempering=tempering)
        if request := options.cache:
            both = dict.fromkeys((STATIC, together))
            caches = {each: self.cache_settings(request, chunk, report, each) for each in both}
            lines.append(replace(STATIC, cache=caches[STATIC]))
            together = replace(together, cache=caches[together])
        return list(dict.fromkeys([*lines, together]))

    def score(self, texts: str | Sequence[str], **options: Any) -> list[ScoredSentence]:
        """By the fields of `ScoreSettings`: context, eos, unit, top, and methods."""
        settings = settings_of(ScoreSettings, options)
        return NeuralScorer(self).score(sentences_of(texts), settings)

    def measure(self, options: LanguageEvaluateOptions, report: Report) -> Evaluation:
        """The model as it is, by each method asked for, and what it writes; see `suite`."""
        if options.text:
            return self._measure_text(options, report)
        splits, chunk, streams = options.splits, options.chunk, options.streams
        episodic = options.episodic or isinstance(self.recipe.feed, EpisodesConfig)
        _check(options, episodic)
        self._check_text(options)
        known = truth(self.recipe.data, self.tokenizer)
        true = suite.true_log_probs(known, self.corpus, splits)
        results: list[Measurement] = []
        changes: list[WordChange] = []
        if options.baseline:
            results += suite.baseline(self.corpus, splits, true, report)
        after, temperatures = self._episodes(options, report) if episodic else (None, [])
        methods = [] if episodic else self.methods(options, report)
        subject = self._subject(chunk, report, *methods[-1:])
        for name in splits:
            split = self.corpus.splits[name]
            if episodic:
                results += suite.evaluate_episodic(
                    subject, split, name, after, temperatures, self._tempering(options)
                )
            elif streams > 1:
                results += suite.evaluate_parallel(subject, split, name, streams, true.get(name))
            else:
                measured, changes = suite.evaluate(subject, split, name, methods, true.get(name))
                results += measured
        results += suite.language(known, true)
        results += self._of_critic(subject, splits)
        found, warnings = self._of_texts(subject, options, true)
        results += found
        order = [*splits, WRITTEN, "train"]
        results.sort(key=lambda result: order.index(result.split))
        measurement.keep(self.folder.measurements, results)
        shown = changes and options.words
        tables = [_words(changes, self.tokenizer, options.words)] if shown else []
        return Evaluation(results, warnings, tables)

    def _measure_text(self, options: LanguageEvaluateOptions, report: Report) -> Evaluation:
        """Another text in the run's vocabulary; what is found is not of the run's corpus and is
        not kept with it."""
        _check(options, episodic=False)
        texts = self._other_texts(options, report)
        methods = self.methods(options, report)
        subject = self._subject(options.chunk, report, methods[-1])
        ngrams = None
        if options.baseline:
            train = self.corpus.splits["train"].tokens
            ngrams = KneserNey.fit(train, len(self.tokenizer), suite.NGRAM_ORDER)
        results: list[Measurement] = []
        warnings: list[str] = []
        for name, text in texts.items():
            found, said = suite.evaluate_text(subject, text, name, methods, options.streams, ngrams)
            results += found
            warnings += said
        return Evaluation(results, list(dict.fromkeys(warnings)))

    def _other_texts(self, options: LanguageEvaluateOptions, report: Report) -> Mapping[str, Split]:
        """A file as it is, or the splits asked for of a corpus, by name."""
        wanted = str(options.text)
        if Path(wanted).is_file():
            if options.split:
                raise InfolmError(f"--split is of a corpus, and {wanted} is one text: leave it out")
            return {Path(wanted).name: read_text(Path(wanted), self.tokenizer)}
        if wanted not in registry():
            raise InfolmError(
                f"--text {wanted} is neither a file nor a corpus{nearest(wanted, registry())}: "
                "`infolm corpora` lists those"
            )
        own = {"corpus": wanted, "path": None, "reverse_copy": None, "uniform": None}
        data = self.recipe.data.model_copy(update=own)
        corpus = load(data, report, tokenizer=self.tokenizer)
        return {f"{wanted} {split}": corpus.splits[split] for split in options.splits}

    def write(self, options: LanguageGenerateOptions, report: Report) -> Writing:
        """Continuations of the prompt."""
        o, cache = options, None
        if o.cache:
            cache = self.cache_settings(o.cache, LanguageEvaluateOptions.chunk, report)
        sampling = o.settings(self.tokenizer)
        texts = write(
            self.model, self.tokenizer, o.prompt, o.tokens, o.num, o.seed, sampling, cache
        )
        shown = [text.strip("\n") for text in texts]
        if o.num > 1:
            shown = [f"--- {i} ---\n{text}" for i, text in enumerate(shown, 1)]
        records = [{"prompt": o.prompt, "text": text} for text in texts]
        return Writing(texts, records, "\n".join(shown))

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

    def _check_text(self, options: LanguageEvaluateOptions) -> None:
        """Refuse a text that cannot be written or is too short, before any work."""
        if not options.writes:
            return
        if isinstance(self.recipe.feed, EpisodesConfig):
            raise InfolmError(
                "--reverse and --mi need a running text, and this run was trained on single "
                "sentences: leave them out, or train it with feed.kind=stream"
            )
        least = least_tokens(STREAMS, options.stride) if options.mi else LEAST_TOKENS
        if options.generated < least:
            raise InfolmError(
                f"--generated {options.generated} is too short a text to measure: take {least} at "
                "least"
            )
        there = len(self.corpus.splits["train"].tokens)
        if options.real and there < STREAMS * -(-options.generated // STREAMS):
            raise InfolmError(
                f"--real compares with as many tokens of the training text, which has {there:,}: "
                f"take --generated {there // STREAMS * STREAMS} at most, or leave out --real"
            )

    def _of_texts(
        self, subject: Subject, options: LanguageEvaluateOptions, true: suite.TrueLogProbs
    ) -> tuple[list[Measurement], list[str]]:
        """What was asked of the text that the model writes and of real text, and warnings."""
        results: list[Measurement] = []
        warnings: list[str] = []
        measured_on = {name: self.corpus.splits[name] for name in options.splits}
        size = Yardstick.parse(options.yardstick)
        for split, source, text in self._texts(options, subject.progress("writing")):
            if options.reverse:
                fabric = one_device("auto")
                results += suite.reverse(
                    subject, text, source, measured_on, true, options.seed, fabric, size
                )
            if options.mi:
                found, said = suite.information(
                    subject, text, split, source, options.seed, options.stride
                )
                results += found
                warnings += said
        return results, warnings

    def _texts(
        self, options: LanguageEvaluateOptions, progress: Progress
    ) -> Iterator[tuple[str, str, Rows]]:
        """The texts to measure, (STREAMS, T): of which split, what it is, and its tokens."""
        if not options.writes:
            return
        seed = options.seed
        written = write_long(self.model, self.tokenizer.eos, options.generated, seed, progress)
        yield WRITTEN, f"{written.size:,} tokens that the model wrote (seed {seed})", written
        if options.real:
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


def _check(options: LanguageEvaluateOptions, episodic: bool) -> None:
    streams = options.streams
    walks = bool(options.dynamic or options.mc or options.cache)
    if episodic and (walks or streams > 1):
        raise InfolmError(
            "where each sentence is read by itself only the temperature can be added: leave out "
            "--dynamic, --mc, --cache and --streams"
        )
    if streams > 1 and (walks or options.temperature):
        raise InfolmError("the static model alone is read in parallel: leave out --streams")


def _words(changes: list[WordChange], tokenizer: Tokenizer, number: int) -> Table:
    """Table 3 of Merity et al. (2017): where the cache helps, and where it hurts."""
    header = ["hurt most", "count", "change", "helped most", "count", "change"]

    def cells(change: WordChange) -> list[str]:
        return [tokenizer.token(change.token), f"{change.count:,}", f"{change.change:.2f}"]

    pairs = zip(changes[::-1][:number], changes[:number], strict=True)
    return Table(
        header, [[*cells(hurt), *cells(helped)] for hurt, helped in pairs], frozenset({1, 2, 4, 5})
    )


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
