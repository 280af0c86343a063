"""Noise-contrastive estimation, for vocabularies whose softmax is what training waits for."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from infolm.data.stream import Batch
from infolm.models.recurrent import RecurrentModel
from infolm.nn.cells.base import State
from infolm.nn.nce import Noise, binary_loss, log_z, ranking_loss
from infolm.nn.softmax import counted
from infolm.objectives.base import Estimate
from infolm.objectives.likelihood import ActivationConfig, read, regularised

BLOCK = 2**22
"""Tokens counted together: of the text no more is in memory at a time."""


class NceConfig(ActivationConfig):
    """Noise-contrastive estimation in place of the likelihood, plus AR and TAR."""

    kind: Literal["nce"] = "nce"
    loss: Literal["binary", "ranking"] = Field(
        "binary", description="data or noise, word by word, or which of k + 1 words is the data"
    )
    noise: int = Field(
        1024, ge=1, description="noise words k, drawn for each batch and shared by its tokens"
    )
    power: float = Field(
        1.0, ge=0, le=1, description="of the words' frequencies as noise; 0: uniform"
    )


def unigram_counts(tokens: npt.NDArray[Any], vocabulary: int) -> npt.NDArray[np.int64]:
    """How often each type occurs in `tokens` (N,), (V,)."""
    counts = np.zeros(vocabulary, np.int64)
    for start in range(0, len(tokens), BLOCK):
        counts += np.bincount(tokens[start : start + BLOCK], minlength=vocabulary)
    return counts


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

    def __call__(
        self, model: RecurrentModel, batch: Batch, carry: Sequence[State] | None
    ) -> Estimate:
        output = read(model, batch, carry, state_reset=self.config.state_reset)
        rows, targets = counted(output.dropped, batch.targets)
        loss, terms = self._contrast(model, rows.squeeze(1), targets)
        return regularised(loss, terms, output, batch.targets, self.config)

    def _contrast(
        self, model: RecurrentModel, x: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """x (N, H), targets (N,) -> the loss per token, and what is said of it."""
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
