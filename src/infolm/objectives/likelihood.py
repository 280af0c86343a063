"""Maximum likelihood, with AWD-LSTM's two penalties on activations and averaged dropout samples."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from infolm.data.parts import share
from infolm.data.stream import Batch
from infolm.metrics import Described, describe
from infolm.models.language import LanguageModel, Output, State
from infolm.nn.contrast import wide
from infolm.nn.draws import side_by_side, uniform
from infolm.objectives.base import OBJECTIVES, Estimate, Needs, ObjectiveConfig, Setup

describe(
    "language",
    Described(
        "nll",
        unit="nats per token",
        better="down",
        meaning="mean negative log-likelihood of the tokens",
        heading="nats per token",
    ),
    Described("ar", "activation penalty", meaning="activation regularisation, before its weight"),
    Described(
        "tar",
        "temporal penalty",
        meaning="temporal activation regularisation, before its weight",
    ),
)


class ActivationConfig(ObjectiveConfig):
    """Settings of language-model objectives, with AWD-LSTM's penalties on activations."""

    needs: ClassVar[Needs] = {"model.capability": ("language",), "feed.gives": ("text",)}
    kind: str
    ar: float = Field(0.0, ge=0, description="activation regularisation, alpha")
    tar: float = Field(0.0, ge=0, description="temporal activation regularisation, beta")
    state_reset: float = Field(
        0.0,
        ge=0,
        le=1,
        description="probability that a stream's carried state is set to 0 before a window",
    )


@OBJECTIVES.register
class LikelihoodConfig(ActivationConfig):
    """Negative log-likelihood per token, plus AR and TAR."""

    kind: Literal["likelihood"] = "likelihood"
    dropout_samples: int = Field(
        1, ge=1, description="masks D over which each token's probability is averaged"
    )

    def build(self, setup: Setup) -> "Likelihood":
        return Likelihood(self)


def activation_penalty(dropped: Tensor, counted: Tensor | None = None) -> Tensor:
    """AR (Merity et al. 2017, section 4.6): the mean square of the dropped output m * h_t.

    dropped: (T, B, H); counted: (T, B), the steps that are no padding, if some are.
    """
    return _mean_square(dropped, counted)


def temporal_activation_penalty(hidden: Tensor, counted: Tensor | None = None) -> Tensor:
    """TAR (section 4.6): the mean square of h_{t+1} - h_t of the undropped output.

    Zero for a single time step.
    """
    if len(hidden) < 2:
        return hidden.new_zeros(())
    return _mean_square(hidden[1:] - hidden[:-1], None if counted is None else counted[1:])


def _mean_square(x: Tensor, counted: Tensor | None) -> Tensor:
    return wide(x if counted is None else x[counted]).square().mean()


def carried_on(streams: int, samples: int, state_reset: float) -> Tensor:
    """Which of D B columns keep their state, (D B,): the D samples of a stream together.

    With probability `state_reset` a stream starts from zeros, as a text does in evaluation (the
    program of Melis et al. 2020 has 0.01).
    """
    drawn = uniform((streams,), 0, torch.float, torch.device("cpu"))
    return (drawn >= state_reset).repeat(samples)


def read(
    model: LanguageModel,
    batch: Batch,
    carry: State | None,
    samples: int = 1,
    state_reset: float = 0.0,
) -> Output:
    """The model's output on the batch, with `samples` copies of its columns: (T, D B, H).

    It starts from the state `carry`, or from zeros if there is none, if the batch is fresh, or if a
    stream is not `carried_on` in training.
    """
    streams = batch.tokens.shape[1]
    if batch.fresh or carry is None:
        carry = model.initial_state(streams * samples)
    elif model.training and state_reset:
        carry = model.kept(carry, carried_on(streams, samples, state_reset).to(model.device))
    with side_by_side(samples):
        return model(batch.tokens.repeat(1, samples), carry)


def counted_tokens(batch: Batch) -> int:
    """The number of targets that are not padding."""
    return int((batch.targets >= 0).sum())


def regularised(
    model: LanguageModel,
    loss: Tensor,
    terms: dict[str, Tensor],
    output: Output,
    batch: Batch,
    config: ActivationConfig,
) -> Estimate:
    """The batch's share of `loss`, a mean over its targets that are no padding, with `config`'s
    penalties on `output`.

    The output's state is carried on, without gradient.
    """
    targets = batch.targets
    counted = targets >= 0
    count = int(counted.sum())
    own = share(batch, counted_tokens)
    loss = own * loss
    samples = output.dropped.shape[1] // targets.shape[1]
    padded = None if count == targets.numel() else counted.repeat(1, samples)
    if config.ar:
        ar = activation_penalty(output.dropped, padded)
        loss = loss + own * config.ar * ar
        terms["ar"] = ar.detach()
    if config.tar:
        tar = temporal_activation_penalty(output.hidden, padded)
        changes = share(batch, lambda each: (each.targets[1:] >= 0).sum())
        loss = loss + changes * config.tar * tar
        terms["tar"] = tar.detach()
    return Estimate(loss, terms, count, model.detached(output.state))


class Likelihood:
    """loss = -1/N sum_t ln(1/D sum_d p(x_{t+1} | x_{<=t}, M^d)) + alpha AR + beta TAR.

    Minus the first term bounds the negative entropy rate of the text from below. The probabilities
    are averaged over D dropout masks (Melis 2023, section 4.3), an importance-weighted bound that
    is tighter than that of D = 1, the usual cross entropy. The D samples stand side by side in
    the batch, each with its own state; whole-word and weight dropout have one mask for them all.

    The state is carried from batch to batch without gradient (truncated back-propagation through
    time) and starts at zero where the batch is fresh. Targets of -1 are padding.
    """

    def __init__(self, config: LikelihoodConfig) -> None:
        self.config = config

    def __call__(self, model: LanguageModel, batch: Batch, carry: State | None) -> Estimate:
        samples = self.config.dropout_samples
        output = read(model, batch, carry, samples, self.config.state_reset)
        x = output.dropped
        if samples > 1:  # (T, D B, H) -> (T, B, D, H)
            x = x.unflatten(1, (samples, -1)).transpose(1, 2)
        nll = model.nll_sum(x, batch.targets) / (batch.targets >= 0).sum()
        terms = {"nll": nll.detach()}
        return regularised(model, nll, terms, output, batch, self.config)
