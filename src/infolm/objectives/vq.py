"""VQ-VAE: the code is the nearest entry of a codebook (van den Oord et al. 2017)."""

from operator import attrgetter
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from infolm.data.parts import share
from infolm.data.sentences import SentenceBatch
from infolm.metrics import Described, describe
from infolm.models.codes.quantised import Quantised
from infolm.objectives.base import OBJECTIVES, Estimate, Needs, Setup
from infolm.objectives.estimators import Draws, Settings
from infolm.objectives.sentence import LatentObjectiveConfig

describe(
    "vq",
    Described(
        "commitment",
        meaning="squared distance of the encoder's vectors from the entries, before its weight",
    ),
)


@OBJECTIVES.register
class VqConfig(LatentObjectiveConfig):
    """Reconstruction from the nearest entries of codebooks, and a commitment to them."""

    needs: ClassVar[Needs] = {**LatentObjectiveConfig.needs, "model.latent.kind": ("quantised",)}
    nll = ""  # with the cost of the code it bounds that of the text
    kind: Literal["vq"] = "vq"
    commitment: float = Field(
        0.25, gt=0, description="beta: weight of the encoder's distance from the entries"
    )
    decay: float = Field(
        0.99, ge=0, lt=1, description="decay of the running means that form the entries"
    )

    def by_parts(self, model: Any) -> str:
        return "codebooks follow each part in turn"

    def build(self, setup: Setup) -> "Vq":
        return Vq(self)

    @property
    def bound(self) -> str:
        return "the bound with its one code"


class Vq:
    """loss = -ln p(x | z) + L ln C + beta/D sum_l |v_l - sg(e_l)|^2, in nats per sentence.

    v_l (D,) is what the encoder made of x for variable l and e_l the nearest entry of its codebook,
    which is what the decoder reads; the gradient of what it reads goes straight to v_l. Entries are
    running means of the v's that chose them, updated by every training batch. With 1/D, beta means
    the same for entries of any size. Since q is deterministic and the prior uniform, the first two
    parts bound -ln p(x) from above, and the code always costs L ln C: only the sizes decide its
    capacity.

    Of the terms, `nll` is that bound in nats per token, `commitment` the third part without beta,
    `information` L ln C, in nats per sentence.
    """

    settings = Settings()
    """The settings of the bound: one code, nothing added."""

    def __init__(self, config: VqConfig) -> None:
        self.config = config

    def __call__(self, model: Any, batch: SentenceBatch, carry: None) -> Estimate:
        proposal: Quantised = model.encode(batch.read, batch.sizes)
        z = proposal.sample(1)
        log_p = model.log_likelihood(z, batch)
        distance = (proposal.vectors - proposal.entries.detach()).square().mean(2).sum(1)
        draws = Draws(log_p.detach(), proposal.log_prior(z).detach(), proposal.kl().sum(1))
        tokens = batch.tokens - (0 if model.ends else batch.sentences)
        loss = draws.kl.mean() - log_p.mean() + self.config.commitment * distance.mean()
        model.latent.follow(proposal, self.config.decay)
        terms = {**self.terms(draws, tokens), "commitment": distance.mean().detach()}
        per = dict.fromkeys(terms, batch.sentences) | {"nll": tokens}
        return Estimate(share(batch, attrgetter("sentences")) * loss, terms, tokens, per=per)

    def terms(self, draws: Draws, tokens: int) -> dict[str, Tensor]:
        """The recorded terms of a batch with this many tokens."""
        nll = -(draws.log_p + draws.log_ratio).sum() / tokens
        return {"nll": nll, "information": draws.kl.mean()}
