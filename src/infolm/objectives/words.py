"""InfoNCE over words: b is looked up in a table."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from infolm.nn.contrast import LOG_ZERO, Weights, info_nce, log_sum_exp, wide
from infolm.nn.nce import Noise
from infolm.objectives.base import Estimate


class Contrast(NamedTuple):
    """value: InfoNCE of each pair, (N,); size: its ln |B|, (N,). Of this process' pairs."""

    value: Tensor
    size: Tensor

    def estimate(self, share: float = 1.0) -> Estimate:
        """loss = ln |B| - InfoNCE, the cross entropy of b among B.

        That is `nll`; `information` is the bound, in nats per pair. Both are means over the pairs,
        and 0 where there is none. share: of the pairs in those of the whole batch.
        """
        losses, values = self.size - self.value, self.value.detach()
        if not len(losses):
            return Estimate(losses.sum(), {"nll": values.sum(), "information": values.sum()}, 0)
        loss = losses.mean()
        terms = {"nll": loss.detach(), "information": values.mean()}
        return Estimate(share * loss, terms, len(losses))


class Table(NamedTuple):
    """g_psi of words: vectors (V, D) and biases (V,)."""

    vectors: Tensor
    bias: Tensor | None = None

    def of(self, words: Tensor) -> "Table":
        return Table(self.vectors[words], None if self.bias is None else self.bias[words])

    def scores(self, anchors: Tensor) -> Tensor:
        """f(a_i, b_i) of anchors (N, D) with as many words."""
        product = (anchors * self.vectors).sum(1)
        return product if self.bias is None else product + self.bias


def among_vocabulary(anchors: Tensor, words: Tensor, table: Table) -> Contrast:
    """B is the whole vocabulary: ln V less the cross entropy of a softmax.

    anchors: (N, D); words: (N,), the one that is true of each.
    """
    total = log_sum_exp(anchors, table.vectors, table.bias)
    size = torch.full_like(total, len(table.vectors)).log()
    return Contrast(table.of(words).scores(anchors) - total + size, size)


def among_samples(anchors: Tensor, words: Tensor, table: Table, drawn: Tensor) -> Contrast:
    """B is the true word and `drawn` (K,), the same for all anchors: K + 1 words, of which some may
    be the true one again, as the bound requires."""
    others = table.of(drawn)
    total = log_sum_exp(anchors, others.vectors, others.bias)
    count = torch.full_like(total, len(drawn))
    return Contrast(*info_nce(table.of(words).scores(anchors), total, count))


def among_batch(
    anchors: Tensor, words: Tensor, table: Table, groups: Tensor, every: Tensor | None = None
) -> Contrast:
    """B is the true word and those of the other sequences of the batch, each as often as it occurs:
    a free sample of the unigram distribution (Kong et al. 2020, section
    5.2; 70,000 words of a batch).

    groups: (N,), the sequence of each anchor and word, rising. A word's scores are the same
    wherever it stands, so they are made once and weighted by its count: never more than V of them.
    every: (M,), the words of the whole batch, where these are a part of it. A sequence that has no
    other has a B of one word.
    """
    kinds, everywhere = (words if every is None else every).unique(return_counts=True)
    others = table.of(kinds)
    anchors = wide(anchors)  # bfloat16 cannot count to 300
    place = torch.searchsorted(kinds, words)
    weights = elsewhere(place, groups, everywhere, anchors.dtype)
    total = log_sum_exp(anchors, others.vectors, others.bias, weights)
    count = everywhere.sum() - torch.bincount(groups)[groups]
    return Contrast(*info_nce(others.of(place).scores(anchors), total, count.to(total)))


def elsewhere(place: Tensor, groups: Tensor, everywhere: Tensor, dtype: torch.dtype) -> Weights:
    """For anchors in groups that rise, ln of how often each kind is in other groups.

    everywhere: (M,), how often each is in all groups; place: (N,), the kind that stands beside each
    anchor, in its group.
    """
    kinds = len(everywhere)

    def weights(rows: slice) -> Tensor:
        first, last = groups[rows][0], groups[rows][-1]
        inside = (groups >= first) & (groups <= last)
        here = (groups[inside] - first) * kinds + place[inside]
        own = torch.bincount(here, minlength=int(last - first + 1) * kinds).view(-1, kinds)
        logs = (everywhere - own).to(dtype).log().clamp(min=LOG_ZERO)
        return logs[groups[rows] - first]

    return weights


Among = Callable[[Tensor, Tensor, Table, Tensor, Tensor | None], Contrast]
"""One of the three above, as (anchors, words, table, groups, words of the whole batch)."""


def among(negatives: str, noise: Noise | None, count: int) -> Among:
    """The way that a recipe names: vocabulary, unigram (`count` draws of `noise`) or batch."""
    if negatives == "batch":
        return among_batch
    if negatives == "unigram":
        assert noise is not None
        return lambda anchors, words, table, *_: among_samples(
            anchors, words, table, noise.draw(count)
        )
    return lambda anchors, words, table, *_: among_vocabulary(anchors, words, table)
