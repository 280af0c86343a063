"""Next sentence prediction: does one sentence follow another? (Devlin et al. 2018)"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from infolm.data.parts import share
from infolm.data.sentence_pairs import SentencePairBatch
from infolm.information import ties
from infolm.information.bounds import jensen_shannon_information
from infolm.models.encoder import Encoder
from infolm.nn.contrast import info_nce, wide
from infolm.objectives.base import OBJECTIVES, TIES, Estimate, Needs, Setup
from infolm.objectives.encoding import PIECES, EncoderObjectiveConfig
from infolm.objectives.words import Contrast


@OBJECTIVES.register
class NextSentenceConfig(EncoderObjectiveConfig):
    """Next sentence prediction: the next sentence against drawn ones."""

    needs: ClassVar[Needs] = {**PIECES, "feed.kind": ("sentence-pairs",), "model.head": ("next",)}
    item = "sentence"
    kind: Literal["nsp"] = "nsp"
    form: Literal["local", "global"] = Field(
        "local",
        description="local: whether each pair is true, as in BERT; global: which candidate follows",
    )

    def build(self, setup: Setup) -> "NextSentence":
        return NextSentence(self)

    def rivals(self, feed: Any) -> str:
        drawn = feed.candidates - 1
        which = "among" if self.form == "global" else "each of"
        return f"{which} {drawn:,} drawn sentence{'s'[: drawn != 1]}"


def local_form(scores: Tensor) -> Estimate:
    """-1/2 E[ln sigma(f(a, b)) + ln sigma(-f(a, b'))] of scores (B, K), the true one first.

    At its minimum f is the pointwise mutual information of the sentences. True and drawn ones have
    equal weight, whatever their numbers: ln 2 if f = 0. `information` is the bound of such a
    critic.
    """
    positive, negative = scores[:, 0], scores[:, 1:]
    loss = (functional.softplus(-positive).mean() + functional.softplus(negative).mean()) / 2
    information = jensen_shannon_information(positive.detach(), negative.detach())
    return Estimate(loss, {"nll": loss.detach(), "information": information}, len(scores))


def global_form(scores: Tensor) -> Estimate:
    """InfoNCE over the K candidates: ln K less the cross entropy of choosing the first, (B, K).

    At its minimum f is the pointwise mutual information and c(a).
    """
    count = torch.full_like(scores[:, 0], scores.shape[1] - 1)
    return Contrast(*info_nce(scores[:, 0], scores[:, 1:].logsumexp(1), count)).estimate()


class NextSentence:
    """I_NSP: a is a sentence, b the one that follows it (Kong et al. 2020, appendix A).

    f(a, b) = psi . g([CLS] a [SEP] b [SEP]), g the encoder's last layer at [CLS]. `accuracy` is the
    share of the a whose true b has the highest score; where others have it too it counts 1 / their
    number, and `ties` is the share of such a.
    """

    def __init__(self, config: NextSentenceConfig) -> None:
        self.form = local_form if config.form == "local" else global_form

    def __call__(self, model: Encoder, batch: SentencePairBatch, carry: None) -> Estimate:
        tokens, mask, segments = (
            x.flatten(0, 1) for x in (batch.tokens, batch.mask, batch.segments)
        )
        scores = wide(model(tokens, mask, segments)[:, 0] @ model.psi)
        scores = scores.view(batch.tokens.shape[:2])
        estimate = self.form(scores)
        estimate.loss = share(batch, lambda each: len(each.tokens)) * estimate.loss
        better, tied = ties.standing(scores, scores[:, 0])
        estimate.terms["accuracy"] = ties.first(better, tied).mean()
        estimate.terms[TIES] = (tied > 1).float().mean()
        return estimate
