"""The number of steps that fit into the time, from rates measured on the same recipe first.

The number of steps is decided before the first, and again at a validation where it no longer fits,
since machines have slow hours. With it the learning rate of every step is decided too, since
schedules go by the share of the steps. A record has all of these numbers, so that its recipe trains
the same weights again, with `train.max_steps` changed at the same validations (`--resume`).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infolm.config import Recipe
from infolm.data.ingest import Report
from infolm.errors import InfolmError
from infolm.evaluation import dynamic, neural_cache
from infolm.evaluation.dynamic import DynamicSettings, StatisticsSettings
from infolm.evaluation.method import STATIC, Method, walk
from infolm.evaluation.monte_carlo import MonteCarloSettings
from infolm.families.running.run import LanguageRun
from infolm.families.running.tuned import SEGMENTS
from infolm.families.train import train
from infolm.models.language import LanguageModel
from infolm.training.loop import Nobody

VALIDATIONS = 12
"""While it trains, at equal distances: points of the curve, and where it may end early."""
FIRST = "first"
FEWEST_STEPS = 6
"""Of a first look at the rate."""
PROBE_SHARE = 1 / 120
"""Of the time that a race may last, for measuring how long a step takes."""
TUNING_TOKENS = 25_000
"""Of the validation split, that temperature and cache are tuned on and methods compared on."""
CHUNK = 200
"""Tokens that a static model reads at a time."""
MASKS = MonteCarloSettings(samples=10)
"""Of Monte Carlo dropout: ten masks have nine tenths of what any number of them brings."""
MASK_RATES = (1.0, 0.75, 0.5)
"""What the rates of dropout are multiplied by, in turn."""
SHARPER = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Temperatures tried with it: a mean over masks is flatter than each of them."""
SHARPENING_TOKENS = 4_000
"""On which they are tried."""
TEMPERATURES = tuple(float(tau) for tau in np.geomspace(0.85, 1.25, 9).round(4))
"""Of which one is taken for dynamic evaluation, all measured in one walk."""
SEARCH = 6
"""Passes of the softmax that the search for the static model's temperature takes, about."""
DYNAMIC_TRIALS = 16
"""Walks that the tuning of dynamic evaluation is expected to take."""
MEASURING_SHARE = 0.3
"""Of the limit: where measuring would take more, dynamic evaluation is left out."""
RESERVE = 1.15
"""What is expected of the measuring is multiplied by this."""
MARGIN = 0.015
"""Of the limit, that is left over: machines have slow moments."""
LOOK = 5_000
"""Tokens of a look at how long the tuning of the cache takes."""


Pace = tuple[tuple[float, float], ...]
"""Until which share of training a step takes how many seconds, in order, the last until 1."""
EVEN: Pace = ((1.0, 1.0),)


def mean_seconds(pace: Pace, begin: float = 0.0, end: float = 1.0) -> float:
    """Of a step between two different shares of training."""
    total, since = 0.0, 0.0
    for until, seconds in pace:
        total += max(0.0, min(end, until) - max(begin, since)) * seconds
        since = until
    return total / (end - begin)


@dataclass(frozen=True)
class Rates:
    """Seconds: of training steps; of a validation with what it saves; of a token of a static walk,
    and at each temperature beyond the first; of both by Monte Carlo dropout; of a token in the
    tuning of the cache; of a segment of dynamic evaluation; of a batch of its statistics."""

    pace: Pace
    validation: float
    token: float
    tempered: float
    masked_token: float
    masked_tempered: float
    cache_token: float
    segment: float
    statistics: float

    @property
    def step(self) -> float:
        """Of a training step, the mean over all."""
        return mean_seconds(self.pace)


@dataclass(frozen=True)
class Sizes:
    """Tokens of the splits, of the sealed one as its length in bytes suggests; of a segment."""

    valid: int
    test: int
    segment: int

    @property
    def tuning(self) -> int:
        return min(self.valid, TUNING_TOKENS)


@dataclass(frozen=True)
class After:
    """Seconds of what comes after the tuning of dynamic evaluation: its walk over validation, and
    all walks over the test split."""

    validation: float
    test: float


@dataclass(frozen=True)
class Plan:
    """steps: of training. reserve: seconds kept for measuring. dynamic: whether dynamic evaluation
    fits; if so, the seconds of a trial of its tuning, and of what comes after that."""

    steps: int
    reserve: float
    dynamic: bool
    trial: float = 0.0
    after: After = After(0.0, 0.0)


def measuring_seconds(rates: Rates, sizes: Sizes) -> tuple[float, float]:
    """What the static methods are expected to take, and what dynamic evaluation adds."""
    splits, tuning = sizes.valid + sizes.test, sizes.tuning
    tried = len(MASK_RATES) * SHARPENING_TOKENS
    static = rates.token * (tuning + splits) + rates.tempered * (SEARCH * tuning + splits)
    static += rates.masked_token * (tried + tuning + sizes.test)
    static += rates.masked_tempered * (len(SHARPER) - 1) * tried
    static += 2 * rates.cache_token * tuning
    adapting = rates.segment * (tuning + sizes.test) / sizes.segment
    adapting += rates.tempered * (len(TEMPERATURES) * tuning + sizes.test)
    adapting += rates.statistics * (dynamic.USUAL.batches or 0) + rates.cache_token * tuning
    adapting += DYNAMIC_TRIALS * trial_seconds(rates, sizes)
    return RESERVE * static, RESERVE * adapting


def trial_seconds(rates: Rates, sizes: Sizes) -> float:
    """Of a walk that tunes dynamic evaluation."""
    return rates.segment * min(dynamic.TUNING_TOKENS, sizes.valid) / sizes.segment


