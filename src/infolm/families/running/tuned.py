"""A run's evaluation methods, tuned on its validation split and kept in its folder."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from infolm.data.ingest import Report
from infolm.errors import InfolmError, RunError
from infolm.evaluation import dynamic, suite
from infolm.evaluation.dynamic import (
    FORMER_STATISTICS,
    USUAL,
    DynamicSettings,
    MeanOver,
    Rule,
    Statistics,
    StatisticsSettings,
)
from infolm.evaluation.method import STATIC, Method
from infolm.evaluation.monte_carlo import MonteCarloSettings
from infolm.evaluation.neural_cache import CacheSettings
from infolm.evaluation.suite import Subject
from infolm.families.base import Run
from infolm.families.running.options import (
    TUNE,
    TUNED,
    LanguageEvaluateOptions,
)
from infolm.models.language import LanguageModel
from infolm.nn.softmax import Tempering
from infolm.training import checkpoint
from infolm.trees import fits, leaves

WORDS_OF_SETTINGS = {"rule", "mean"}
"""Settings that are words; all others are numbers."""

WORDS, LETTERS = (20, 10, 5), (50, 20)
SEGMENTS = {"word": WORDS, "bpe": WORDS, "wordpiece": WORDS, "char": LETTERS, "byte": LETTERS}
"""Segment lengths of dynamic evaluation: the first is the default, tuning tries all."""
STARTS = {
    "rms": DynamicSettings(rate=3e-4, decay=1e-2),
    "sgd": DynamicSettings(rate=0.1, decay=1e-3, rule="sgd"),
}
"""The start of the tuning of dynamic evaluation."""


@dataclass(frozen=True)
class TunableRun(Run):
    """A run of a language model whose methods of evaluation can be tuned.

    A request `tuned` tunes once and then reads the settings from the folder, unless the weights are
    newer.
    """

    model: LanguageModel
    unscored = ""

    def cache_settings(
        self, request: str, chunk: int, report: Report, method: Method = STATIC
    ) -> CacheSettings:
        """The neural cache that `request` asks for on top of `method`: 'WINDOW,LAMBDA,THETA' as
        given; 'tuned' on the validation split, now or before; 'tune' there now.
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
        """The softmax temperature that `request` asks for, on top of `method`."""
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
        """The factor of the dropout rates in Monte Carlo dropout that `request` asks for."""
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
        enough: Callable[[], bool] = lambda: False,
    ) -> DynamicSettings:
        """The settings of dynamic evaluation that `request` asks for: 'RATE,DECAY[,EPSILON]' as
        given, else as tuned. segment: its length; None: the usual one, or tuned too. enough: see
        `dynamic.tune`."""
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
                enough,
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
        """The mean square gradients of the training split that dynamic evaluation needs: the saved
        ones, or, if their settings differ, collected now; None for sgd, or without settings."""
        if settings is None or settings.rule == "sgd":
            return None
        wanted, kept = settings.statistics, self.folder.gradients
        weights = checkpoint.mark(self.folder.model)
        newer = _newer(kept, self.folder.model)
        squares = _kept_statistics(kept, wanted, weights) if newer else None
        if squares is None:
            stage = "collecting gradients on the training split"
            squares = dynamic.gradient_statistics(
                self.model,
                self.corpus.splits["train"].tokens,
                wanted,
                lambda done, total: report(stage, done, total),
            )
            try:
                checkpoint.save(
                    kept, {"settings": asdict(wanted), "squares": squares, "weights": weights}
                )
            except RunError as error:
                print(f"{error}.", file=sys.stderr)
        device = self.model.device
        return {name: square.to(device) for name, square in squares.items()}

    def _kept(
        self, request: str, path: Path, basis: str, tune: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """The saved settings on top of `basis`, or those that `tune` finds now, which are then
        saved."""
        # Settings older than the weights belong to weights that training has replaced. Newer ones
        # may too, if the clock was set back: so the weights' digest is kept with them.
        weights = checkpoint.mark(self.folder.model)
        if request == TUNED and _newer(path, self.folder.model):
            found = _settings(path)
            if (found.pop("with", basis), found.pop("weights", weights)) == (basis, weights):
                return found
        found = tune()
        text = json.dumps({**found, "with": basis, "weights": weights})
        try:
            checkpoint.atomically(
                path, lambda temporary: temporary.write_text(text, encoding="utf-8")
            )
        except RunError as error:  # use the settings now, although they could not be saved
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
        """The episodic measurements: which tokens count, and the temperatures."""
        after = self.recipe.feed.marker(self.tokenizer)
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
            span = getattr(self.recipe.feed, "bptt", chunk)
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


@dataclass(frozen=True)
class _Temperature:
    temperature: float


Settings = TypeVar("Settings")
Setting = float | bool | str | None


def _built(kind: Callable[..., Settings], found: dict[str, Any], option: str) -> Settings:
    """The settings `kind` from a file's values, or a refusal."""
    try:
        settings = kind(**found)
        fields = asdict(settings)  # type: ignore[call-overload]
        strange = [k for k, v in fields.items() if fits(str, v) and k not in WORDS_OF_SETTINGS]
        if strange:
            raise TypeError(f"{strange[0]} is a word")
    except (TypeError, AttributeError) as error:
        raise InfolmError(
            f"the settings tuned before are not those of --{option} ({error}): tune again with "
            f"--{option} tune"
        ) from error
    return settings


def _settings(path: Path) -> dict[str, Any]:
    """The saved settings: numbers and words by name, or nested settings."""
    try:
        found = json.loads(path.read_bytes())
        if not fits(dict[str, Any], found) or not fits(dict[str, Setting], leaves(found)):
            raise ValueError("no numbers by name")
    except (ValueError, RecursionError) as error:
        raise InfolmError(
            f"{path} holds no tuned settings ({error}): `infolm repair {path.parent}` moves it "
            "away, or tune again, as in --cache tune"
        ) from error
    return found


WITHIN = {"mixture": "", "expert": ", temperature within each expert"}
"""The suffix of a tuned temperature's basis."""


def _basis(method: Method, tempering: Tempering) -> str:
    return f"{method}{WITHIN[tempering]}"


def _number(text: str, option: str, positive: bool) -> float:
    """The number in `text`, above 0 or at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf or (positive and not value):
        wanted = "a number above 0" if positive else "a factor of 0 or more"
        raise InfolmError(f"{option} is tune or {wanted}, not '{text}'")
    return value


def statistics_settings(text: str) -> StatisticsSettings:
    """Parse 'BATCHES[,COLUMNS[,STEPS]]', where BATCHES may be all."""
    batches, *rest = text.split(",")
    try:
        number = None if batches == "all" else int(batches)
        columns, steps = [*map(int, rest), *(USUAL.columns, USUAL.steps)[len(rest) :]]
    except ValueError:
        raise InfolmError(
            f"'{text}' is not BATCHES[,COLUMNS[,STEPS]]: try all,1024 or {USUAL.batches}"
        ) from None
    return StatisticsSettings(number, columns, steps)


def _kept_statistics(path: Path, wanted: StatisticsSettings, weights: str) -> dict[str, Any] | None:
    """The mean square gradients in a file, if they match `wanted` and these weights."""
    state = checkpoint.load(path)
    if state.pop("weights", weights) != weights:
        return None
    if "squares" not in state:  # written before there was a choice
        state = {"settings": asdict(FORMER_STATISTICS), "squares": state}
    return state["squares"] if StatisticsSettings(**state["settings"]) == wanted else None


def _newer(path: Path, than: Path) -> bool:
    """Whether `path` exists and was written after the other."""
    return path.exists() and path.stat().st_mtime_ns >= than.stat().st_mtime_ns
