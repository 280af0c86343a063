"""What is hidden: lengths, places and budget as said, over many draws and in odd sequences."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from infolm.data import masking

CERTAIN = 1e-4
"""A p-value that a right program falls below once in ten thousand seeds; these are fixed."""


def flags(text):
    return np.array([c == "1" for c in text])


def length_probability(words):
    """P(round(N(5, 1)) clipped to 1..10 = words)."""
    low = -math.inf if words == 1 else words - 0.5
    high = math.inf if words == masking.MOST_WORDS else words + 0.5
    return stats.norm.cdf(high, masking.MEAN_WORDS) - stats.norm.cdf(low, masking.MEAN_WORDS)


LENGTHS = np.array([length_probability(n) for n in range(1, masking.MOST_WORDS + 1)])


def fits(counts, probabilities):
    """Chi-square, with what is expected fewer than five times put together."""
    counts, expected = np.asarray(counts), np.asarray(probabilities) * np.sum(counts)
    rare = expected < 5
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    statistic = ((counts - expected) ** 2 / expected).sum()
    return stats.chi2.sf(statistic, len(counts) - 1) > CERTAIN


@st.composite
def sequences(draw):
    """(free, begins) of a sequence with odd ends: all special, one word, cut words."""
    size = draw(st.integers(1, 30))
    free = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    begins = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    return free, begins


def words_of(free, begins):
    """The words that may be hidden, slowly: (first, end) of each."""
    found = []
    for place in range(len(free)):
        if not free[place]:
            continue
        if begins[place] or place == 0 or not free[place - 1]:
            found.append([place, place])
        found[-1][1] = place + 1
    return [tuple(word) for word in found]


# -- single tokens ------------------------------------------------------------------------------


@given(sequences(), st.floats(0.01, 0.99), st.integers(0, 9))
def test_tokens_are_a_share_of_all_and_none_is_special(sequence, share, seed):
    free, _ = sequence
    hidden = masking.tokens(free, share, np.random.default_rng(seed))
    places = [first for first, _ in hidden]
    assert all(end == first + 1 for first, end in hidden)
    assert places == sorted(set(places))
    assert free[places].all()
    assert len(places) == min(free.sum(), max(1, round(share * len(free))))


def test_every_set_of_tokens_is_as_likely():
    rng, free = np.random.default_rng(0), flags("0111110")
    drawn = [tuple(place for place, _ in masking.tokens(free, 0.3, rng)) for _ in range(5000)]
    pairs = [(a, b) for a in range(1, 6) for b in range(a + 1, 6)]
    assert set(drawn) == set(pairs)
    assert fits([drawn.count(pair) for pair in pairs], [0.1] * 10)


# -- spans --------------------------------------------------------------------------------------


@given(sequences(), st.floats(0.01, 0.99), st.integers(0, 9))
def test_spans_are_whole_words_apart_and_spend_the_budget(sequence, share, seed):
    free, begins = sequence
    hidden = masking.spans(free, begins, share, np.random.default_rng(seed))
    words = words_of(free, begins)
    firsts, ends = {first for first, _ in words}, {end for _, end in words}
    assert all(first in firsts and end in ends for first, end in hidden)
    assert all(free[first:end].all() for first, end in hidden)
    assert all(end <= first for (_, end), (first, _) in pairwise(hidden))
    spent, budget = sum(end - first for first, end in hidden), masking.budget(free, share)
    assert budget <= spent
    assert spent < budget + max((end - first for first, end in words), default=1)
    assert all(
        sum(first <= word[0] < end for word in words) <= masking.MOST_WORDS for first, end in hidden
    )


def test_a_sequence_that_is_one_word_is_hidden_whole_and_one_without_words_not_at_all():
    rng = np.random.default_rng(0)
    one = flags("0" + "1" * 9 + "0")
    assert masking.spans(one, flags("11000000001"), 0.15, rng) == [(1, 10)]
    assert masking.spans(flags("000"), flags("111"), 0.15, rng) == []
    assert masking.tokens(flags("000"), 0.15, rng) == []


def test_lengths_in_words_are_a_rounded_and_clipped_normal(monkeypatch):
    """Of words of one to three pieces. The first sixty spans of a long text are hindered by
    nothing: neither by the budget nor by each other."""
    rng = np.random.default_rng(0)
    free = np.ones(10_000, bool)
    begins = np.zeros_like(free)
    begins[np.cumsum(rng.integers(1, 4, 4_000))] = True
    begins[0] = True
    number = np.cumsum(begins)
    monkeypatch.setattr(masking, "sorted", list, raising=False)  # in the order of drawing
    lengths = []
    for _ in range(30):
        drawn = masking.spans(free, begins, 0.15, rng)
        lengths += [number[end - 1] - number[first] + 1 for first, end in drawn[:60]]
    assert fits(np.bincount(lengths, minlength=11)[1:], LENGTHS)


def test_a_span_begins_at_each_place_with_the_same_chance():
    """A budget of one token leaves one span of one word, whose length was drawn before."""
    rng, size = np.random.default_rng(0), 20
    free = np.ones(size, bool)
    starts = [masking.spans(free, free, 0.01, rng)[0] for _ in range(6000)]
    assert all(end == first + 1 for first, end in starts)
    expected = np.zeros(size)
    for words, probability in enumerate(LENGTHS, 1):
        expected[: size - words + 1] += probability / (size - words + 1)
    assert fits(np.bincount([first for first, _ in starts], minlength=size), expected)


# -- what is shown ------------------------------------------------------------------------------


def test_units_are_masked_random_or_left_and_random_words_are_words():
    rng = np.random.default_rng(0)
    words, mask = np.arange(10, 5000), 4
    sequence = rng.integers(10, 5000, 90_000)
    hidden = [(place, place + 3) for place in range(0, 90_000, 9)]
    seen = masking.corrupted(sequence, hidden, mask, words, rng)
    shown = np.ones(len(sequence), bool)
    fates = {"masked": 0, "random": 0, "left": 0}
    for first, end in hidden:
        shown[first:end] = False
        if (seen[first:end] == mask).all():
            fates["masked"] += 1
        elif (seen[first:end] == sequence[first:end]).all():
            fates["left"] += 1
        else:
            assert (seen[first:end] != mask).all()  # a unit has one fate
            fates["random"] += 1
    assert fits(list(fates.values()), [0.8, 0.1, 0.1])
    assert (seen[shown] == sequence[shown]).all()
    assert set(seen[seen != mask]) <= set(words)


# -- orders -------------------------------------------------------------------------------------


@given(sequences(), st.floats(0.01, 0.99), st.integers(0, 9))
def test_an_order_reads_the_context_then_the_ends_then_the_targets(sequence, share, seed):
    free, _ = sequence
    rank, targets = masking.order(free, share, np.random.default_rng(seed))
    size = len(free)
    assert sorted(rank) == list(range(size))
    assert len(targets) == masking.budget(free, share)
    assert free[targets].all()
    assert sorted(rank[targets]) == list(range(size - len(targets), size))
    context = np.setdiff1d(np.flatnonzero(free), targets)
    assert sorted(rank[context]) == list(range(len(context)))
    assert list(targets) == sorted(targets)


def test_every_order_of_the_words_is_as_likely():
    rng, free = np.random.default_rng(0), flags("011110")
    drawn = [tuple(np.argsort(masking.order(free, 0.3, rng)[0])) for _ in range(6000)]
    every = [(a, b, 0, 5, c, d) for a, b, c, d in permutations(range(1, 5))]
    assert set(drawn) == set(every)
    assert fits([drawn.count(order) for order in every], [1 / 24] * 24)


@pytest.mark.parametrize("masked", [masking.tokens, masking.order])
def test_the_same_generator_draws_the_same(masked):
    free = flags("0111111110")
    a, b = (masked(free, 0.3, np.random.default_rng(5)) for _ in range(2))
    assert str(a) == str(b)
