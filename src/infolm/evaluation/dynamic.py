"""Dynamic evaluation: the model trains on each segment of a text after predicting it.

Krause, Kahembwe, Murray and Renals (2017), with the ranges of Melis (2023, table 2.6). With theta_0
the trained weights and g the gradient of a segment's mean loss, after the segment was measured,

    rms    theta <- theta - eta g / (RMS + epsilon) + d (theta_0 - theta),
           d = min(lambda RMS / mean(RMS), 1),
    sgd    theta <- theta - eta g + lambda (theta_0 - theta).

RMS is the root of the mean square of the gradient on the training split, for each parameter, and
mean(RMS) its mean over all parameters, as in Melis's program, or over those of the same tensor, as
in Krause's: parameters with large usual gradients move in small steps and decay back fast. With eta
= 0 this is the model itself. Dropout is off unless each dropout sample adapts by itself (see
`monte_carlo`), and the gradient is that of the plain softmax, whatever temperature it is measured
at.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infolm.errors import InfolmError
from infolm.evaluation.likelihood import PLAIN, Chunk, Progress, cuts, tempered
from infolm.evaluation.monte_carlo import MonteCarlo
from infolm.models.language import LanguageModel
from infolm.nn.softmax import Tempering

Rule = Literal["rms", "sgd"]
MeanOver = Literal["all", "tensor"]
"""What mean(RMS) is a mean over: all parameters, or those of the same tensor."""
Statistics = Mapping[str, Tensor]
"""The mean square gradient of each parameter, by its name."""

TUNING_TOKENS = 5_000
"""Most tokens for tuning, from the start of the validation split."""
TRIALS = 12
"""The approximate number of passes that `tune` makes over them."""
IMPROVEMENT = 1e-4
"""Nats per token below which a trial is no better than another."""


@dataclass(frozen=True)
class StatisticsSettings:
    """Which gradients' squares are averaged: those of the mean loss of columns x steps tokens.

    The training split is folded into `columns`. At most `batches` are taken, from the start of each
    column, so they are spread over the split; None: the whole split. Melis (2023, section
    2.A) takes all of it, in batches of 1,024 columns. With m times the tokens in a batch, RMS is up
    to sqrt(m) times smaller, and the best rate and epsilon with it.
    """

    batches: int | None = 200
    columns: int = 64
    steps: int = 20

    def __post_init__(self) -> None:
        batches = 1 if self.batches is None else self.batches
        if min(batches, self.columns, self.steps) < 1:
            raise InfolmError(
                "statistics of gradients need 1 batch or more, of 1 column and 1 step or more, not "
                f"{self.batches}, {self.columns} and {self.steps}"
            )

    def __str__(self) -> str:
        batches = "all" if self.batches is None else f"{self.batches:,}"
        return f"{batches} batches of {self.columns:,} x {self.steps} tokens"


USUAL = StatisticsSettings()
FORMER_STATISTICS = StatisticsSettings(200, 64, 20)
"""The statistics of a file that does not name them."""


@dataclass(frozen=True)
class DynamicSettings:
    """rate: eta. decay: lambda. segment: tokens between updates.

    For the rms rule, mean: what mean(RMS) averages over; statistics: the gradients of RMS.
    """

    rate: float
    decay: float
    epsilon: float = 1e-4
    segment: int = 20
    rule: Rule = "rms"
    mean: MeanOver = "all"
    statistics: StatisticsSettings = USUAL

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> "DynamicSettings":
        """From the `asdict` of settings, which may be older than some of their fields."""
        statistics = StatisticsSettings(**kept.get("statistics", asdict(FORMER_STATISTICS)))
        return cls(**{**kept, "statistics": statistics})

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
    """Gradients without dropout; in training mode, which the fused kernels of GPUs require."""
    training = model.training
    model.train()
    try:
        with torch.enable_grad(), model.dropout_scaled(0.0):
            yield
    finally:
        model.train(training)


def gradients(model: LanguageModel, nll: Tensor) -> list[Tensor]:
    """The gradient of every parameter in order; zeros if the loss does not depend on it."""
    return list(
        torch.autograd.grad(
            nll, list(model.parameters()), allow_unused=True, materialize_grads=True
        )
    )


def gradient_statistics(
    model: LanguageModel,
    tokens: npt.NDArray[Any],
    settings: StatisticsSettings = USUAL,
    report: Progress | None = None,
) -> dict[str, Tensor]:
    """The mean square gradient on `tokens` (N,), the training split.

    A short text is folded into fewer columns. The state is carried along each. The rest of a column
    after its last full batch is not read.
    """
    steps = settings.steps
    columns = min(settings.columns, len(tokens) // (steps + 1))
    if not columns:
        raise InfolmError(
            f"dynamic evaluation needs statistics of the training split, which has {len(tokens)} "
            f"tokens, fewer than {steps + 1}: use --dynamic-rule sgd, which needs none"
        )
    height = len(tokens) // columns
    folded = tokens[: columns * height].reshape(columns, height)
    starts = range(0, height - steps, steps)[: settings.batches]
    squares = [torch.zeros_like(parameter) for parameter in model.parameters()]
    state = model.initial_state(columns)
    for done, start in enumerate(starts, 1):
        cut = torch.from_numpy(folded[:, start : start + steps + 1].T.astype(np.int64))
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


def mean_rms(rms: Sequence[Tensor], over: MeanOver) -> list[float]:
    """mean(RMS) for each tensor: its own, or that of all parameters."""
    sums = [float(each.sum(dtype=torch.float64)) for each in rms]
    sizes = [each.numel() for each in rms]
    if over == "tensor":
        return [total / size for total, size in zip(sums, sizes, strict=True)]
    return [sum(sums) / sum(sizes)] * len(rms)


class Adaptation:
    """Inside, the model's weights may be updated; afterwards they are restored to the bit."""

    def __init__(
        self, model: LanguageModel, settings: DynamicSettings, statistics: Statistics | None
    ) -> None:
        self.model = model
        # PyTorch refuses a factor that the parameters' precision cannot hold; the largest that it
        # can hold diverges as well, and the caller says so.
        largest = torch.finfo(next(model.parameters()).dtype).max
        self.rate, self.decay = min(settings.rate, largest), settings.decay
        self.steps: list[Tensor] | None = None  # eta / (RMS + epsilon)
        if settings.rule == "rms":
            if statistics is None:
                raise InfolmError(
                    "dynamic evaluation by the rms rule needs the mean square gradients of the "
                    "training split: collect them, or use the rule sgd"
                )
            rms = [statistics[name].sqrt() for name, _ in model.named_parameters()]
            means = mean_rms(rms, settings.mean)
            self.steps = [settings.rate / (each + settings.epsilon) for each in rms]
            # A tensor that no gradient reaches has RMS 0: it does not move.
            self.pulls = [
                (settings.decay / mean * each).clamp(max=1) if mean else each
                for each, mean in zip(rms, means, strict=True)
            ]

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
    tempering: Tempering = "mixture",
) -> Generator[Chunk]:
    """Walk through `tokens` (N,) once, adapting the weights to the text; see `one_stream`.

    A chunk is a segment, measured with the weights adapted to all segments before it: by dropout
    `samples` if given, or else by the model itself. The weights are restored when the walk ends,
    also when it is closed before its end.
    """
    if samples and samples.settings.adaptation == "own":
        yield from _each_sample_by_itself(
            model, tokens, settings, statistics, temperatures, samples, report, tempering
        )
        return
    state = model.initial_state(1)
    with Adaptation(model, settings, statistics) as adaptation:
        for inputs, targets in cuts(tokens, settings.segment, model.device, report):
            with learning(model):
                output = model(inputs[:, None], state)
                hidden = output.hidden[:, 0]
                nll = model.nll_sum(hidden, targets) / len(targets)
            state, hidden = model.detached(output.state), hidden.detach()
            if samples:
                yield samples.read(inputs, targets, temperatures, tempering)
            else:
                log_probs = tempered(model, hidden, targets, temperatures, tempering)
                yield Chunk(log_probs, hidden, targets)
            adaptation.update(nll)


