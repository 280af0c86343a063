"""The variational auto-encoder of sentences, and the remedies for a collapsed posterior."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from infolm.data.sentences import SentenceBatch
from infolm.metrics import EVENT, Described, describe
from infolm.models.codes.gaussian import Posterior
from infolm.models.sentence import SentenceModel
from infolm.nn.gather import gather
from infolm.objectives.base import OBJECTIVES, Estimate, Needs, Setup
from infolm.objectives.sentence import (
    GAUSSIAN_SENTENCES,
    LOSS,
    LatentObjectiveConfig,
    SentenceObjective,
)
from infolm.section import Section

CAUGHT_UP = "encoder caught up"
"""The event that ends the aggressive phase of a lagging encoder."""
describe("vae", LOSS, Described("kl_weight", "KL weight", meaning="weight of the KL in the loss"))
describe(
    EVENT,
    Described(
        CAUGHT_UP,
        meaning="the mutual information of sentence and code no longer rose, so from here on the "
        "encoder and the decoder are trained together",
    ),
)
WINDOW, MOST = 15, 100
"""Batches between checks of the encoder's progress, and the maximum before the decoder's turn."""


class KlConfig(Section):
    """The weight of the KL divergence from the prior."""

    weight: float = Field(1.0, ge=0, description="final weight; other than 1 is a beta-VAE")
    schedule: Literal["constant", "linear", "cyclical"] = Field(
        "constant", description="how the weight rises: at once, linearly once, or in cycles"
    )
    steps: int = Field(
        10_000, ge=1, description="batches of the rise from 0; for cyclical, of a cycle"
    )
    rising: float = Field(
        0.5, gt=0, le=1, description="for cyclical: the share of a cycle in which it rises"
    )


class FreeBitsConfig(Section):
    """Free bits: nats of KL divergence without cost."""

    nats: float = Field(0.0, ge=0, description="how many; 0: none")
    per: Literal["dimension", "sentence"] = Field(
        "dimension", description="for each dimension of the code, or for all together"
    )


@OBJECTIVES.register
class VaeConfig(LatentObjectiveConfig):
    """The negative ELBO, plain or with published remedies against posterior collapse."""

    needs: ClassVar[Needs] = GAUSSIAN_SENTENCES
    kind: Literal["vae"] = "vae"
    kl: KlConfig = KlConfig()
    free_bits: FreeBitsConfig = FreeBitsConfig()
    lagging: bool = Field(
        False, description="train the encoder alone until it has caught up with the decoder"
    )

    def by_parts(self, model: Any) -> str:
        free = "free bits apply to each part separately" if self.free_bits.nats else ""
        return ", ".join(filter(None, (free, super().by_parts(model))))

    def build(self, setup: Setup) -> "Vae":
        return Vae(self)

    @property
    def bound(self) -> str:
        return "the ELBO" if self.kl.weight == 1 else ""


def kl_weight(config: KlConfig, batches: int) -> float:
    """The weight after this many batches.

    linear: rises to the full weight over `steps` batches (Bowman et al. 2015). cyclical: in cycles
    of `steps` batches, it rises from 0 over the first `rising` share and stays (Fu et al. 2019).
    """
    share = {
        "constant": 1.0,
        "linear": batches / config.steps,
        "cyclical": (batches % config.steps) / (config.rising * config.steps),
    }[config.schedule]
    return config.weight * min(share, 1.0)


def beyond_free(kl: Tensor, config: FreeBitsConfig) -> Tensor:
    """The mean KL of a batch, but at least what is free; kl: (B, Z) by sentence and dimension.

        per dimension    sum_d max(nats, 1/B sum_i kl_id)         (Kingma et al. 2016, eq. 15)
        per sentence     max(nats, 1/B sum_i sum_d kl_id)

    With 0 nats both are the mean over sentences of the sum over dimensions. The batch is that of
    all processes.
    """
    means = gather(kl).mean(0)
    if config.per == "sentence":
        means = means.sum()[None]
    return means.clamp(min=config.nats).sum()


@dataclass
class Lag:
    """Whose turn it is while the encoder lags behind the decoder (He et al. 2019, algorithm 1).

    Steps move the encoder alone until over `WINDOW` of them the loss per token is no better than
    over those before, or for `MOST` steps; then one moves the decoder alone. This ends at
    the first validation at which the mutual information of sentence and code has not risen.

    turns: of the encoder since the decoder's last. loss, tokens: summed over the present window.
    before: the loss per token of the one before it. waited: whether the decoder's turn has come.
    """

    aggressive: bool
    turns: int = 0
    loss: float = 0.0
    tokens: int = 0
    before: float = math.inf
    waited: bool = False
    information: float = -math.inf

    def took(self, loss: float, tokens: int) -> None:
        """Called after a step with its summed loss."""
        if self.waited:
            self.turns, self.loss, self.tokens, self.before = 0, 0.0, 0, math.inf
            self.waited = False
            return
        self.turns, self.loss, self.tokens = self.turns + 1, self.loss + loss, self.tokens + tokens
        if self.turns % WINDOW == 0:
            now = self.loss / self.tokens
            self.waited = now >= self.before
            self.loss, self.tokens, self.before = 0.0, 0, now
        self.waited |= self.turns == MOST

    def validated(self, information: float) -> list[str]:
        """Called after a validation with its information; returns the resulting event."""
        if not self.aggressive:
            return []
        self.aggressive = information > self.information
        self.information = information
        return [] if self.aggressive else [CAUGHT_UP]


@contextmanager
def frozen(model: SentenceModel, encoder: bool) -> Iterator[None]:
    """Inside, what is computed gives the encoder no gradient, or all but the encoder.

    The embedding, which both sides read, is the decoder's.
    """
    own = (model.encoder, model.latent, *([model.forwards] if model.forwards else []))
    encoders = {parameter for module in own for parameter in module.parameters()}
    chosen = [
        parameter
        for parameter in model.parameters()
        if parameter.requires_grad and (parameter in encoders) == encoder
    ]
    for parameter in chosen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in chosen:
            parameter.requires_grad_(True)


class Vae(SentenceObjective):
    """loss = -E_q ln p(x | z) + w KL(q(z | x) || N(0, 1)), the negative ELBO where w = 1.

    In training w follows `kl_weight`, the KL is `beyond_free`, and with `lagging` encoder and
    decoder take turns. The validation loss has `kl.weight` and nothing free.
    """

    def __init__(self, config: VaeConfig) -> None:
        self.config = config
        self.batches = 0
        self.lag = Lag(config.lagging)

    def penalty(self, posterior: Posterior, z: Tensor) -> Tensor:
        return self.config.kl.weight * posterior.kl().sum(1)

    def training_penalty(
        self, posterior: Posterior, z: Tensor
    ) -> tuple[Tensor, dict[str, Tensor | float]]:
        weight = kl_weight(self.config.kl, self.batches)
        penalty = weight * beyond_free(posterior.kl(), self.config.free_bits)
        return penalty, {"kl_weight": weight}

    def __call__(self, model: SentenceModel, batch: SentenceBatch, carry: None) -> Estimate:
        if self.lag.aggressive:
            with frozen(model, encoder=self.lag.waited):
                estimate = super().__call__(model, batch, carry)
            loss = float(estimate.terms["loss"])
            return replace(estimate, sums=(loss * batch.sentences, batch.tokens))
        return super().__call__(model, batch, carry)

    def stepped(self, sums: Sequence[float]) -> None:
        if self.lag.aggressive:
            self.lag.took(sums[0], int(sums[1]))
        self.batches += 1

    def validated(
        self, events: Sequence[str], progress: float, terms: Mapping[str, float]
    ) -> list[str]:
        return self.lag.validated(terms["information"])

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "lag": asdict(self.lag)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches, self.lag = state["batches"], Lag(**state["lag"])
