"""The gradient noise of a Monte Carlo objective by estimator.

Only the codes are redrawn; sentences and parameters are fixed. For a parameter with gradient g the
signal-to-noise ratio is |E g| / sd(g) (Rainforth et al. 2018, "Tighter variational bounds are not
necessarily better"). That of the inference network falls as 1 / sqrt(K) with IWAE's K samples, and
rises as sqrt(K) with DReG's (Tucker et al. 2018).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from infolm.data.sentences import SentenceBatch
from infolm.errors import InfolmError
from infolm.evaluation.gradient_variance import GROUPS, Moments, stderr
from infolm.evaluation.likelihood import Progress
from infolm.evaluation.usage import seeded
from infolm.models.latent import LatentModel
from infolm.objectives.monte_carlo import MonteCarlo, MonteCarloConfig

READING = ("encoder.", "forwards.", "latent.")
"""The prefixes of the inference network's parameters."""
SHARED, CODES = "embedding", "latent.embedding"
"""Parameters of both encoder and decoder; of the decoder only, for categorical codes."""


@dataclass(frozen=True)
class Signal:
    """The precision of a gradient g with W parameters, estimated from N draws.

    ratio: the mean of |E g_w| / sd(g_w) over the parameters that vary. Without any signal it is
    about sqrt(2 / (pi N)), and no less. signal: |E g|^2, unbiased, so that it may be below 0.
    noise: E|g - E g|^2.
    """

    ratio: float
    ratio_stderr: float
    signal: float
    signal_stderr: float
    noise: float
    noise_stderr: float


class Signals(NamedTuple):
    """The precision of the inference network's and of the decoder's parameters."""

    encoder: Signal
    decoder: Signal


def floor(draws: int) -> float:
    """The ratio that this many draws give without a signal."""
    return math.sqrt(2 / (math.pi * draws))


def signal_to_noise(
    model: LatentModel,
    batch: SentenceBatch,
    configs: Sequence[MonteCarloConfig],
    draws: int = 200,
    seed: int = 1,
    report: Progress | None = None,
) -> list[Signals]:
    """The precision of the gradient of each objective on `batch`, from `draws` of it, without
    dropout. Standard errors are those between `GROUPS` groups of draws.

    Example, of a `model` and a `batch` whose rows are tensors:

        one, many = (MonteCarloConfig(estimator="iwae", samples=count) for count in (1, 16))
        first, second = signal_to_noise(model, batch, [one, many])
        first.encoder.ratio > second.encoder.ratio
    """
    if draws < 2 * GROUPS:
        raise InfolmError(
            f"{draws} gradients are too few to estimate a variance and its error: use at least "
            f"{2 * GROUPS}, "
            "or 200 as usual"
        )
    found = []
    training = model.training
    model.eval()
    try:
        # cuDNN's layers have no gradient outside training.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            for number, config in enumerate(configs):
                groups = _moments(model, batch, config, draws, seed)
                found.append(Signals(*(_signal(side) for side in zip(*groups, strict=True))))
                if report:
                    report(number + 1, len(configs))
    finally:
        model.train(training)
    return found


def sides(model: LatentModel) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters of the inference network and of the decoder; neither has the embedding."""
    encoder: list[nn.Parameter] = []
    decoder: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        if weight.requires_grad and name != SHARED:
            reads = name.startswith(READING) and name != CODES
            (encoder if reads else decoder).append(weight)
    return encoder, decoder


def _moments(
    model: LatentModel, batch: SentenceBatch, config: MonteCarloConfig, draws: int, seed: int
) -> list[tuple[Moments, Moments]]:
    """Of both sides' gradients, in groups of draws."""
    objective, (encoder, decoder) = MonteCarlo(config), sides(model)
    groups = []
    with seeded(seed):
        objective(model, batch, None)  # reinforce has no baseline before
        for group in np.array_split(np.arange(draws), GROUPS):
            moments = Moments(), Moments()
            for _ in group:
                loss = objective(model, batch, None).loss
                gradients = torch.autograd.grad(
                    loss, [*encoder, *decoder], materialize_grads=True, allow_unused=True
                )
                moments[0].add(_flat(gradients[: len(encoder)]))
                moments[1].add(_flat(gradients[len(encoder) :]))
            groups.append(moments)
    return groups


def _flat(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def _signal(groups: Sequence[Moments]) -> Signal:
    whole = Moments()
    for group in groups:
        whole.merge(group)
    return Signal(
        _ratio(whole),
        stderr([_ratio(group) for group in groups]),
        whole.signal,
        stderr([group.signal for group in groups]),
        whole.noise,
        stderr([group.noise for group in groups]),
    )


def _ratio(moments: Moments) -> float:
    varies = moments.variance > 0
    return float((moments.mean[varies].abs() / moments.variance[varies].sqrt()).mean())