def _each_sample_by_itself(
    model: LanguageModel,
    tokens: npt.NDArray[Any],
    settings: DynamicSettings,
    statistics: Statistics | None,
    temperatures: Sequence[float],
    samples: MonteCarlo,
    report: Progress | None,
    tempering: Tempering,
) -> Generator[Chunk]:
    """The same with M adaptations: of each sample by the gradient under its own masks.

    M sets of weights would not fit into memory, so the samples read the text one after the other:
    M walks. Of each walk only the probabilities of all tokens are kept, (K, N - 1, M), and one
    output for each token.
    """

    def progress(sample: int) -> Progress | None:
        whole = samples.settings.samples
        return report and (lambda done, total: report(sample * total + done, whole * total))

    device = model.device
    adaptation = Adaptation(model, settings, statistics)
    every, hidden = [], torch.zeros((), device=device)
    for i, seeds in enumerate(samples.generators()):
        state, log_p, outputs = model.initial_state(1), [], []
        with adaptation:
            for inputs, targets in cuts(tokens, settings.segment, device, progress(i)):
                with torch.enable_grad(), samples.dropping(seeds):
                    output = model(inputs[:, None], state)
                    dropped = output.dropped[:, 0]
                    nll = model.nll_sum(dropped, targets) / len(targets)
                state = model.detached(output.state)
                dropped = dropped.detach()
                log_p.append(tempered(model, dropped, targets, temperatures, tempering).cpu())
                outputs.append(output.hidden[:, 0].detach())
                adaptation.update(nll)
        every.append(torch.cat(log_p, 1))
        hidden = hidden + torch.cat(outputs)
    stacked = torch.stack(every, 2)  # (K, N - 1, M)
    start = 0
    for _, targets in cuts(tokens, settings.segment, device):
        part = slice(start, start + len(targets))
        yield samples.averaged(stacked[:, part].to(device), hidden[part], targets)
        start = part.stop


