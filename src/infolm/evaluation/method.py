"""Evaluation methods, and several of them measured in one walk through a text.

A walk is static, dynamic (the weights adapt to the text), by Monte Carlo dropout (many samples in
parallel), or both: samples measure each segment before the weights are updated, each with its own
weights or all with the same (`MonteCarloSettings.adaptation`). On top of a walk come the softmax's
temperature, within each sample, and then the neural cache, whose pairs are the walk's own
outputs: those of the adapted model, averaged over the samples.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm.errors import RunError
from infolm.evaluation.dynamic import (
    FORMER_STATISTICS,
    DynamicSettings,
    Statistics,
    dynamic_stream,
)
from infolm.evaluation.likelihood import PLAIN, Chunk, Progress, one_stream
from infolm.evaluation.monte_carlo import MonteCarlo, MonteCarloSettings, monte_carlo_stream
from infolm.evaluation.neural_cache import CacheSettings, NeuralCache, mix
from infolm.models.language import LanguageModel
from infolm.nn.softmax import Tempering


@dataclass(frozen=True)
class Method:
    """Everything that a measurement depends on besides model and text; by default the static
    model."""

    dynamic: DynamicSettings | None = None
    monte_carlo: MonteCarloSettings | None = None
    temperature: float = 1.0
    cache: CacheSettings | None = None
    tempering: Tempering = "mixture"

    @property
    def walk(self) -> tuple[DynamicSettings | None, MonteCarloSettings | None]:
        """The key of the walk; methods with equal walks are measured in one."""
        return self.dynamic, self.monte_carlo

    @property
    def parts(self) -> dict[str, str]:
        """The parts besides the static model: name -> description with settings."""
        parts = {}
        if d := self.dynamic:
            parts["dynamic"] = (
                f"dynamic evaluation ({d.rule}, rate {d.rate:.3g}, decay {d.decay:.3g}"
                f"{_of_rms(d)}, segments of {d.segment} tokens)"
            )
        if m := self.monte_carlo:
            span = "segment" if self.dynamic else f"{m.span} tokens"
            # Without this phrase all samples have the same weights, so older measurements keep
            # their meaning.
            own = ", each adapting by itself" if self.dynamic and m.adaptation == "own" else ""
            parts["mc"] = (
                f"Monte Carlo dropout ({m.samples} masks{own}, rates x {m.rate:.3g}, drawn anew "
                f"every {span}, seed {m.seed})"
            )
        if self.temperature != 1:
            within = " within each expert" if self.tempering == "expert" else ""
            parts["temperature"] = f"temperature {self.temperature:.4g}{within}"
        if c := self.cache:
            parts["cache"] = (
                f"neural cache (window {c.window}, lambda {c.weight:.4g}, theta {c.flatness:.4g})"
            )
        return parts

    def __str__(self) -> str:
        return f"{', '.join(self.parts.values()) or 'static'}, one stream"


def _of_rms(settings: DynamicSettings) -> str:
    """The settings of the rms rule; mean and statistics only if they are not the usual ones."""
    if settings.rule != "rms":
        return ""
    mean = ", mean of RMS by tensor" if settings.mean == "tensor" else ""
    usual = settings.statistics == FORMER_STATISTICS
    statistics = "" if usual else f", RMS of {settings.statistics}"
    return f", epsilon {settings.epsilon:.3g}{mean}{statistics}"


STATIC = Method()
"""The static model, in one carried stream."""


@dataclass(frozen=True)
class Reading:
    """ln p of every token but the first, (N - 1,), by one method.

    sampling_error: the standard error of the mean due to the finite number of dropout samples
    (before the cache); None without samples, or with one.
    """

    log_probs: npt.NDArray[np.float64]
    sampling_error: float | None = None


def walk(
    model: LanguageModel,
    tokens: npt.NDArray[Any],
    method: Method,
    chunk: int,
    temperatures: Sequence[float] = PLAIN,
    statistics: Statistics | None = None,
    samples: MonteCarlo | None = None,
    report: Progress | None = None,
    tempering: Tempering = "mixture",
) -> Generator[Chunk]:
    """The walk of `method` through `tokens` (N,); see `one_stream`. `samples`: those it takes."""
    if method.monte_carlo and samples is None:
        samples = MonteCarlo(model, method.monte_carlo)
    if method.dynamic:
        return dynamic_stream(
            model, tokens, method.dynamic, statistics, temperatures, samples, report, tempering
        )
    if samples:
        return monte_carlo_stream(samples, tokens, temperatures, report, tempering)
    return one_stream(model, tokens, chunk, temperatures, report, tempering)


def measure(
    model: LanguageModel,
    tokens: npt.NDArray[Any],
    methods: Sequence[Method],
    chunk: int,
    statistics: Statistics | None = None,
    report: Progress | None = None,
) -> list[Reading]:
    """Read `tokens` (N,) once for methods with the same walk, and whose temperatures other than 1
    act at the same place."""
    first = methods[0]
    assert all(method.walk == first.walk for method in methods)
    temperatures = list(dict.fromkeys(method.temperature for method in methods))
    (tempering,) = {m.tempering for m in methods if m.temperature != 1} or {first.tempering}
    samples = MonteCarlo(model, first.monte_carlo) if first.monte_carlo else None
    caches = {m.cache: NeuralCache(m.cache.window, m.cache.flatness) for m in methods if m.cache}
    found: list[list[npt.NDArray[np.float64]]] = [[] for _ in methods]
    chunks = walk(model, tokens, first, chunk, temperatures, statistics, samples, report, tempering)
    with closing(chunks):
        for log_probs, hidden, targets in chunks:
            recent = {c: cache.log_prob(hidden, targets) for c, cache in caches.items()}
            for method, parts in zip(methods, found, strict=True):
                log_p = log_probs[temperatures.index(method.temperature)]
                if method.cache:
                    log_p = mix(log_p, recent[method.cache], method.cache.weight)
                parts.append(log_p.cpu().double().numpy())
    errors = samples.standard_errors() if samples else None
    readings = []
    for method, parts in zip(methods, found, strict=True):
        whole = np.concatenate(parts)
        if not np.isfinite(whole).all():
            raise diverged(method)
        error = errors[temperatures.index(method.temperature)] if errors else None
        readings.append(Reading(whole, error))
    return readings


def diverged(method: Method) -> RunError:
    return RunError(f"{method}: the loss is no longer a finite number: lower the rate")
