"""What a decoder makes of codes: means with their errors, and reconstructions counted by hand."""

import math

import numpy as np
import pytest

from infolm.evaluation.bleu import sentence_bleu
from infolm.evaluation.reading import gain, mean, reading, reading_measurements

SENTENCES = [[i, i + 1, i + 2] for i in range(0, 60, 3)]
"""20, no two of which share a word."""


def test_a_mean_and_its_error():
    found = mean(np.array([1.0, 2.0, 6.0]))
    assert found.value == 3
    assert found.stderr == pytest.approx(math.sqrt(7 / 3))
    assert mean(np.array([1.0])).stderr == math.inf


def test_the_gain_is_paired_by_sentence():
    """Sentences differ by far more than codes change them; the error is that of the change."""
    own = np.array([-10.0, -200.0, -50.0])
    other = np.concatenate([own - [1, 2, 3], own - [3, 2, 1]])
    assert gain(own, other) == pytest.approx((2.0, 0.0))
    other = np.concatenate([own - [1, 2, 3], own - [1, 2, 6]])
    expected = np.array([1, 2, 4.5])
    assert gain(own, other) == pytest.approx((2.5, expected.std(ddof=1) / math.sqrt(3)))


def test_a_decoder_that_gives_all_back():
    found = reading(SENTENCES, SENTENCES)
    assert (found.sentences, found.written, found.distinct) == (20, 20, 1)
    assert found.bleu == pytest.approx((1, 0))
    assert found.shuffled == pytest.approx((0, 0))
    assert found.difference == pytest.approx((1, 0))


def test_a_decoder_that_writes_one_sentence_whatever_the_code():
    """Which has some BLEU all the same, and no more beside its own sentence than beside another."""
    sentences = [[1, 2, i] for i in range(3, 23)]
    found = reading([[1, 2, 2]] * 20, sentences)
    assert (found.written, found.distinct) == (1, 1 / 20)
    assert found.bleu.value == pytest.approx(2 / 3)
    assert found.difference == (0, 0)


def test_each_sentence_is_set_against_all_others_where_they_are_few():
    """By every pair that there is."""
    sentences = [[1, 2, 3], [1, 4], [2, 3, 4, 5]]
    written = [[1, 2], [1, 4, 4], [2, 5]]
    found = reading(written, sentences)
    own = [sentence_bleu(w, s) for w, s in zip(written, sentences, strict=True)]
    others = [
        np.mean([sentence_bleu(written[j], sentence) for j in range(3) if j != i])
        for i, sentence in enumerate(sentences)
    ]
    assert found.bleu == pytest.approx(mean(np.array(own)))
    assert found.shuffled == pytest.approx(mean(np.array(others)))
    assert found.difference == pytest.approx(mean(np.array(own) - others))


def test_sentences_that_are_the_same_can_be_written_the_same():
    assert reading([[1], [1], [2], [2]], [[1], [1], [2], [2]]).distinct == 1
    assert reading([[1], [1], [2], [2]], [[1], [3], [2], [4]]).distinct == 0.5


def test_there_are_no_more_reconstructions_than_codes():
    """Ten classes cannot be written in more than ten ways."""
    written = [SENTENCES[i % 2] for i in range(20)]
    assert reading(written, SENTENCES).distinct == 0.1
    assert reading(written, SENTENCES, codes=2).distinct == 1
    assert reading(written, SENTENCES, codes=100).distinct == 0.1


def test_measurements_say_what_they_are():
    shuffled, distinct = reading_measurements(
        SENTENCES[:1] * 20, SENTENCES, "test", "latent code", "words from codes"
    )
    assert (shuffled.metric, shuffled.unit) == ("bleu_shuffled", "BLEU-1")
    assert shuffled.value == pytest.approx(1 / 20)  # the first sentence alone is it
    assert shuffled.stderr is not None
    assert (distinct.metric, distinct.value, distinct.stderr) == (
        "distinct_reconstructions",
        1 / 20,
        None,
    )
    for each in (shuffled, distinct):
        assert each.tokens == 60
        assert "20 sentences written anew, words from codes" in each.convention
    *_, of_codes = reading_measurements(SENTENCES, SENTENCES, "test", "m", "words", 20)
    assert "whichever are fewer" in of_codes.convention
