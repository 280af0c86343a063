"""The exponential moving average of the iterates."""

from typing import Literal

from pydantic import Field
from torch import nn

from infolm.averaging.base import AVERAGERS, AveragerConfig, OneMean


@AVERAGERS.register
class EmaConfig(AveragerConfig):
    """The mean of all iterates, each with `beta` times the weight of the next."""

    kind: Literal["ema"] = "ema"
    beta: float = Field(
        0.999, ge=0, lt=1, description="the decay; about 1/(1 - beta) iterates count; 0: the last"
    )

    def build(self, model: nn.Module) -> "Ema":
        return Ema(model, self)


class Ema(OneMean):
    """sum_i beta^{t-i} w_i / sum_i beta^{t-i}, with w_i the weights after step i = 1 ... t.

    The thesis's eq. 3.1 with a constant beta, but it starts without a value instead of with w_0
    (see `RunningMean`). beta = 0 is the iterate; beta towards 1, the mean of w_1 ... w_t.
    """

    def __init__(self, model: nn.Module, config: EmaConfig) -> None:
        super().__init__(model, config.beta)

    def update(self, step: int) -> None:
        self.mean.update(self.parameters)
