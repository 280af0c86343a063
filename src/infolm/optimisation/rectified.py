"""Rectified Adam by PyTorch's fused step of Adam, which its own RAdam does not have."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, optim

WITHOUT_SQUARES = 2.0**80
"""An epsilon beside which the root of the mean square is lost, so that Adam's step times it is the
mean gradient alone; a power of two, so that it rounds nothing."""


def rectified(rate: float, epsilon: float, beta2: float, step: int) -> tuple[float, float]:
    """The rate and epsilon with which Adam's step number `step` (from 1) is RAdam's.

    RAdam (Liu et al. 2019, algorithm 2): with rho_inf = 2 / (1 - beta2) - 1 and
    rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t),

        w <- w - rate r_t m^ sqrt(1 - beta2^t) / (sqrt(v) + epsilon)    if rho_t > 5,
        r_t^2 = (rho_t - 4) (rho_t - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho_t),
        w <- w - rate m^                                                otherwise.

    Adam's step is w <- w - rate m^ / (sqrt(v) / sqrt(1 - beta2^t) + epsilon).
    """
    unseen = 1 - beta2**step
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * step * beta2**step / unseen
    if length <= 5:  # PyTorch's bound; the paper has 4
        return rate * WITHOUT_SQUARES, WITHOUT_SQUARES
    share = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return rate * math.sqrt(share), epsilon / math.sqrt(unseen)


class RAdam(optim.Adam):
    """Adam with the rate and epsilon of `rectified` in each step."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        own = [(group["lr"], group["eps"]) for group in self.param_groups]
        try:
            for group in self.param_groups:
                rate, epsilon, (_, beta2) = group["lr"], group["eps"], group["betas"]
                step = self._taken(group["params"]) + 1
                group["lr"], group["eps"] = rectified(rate, epsilon, beta2, step)
            return super().step(closure)
        finally:
            for group, (rate, epsilon) in zip(self.param_groups, own, strict=True):
                group["lr"], group["eps"] = rate, epsilon

    def _taken(self, parameters: Sequence[Tensor]) -> int:
        """Steps of the first parameter that has had a gradient."""
        return next((int(self.state[p]["step"]) for p in parameters if p in self.state), 0)
