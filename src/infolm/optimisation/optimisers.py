"""Optimisers by name. All are PyTorch's fused kernels: a step is one pass over the parameters."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field
from torch import nn, optim

from infolm.optimisation.rectified import RAdam
from infolm.optimisation.schedule import ScheduleConfig
from infolm.registry import Registry
from infolm.section import Section


class OptimiserConfig(Section):
    """The section of a recipe that describes an optimiser. Every kind is registered.

    copies: numbers that it keeps for each parameter.
    """

    copies: ClassVar[int] = 0
    if TYPE_CHECKING:
        kind: str
    learning_rate: float = Field(gt=0, description="learning rate of a step of the base length")
    weight_decay: float = Field(
        0.0, ge=0, description="times the parameter, added to the gradient after clipping"
    )
    l2_penalty: float = Field(
        0.0, ge=0, description="the same before clipping: adds l2/2 w^2 to the loss"
    )
    clip: float | None = Field(
        None, gt=0, description="maximum norm of the gradient; none: no clipping"
    )
    schedule: ScheduleConfig = ScheduleConfig()

    @abstractmethod
    def build(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        """The optimiser of the parameters."""


OPTIMISERS: Registry[OptimiserConfig] = Registry("infolm.optimisation")


@OPTIMISERS.register
class SGDConfig(OptimiserConfig):
    """Plain stochastic gradient descent: w <- w - rate (g + decay w)."""

    kind: Literal["sgd"] = "sgd"

    def build(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        rate, decay = self.learning_rate, self.weight_decay
        return optim.SGD(parameters, lr=rate, weight_decay=decay, fused=True)


class _Adaptive(OptimiserConfig):
    copies = 2
    beta1: float = Field(
        0.9, ge=0, lt=1, description="decay of the running mean of gradients; 0: none"
    )
    beta2: float = Field(
        0.999, ge=0, lt=1, description="decay of the running mean of their squares"
    )

    @property
    def betas(self) -> tuple[float, float]:
        return self.beta1, self.beta2


@OPTIMISERS.register
class AdamConfig(_Adaptive):
    """Adam (Kingma & Ba 2014)."""

    kind: Literal["adam"] = "adam"

    def build(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        rate, decay = self.learning_rate, self.weight_decay
        return optim.Adam(parameters, lr=rate, weight_decay=decay, betas=self.betas, fused=True)


@OPTIMISERS.register
class RAdamConfig(_Adaptive):
    """Rectified Adam (Liu et al. 2019), which limits the variance of the early steps."""

    kind: Literal["radam"] = "radam"

    def build(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        rate, decay = self.learning_rate, self.weight_decay
        return RAdam(parameters, lr=rate, weight_decay=decay, betas=self.betas, fused=True)


@OPTIMISERS.register
class AdamWConfig(_Adaptive):
    """Adam with decoupled weight decay, applied only to matrices (Loshchilov & Hutter 2019): biases
    and LayerNorms do not decay, as in BERT."""

    kind: Literal["adamw"] = "adamw"
    epsilon: float = Field(1e-6, gt=0, description="added to the root of the mean square")

    def build(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        every = list(parameters)
        groups = [
            {"params": [p for p in every if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in every if p.ndim < 2], "weight_decay": 0.0},
        ]
        rate = self.learning_rate
        return optim.AdamW(groups, lr=rate, betas=self.betas, eps=self.epsilon, fused=True)


def load_optimiser(optimiser: optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a `state_dict` from a file, where the keys of slots are strings."""
    slots = {int(index): slot for index, slot in state["state"].items()}
    optimiser.load_state_dict({**state, "state": slots})
