"""The n-gram baseline: against a slow one made of dictionaries, and what must be true of it."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.errors import InfolmError
from infolm.evaluation.kneser_ney import KneserNey, discounts

VOCABULARY = 6

texts = st.lists(st.integers(0, VOCABULARY - 1), min_size=0, max_size=60)
contexts = st.lists(st.integers(0, VOCABULARY - 1), min_size=0, max_size=7)
orders = st.integers(1, 5)
untimed = settings(deadline=None)  # a machine may be busy


def slow_probability(text, vocabulary, order, context, word):
    """p(word | context) straight from the definition, over dictionaries of tuples."""

    def grams(k):
        return [tuple(text[i : i + k]) for i in range(len(text) - k + 1)]

    def counts(k):
        if k == order:
            return Counter(grams(k))
        return Counter(gram[1:] for gram in set(grams(k + 1)))

    def p(k, context):
        if k == 0:
            return 1 / vocabulary
        lower = p(k - 1, context[1:])
        table = counts(k)
        d = discounts(np.array(list(table.values()), int))
        after = {gram: c for gram, c in table.items() if gram[:-1] == context}
        total = sum(after.values())
        if total == 0:
            return lower
        mine = after.get((*context, word), 0)
        freed = sum(d[min(c, 3)] for c in after.values())
        return (mine - d[min(mine, 3)]) / total + freed / total * lower

    context = tuple(context[max(0, len(context) - order + 1) :])
    return p(len(context) + 1, context)


@untimed
@given(texts, orders, contexts)
def test_sums_to_one_after_any_context(text, order, context):
    p = KneserNey.fit(np.array(text, int), VOCABULARY, order).distribution(context)
    assert p.shape == (VOCABULARY,)
    assert p.min() > 0
    assert p.sum() == pytest.approx(1, abs=1e-12)


@given(texts, orders, contexts)
@settings(max_examples=60, deadline=None)
def test_equals_the_slow_definition(text, order, context):
    p = KneserNey.fit(np.array(text, int), VOCABULARY, order).distribution(context)
    slow = [slow_probability(text, VOCABULARY, order, context, w) for w in range(VOCABULARY)]
    np.testing.assert_allclose(p, slow, rtol=1e-12)


@untimed
@given(texts, orders, texts.filter(bool))
def test_log_probs_agree_with_distribution(text, order, other):
    model = KneserNey.fit(np.array(text, int), VOCABULARY, order)
    slow = [np.log(model.distribution(other[:t])[other[t]]) for t in range(1, len(other))]
    np.testing.assert_allclose(model.log_probs(np.array(other)), slow, rtol=1e-12)


def test_order_one_is_the_smoothed_unigram():
    text = np.array([0, 0, 0, 0, 1, 1, 2, 3])
    d = discounts(np.array([4, 2, 1, 1]))
    expected = np.array([4 - d[3], 2 - d[2], 1 - d[1], 1 - d[1], 0]) / 8
    expected += (d[3] + d[2] + 2 * d[1]) / 8 / 5
    np.testing.assert_allclose(KneserNey.fit(text, 5, order=1).distribution([3]), expected)


def test_bigram_by_hand():
    """ "a b a c": after a, b and c once each; the lower order counts what stands before a word."""
    a, b, c = 0, 1, 2
    # No bigram or unigram count is 2, so every discount is one half.
    unigram = np.array([1, 1, 1]) / 3 * 0.5 + 0.5 / 3
    expected = np.array([0, 0.5, 0.5]) / 2 + 1.0 / 2 * unigram
    np.testing.assert_allclose(
        KneserNey.fit(np.array([a, b, a, c]), 3, order=2).distribution([a]), expected
    )


def test_a_context_never_seen_is_the_context_without_its_oldest_word():
    text = np.random.default_rng(0).integers(0, 4, 300)
    model = KneserNey.fit(text, 5, order=3)
    np.testing.assert_array_equal(model.distribution([4, 2]), model.distribution([2]))
    np.testing.assert_array_equal(model.distribution([2, 4]), model.distribution([]))


def test_only_the_last_words_of_the_context_matter():
    model = KneserNey.fit(np.random.default_rng(0).integers(0, 4, 300), 4, order=3)
    np.testing.assert_array_equal(model.distribution([0, 1, 2, 3]), model.distribution([2, 3]))


def test_words_never_seen_share_what_is_left():
    text = np.random.default_rng(1).integers(0, 3, 100)
    p = KneserNey.fit(text, 10).distribution([0, 1])
    assert p[3:].min() == p[3:].max() > 0
    assert p[:3].min() > p[3]


def test_the_counts_of_counts_give_the_three_discounts():
    counts = np.repeat([1, 2, 3, 4, 9], [40, 20, 10, 5, 3])
    y = 40 / 80
    expected = [0, 1 - 2 * y * 20 / 40, 2 - 3 * y * 10 / 20, 3 - 4 * y * 5 / 10]
    np.testing.assert_allclose(discounts(counts), expected)


@untimed
@given(st.lists(st.integers(0, 8), max_size=40))
def test_a_discount_is_positive_and_never_more_than_the_count(counts):
    d = discounts(np.array(counts, int))
    assert d[0] == 0
    assert (d[1:] > 0).all()
    assert (d <= [0, 1, 2, 3]).all()


def test_knows_the_entropy_of_a_markov_chain():
    """On a long text from a chain the cross entropy comes close to the chain's entropy rate."""
    rng = np.random.default_rng(2)
    chain = rng.dirichlet(np.full(8, 0.3), size=8)
    text = [0]
    for uniform in rng.random(40_000):
        text.append(min(int(np.searchsorted(chain[text[-1]].cumsum(), uniform)), 7))
    train, test = np.array(text[:30_000]), np.array(text[30_000:])
    log_probs = KneserNey.fit(train, 8, order=2).log_probs(test)
    excess = np.log(chain[test[:-1], test[1:]]) - log_probs
    standard_error = excess.std() / np.sqrt(len(excess))
    # 8 x 7 free probabilities cost about 56 / (2 x 30,000) nats, below 0.002.
    assert abs(excess.mean()) < 0.002 + 4 * standard_error


def test_takes_the_small_types_a_memory_map_holds():
    text = np.random.default_rng(3).integers(0, 200, 1000)
    small = text.astype(np.uint8)
    np.testing.assert_array_equal(
        KneserNey.fit(small, 200).log_probs(small), KneserNey.fit(text, 200).log_probs(text)
    )


def test_refuses_order_zero():
    with pytest.raises(InfolmError, match="at least 1"):
        KneserNey.fit(np.array([0, 1]), 2, order=0)
