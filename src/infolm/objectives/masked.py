"""Masked objectives of encoders: MLM, MLM-NCE, InfoWord."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from infolm.data.parts import share
from infolm.data.sequences import SequenceBatch
from infolm.metrics import Described, describe
from infolm.models.encoder import Encoder
from infolm.nn.contrast import LOG_ZERO, info_nce, log_sum_exp, wide
from infolm.nn.gather import gather, processes
from infolm.nn.nce import Noise
from infolm.objectives.base import OBJECTIVES, Estimate, Needs, Setup
from infolm.objectives.encoding import ALL_WORDS, SEQUENCES, EncoderObjectiveConfig
from infolm.objectives.words import Among, Contrast, Table, among

MASKED = {**SEQUENCES, "feed.masking": ("tokens", "spans")}

describe(
    "encoder",
    Described("dim", "cross entropy of n-grams", "nats per n-gram", better="down"),
    Described(
        "dim_information", "information of n-grams, at least", "nats per n-gram", better="up"
    ),
)


@OBJECTIVES.register
class MlmConfig(EncoderObjectiveConfig):
    """Masked language modelling: the hidden word among all words (Devlin et al. 2018)."""

    needs: ClassVar[Needs] = MASKED
    of_all_words = True
    kind: Literal["mlm"] = "mlm"

    def build(self, setup: Setup) -> "Masked":
        return Masked(among("vocabulary", None, 0))

    def log_noise(self, setup: Setup) -> Tensor:
        return torch.zeros(len(setup.corpus.tokenizer), device=setup.device)

    def rivals(self, feed: Any) -> str:
        return ALL_WORDS


class NegativesConfig(EncoderObjectiveConfig):
    """The negatives of a true word, if these are not the whole vocabulary."""

    negatives: Literal["batch", "unigram"] = Field(
        "batch", description="the hidden words of the batch's other sequences, or drawn words"
    )
    noise: int = Field(1024, ge=1, description="for unigram: words drawn for each batch")

    def among(self, setup: Setup) -> Among:
        drawn = Noise(setup.word_counts()) if self.negatives == "unigram" else None
        return among(self.negatives, drawn, self.noise)

    def log_noise(self, setup: Setup) -> Tensor:
        return Noise(setup.word_counts()).log_q

    def rivals(self, feed: Any) -> str:
        if self.negatives == "batch":
            return "among the batch's hidden words"
        return f"among {self.noise:,} drawn words"


@OBJECTIVES.register
class MlmNceConfig(NegativesConfig):
    """The hidden word among few: BERT-NCE (Kong et al. 2020, section 5.1)."""

    needs: ClassVar[Needs] = MASKED
    kind: Literal["mlm-nce"] = "mlm-nce"

    def build(self, setup: Setup) -> "Masked":
        return Masked(self.among(setup))


@OBJECTIVES.register
class InfoWordConfig(NegativesConfig):
    """MLM-NCE, and which n-grams a sequence has lost (Kong et al. 2020, section 4)."""

    needs: ClassVar[Needs] = {**SEQUENCES, "feed.masking": ("spans",)}
    weighted = True
    kind: Literal["infoword"] = "infoword"
    lambda_mlm: float = Field(1.0, ge=0, description="the weight of the words")
    lambda_dim: float = Field(0.4, ge=0, description="the weight of the n-grams; paper: 0.4 to 1")
    dim_pairs: Literal["masked", "all"] = Field(
        "masked",
        description="the n-grams to predict from their sequence: those shown as [MASK]s, or all "
        "hidden ones, of which one in ten is shown unchanged",
    )

    former_defaults: ClassVar[Mapping[str, Any]] = {"dim_pairs": "all"}

    def by_parts(self, model: Any) -> str:
        return "n-grams are compared with those of the same part" if self.lambda_dim else ""

    @property
    def ngrams(self) -> str:
        which = {"masked": "shown as [MASK]s", "all": "hidden, some of them shown as they are"}
        return which[self.dim_pairs] if self.lambda_dim else ""

    def build(self, setup: Setup) -> "InfoWord":
        return InfoWord(self, self.among(setup), setup.corpus.tokenizer.special.pad)


def words_in_context(
    model: Encoder, hidden: Tensor, batch: SequenceBatch, among: Among
) -> Contrast:
    """a = a masked sequence, b = the word at one of its hidden places.

    hidden: (B, L, D), the encoder's last layer. f(a, b) = head(h_place) . vector_b + bias_b.
    """
    anchors = model.head(hidden.flatten(0, 1)[batch.places])
    length = batch.tokens.shape[1]
    table = Table(model.embedding, model.head.bias)
    every = None
    if batch.whole is not None:
        every = torch.from_numpy(batch.whole.batch.words).to(anchors.device)
    return among(anchors, batch.words, table, batch.places // length, every)


def _hidden_words(batch: SequenceBatch) -> int:
    return len(batch.words)


class Masked:
    """I_MLM: a is a masked sequence, b the word at one of its hidden places.

    Among the whole vocabulary this is BERT's masked language modelling, and `nll` its cross entropy
    per hidden token; among few words it is BERT-NCE.
    """

    def __init__(self, among: Among) -> None:
        self.among = among

    def __call__(self, model: Encoder, batch: SequenceBatch, carry: None) -> Estimate:
        found = words_in_context(model, model(batch.tokens), batch, self.among)
        return found.estimate(share(batch, _hidden_words))


class InfoWord:
    """loss = lambda_MLM (ln |B| - I_MLM) + lambda_DIM (ln |S| - I_DIM).

    I_DIM: a is the masked sequence, as the last layer has it at [CLS]; b an n-gram that it lost, at
    the [CLS] of its own reading by the same Transformer; f(a, b) = g(b) . g(a). S is b and the
    n-grams of the batch's other sequences. lambda_DIM = 0 is MLM-NCE, whose words cost what they do
    there: no n-gram is read.

    In the paper a is "masked at position i to j" where b stands, while I_MLM is BERT's but for its
    negatives, with 80/10/10. Both hold in one reading: with `dim_pairs: masked` the pairs (a, b)
    are those whose span is all [MASK] in a, four in five. The other n-grams are still in S, for
    their fate does not depend on what they say, so |S| is the same. `all` has every hidden n-gram
    as a pair, and one in ten of them can be read off a.
    """

    def __init__(self, config: InfoWordConfig, among: Among, pad: int) -> None:
        self.config, self.among, self.pad = config, among, pad

    def __call__(self, model: Encoder, batch: SequenceBatch, carry: None) -> Estimate:
        config, hidden = self.config, model(batch.tokens)
        found = words_in_context(model, hidden, batch, self.among)
        words = found.estimate(share(batch, _hidden_words))
        if not config.lambda_dim:
            return Estimate(config.lambda_mlm * words.loss, words.terms, words.count)
        ngrams = model(batch.ngrams, mask=(batch.ngrams != self.pad).long())
        pairs = ngrams_of_sequences(hidden[:, 0], ngrams[:, 0], batch.owners)
        own = share(batch, lambda each: len(each.owners))
        if config.dim_pairs == "masked":
            pairs = Contrast(pairs.value[batch.masked], pairs.size[batch.masked])
            own = share(batch, lambda each: int(each.masked.sum()))
        lost = pairs.estimate(own)
        loss = config.lambda_mlm * words.loss + config.lambda_dim * lost.loss
        terms = dict(words.terms)
        if lost.count:  # a very small batch may have no such pair
            terms |= {"dim": lost.terms["nll"], "dim_information": lost.terms["information"]}
        terms["loss"] = config.lambda_mlm * terms["nll"] + config.lambda_dim * lost.terms["nll"]
        per = {"dim": lost.count, "dim_information": lost.count}
        return Estimate(loss, terms, words.count, per=per)


def ngrams_of_sequences(sequences: Tensor, ngrams: Tensor, owners: Tensor) -> Contrast:
    """I_DIM of each n-gram, (G,): sequences (B, D), ngrams (G, D), owners (G,) below B.

    All n-grams of a sequence have the same negatives: the n-grams of other sequences, in any
    process.
    """
    sequences, ngrams = wide(sequences), wide(ngrams)
    rank, step = processes()
    candidates = gather(ngrams)
    whose = gather(step * owners + rank)  # no number is in two processes
    numbers = step * torch.arange(len(sequences), device=owners.device) + rank

    def weights(rows: slice) -> Tensor:
        own = numbers[rows][:, None] == whose
        return torch.zeros_like(own, dtype=ngrams.dtype).masked_fill(own, LOG_ZERO)

    others = log_sum_exp(sequences, candidates, weights=weights)[owners]
    positive = (sequences[owners] * ngrams).sum(1)
    count = len(whose) - torch.bincount(owners)[owners]
    return Contrast(*info_nce(positive, others, count.to(positive)))
