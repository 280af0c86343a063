"""Interpolated Kneser-Ney: the n-gram baseline of a neural model.

Kneser and Ney (1995), in the modified form of Chen and Goodman (1999, section 3): for the words w
after the context h = (w_1 ... w_{k-1}), with h' the context without its oldest word,

    p_k(w | h) = (c(h w) - D(c(h w))) / c(h)  +  g(h) p_{k-1}(w | h'),    p_0(w) = 1/V,
    g(h) = sum over w of D(c(h w)) / c(h),    c(h) = sum over w of c(h w).

At the highest order c is the number of occurrences of an n-gram; below it is the number of
different words seen before it, because a lower order is used only where a longer context has
failed. An unseen context has g = 1. Since p_0 is uniform over the vocabulary, no probability is
zero.

The text is one stream: contexts run across <eos>. On the Penn Treebank (five words, test
perplexity) this gives 141.1, beside the 141.2 that the literature quotes as KN-5, and 217.8 on
WikiText-2 (`benchmarks/kneser_ney.py`). Contexts cut at the start of each line, or one discount
instead of three, were worse on both validation splits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from infolm.errors import InfolmError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Level:
    """The G different k-grams of the text, over the C different (k-1)-grams, their contexts.

    A k-gram's id is its rank in `keys`; its key is (id of its context) * V + (its last word), so
    the k-grams of one context are adjacent. Id -1 means never seen; it picks the last entry of
    `share` and `backoff`, which is the value for the unseen.
    """

    keys: Ints  # (G + 1,) ascending; the last one is larger than any key
    share: Floats  # (G + 1,) the discounted relative frequency, 0 for the unseen
    backoff: Floats  # (C + 1,) g(h), the weight of the lower order, 1 for the unseen

    def find(self, keys: Ints) -> Ints:
        """The ids of the k-grams with these keys, -1 where there is none (any shape)."""
        ids = np.searchsorted(self.keys, keys)
        return np.where(self.keys[ids] == keys, ids, -1)


def discounts(counts: Ints) -> Floats:
    """The discounts of counts 0, 1, 2, and 3 or more, shape (4,).

    With n_i the number of n-grams that have count i and Y = n_1 / (n_1 + 2 n_2),
    D_i = i - (i+1) Y n_{i+1} / n_i (Chen and Goodman, equation 26). A small text may have n_i = 0,
    or counts such that D_i leaves (0, i): then D_i = Y, the single discount of Kneser and Ney, and
    Y = 1/2 if n_1 or n_2 is zero.
    """
    _, n1, n2, n3, n4, _ = np.bincount(np.minimum(counts, 5), minlength=6).tolist()
    single = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    result = [0.0]
    for i, here, above in ((1, n1, n2), (2, n2, n3), (3, n3, n4)):
        discount = i - (i + 1) * single * above / here if here else 0.0
        result.append(discount if 0 < discount < i else single)
    return np.array(result)


def _level(keys: Ints, counts: Ints, contexts: int, vocabulary: int) -> Level:
    """The level of the k-grams `keys` (G,) with `counts` (G,), over the given number of
    contexts."""
    context = keys // vocabulary
    taken = discounts(counts)[np.minimum(counts, 3)]
    total = np.bincount(context, weights=counts, minlength=contexts)
    freed = np.bincount(context, weights=taken, minlength=contexts)
    # The words that open the text have no word before them, so below the highest order a count,
    # and a total, can be zero.
    share = (counts - taken) / np.maximum(total, 1)[context]
    backoff = np.where(total > 0, freed / np.maximum(total, 1), 1.0)
    return Level(
        np.append(keys, np.iinfo(np.int64).max), np.append(share, 0.0), np.append(backoff, 1.0)
    )


@dataclass(frozen=True)
class KneserNey:
    """A fitted model: levels[k-1] holds the k-grams, k = 1 .. order."""

    levels: tuple[Level, ...]
    vocabulary: int

    @classmethod
    def fit(cls, tokens: Tokens, vocabulary: int, order: int = 5) -> Self:
        """Count the n-grams of `tokens` (N,), ids below `vocabulary`.

        One sort of N integers for each order; order 1 is the (smoothed) unigram model.
        """
        if order < 1:
            raise InfolmError(f"An n-gram model needs an order of at least 1, not {order}.")
        words = tokens.astype(np.int64)
        ids = np.zeros(len(words), np.int64)  # of the (k-1)-gram that starts at each position
        keys: list[Ints] = []
        counts: list[Ints] = []
        for k in range(1, order + 1):
            shorter = ids
            # The k-gram that starts at i is the (k-1)-gram that starts there and one word more.
            grams = shorter[: max(len(words) - k + 1, 0)] * vocabulary + words[k - 1 :]
            unique, first, ids, occurrences = np.unique(
                grams, return_index=True, return_inverse=True, return_counts=True
            )
            if k > 1:  # now a (k-1)-gram counts the different k-grams that end in it
                counts[-1] = np.bincount(shorter[first + 1], minlength=len(keys[-1]))
            keys.append(unique)
            counts.append(occurrences)
        contexts = [1, *map(len, keys[:-1])]
        levels = zip(keys, counts, contexts, strict=True)
        return cls(tuple(_level(*level, vocabulary) for level in levels), vocabulary)

    def log_probs(self, tokens: Tokens) -> Floats:
        """ln p(tokens[t] | tokens[:t]) for t = 1 .. N-1, in nats: (N,) -> (N-1,)."""
        words = tokens.astype(np.int64)
        p = np.full(len(words), 1 / self.vocabulary)
        ids = np.zeros(len(words), np.int64)  # of the (k-1)-gram that ends at each position
        for k, level in enumerate(self.levels, 1):
            # Near the start of the text there are fewer than k-1 words before: unseen.
            context = ids if k == 1 else np.append(-1, ids)[:-1]
            # An unseen context makes a negative key, which no level holds.
            ids = level.find(context * self.vocabulary + words)
            p = level.share[ids] + level.backoff[context] * p
        return np.log(p[1:])

    def distribution(self, context: Sequence[int]) -> Floats:
        """p(. | context), shape (V,); only the last order-1 words of the context matter."""
        p = np.full(self.vocabulary, 1 / self.vocabulary)
        every_word = np.arange(self.vocabulary)
        for k, level in enumerate(self.levels[: len(context) + 1], 1):
            h = self._id(context[len(context) - k + 1 :])
            p = level.share[level.find(h * self.vocabulary + every_word)] + level.backoff[h] * p
        return p

    def _id(self, gram: Sequence[int]) -> int:
        """The id of one k-gram among the k-grams, -1 if the text does not hold it."""
        found = 0
        for level, word in zip(self.levels, gram, strict=False):
            found = int(level.find(np.array(found * self.vocabulary + word)))
        return found
