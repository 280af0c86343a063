"""Noise-contrastive estimation, for vocabularies whose softmax dominates the training time."""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from infolm.data.stream import Batch
from infolm.metrics import Described, describe
from infolm.models.language import LanguageModel, State
from infolm.nn.nce import Noise, binary_loss, log_z, ranking_loss
from infolm.nn.softmax import counted
from infolm.objectives.base import OBJECTIVES, Estimate, Setup
from infolm.objectives.likelihood import ActivationConfig, read, regularised

describe(
    "nce",
    Described("nce", "NCE", "nats per token", better="down", meaning="the loss without penalties"),
    Described("log_z", "ln Z", "nats", meaning="mean ln Z, estimated from the noise"),
    Described(
        "nll",
        unit="nats per token",
        better="down",
        meaning="negative log-likelihood, estimated from the noise",
    ),
)


@OBJECTIVES.register
class NceConfig(ActivationConfig):
    """Noise-contrastive estimation instead of the likelihood, plus AR and TAR."""

    kind: Literal["nce"] = "nce"
    loss: Literal["binary", "ranking"] = Field(
        "binary", description="data or noise, word by word, or which of k + 1 words is the data"
    )
    noise: int = Field(
        1024, ge=1, description="noise words k, drawn for each batch and shared by its tokens"
    )
    power: float = Field(
        1.0, ge=0, le=1, description="exponent of the words' frequencies as noise; 0: uniform"
    )

    def build(self, setup: Setup) -> "Nce":
        """The softmax's biases start from the words' frequencies."""
        counts = setup.counts()
        setup.model.softmax.begin_with(counts)
        return Nce(self, counts)

    def fault(self, recipe: Any) -> str | None:
        softmax = recipe.model.softmax
        if softmax.experts > 1:
            return (
                "objective.kind is nce, which needs the scores of a single softmax, but model."
                f"softmax.experts is {softmax.experts}: set that to 1, or objective.kind to "
                "likelihood"
            )
        if getattr(softmax, "dropout", 0):
            return (
                "objective.kind is nce, whose scores are of whole latent vectors, but model.softmax"
                ".dropout drops them: set that to 0, or objective.kind to likelihood"
            )
        return None


class Nce:
    """loss = 1/N sum_t l(d_t(x_{t+1}), d_t(w_1), ..., d_t(w_k)) + alpha AR + beta TAR.

    d_t(w) = s_t(w) - ln(k q(w)) with s_t the softmax's logits, q the smoothed unigram distribution
    of the training text and w_1 ... w_k ~ q, the same for all tokens of a batch, so that the noise
    costs one (tokens x k) product. l is `binary_loss`, NCE (Gutmann & Hyvarinen 2010; Mnih & Teh
    2012), or `ranking_loss`, the sampled softmax; both tend to the likelihood as k grows. Z is
    fixed to 1: a learnt constant would be one with the bias, and `Softmax.begin_with` sets that so
    that Z is near 1 before the first step.

    The model is a softmax all the same, and every evaluation normalises: perplexities are exact.
    Of the terms, `nce` is the loss without penalties; `log_z` and `nll` are estimates from the
    noise, both from below: the mean of ln Z, which binary NCE drives to 0 and the ranking loss does
    not, and that of ln Z - s(target).

    counts: (V,), of the words in the training text, on the model's device. State and padding are
    those of `Likelihood`.
    """

    def __init__(self, config: NceConfig, counts: Tensor) -> None:
        self.config = config
        self.noise = Noise(counts, config.power)

    def __call__(self, model: LanguageModel, batch: Batch, carry: State | None) -> Estimate:
        output = read(model, batch, carry, state_reset=self.config.state_reset)
        rows, targets = counted(output.dropped, batch.targets)
        loss, terms = self._contrast(model, rows.squeeze(1), targets)
        return regularised(model, loss, terms, output, batch, self.config)

    def _contrast(
        self, model: LanguageModel, x: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """x (N, H), targets (N,) -> the loss per token, and its terms."""
        k, noise = self.config.noise, self.noise
        words = noise.draw(k)
        target_scores, scores = model.softmax.scores(x, targets, words, model.embedding)
        target_ratios = noise.log_ratio(target_scores, targets, k)
        ratios = noise.log_ratio(scores, words, k)
        loss_sum = binary_loss if self.config.loss == "binary" else ranking_loss
        loss = loss_sum(target_ratios, ratios) / len(targets)
        with torch.no_grad():
            estimated = log_z(target_scores, ratios, targets, words).mean()
            nll = estimated - target_scores.mean()
        return loss, {"nll": nll, "log_z": estimated, "nce": loss.detach()}
