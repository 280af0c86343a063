"""Dynamic evaluation: a model that learns from each segment of a text once it has predicted it.

Krause, Kahembwe, Murray and Renals (2017), with the ranges of Melis (2023, table 2.6). With theta_0
the trained weights and g the gradient of a segment's mean loss, after the segment was measured,

    rms    theta <- theta - eta g / (RMS + epsilon) + d (theta_0 - theta),
           d = min(lambda RMS / mean(RMS), 1),
    sgd    theta <- theta - eta g + lambda (theta_0 - theta).

RMS is the root of the mean square of the gradient on the training split, weight by weight, and
mean(RMS) its mean over all weights: what a text usually pulls at is moved in small steps and comes
back fast. With eta = 0 this is the model itself. Dropout is off, and the gradient that of the plain
softmax, whatever temperature it is measured at.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infolm.errors import InfolmError
from infolm.evaluation.likelihood import PLAIN, Chunk, Progress, cuts, tempered
from infolm.evaluation.monte_carlo import MonteCarlo
from infolm.models.language import LanguageModel

Rule = Literal["rms", "sgd"]
Statistics = Mapping[str, Tensor]
"""The mean square gradient of each parameter, by its name."""

COLUMNS, STEPS, BATCHES = 64, 20, 200
"""The gradient whose squares are averaged is that of the mean loss of COLUMNS x STEPS tokens. At
most so many BATCHES are taken, from the start of each column: all over the split."""

TUNING_TOKENS = 5_000
"""Settings are tuned on so many tokens at most, from the start of the validation split."""
TRIALS = 12
"""About so many walks through them `tune` takes."""
IMPROVEMENT = 1e-4
"""Nats a token below which a trial is no better than another."""


@dataclass(frozen=True)
class DynamicSettings:
    """rate: eta. decay: lambda. segment: tokens from one update to the next."""

    rate: float
    decay: float
    epsilon: float = 1e-4
    segment: int = 20
    rule: Rule = "rms"

    def __post_init__(self) -> None:
        bounded = all(0 <= number < math.inf for number in (self.rate, self.decay, self.epsilon))
        if self.segment < 1 or not bounded or self.epsilon == 0:
            raise InfolmError(
                "dynamic evaluation needs a rate and a decay of 0 or more, an epsilon above 0 and "
                f"segments of 1 token or more, not {self.rate}, {self.decay}, {self.epsilon} "
                f"and {self.segment}"
            )


@contextmanager
def learning(model: LanguageModel) -> Iterator[None]:
    """Gradients, and no dropout; in training mode, which the fused kernels of GPUs ask for."""
    training = model.training
    model.train()
    try:
        with torch.enable_grad(), model.dropout_scaled(0.0):
            yield
    finally:
        model.train(training)


def gradients(model: LanguageModel, nll: Tensor) -> list[Tensor]:
    """Of every parameter, in their order; zeros where the loss does not depend on it."""
    return list(
        torch.autograd.grad(
            nll, list(model.parameters()), allow_unused=True, materialize_grads=True
        )
    )


def gradient_statistics(
    model: LanguageModel, tokens: npt.NDArray[Any], report: Progress | None = None
) -> dict[str, Tensor]:
    """The mean square gradient on `tokens` (N,), the training split; see COLUMNS.

    A short text is folded into fewer columns. The state is carried along each.
    """
    columns = min(COLUMNS, len(tokens) // (STEPS + 1))
    if not columns:
        raise InfolmError(
            f"dynamic evaluation needs statistics of the training split, which has {len(tokens)} "
            f"tokens, fewer than {STEPS + 1}: use --dynamic-rule sgd, which needs none"
        )
    height = len(tokens) // columns
    folded = tokens[: columns * height].reshape(columns, height)
    starts = range(0, height - STEPS, STEPS)[:BATCHES]
    squares = [torch.zeros_like(parameter) for parameter in model.parameters()]
    state = model.initial_state(columns)
    for done, start in enumerate(starts, 1):
        cut = torch.from_numpy(folded[:, start : start + STEPS + 1].T.astype(np.int64))
        cut = cut.to(model.device)
        with learning(model):
            output = model(cut[:-1], state)
            nll = model.nll_sum(output.hidden, cut[1:]) / cut[1:].numel()
            found = gradients(model, nll)
        state = model.detached(output.state)
        torch._foreach_addcmul_(squares, found, found, 1 / len(starts))
        if report:
            report(done, len(starts))
    named = model.named_parameters()
    return {name: square for (name, _), square in zip(named, squares, strict=True)}


class Adaptation:
    """Inside, the model's weights may be updated; after, they are its own again, to the bit."""

    def __init__(
        self, model: LanguageModel, settings: DynamicSettings, statistics: Statistics | None
    ) -> None:
        self.model = model
        self.rate, self.decay = settings.rate, settings.decay
        self.steps: list[Tensor] | None = None  # eta / (RMS + epsilon)
        if settings.rule == "rms":
            if statistics is None:
                raise InfolmError(
                    "dynamic evaluation by the rms rule needs the mean square gradients of the "
                    "training split: collect them, or use the rule sgd"
                )
            rms = [statistics[name].sqrt() for name, _ in model.named_parameters()]
            mean = sum(float(each.sum(dtype=torch.float64)) for each in rms) / sum(
                each.numel() for each in rms
            )
            self.steps = [settings.rate / (each + settings.epsilon) for each in rms]
            self.pulls = [(settings.decay / mean * each).clamp(max=1) for each in rms]

    def __enter__(self) -> "Adaptation":
        self.parameters = list(self.model.parameters())
        self.own = [parameter.data for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()
        return self

    def __exit__(self, *_: object) -> None:
        for parameter, own in zip(self.parameters, self.own, strict=True):
            parameter.data = own

    @torch.no_grad()
    def update(self, nll: Tensor) -> None:
        """One step of the rule by the gradient of `nll`, the mean loss of a segment."""
        found = gradients(self.model, nll)
        weights = [parameter.data for parameter in self.parameters]
        if self.steps is None:
            torch._foreach_lerp_(weights, self.own, min(self.decay, 1.0))
            torch._foreach_add_(weights, found, alpha=-self.rate)
        else:
            torch._foreach_lerp_(weights, self.own, self.pulls)
            torch._foreach_addcmul_(weights, found, self.steps, -1.0)


def dynamic_stream(
    model: LanguageModel,
    tokens: npt.NDArray[Any],
    settings: DynamicSettings,
    statistics: Statistics | None = None,
    temperatures: Sequence[float] = PLAIN,
    samples: MonteCarlo | None = None,
    report: Progress | None = None,
) -> Generator[Chunk]:
    """Walk through `tokens` (N,) once, the weights following the text; see `one_stream`.

    A chunk is a segment, measured by the weights that all segments before it have led to: by
    dropout `samples` that go along, or else by the model itself. The weights are restored when
    the walk ends, also when it is closed before its end.
    """
    state = model.initial_state(1)
    with Adaptation(model, settings, statistics) as adaptation:
        for inputs, targets in cuts(tokens, settings.segment, model.device, report):
            with learning(model):
                output = model(inputs[:, None], state)
                hidden = output.hidden[:, 0]
                nll = model.nll_sum(hidden, targets) / len(targets)
            state, hidden = model.detached(output.state), hidden.detach()
            if samples:
                yield samples.read(inputs, targets, temperatures)
            else:
                yield Chunk(tempered(model, hidden, targets, temperatures), hidden, targets)
            adaptation.update(nll)


def climb(loss: Callable[[float], float], start: float, factor: float) -> float:
    """The best of start x factor^k: on from `start`, up or else down, for as long as it improves
    by more than IMPROVEMENT. Where the loss is no finite number, down to where it is, first.
    """

    def measured(value: float) -> float:
        found = loss(value)
        return found if math.isfinite(found) else math.inf

    lowest = measured(start)
    while lowest == math.inf and start > 1e-12:
        start /= factor
        lowest = measured(start)
    best = start
    for step in (factor, 1 / factor):
        while (found := measured(best * step)) < lowest - IMPROVEMENT:
            best, lowest = best * step, found
        if best != start:
            break
    return best


def tune(
    model: LanguageModel,
    tokens: npt.NDArray[Any],
    start: DynamicSettings,
    statistics: Statistics | None,
    segments: Sequence[int] = (),
    report: Progress | None = None,
) -> DynamicSettings:
    """Settings for `tokens`, of the validation split, from `start` on, one after the other.

    First the rate, in factors of about 3, then the decay and, for the rms rule, epsilon, in
    factors of 10, then the segment, one of `segments` in their order for as long as that improves,
    and the rate once more, in factors of about 1.8. Each trial reads the first TUNING_TOKENS.
    """
    tokens = tokens[: TUNING_TOKENS + 1]
    losses: dict[DynamicSettings, float] = {}

    def loss(settings: DynamicSettings) -> float:
        if settings not in losses:
            total = sum(
                float(chunk.log_probs.sum())
                for chunk in dynamic_stream(model, tokens, settings, statistics)
            )
            losses[settings] = -total / (len(tokens) - 1)
            if report:
                report(len(losses), max(TRIALS, len(losses) + 1))
        return losses[settings]

    def best_rate(settings: DynamicSettings, factor: float) -> DynamicSettings:
        rate = climb(lambda rate: loss(replace(settings, rate=rate)), settings.rate, factor)
        return replace(settings, rate=rate)

    best = best_rate(start, 10**0.5)
    decay = climb(lambda decay: loss(replace(best, decay=decay)), best.decay, 10)
    best = replace(best, decay=decay)
    if start.rule == "rms":
        epsilon = climb(lambda epsilon: loss(replace(best, epsilon=epsilon)), best.epsilon, 10)
        best = replace(best, epsilon=epsilon)
    for segment in segments:
        # With more updates to the token each is the smaller, so that a text moves as much.
        share = segment / best.segment
        trial = replace(best, segment=segment, rate=share * best.rate, decay=share * best.decay)
        if not loss(trial) < loss(best) - IMPROVEMENT:
            break
        best = trial
    best = best_rate(best, 10**0.25)
    if report:
        report(len(losses), len(losses))
    return best
