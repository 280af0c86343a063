"""The optimal softmax temperature on a text.

p_tau(w) = p(w)^(1/tau) / sum_v p(v)^(1/tau): tau = 1 is the model, below it is sharper. The
optimal temperature on the validation split is part of how Melis et al. (2018, 2020) measure a
model.

With beta = 1/tau and z = ln p, the loss of a token y is -beta z_y + ln sum_v exp(beta z_v). It is
convex in beta, with the slope E_beta[z] - z_y and the curvature Var_beta[z], whatever made p: a
softmax or a mixture of them. For an average over dropout masks it need not be convex, since the
temperature acts within each mask; nor if the temperature acts within each expert of a mixture.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from infolm.models.language import LanguageModel
from infolm.nn.softmax import Tempering

COLDEST, HOTTEST = 0.25, 4.0
"""The range of temperatures."""
BLOCK_ELEMENTS = 2**22
"""Log-probabilities held at once, in all of the vocabulary."""
GRID = tuple(np.geomspace(0.7, 1.4, 9).tolist())
"""What `interpolated` is given: a factor of about 1.09 from one to the next."""


@torch.inference_mode()
def slope_and_curvature(
    model: LanguageModel, hidden: Tensor, targets: Tensor, beta: float
) -> tuple[float, float]:
    """Means over tokens of E_beta[z] - z_y and Var_beta[z]; hidden (N, H), targets (N,)."""
    rows = max(1, BLOCK_ELEMENTS // model.vocabulary)
    slope = curvature = 0.0
    for x, y in zip(hidden.split(rows), targets.split(rows), strict=True):
        z = model.log_probs(x)
        p = (beta * z).softmax(1)
        mean = (p * z).sum(1)
        slope += float((mean - z.gather(1, y[:, None]).squeeze(1)).sum(dtype=torch.float64))
        curvature += float((p * (z - mean[:, None]).square()).sum(dtype=torch.float64))
    return slope / len(targets), curvature / len(targets)


def best_temperature(
    model: LanguageModel,
    hidden: Tensor,
    targets: Tensor,
    tolerance: float = 1e-6,
    tempering: Tempering = "mixture",
) -> float:
    """The tau with the lowest loss on the targets (N,) that the outputs (N, H) predict.

    Within each of several experts: Brent's method in ln tau. Else exactly:

    Newton's method in beta = 1/tau, to `tolerance`. The slope rises with beta, so its sign says on
    which side the optimum is; a step that leaves what is then left of the bracket is replaced by
    halving it. A loss that falls all the way to an end of [COLDEST, HOTTEST] gives that end.
    """
    if tempering == "expert" and model.softmax.experts > 1:
        return _by_brent(model, hidden, targets)
    low, high, beta = 1 / HOTTEST, 1 / COLDEST, 1.0
    while high - low > tolerance:
        slope, curvature = slope_and_curvature(model, hidden, targets, beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = slope / curvature if curvature > 0 else math.copysign(math.inf, slope)
        if abs(step) < tolerance:
            return 1 / (beta - step)
        beta = beta - step if low < beta - step < high else (low + high) / 2
    return 1 / beta


def _by_brent(model: LanguageModel, hidden: Tensor, targets: Tensor) -> float:
    """The tau for each expert; there may be several minima, and this finds one."""
    from scipy.optimize import minimize_scalar

    def loss(log_tau: float) -> float:
        return -float(model.log_prob(hidden, targets, math.exp(log_tau), "expert").double().mean())

    bounds = (math.log(COLDEST), math.log(HOTTEST))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return math.exp(float(found.x))


def interpolated(temperatures: Sequence[float], losses: Sequence[float]) -> float:
    """The tau with the lowest loss, from the losses at a few: a cubic spline in ln tau.

    For passes that are too expensive to repeat: all temperatures are measured in one. The search
    stays between them, and where the loss is finite.
    """
    from scipy.interpolate import CubicSpline

    finite = np.isfinite(losses)
    x, y = np.log(temperatures)[finite], np.array(losses)[finite]
    fine = np.linspace(x[0], x[-1], 2001)
    return float(np.exp(fine[CubicSpline(x, y)(fine).argmin()]))
