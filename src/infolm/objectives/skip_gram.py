"""Skip-gram: predicting nearby words (Mikolov et al. 2013)."""

from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch.nn import functional

from infolm.data.parts import share
from infolm.data.windows import WindowBatch
from infolm.models.encoder import Encoder
from infolm.nn.contrast import info_nce, log_sum_exp, wide
from infolm.nn.nce import Noise
from infolm.objectives.base import OBJECTIVES, Estimate, Needs, Setup
from infolm.objectives.encoding import ALL_WORDS, EncoderObjectiveConfig
from infolm.objectives.words import Contrast


@OBJECTIVES.register
class SkipGramConfig(EncoderObjectiveConfig):
    """Skip-gram: vectors of words from their neighbours (table 1 of Kong et al. 2020)."""

    needs: ClassVar[Needs] = {
        "model.capability": ("encoder",),
        "data.tokens": ("word", "wordpiece"),
        "feed.kind": ("windows",),
        "model.head": ("context",),
    }
    item = "pair of words"
    kind: Literal["skip-gram"] = "skip-gram"
    form: Literal["global", "local"] = Field(
        "global", description="global: which word is the neighbour; local: whether each word is one"
    )
    negatives: Literal["unigram", "vocabulary"] = Field(
        "unigram", description="drawn words, or (only global) all words"
    )
    noise: int = Field(
        1024, ge=1, description="for unigram: words drawn for each batch and shared by its pairs"
    )
    power: float = Field(
        0.75, ge=0, le=1, description="for unigram: exponent of the words' frequencies; 0: uniform"
    )
    per_pair: int = Field(
        5, ge=1, description="for local: the weight of drawn words relative to a neighbour, k"
    )

    @model_validator(mode="after")
    def _told_from_drawn(self) -> Self:
        if self.form == "local" and self.negatives != "unigram":
            raise ValueError(
                "form local compares a neighbour with drawn words: set negatives to unigram, or "
                "form "
                "to global"
            )
        return self

    def build(self, setup: Setup) -> "SkipGram":
        drawn = Noise(setup.word_counts(), self.power) if self.negatives == "unigram" else None
        return SkipGram(self, drawn)

    def rivals(self, feed: Any) -> str:
        if self.negatives == "vocabulary":
            return ALL_WORDS
        return f"{'among' if self.form == 'global' else 'each of'} {self.noise:,} drawn words"


class SkipGram:
    """a is a word, b one that stands near it; f(a, b) = context_b . embedding_a.

    form global: InfoNCE, ln |B| less the cross entropy of telling b from the rest of B, which is
    the whole vocabulary or b and K words drawn from the noise q. form local: word2vec's negative
    sampling, -ln sigma(f(a, b)) - k E_q[ln sigma(-f(a, b'))], with K drawn words for the mean.

    Where the vectors have columns enough, the scores at the minimum are (Levy & Goldberg 2014)

        global, whole vocabulary    ln p(b | a) + c(a)
        global, drawn               ln p(b | a) / q(b) + c(a)
        local                       ln p(b | a) / q(b) - ln k

    and with `power` 1, where q(b) = p(b), ln p(b | a) / q(b) is the pointwise mutual information.
    `information`, of the global form, is a bound on I(a; b); with another power, on that and the
    divergence of p(b) from q(b).

    Of the encoder the Transformer is not used, and so not trained. A word's scores are the same
    wherever it stands, and made once: a batch costs as many rows as it has different words.
    """

    def __init__(self, config: SkipGramConfig, noise: Noise | None) -> None:
        self.config, self.noise = config, noise

    def __call__(self, model: Encoder, batch: WindowBatch, carry: None) -> Estimate:
        kinds, place = batch.centres.unique(return_inverse=True)
        anchors = model.embedding[kinds]
        positive = (anchors[place] * model.context[batch.contexts]).sum(1)
        own = share(batch, lambda each: len(each.centres))
        if self.noise is None:
            total = log_sum_exp(anchors, model.context)[place]
            size = torch.full_like(total, len(model.context)).log()
            return Contrast(positive - total + size, size).estimate(own)
        drawn = model.context[self.noise.draw(self.config.noise)]
        if self.config.form == "local":
            noise = functional.softplus(wide(anchors @ drawn.T)).mean(1)[place]
            losses = functional.softplus(-positive) + self.config.per_pair * noise
            loss = losses.mean()
            return Estimate(own * loss, {"nll": loss.detach()}, len(losses))
        others = log_sum_exp(anchors, drawn)[place]
        count = torch.full_like(others, len(drawn))
        return Contrast(*info_nce(positive, others, count)).estimate(own)
