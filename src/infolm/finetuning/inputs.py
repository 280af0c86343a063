"""Labelled examples as an encoder's input, in batches.

    [CLS] sentence [SEP]        [CLS] sentence [SEP] second sentence [SEP]

The second sentence with its [SEP] is of segment 1, all before it of segment 0, as in BERT.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from infolm.data.episodes import group
from infolm.data.sentence_pairs import shortened
from infolm.data.tokens import Special, Tokenizer
from infolm.finetuning.tasks import Example

POOL = 50
"""Batches' worth of examples that are drawn together and then sorted by length."""
AREA = 8192
"""Tokens of a batch outside training."""
SHARE_SEED = 1
"""Of the order by which `share` takes examples: the same in every run."""
HALVES_SEED = 2
"""Of the halves of dev: the same in every run, so that encoders are compared on the same half."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Inputs:
    """S sequences in `tokens` (N,): sequence i is `lengths[i]` tokens from `starts[i]` on.

    second (S,): where in each segment 1 begins; its length where there is none. pad: the number of
    [PAD].
    """

    tokens: Ints
    starts: Ints
    lengths: Ints
    second: Ints
    pad: int

    @classmethod
    def of(cls, rows: Sequence[npt.NDArray[Any]], second: Sequence[int], pad: int) -> Self:
        lengths = np.array([len(row) for row in rows], np.int64)
        tokens = np.concatenate(rows).astype(np.int64)
        return cls(tokens, np.cumsum(lengths) - lengths, lengths, np.array(second, np.int64), pad)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def arrays(self) -> tuple[Ints, ...]:
        return self.tokens, self.lengths, self.second

    def padded(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """Sequences side by side: their tokens, 1 where there is one, and segments, (B, L) each."""
        places = np.arange(self.lengths[numbers].max())
        inside = places < self.lengths[numbers, None]
        where = np.minimum(self.starts[numbers, None] + places, len(self.tokens) - 1)
        tokens = np.where(inside, self.tokens[where], self.pad)
        segments = inside & (places >= self.second[numbers, None])
        return tokens, inside.astype(np.int64), segments.astype(np.int64)

    def drawn(self, batch: int, seed: int, epoch: int) -> list[Ints]:
        """An epoch's batches, by the numbers of their sequences: ceil(S / batch) of them.

        A function of the seed and the epoch. Each `POOL` batches' worth of the drawn order is
        sorted by length, so that little is padded, and the order of the batches is drawn too.
        """
        rng = np.random.default_rng([seed, epoch])
        order, size = rng.permutation(len(self)), POOL * batch
        pools = [order[i : i + size] for i in range(0, len(order), size)]
        order = np.concatenate([p[np.argsort(self.lengths[p], kind="stable")] for p in pools])
        batches = [order[i : i + batch] for i in range(0, len(order), batch)]
        return [batches[number] for number in rng.permutation(len(batches))]

    def sorted(self) -> Iterator[Ints]:
        """All sequences once, those of like length together: the numbers of each batch."""
        order = np.argsort(self.lengths, kind="stable")
        for first, end in pairwise(group(self.lengths[order], AREA)):
            yield order[first:end]


def read_examples(
    examples: Sequence[Example], tokenizer: Tokenizer, length: int
) -> tuple[Inputs, list[str]]:
    """The examples as an encoder reads them, and where those stand that had to be cut to `length`
    tokens."""
    encode, special = tokenizer.encode, tokenizer.special
    rows = [
        joined(encode(e.text), None if e.pair is None else encode(e.pair), special, length)
        for e in examples
    ]
    tokens, second, whole = zip(*rows, strict=True)
    cut = [example.where for example, kept in zip(examples, whole, strict=True) if not kept]
    return Inputs.of(tokens, second, special.pad), cut


def joined(first: Ints, pair: Ints | None, special: Special, length: int) -> tuple[Ints, int, bool]:
    """The sequence of one sentence or two, where segment 1 begins, and whether nothing was cut."""
    if pair is None:
        kept = first[: length - 2]
        row = np.concatenate([[special.cls], kept, [special.sep]])
        return row, len(row), len(kept) == len(first)
    a, b = (int(kept) for kept in shortened(len(first), len(pair), length - 3))
    row = np.concatenate([[special.cls], first[:a], [special.sep], pair[:b], [special.sep]])
    return row, a + 2, (a, b) == (len(first), len(pair))


def share_of(count: int, share: float) -> Ints:
    """The numbers of a share of `count` examples, at least one, in their order.

    They are drawn once: a smaller share is part of a larger one.
    """
    order = np.random.default_rng(SHARE_SEED).permutation(count)
    return np.sort(order[: max(1, round(share * count))])


def halves(groups: Ints, strata: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Two parts of n examples, drawn once for all: their numbers, rising.

    groups: (n,), examples that share a number stay together. strata: (n,), of each group its class:
    of the G groups of a class the first part has G // 2, so that both parts have the classes in the
    same proportion. (Drawn without it, a half with more of one class leaves fewer of it to the
    other, and what is chosen by the frequent class is reported as worse than chance.)
    """
    rng = np.random.default_rng(HALVES_SEED)
    drawn = [rng.permutation(np.unique(groups[strata == s])) for s in np.unique(strata)]
    inside = np.isin(groups, np.concatenate([names[: len(names) // 2] for names in drawn]))
    return np.flatnonzero(inside), np.flatnonzero(~inside)
