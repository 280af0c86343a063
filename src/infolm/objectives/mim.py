"""Mutual Information Machine learning (Livne et al. 2020, "SentenceMIM")."""

from typing import ClassVar, Literal

from torch import Tensor

from infolm.metrics import Described, describe
from infolm.models.codes.gaussian import Posterior, log_prior
from infolm.nn.gather import gather
from infolm.objectives.base import OBJECTIVES, Needs, Setup
from infolm.objectives.sentence import (
    GAUSSIAN_SENTENCES,
    LOSS,
    LatentObjectiveConfig,
    SentenceObjective,
)

describe(
    "mim",
    LOSS,
    Described(
        "floored", unit="share", meaning="share of the variances of q(z|x) at their least value"
    ),
)


@OBJECTIVES.register
class MimConfig(LatentObjectiveConfig):
    """A-MIM: a loss that gives high mutual information of sentence and code."""

    needs: ClassVar[Needs] = GAUSSIAN_SENTENCES
    spread = 0.1  # its codes are not spread like the prior; so the paper, appendix D.3
    kind: Literal["mim"] = "mim"

    def build(self, setup: Setup) -> "Mim":
        return Mim()


class Mim(SentenceObjective):
    """loss = -(ln p(x | z) + 1/2 (ln q(z | x) + ln P(z))), P(z) = N(0, 1)     (algorithm 1).

    An upper bound, up to a constant, on H(x) + H(z) - I(x; z) under the encoder's joint
    distribution (equations 7 and 14). Where a VAE's loss has E ln q = -H(q), this one has H(q) / 2:
    the loss falls with the width of the posterior, without a minimum. Only the floor of the
    variance (`model.latent.least_log_variance`) stops it, which the paper does not mention but its
    authors' program has: every dimension sinks to it. The term `floored` is the share of dimensions
    with the least variance of the batch, which are at the floor if they are many.
    """

    def penalty(self, posterior: Posterior, z: Tensor) -> Tensor:
        return -0.5 * (posterior.log_density(z) + log_prior(z))

    def training_penalty(
        self, posterior: Posterior, z: Tensor
    ) -> tuple[Tensor, dict[str, Tensor | float]]:
        lowest = gather(posterior.log_variance.detach()).min()
        floored = (posterior.log_variance == lowest).float().mean()
        return self.penalty(posterior, z).mean(), {"floored": floored}
