"""One fine-tuning: a network trained for some epochs, measured on dev after each.

AdamW with weight decay 0.01 on matrices, a rate that rises over the first tenth of the steps and
falls on a line to 0, gradients of norm 1 at most: as BERT is fine-tuned (Devlin et al. 2019).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from infolm.errors import RunError
from infolm.finetuning.networks import Pretrained
from infolm.finetuning.problems import Problem, Scores
from infolm.optimisation.optimisers import AdamWConfig
from infolm.optimisation.schedule import linear
from infolm.training.device import one_device

CLIP = 1.0
DECAY = 0.01
WARM_UP = 0.1
"""The share of the steps in which the rate rises."""

Watch = Callable[[int, float], None]
"""Told the number of steps done, and the loss of the last."""


@dataclass(frozen=True)
class Settings:
    """seed: of the new layer's weights, of dropout and of the order of the examples."""

    learning_rate: float
    batch: int
    epochs: int
    seed: int


@dataclass(frozen=True)
class Epoch:
    """loss: the mean over the training sequences, while they were learnt. The rest is `Measured`
    after it."""

    loss: float
    choice: Scores
    dev: Scores
    answers: dict[str, int]


@dataclass(frozen=True)
class Trial:
    """best: the number of the epoch, from 0 on, that is best on the examples to choose by."""

    settings: Settings
    epochs: list[Epoch]
    best: int


def score(scores: Scores, metric: str) -> float:
    """What is to be as high as possible: the metric, the mean of MNLI's two parts."""
    return sum(part[metric] for part in scores.values()) / len(scores)


def steps_of(problem: Problem, settings: Settings) -> int:
    return settings.epochs * -(-len(problem.train) // settings.batch)


def fine_tune(
    problem: Problem, encoder: Pretrained, settings: Settings, watch: Watch
) -> tuple[Trial, dict[str, Tensor]]:
    """The trial, and the weights after its best epoch; of equals the earlier.

    A function of its arguments: PyTorch's global generator is left as it was.
    """
    fabric = one_device("auto")
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        network = problem.network(encoder)
        network.to(fabric.device)
        return _trained(problem, network, settings, watch)


def _trained(
    problem: Problem, network: nn.Module, settings: Settings, watch: Watch
) -> tuple[Trial, dict[str, Tensor]]:
    config = AdamWConfig(learning_rate=settings.learning_rate, weight_decay=DECAY)
    optimiser = config.build(network.parameters())
    steps, step = steps_of(problem, settings), 0
    epochs, best, weights = list[Epoch](), 0, dict[str, Tensor]()
    for epoch in range(settings.epochs):
        network.train()
        total = 0.0
        for numbers in problem.train.drawn(settings.batch, settings.seed, epoch):
            step += 1
            scale = linear(step, (step - 1) / steps, math.ceil(WARM_UP * steps))
            for group in optimiser.param_groups:
                group["lr"] = scale * settings.learning_rate
            loss = problem.loss(network, numbers)
            if not math.isfinite(value := loss.item()):
                raise RunError(
                    f"the loss of step {step:,} is {value} (learning rate "
                    f"{settings.learning_rate:g}, batch {settings.batch}, seed {settings.seed}): "
                    "take a lower --learning-rate; nothing was written"
                )
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            optimiser.step()
            total += value * len(numbers)
            watch(step, value)
        network.eval()
        with torch.inference_mode():
            measured = problem.measure(network)
        epochs.append(Epoch(total / len(problem.train), **vars(measured)))
        first = problem.metrics[0]
        if not epoch or score(epochs[-1].choice, first) > score(epochs[best].choice, first):
            best = epoch
            weights = {name: w.to("cpu", copy=True) for name, w in network.state_dict().items()}
    return Trial(settings, epochs, best), weights
