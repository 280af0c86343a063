"""The base of sentence models' objectives, and the plain auto-encoder."""

from abc import abstractmethod
from operator import attrgetter
from typing import Any, ClassVar, Literal

from torch import Tensor

from infolm.data.parts import share
from infolm.data.sentences import SentenceBatch
from infolm.metrics import Described, describe
from infolm.models.codes.gaussian import Posterior
from infolm.models.sentence import SentenceModel
from infolm.nn.draws import normal
from infolm.objectives.base import OBJECTIVES, Estimate, Needs, ObjectiveConfig, Setup, Stateful

describe(
    "latent",
    Described(
        "nll",
        "loss given the code",
        "nats per token",
        better="down",
        meaning="negative log-likelihood of a sentence given its code",
    ),
    Described(
        "kl",
        "KL divergence of q(z|x) from the prior",
        "nats per sentence",
        decimals=3,
        meaning="mean KL divergence of q(z|x) from the prior",
    ),
    Described(
        "information",
        "mutual information of sentence and code",
        "nats per sentence",
        decimals=3,
        meaning="the information of a code about its sentence",
    ),
)
LOSS = Described(
    "loss", unit="nats per sentence", better="down", meaning="the loss, with heuristics of training"
)
"""The loss recorded per step; a validation loss is per token."""
describe("ae", LOSS)


class LatentObjectiveConfig(ObjectiveConfig):
    """An objective of models with a latent code.

    has_distribution: whether codes have a posterior and a prior. spread: the standard deviation of
    the Gaussian codes of samples. nll: the meaning of the term of that name, if it is not the loss
    of the text itself.
    """

    needs: ClassVar[Needs] = {"model.capability": ("latent",), "feed.gives": ("sentences",)}
    has_distribution: ClassVar[bool] = True
    spread: ClassVar[float] = 1.0
    nll: ClassVar[str] = "loss given the code"

    def by_parts(self, model: Any) -> str:
        normalised = getattr(model.latent, "batch_norm", None) is not None
        return "codes are normalised over a part" if normalised else ""

    @property
    def bound(self) -> str:
        """The name of its bound on the likelihood; empty if it is not a bound."""
        return ""


GAUSSIAN_SENTENCES = {
    "model.kind": ("sentence",),
    "feed.gives": ("sentences",),
    "model.latent.kind": ("gaussian",),
}


class SentenceObjective(Stateful):
    """loss = 1/B sum_i (-ln p(x_i | z_i) + penalty_i), in nats per sentence.

    z_i ~ q(z | x_i) by reparametrisation. Of the terms, `nll` is the first part, in nats per token
    with <eos>, `kl` the mean KL(q(z | x_i) || N(0, 1)) in nats per sentence.
    """

    def code(self, posterior: Posterior, noise: Tensor) -> Tensor:
        """The codes (B, Z) that the decoder reads; noise: (B, Z), standard normal."""
        return posterior.at(noise)

    @abstractmethod
    def penalty(self, posterior: Posterior, z: Tensor) -> Tensor:
        """The penalty added to each sentence's -ln p(x | z), (B,), without heuristics of training:
        so the validation loss is the bound itself."""

    def training_penalty(
        self, posterior: Posterior, z: Tensor
    ) -> tuple[Tensor, dict[str, Tensor | float]]:
        """The mean over the batch with those heuristics, and terms to record."""
        return self.penalty(posterior, z).mean(), {}

    def __call__(self, model: SentenceModel, batch: SentenceBatch, carry: None) -> Estimate:
        posterior, z, hidden = model(batch.read, batch.inputs, batch.sizes, self._drawn)
        nll = model.nll_sum(hidden, batch.targets)
        penalty, said = self.training_penalty(posterior, z)
        loss = nll / batch.sentences + penalty
        own = share(batch, attrgetter("sentences"))
        kl = posterior.kl().sum(1).mean()
        per_sentence = {"kl": kl.detach(), "loss": loss.detach(), **said}
        terms = {"nll": nll.detach() / batch.tokens, **per_sentence}
        per = dict.fromkeys(per_sentence, batch.sentences)
        return Estimate(own * loss, terms, batch.tokens, per=per)

    def _drawn(self, posterior: Posterior) -> Tensor:
        mean = posterior.mean
        return self.code(posterior, normal(mean.shape, 0, mean.dtype, mean.device))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@OBJECTIVES.register
class AeConfig(LatentObjectiveConfig):
    """The auto-encoder: only reconstruction, with the mean as the code."""

    needs: ClassVar[Needs] = GAUSSIAN_SENTENCES
    has_distribution = False
    kind: Literal["ae"] = "ae"

    def build(self, setup: Setup) -> "Ae":
        return Ae()


class Ae(SentenceObjective):
    """loss = -ln p(x | z), z = the mean of q (Livne et al. 2020, section 4.5): no distribution over
    codes is learnt, and the model's variance is meaningless."""

    def code(self, posterior: Posterior, noise: Tensor) -> Tensor:
        return posterior.mean

    def penalty(self, posterior: Posterior, z: Tensor) -> Tensor:
        return z.new_zeros(len(z))
