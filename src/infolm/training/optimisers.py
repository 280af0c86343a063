"""Optimisers by name."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import nn, optim

from infolm.section import Section
from infolm.training.schedule import ScheduleConfig


class _Common(Section):
    learning_rate: float = Field(gt=0, description="of a step of the base length")
    weight_decay: float = Field(
        0.0, ge=0, description="times the weight, added to the gradient that has been clipped"
    )
    l2_penalty: float = Field(
        0.0, ge=0, description="the same before it is clipped: half of it times w^2 is in the loss"
    )
    clip: float | None = Field(None, gt=0, description="largest norm of the gradient; none: any")
    schedule: ScheduleConfig = ScheduleConfig()


class SGDConfig(_Common):
    """Plain stochastic gradient descent: w <- w - rate (g + decay w)."""

    kind: Literal["sgd"] = "sgd"


class _Adaptive(_Common):
    beta1: float = Field(0.9, ge=0, lt=1, description="of the running mean of gradients; 0: none")
    beta2: float = Field(0.999, ge=0, lt=1, description="of the running mean of their squares")


class AdamConfig(_Adaptive):
    """Adam (Kingma & Ba 2014)."""

    kind: Literal["adam"] = "adam"


class RAdamConfig(_Adaptive):
    """Rectified Adam (Liu et al. 2019): the variance of its early steps is held down."""

    kind: Literal["radam"] = "radam"


class AdamWConfig(_Adaptive):
    """Adam whose weight decay is a step of its own, and of matrices alone (Loshchilov & Hutter
    2019): no bias and no LayerNorm is drawn to 0, as BERT has it."""

    kind: Literal["adamw"] = "adamw"
    epsilon: float = Field(1e-6, gt=0, description="added to the root of the mean square")


AnyOptimiserConfig = SGDConfig | AdamConfig | RAdamConfig | AdamWConfig
OptimiserConfig = Annotated[AnyOptimiserConfig, Field(discriminator="kind")]


def build_optimiser(
    config: AnyOptimiserConfig, parameters: Iterable[nn.Parameter]
) -> optim.Optimizer:
    """The optimiser that `config` describes."""
    rate, decay = config.learning_rate, config.weight_decay
    if isinstance(config, SGDConfig):
        return optim.SGD(parameters, lr=rate, weight_decay=decay)
    betas = (config.beta1, config.beta2)
    if isinstance(config, AdamWConfig):
        every = list(parameters)
        groups = [
            {"params": [p for p in every if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in every if p.ndim < 2], "weight_decay": 0.0},
        ]
        return optim.AdamW(groups, lr=rate, betas=betas, eps=config.epsilon, fused=True)
    rule = optim.RAdam if isinstance(config, RAdamConfig) else optim.Adam
    return rule(parameters, lr=rate, weight_decay=decay, betas=betas)


def load_optimiser(optimiser: optim.Optimizer, state: dict[str, Any]) -> None:
    """Go back to a `state_dict` that was in a file, where the keys of slots are strings."""
    slots = {int(index): slot for index, slot in state["state"].items()}
    optimiser.load_state_dict({**state, "state": slots})
