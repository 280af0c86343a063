"""Mutual-information constrained Monte Carlo objectives (Melis 2023, chapter 5)."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from infolm.data.parts import share
from infolm.data.sentences import SentenceBatch
from infolm.models.codes.proposal import Proposal
from infolm.objectives.base import OBJECTIVES, Estimate, Needs, Releases, Setup, Stateful
from infolm.objectives.estimators import (
    REPARAMETRISED,
    Augmentation,
    Coefficients,
    Draws,
    Estimator,
    Grouping,
    Settings,
    estimated,
    gated,
    information,
    log_mean_weight,
    surrogate,
)
from infolm.objectives.sentence import LatentObjectiveConfig

DECAY = 0.99
"""Decay of the running mean for REINFORCE's baseline."""


@OBJECTIVES.register
class MonteCarloConfig(LatentObjectiveConfig):
    """A bound on the likelihood with several codes per sentence, and a mutual information term."""

    needs: ClassVar[Needs] = {
        **LatentObjectiveConfig.needs,
        "model.latent.kind": ("gaussian", "categorical"),
    }
    releases: ClassVar[Releases] = {
        "augment": {
            "none": ("lambda", "mi_samples", "alpha"),
            "kl": ("alpha",),
            "power": ("lambda", "mi_samples"),
        }
    }
    former_defaults: ClassVar[Mapping[str, Any]] = {"grouping": "information", "baseline": "mean"}

    nll = "bound on the loss"
    kind: Literal["monte-carlo"] = "monte-carlo"
    estimator: Estimator = Field(
        "dreg",
        description="gradient estimator; reinforce and vimco also work with categorical codes",
    )
    augment: Augmentation = Field(
        "none", description="the term for the mutual information of sentence and code"
    )
    samples: int = Field(1, ge=1, description="codes per sentence for the likelihood")
    mi_samples: int | None = Field(
        None, ge=1, description="codes for the mutual information; none: the same ones"
    )
    grouping: Grouping = Field(
        "likelihood",
        description="if mi_samples differ, samples are used for: likelihood, all of ln p(x), as in "
        "eqs. 5.11 and 5.15; information, ln p(x) outside the divergence, as in 5.12 and 5.16",
    )
    weight: float = Field(
        0.0, alias="lambda", lt=1, description="weight of the mutual information, with kl and renyi"
    )
    alpha: float = Field(1.0, gt=0, description="the power in renyi and power; renyi: not 1")
    baseline: Literal["none", "mean"] = Field(
        "none",
        description="baseline of reinforce: none, or a running mean of the objective per token",
    )
    masks: Literal["sentence", "sample"] = Field(
        "sentence", description="dropout masks: one for all codes of a sentence, or for each code"
    )

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.estimator == "vimco" and self.settings.drawn == 1:
            raise ValueError(
                "estimator vimco compares each sample with the others, and there is one: raise "
                "samples, or choose reinforce"
            )
        if self.augment == "renyi" and self.alpha == 1:
            raise ValueError(
                "augment renyi divides by alpha - 1, and alpha is 1, where Renyi's divergence is "
                "the KL: choose augment kl, or another alpha"
            )
        if self.augment not in ("kl", "renyi") and self.weight:
            raise ValueError(
                f"lambda is the weight of kl and renyi, and augment is {self.augment}: choose "
                "one of "
                "these, or set lambda=0; with power, alpha = 1 / (1 - lambda) says the same"
            )
        if self.augment not in ("kl", "renyi") and self.mi_samples is not None:
            raise ValueError(
                f"mi_samples are for kl and renyi, and augment is {self.augment}: choose one of "
                "these, or set mi_samples=null"
            )
        if self.augment not in ("renyi", "power") and self.alpha != 1:
            raise ValueError(
                f"alpha is the power of renyi and power, and augment is {self.augment}: choose one "
                "of these, or set alpha=1"
            )
        return self

    def build(self, setup: Setup) -> "MonteCarlo":
        return MonteCarlo(self)

    def fault(self, recipe: Any) -> str | None:
        kind = recipe.model.latent.kind
        if self.estimator not in REPARAMETRISED or kind == "gaussian":
            return None
        return (
            f"objective.estimator {self.estimator} sends its gradient through the code, "
            f"and a {kind} code has no gradient: choose vimco, or with one sample reinforce"
        )

    @property
    def bound(self) -> str:
        if self.weight or (self.augment == "power" and self.alpha != 1):
            return ""
        return f"the bound with {self.samples:,} code{'s'[: self.samples != 1]} a sentence"

    @property
    def words(self) -> str:
        settings = [f"{self.estimator} of {self.samples:,} sample{'s'[: self.samples != 1]}"]
        if self.estimator == "reinforce" and self.baseline != "none":
            settings.append(f"baseline {self.baseline}")
        if self.mi_samples not in (None, self.samples):
            settings.append(f"{self.mi_samples:,} for the information (grouping {self.grouping})")
        if self.augment in ("kl", "renyi"):
            settings.append(f"{self.augment} with lambda {self.weight:g}")
        if self.augment == "power":
            settings.append("power")
        if self.augment in ("renyi", "power"):
            settings.append(f"alpha {self.alpha:g}")
        return f"objective {self.kind}: {', '.join(settings)}"

    @property
    def settings(self) -> Settings:
        return Settings(
            self.estimator,
            self.augment,
            self.samples,
            self.mi_samples or self.samples,
            self.weight,
            self.alpha,
            self.grouping,
        )


