"""Permutation language modelling: words predicted in a drawn order (Yang et al. 2019)."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from infolm.data.parts import share
from infolm.data.sequences import SequenceBatch
from infolm.models.encoder import Encoder
from infolm.objectives.base import OBJECTIVES, Estimate, Needs, Setup
from infolm.objectives.encoding import ALL_WORDS, SEQUENCES, EncoderObjectiveConfig
from infolm.objectives.words import Table, among_vocabulary


@OBJECTIVES.register
class PermutationConfig(EncoderObjectiveConfig):
    """XLNet's: the last words of a drawn order, each from those before it."""

    needs: ClassVar[Needs] = {
        **SEQUENCES,
        "feed.masking": ("order",),
        "model.architecture": ("xlnet",),
    }
    of_all_words = True
    kind: Literal["permutation"] = "permutation"

    def build(self, setup: Setup) -> "Permutation":
        return Permutation()

    def rivals(self, feed: Any) -> str:
        return ALL_WORDS


def hidden_from(rank: Tensor, target: Tensor) -> Tensor:
    """(B, L, L): 1 where token i may not see token j, for ranks (B, L) in the order.

    A target is visible only to later targets; other tokens are visible to all. So tokens that are
    only read see each other, as in XLNet's own program, and a target sees everything before it. In
    XLNet's two streams a target's content also sees itself, and its query does not.
    target: (B, L), which are to be predicted; the last of the order.
    """
    return ((rank[:, None, :] >= rank[:, :, None]) & target[:, None, :]).float()


def target_rows(places: Tensor, sequences: int, length: int) -> tuple[Tensor, Tensor]:
    """The targets of each sequence as rows, (B, S, L), 1 at the target's place; and which of the
    B S rows are the `places` (N,), in their order. Sequences with fewer than S have rows of 0."""
    owner = places // length
    counts = torch.bincount(owner, minlength=sequences)
    nth = torch.arange(len(places), device=places.device) - (counts.cumsum(0) - counts)[owner]
    most = int(counts.max())
    rows = torch.zeros(sequences, most, length, device=places.device)
    rows[owner, nth, places % length] = 1
    return rows, owner * most + nth


class Permutation:
    """I_XLNet: a is the part of a sequence that comes before a word in a drawn order, b the word.

    f(a, b) = head(g_place) . vector_b + bias_b among the whole vocabulary, with g the query stream,
    which knows the place of b but not b. `nll` is the cross entropy per target; where all words are
    targets, it is -ln p of the words in that order, over their number (Yang et al. 2019, eq. 3;
    Kong et al. 2020, section 3.3). A target must see something, since attention to nothing would be
    attention to all: [CLS] and [SEP] are no targets.
    """

    def __call__(self, model: Encoder, batch: SequenceBatch, carry: None) -> Estimate:
        sequences, length = batch.tokens.shape
        target = torch.zeros_like(batch.tokens, dtype=torch.bool)
        target.view(-1)[batch.places] = True
        rows, chosen = target_rows(batch.places, sequences, length)
        mask = hidden_from(batch.rank, target)
        queries = model(batch.tokens, hidden_from=mask, targets=rows)
        anchors = model.head(queries.flatten(0, 1)[chosen])
        table = Table(model.embedding, model.head.bias)
        own = share(batch, lambda each: len(each.words))
        return among_vocabulary(anchors, batch.words, table).estimate(own)