def after_tuning(rates: Rates, sizes: Sizes) -> After:
    """What the walks after it are expected to take."""
    tuning, token = sizes.tuning, rates.segment / sizes.segment
    valid = (token + rates.tempered * len(TEMPERATURES) + rates.cache_token) * tuning
    test = (rates.token + rates.masked_token + token + 2 * rates.tempered) * sizes.test
    return After(RESERVE * valid, RESERVE * test)


def planned(rates: Rates, sizes: Sizes, elapsed: float, limit: float) -> Plan:
    """The steps that fit between now and the measuring."""
    static, adapting = measuring_seconds(rates, sizes)
    with_dynamic = static + adapting <= MEASURING_SHARE * limit
    reserve = static + (adapting if with_dynamic else 0.0)
    left = limit * (1 - MARGIN) - elapsed - reserve
    steps = int((left - VALIDATIONS * rates.validation) / rates.step)
    if steps < VALIDATIONS:
        raise InfolmError(
            f"of {limit:.0f} seconds {elapsed:.0f} are gone and measuring takes about "
            f"{reserve:.0f}, which leaves no time to train (a step takes {rates.step:.2g} s): "
            "choose "
            "a smaller model, a shorter text, or more --minutes"
        )
    trial, after = trial_seconds(rates, sizes), after_tuning(rates, sizes)
    return Plan(steps, reserve, with_dynamic, trial, after)


def for_race(recipe: Recipe, steps: int, **changes: Any) -> Recipe:
    """The recipe, of so many steps, with validations at equal distances."""
    tree = recipe.model_dump(mode="json")
    tree["train"] |= {
        "epochs": 1_000_000,  # the steps decide
        "max_steps": steps,
        "validate_every": max(1, -(-steps // VALIDATIONS)),
        "accelerator": "cpu",
        **changes,
    }
    return Recipe.model_validate(tree)


class _StepTimes(Nobody):
    """When each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def step(self, progress: float, nll: float, tokens: int) -> None:
        self.times.append(time.monotonic())


def _trained(recipe: Recipe, out: Path, steps: int, report: Report) -> tuple[float, float]:
    """Seconds of a step, and of a validation with what it saves."""
    watcher = _StepTimes()
    train(for_race(recipe, steps, validate_every=steps), out, False, watcher, report)
    ended, (_, first, *_, last) = time.monotonic(), watcher.times
    return (last - first) / (steps - 2), ended - last


def _looked_at(recipe: Recipe, out: Path, seconds: float, report: Report) -> tuple[float, float]:
    """The same from a few steps, and from as many as then fit into the seconds."""
    began = time.monotonic()
    step, validation = _trained(recipe, out / FIRST, FEWEST_STEPS, report)
    more = int((seconds - (time.monotonic() - began)) / step)
    if more > FEWEST_STEPS:
        step, again = _trained(recipe, out / "second", more, report)
        validation = max(validation, again)
    return step, validation


def probe(recipe: Recipe, scratch: Path, limit: float, report: Report) -> tuple[Rates, int]:
    """The rates of the recipe on this machine, from a short training of each phase of its objective
    that is thrown away, and the tokens of the validation split."""
    phases = recipe.objective.phases()
    seconds = PROBE_SHARE * limit / len(phases)
    pace, validation = [], 0.0
    for number, (until, objective) in enumerate(phases):
        part = recipe.model_copy(update={"objective": objective})
        step, once = _looked_at(part, scratch / str(number), seconds, report)
        pace.append((math.ceil(VALIDATIONS * until) / VALIDATIONS, step))
        validation = max(validation, once)
    run = LanguageRun.open(scratch / "0" / FIRST)
    valid = run.corpus.splits["valid"].tokens
    return Rates(tuple(pace), validation, *_walking(run, valid)), len(valid)


def _walking(run: LanguageRun, valid: Any) -> tuple[float, ...]:
    """The rates of walks, from `Rates.token` on."""
    model, few = run.model, valid[: 4 * CHUNK + 1]
    static = _at_temperatures(model, few, STATIC)
    masked = _at_temperatures(model, few, Method(monte_carlo=MASKS))
    rows = min(LOOK, len(valid))
    hidden, targets = torch.randn(rows, model.widths[-1]), torch.arange(rows) % 97
    log_model = torch.full((rows,), -5.0)
    # A window grows up to 4,000 tokens here, and is that long later.
    cache = 1.6 * _seconds(lambda: neural_cache.tune(log_model, hidden, targets), 0) / rows
    segment = SEGMENTS[run.tokenizer.kind][0]
    settings = DynamicSettings(rate=1e-6, decay=1e-3, segment=segment)
    squares = {name: torch.ones_like(weight) for name, weight in model.named_parameters()}
    several = valid[: 6 * segment + 1]
    adapting = _seconds(lambda: [*dynamic.dynamic_stream(model, several, settings, squares)])
    batches = StatisticsSettings(3)
    train_tokens = run.corpus.splits["train"].tokens
    gradients = _seconds(lambda: dynamic.gradient_statistics(model, train_tokens, batches), 0)
    per_segment = adapting / -(-(len(several) - 1) // segment)
    return *static, *masked, cache, per_segment, gradients / 3


def _at_temperatures(model: LanguageModel, tokens: Any, method: Method) -> tuple[float, float]:
    """Seconds of a token of the walk, and at each temperature beyond the first."""
    one = _seconds(lambda: [*walk(model, tokens, method, CHUNK)])
    three = _seconds(lambda: [*walk(model, tokens, method, CHUNK, (1.0, 0.9, 1.1))], 0)
    count = len(tokens) - 1
    return one / count, max(three - one, 0) / (2 * count)


def _seconds(work: Callable[[], object], warm_up: int = 1) -> float:
    for _ in range(warm_up):
        work()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