class MonteCarlo(Stateful):
    """loss = -1/B sum_i O(x_i), the negative of `estimators.augmented`, in nats per sentence.

    Codes z_1 ... z_K ~ q(z | x), and the gradient is that of `config.estimator`. reinforce has no
    baseline, as in the thesis; with `config.baseline` mean it is the running mean of O per token of
    the batches before, times the sentence's tokens.

    Of the terms, `nll` is -S in nats per token, a bound that is tighter the more samples there are;
    `information` the estimate of KL(p(z | x) || p(z)), U - S or Renyi's, and `kl` the
    KL(q(z | x) || p(z)), both in nats per sentence.
    """

    def __init__(self, config: MonteCarloConfig) -> None:
        self.config, self.settings = config, config.settings
        self.mean, self.batches = 0.0, 0

    def __call__(self, model: Any, batch: SentenceBatch, carry: None) -> Estimate:
        proposal: Proposal = model.encode(batch.read, batch.sizes)
        z = proposal.sample(self.settings.drawn)
        if self.settings.estimator not in REPARAMETRISED:
            z = z.detach()
        known: list[Coefficients] = []
        own = self.config.masks == "sample"
        log_p = model.log_likelihood(gated(z, known), batch, own)
        log_ratio = proposal.log_prior(z) - proposal.stopped().log_density(z)
        kl = proposal.kl().sum(1)
        draws = Draws(log_p.detach(), log_ratio.detach(), kl.detach())
        lengths = _lengths(batch, model.ends).to(draws.log_p)
        known.append(estimated(self.settings, draws, self._baseline(lengths)))
        log_q = proposal.log_density(z.detach())
        maximised = surrogate(known[0], log_p, log_ratio, log_q, kl) / batch.sentences
        value = known[0].value
        tokens = int(lengths.sum())
        terms = self.terms(draws, tokens)
        per = dict.fromkeys(terms, batch.sentences) | {"nll": tokens}
        loss = share(batch, attrgetter("sentences")) * _with_value(-maximised, -value.mean())
        return Estimate(loss, terms, tokens, per=per, sums=(float(value.sum()), tokens))

    def terms(self, draws: Draws, tokens: int) -> dict[str, Tensor]:
        """The recorded terms of a batch with this many tokens."""
        ours = draws.first(self.settings.samples)
        found = information(self.settings, draws).value
        return {
            "nll": -log_mean_weight(ours).value.sum() / tokens,
            "information": found.mean(),
            "kl": draws.kl.mean(),
        }

    def _baseline(self, lengths: Tensor) -> Tensor:
        """(B,), of sentences with so many tokens."""
        if self.config.baseline == "none":
            return torch.zeros_like(lengths)
        return self.mean / max(1 - DECAY**self.batches, 1e-12) * lengths

    def stepped(self, sums: Sequence[float]) -> None:
        objective, tokens = sums
        self.mean = DECAY * self.mean + (1 - DECAY) * (objective / tokens)
        self.batches += 1

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.batches = state["mean"], state["batches"]


def _lengths(batch: SentenceBatch, ends: bool) -> Tensor:
    """The tokens of each sentence that count, (B,)."""
    steps = torch.tensor(batch.sizes)
    lengths = (steps[:, None] > torch.arange(batch.sizes[0])).sum(0)
    return lengths if ends else lengths - 1


def _with_value(x: Tensor, value: Tensor) -> Tensor:
    """The gradient of x with another value, for the records."""
    return x + (value - x).detach()
