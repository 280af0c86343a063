"""BLEU against nltk's and by hand, and what holds of any score."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nltk.translate import bleu_score

from infolm.evaluation.bleu import bleu, sentence_bleu

TOKENS = st.lists(st.integers(0, 4), max_size=12)
PAIRS = st.lists(st.tuples(TOKENS, TOKENS.filter(bool)), min_size=1, max_size=8)


def split(pairs):
    return [h for h, _ in pairs], [r for _, r in pairs]


def test_papineni_clips_what_is_repeated():
    reference = "the cat is on the mat".split()
    assert sentence_bleu(["the"] * 7, reference) == pytest.approx(2 / 7)


def test_by_hand():
    reference = "a b c d e".split()
    # Three of four words, one of three pairs; a word too short.
    score = sentence_bleu("a b d x".split(), reference, order=2)
    assert score == pytest.approx(math.exp(1 - 5 / 4) * math.sqrt(3 / 4 * 1 / 3))


def test_too_short_is_punished_and_too_long_only_by_its_precision():
    assert sentence_bleu([1], [1, 2]) == pytest.approx(math.exp(-1))
    assert sentence_bleu([1, 2, 3, 4], [1, 2]) == pytest.approx(1 / 2)


def test_the_corpus_score_is_not_the_mean_of_sentences():
    found = bleu([[1], [5, 5, 5]], [[1], [2, 3, 4]])
    assert found.corpus == pytest.approx(1 / 4)
    assert found.mean == pytest.approx(1 / 2)
    assert found.stderr == pytest.approx(np.std([0, 1], ddof=1) / math.sqrt(2))


def test_an_empty_hypothesis_scores_nothing_and_shortens_the_corpus():
    assert sentence_bleu([], [1, 2]) == 0
    found = bleu([[], [1, 2]], [[1, 2], [1, 2]])
    assert found.corpus == pytest.approx(math.exp(1 - 4 / 2))
    assert found.mean == pytest.approx(1 / 2)
    assert bleu([[]], [[]]) == (0, 0, None)


@settings(deadline=None, max_examples=60)
@given(pairs=PAIRS, order=st.integers(1, 3))
def test_agrees_with_nltk(pairs, order):
    weights = (1 / order,) * order
    # nltk has an n-gram in the sum for a hypothesis that is too short for one.
    longer = [pair for pair in pairs if len(pair[0]) >= order]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a precision of 0, for which it has a tiny number
        single = [bleu_score.sentence_bleu([r], h, weights) for h, r in pairs]
        corpus = longer and bleu_score.corpus_bleu(
            [[r] for _, r in longer], split(longer)[0], weights
        )
    assert [sentence_bleu(h, r, order) for h, r in pairs] == pytest.approx(single, abs=1e-12)
    assert bleu(*split(pairs), order).mean == pytest.approx(np.mean(single), abs=1e-12)
    if longer:
        assert bleu(*split(longer), order).corpus == pytest.approx(corpus, abs=1e-12)


@settings(deadline=None)
@given(sentences=st.lists(TOKENS, min_size=1), order=st.integers(1, 4))
def test_a_copy_scores_one(sentences, order):
    sentences = [sentence for sentence in sentences if len(sentence) >= order]
    assume(sentences)
    found = bleu(sentences, sentences, order)
    assert found.corpus == pytest.approx(1)
    assert found.mean == pytest.approx(1)


@settings(deadline=None)
@given(pairs=PAIRS, order=st.integers(1, 3), data=st.data())
def test_lies_between_zero_and_one_whatever_the_order_of_the_pairs(pairs, order, data):
    found = bleu(*split(pairs), order)
    assert 0 <= found.corpus <= 1 + 1e-12
    assert 0 <= found.mean <= 1 + 1e-12
    again = bleu(*split(data.draw(st.permutations(pairs))), order)
    assert again.corpus == found.corpus
    assert again.mean == pytest.approx(found.mean)


def test_hypotheses_and_references_are_pairs():
    with pytest.raises(ValueError, match="shorter"):
        bleu([[1], [2]], [[1]])
