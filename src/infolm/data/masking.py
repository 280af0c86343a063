"""Masking for encoders: single tokens, spans of whole words, or the end of a permutation.

A sequence is n tokens; `free` says which of them may be hidden (no [CLS], no [SEP]), `begins` which
begin a word. A share of the n is hidden, at least one token.
"""

import numpy as np
import numpy.typing as npt

SHARE = 0.15
"""The share of a sequence's tokens that is hidden (Devlin et al. 2018)."""
MASKED, RANDOM = 0.8, 0.1
"""The shares of hidden units shown as [MASK] and as a random word; the others are unchanged."""
MEAN_WORDS, MOST_WORDS = 5, 10
"""Words of a span: N(5, 1), rounded, from 1 to 10 (Kong et al. 2020, section 5.2)."""

Flags = npt.NDArray[np.bool_]
Spans = list[tuple[int, int]]


def budget(free: Flags, share: float) -> int:
    """The number of tokens to hide: the share of all, at least one, at most those allowed."""
    return min(max(1, round(share * len(free))), int(free.sum()))


def tokens(free: Flags, share: float, rng: np.random.Generator) -> Spans:
    """Single tokens, drawn uniformly, in order."""
    chosen = rng.choice(np.flatnonzero(free), budget(free, share), replace=False, shuffle=False)
    return [(place, place + 1) for place in np.sort(chosen).tolist()]


def spans(free: Flags, begins: Flags, share: float, rng: np.random.Generator) -> Spans:
    """Spans of whole words, in order, until the budget is spent.

    A span's length in words is drawn, then its place, uniformly among the places whose words are
    all still shown; if there is none, the span is a word shorter. A word that is begun is hidden
    whole, so the budget is exceeded by at most one word less a token; the last span ends with that
    word. No word is in two spans.
    """
    # A token that may not be hidden is a word of its own; after it, and at the start of the
    # sequence, even the rest of a cut word counts as a word.
    edges = np.flatnonzero(begins | ~free | np.append(True, ~free[:-1]))
    starts, ends = edges, np.append(edges[1:], len(free))
    shown = free[starts].copy()
    left, found = budget(free, share), []
    while left > 0:
        drawn = int(np.clip(np.rint(rng.normal(MEAN_WORDS, 1)), 1, MOST_WORDS))
        for words in range(min(drawn, len(shown)), 0, -1):
            run = np.lib.stride_tricks.sliding_window_view(shown, words).all(1)
            if run.any():
                break
        first = last = int(rng.choice(np.flatnonzero(run)))
        while last < first + words and left > 0:
            left -= int(ends[last] - starts[last])
            last += 1
        shown[first:last] = False
        found.append((int(starts[first]), int(ends[last - 1])))
    return sorted(found)


def corrupted(
    sequence: npt.NDArray[np.int64],
    hidden: Spans,
    mask: int,
    words: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """The encoder's input: each span as [MASK]s, as random words, or unchanged.

    words: the numbers that a random word is drawn from.
    """
    seen = sequence.copy()
    for (first, end), fate in zip(hidden, rng.random(len(hidden)), strict=True):
        if fate < MASKED:
            seen[first:end] = mask
        elif fate < MASKED + RANDOM:
            seen[first:end] = rng.choice(words, end - first)
    return seen


def order(
    free: Flags, share: float, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A factorisation order of the sequence (Yang et al. 2019): the rank of each token, (n,), and
    the places of the last ones, which are to be predicted, in the sequence's order.

    First the words that are only read, then [CLS] and [SEP], then the targets: so [CLS] sees all
    read words, and every target sees [CLS].
    """
    words = rng.permutation(np.flatnonzero(free))
    cut = len(words) - budget(free, share)
    sequence = np.concatenate([words[:cut], np.flatnonzero(~free), words[cut:]])
    rank = np.empty(len(free), np.int64)
    rank[sequence] = np.arange(len(free))
    return rank, np.sort(words[cut:])
