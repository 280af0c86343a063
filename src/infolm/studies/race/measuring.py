"""A trained model by every method: tuned and compared on validation, then read once on test.

Static walks, those by Monte Carlo dropout and dynamic ones, each as it is and with temperature and
neural cache, and each of these mixed with the Kneser-Ney model: p = (1 - w) p_model + w p_KN, w by
the validation split.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infolm.data.ingest import Report
from infolm.evaluation import neural_cache
from infolm.evaluation.dynamic import Statistics
from infolm.evaluation.kneser_ney import KneserNey
from infolm.evaluation.measurement import Measurement, likelihood_measurements
from infolm.evaluation.method import STATIC, Method, measure, walk
from infolm.evaluation.suite import BASELINE, text_size
from infolm.evaluation.temperature import best_temperature
from infolm.families.running.options import TUNE
from infolm.families.running.run import LanguageRun
from infolm.families.running.tuned import SEGMENTS
from infolm.studies.race.clock import Clock, OutOfTime
from infolm.studies.race.plan import (
    CHUNK,
    MASK_RATES,
    MASKS,
    SHARPENING_TOKENS,
    SHARPER,
    TEMPERATURES,
    TUNING_TOKENS,
    Plan,
)

MIXED = " + Kneser-Ney"
STATIC_NAME = "static"
LogProbs = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Entry:
    """A method of the race. weight: of the Kneser-Ney model, 0 for none. valid: ln p of tokens of
    the validation split, from its second on."""

    name: str
    method: Method
    weight: float
    valid: LogProbs

    def __str__(self) -> str:
        mixed = f", {self.weight:.4g} of the {BASELINE}" if self.weight else ""
        return f"{self.method}{mixed}"

    def mixed(self, log_model: LogProbs, log_ngrams: LogProbs) -> LogProbs:
        if not self.weight:
            return log_model
        model, ngrams = _tensors(log_model, log_ngrams)
        return neural_cache.mix(model, ngrams, self.weight).numpy()


class Measuring:
    """The methods of one trained run."""

    def __init__(self, run: LanguageRun, ngrams: KneserNey, clock: Clock, report: Report) -> None:
        self.run, self.ngrams, self.clock, self.report = run, ngrams, clock, report
        self.statistics: Statistics | None = None
        self.seconds_per_token: dict[Any, float] = {}  # of walks that are not static

    def tuned(self, plan: Plan, until: float) -> list[Entry]:
        """Every method with its settings and what it makes of validation. until: elapsed seconds
        when all is to be measured. Dynamic evaluation is tuned for as long as its walks still fit,
        and left out where they do not."""
        entries = self._static()
        entries += self._monte_carlo()
        if plan.dynamic:
            try:
                entries += self._dynamic(plan, until)
            except OutOfTime:
                self.statistics = None
        log_ngrams = self.ngrams.log_probs(self._valid)
        return [*entries, *(_with_ngrams(each, log_ngrams) for each in entries)]

    def _static(self) -> list[Entry]:
        model, few = self.run.model, self._valid[: TUNING_TOKENS + 1]
        chunks = [*walk(model, few, STATIC, CHUNK, report=self._progress("tuning"))]
        log_p, hidden, targets = _joined(chunks)
        tempered = Method(temperature=best_temperature(model, hidden, targets))
        cached = Method(cache=neural_cache.tune(log_p[0], hidden, targets)[0])
        methods = {STATIC_NAME: STATIC, "temperature": tempered, "cache": cached}
        read = measure(
            model, self._valid, [*methods.values()], CHUNK, report=self._progress("validation")
        )
        return [
            Entry(name, method, 0.0, reading.log_probs)
            for (name, method), reading in zip(methods.items(), read, strict=True)
        ]

    def _dynamic(self, plan: Plan, until: float) -> list[Entry]:
        asked: list[float] = []

        def watched(stage: str, done: int, total: int) -> None:
            if self.clock.elapsed() > until - plan.after.test:
                raise OutOfTime
            self.report(stage, done, total)

        def enough() -> bool:
            """Whether one more trial leaves too little time for what comes after the tuning, on a
            machine that is as slow as in the last one."""
            asked.append(self.clock.elapsed())
            trial = max(plan.trial, asked[-1] - asked[-2] if len(asked) > 1 else 0.0)
            slower = trial / plan.trial
            after = slower * (plan.after.validation + plan.after.test)
            return asked[-1] + trial + after > until

        segment = SEGMENTS[self.run.tokenizer.kind][0]
        settings = self.run.dynamic_settings(TUNE, "rms", segment, watched, enough=enough)
        self.statistics = self.run.statistics(settings, watched)
        method = Method(dynamic=settings)
        return self._tuned("dynamic", method, (1.0, *TEMPERATURES), watched)

    def _monte_carlo(self) -> list[Entry]:
        """With the factor on the rates and the temperature that are best on the first tokens: each
        temperature tried costs a softmax of every mask."""
        few, tried = self._valid[: SHARPENING_TOKENS + 1], {}
        for rate in MASK_RATES:
            method = Method(monte_carlo=replace(MASKS, rate=rate))
            log_p, _, _ = _joined([*walk(self.run.model, few, method, CHUNK, SHARPER)])
            for tau, total in zip(SHARPER, log_p.double().sum(1).tolist(), strict=True):
                tried[replace(method, temperature=tau)] = total
        best = max(tried, key=tried.__getitem__)
        return self._tuned("Monte Carlo", best, (best.temperature,), self.report)

    def _tuned(
        self, name: str, method: Method, temperatures: tuple[float, ...], report: Report
    ) -> list[Entry]:
        """A walk through the tokens for tuning: with the first temperature, which is the method's,
        and with the best of them and the cache."""
        model, few = self.run.model, self._valid[: TUNING_TOKENS + 1]
        stage, began = f"validation, {name}", self.clock.elapsed()

        def progress(done: int, total: int) -> None:
            report(stage, done, total)

        chunks = [*walk(model, few, method, CHUNK, temperatures, self.statistics, report=progress)]
        self.seconds_per_token[method.walk] = (self.clock.elapsed() - began) / (len(few) - 1)
        log_p, hidden, targets = _joined(chunks)
        best = int(log_p.double().sum(1).argmax())
        cache, _ = neural_cache.tune(log_p[best], hidden, targets)
        recent = neural_cache.NeuralCache(cache.window, cache.flatness).log_prob(hidden, targets)
        together = neural_cache.mix(log_p[best], recent, cache.weight)
        tempered = replace(method, temperature=temperatures[best], cache=cache)
        return [
            Entry(name, method, 0.0, _numbers(log_p[0])),
            Entry(f"{name} + cache", tempered, 0.0, _numbers(together)),
        ]

    def test(self, entries: list[Entry]) -> dict[str, LogProbs]:
        """ln p of the test split by each entry, read once by each walk; those of a walk that does
        not fit into what is left of the time are missing."""
        tokens = self.run.corpus.splits["test"].tokens
        found: dict[Method, LogProbs] = {}
        methods = list(dict.fromkeys(each.method for each in entries))
        for key in dict.fromkeys(method.walk for method in methods):
            group = [method for method in methods if method.walk == key]
            if self.clock.left() < self.seconds_per_token.get(key, 0.0) * len(tokens):
                continue
            progress = self._progress(f"test ({Method(*key)})")
            read = measure(self.run.model, tokens, group, CHUNK, self.statistics, progress)
            found |= {m: each.log_probs for m, each in zip(group, read, strict=True)}
        log_ngrams = self.ngrams.log_probs(tokens)
        return {
            each.name: each.mixed(found[each.method], log_ngrams)
            for each in entries
            if each.method in found
        }

    def measurements(self, split: str, described: str, log_probs: LogProbs) -> list[Measurement]:
        """As `infolm evaluate` has them."""
        whole = self.run.corpus.splits[split]
        exact = len(log_probs) == len(whole.tokens) - 1
        size = text_size(whole, self.run.tokenizer) if exact else None
        return likelihood_measurements(log_probs, split, described, size)

    @property
    def _valid(self) -> Any:
        return self.run.corpus.splits["valid"].tokens

    def _progress(self, stage: str) -> Any:
        return lambda done, total: self.report(stage, done, total)


def best_of(entries: list[Entry]) -> Entry:
    """The entry that makes validation likeliest, on the tokens that all of them have read."""
    common = min(len(each.valid) for each in entries)
    return max(entries, key=lambda each: float(each.valid[:common].mean()))


def _with_ngrams(entry: Entry, log_ngrams: LogProbs) -> Entry:
    """The same mixed with the Kneser-Ney model as suits the validation split best."""
    weight = neural_cache.best_weight(*_tensors(entry.valid, log_ngrams))
    new = replace(entry, name=f"{entry.name}{MIXED}", weight=weight)
    return replace(new, valid=new.mixed(entry.valid, log_ngrams))


def _tensors(log_model: LogProbs, log_ngrams: LogProbs) -> tuple[torch.Tensor, torch.Tensor]:
    """Both, of the tokens that the model has read."""
    return torch.tensor(log_model), torch.tensor(log_ngrams[: len(log_model)])


def _joined(chunks: list[Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """log_probs (K, N), hidden (N, H), targets (N,) of a whole walk."""
    log_p, hidden, targets = zip(*chunks, strict=True)
    return torch.cat(log_p, 1), torch.cat(hidden), torch.cat(targets)


def _numbers(log_p: torch.Tensor) -> LogProbs:
    return log_p.double().numpy()