def climb(loss: Callable[[float], float], start: float, factor: float) -> float:
    """The best of start x factor^k: from `start` up or else down, as long as it improves by more
    than IMPROVEMENT. If the loss is not finite, first down to where it is.
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
    enough: Callable[[], bool] = lambda: False,
) -> DynamicSettings:
    """Tune the settings on `tokens`, of the validation split, from `start`, one after the other.

    First the rate, in factors of about 3, then the decay, in factors of 10; for the rms rule the
    rate in factors of about 1.8 and epsilon in factors of about 3; then the segment, one of
    `segments` in order as long as that improves, and the rate once more. Each trial reads the
    first TUNING_TOKENS. enough: asked before each trial but the first; where it is true there is no
    further one, and the best so far is given.
    """
    tokens = tokens[: TUNING_TOKENS + 1]
    losses: dict[DynamicSettings, float] = {}

    def loss(settings: DynamicSettings) -> float:
        if settings not in losses:
            if losses and enough():
                return math.inf
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
        near = best_rate(best, 10**0.25)

        def along(factor: float) -> DynamicSettings:
            # A larger epsilon makes steps shorter, most where RMS is small, so the rate grows with
            # it: at a fixed rate none but the first epsilon would look good.
            return replace(near, epsilon=factor * near.epsilon, rate=factor**0.75 * near.rate)

        best = along(climb(lambda factor: loss(along(factor)), 1.0, 10**0.5))
    for segment in segments:
        # With more updates per token each is smaller, so that a text moves the weights as much.
        share = segment / best.segment
        trial = replace(best, segment=segment, rate=share * best.rate, decay=share * best.decay)
        if not loss(trial) < loss(best) - IMPROVEMENT:
            break
        best = trial
    best = best_rate(best, 10**0.25)
    if report:
        report(len(losses), len(losses))
    return best
