"""Segments of text: the pairs are the right tokens, and a chain's information is found."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.errors import InfolmError
from infolm.information import neural
from infolm.information.languages import MarkovChain
from infolm.information.neural import BOUNDS, cross_fitted, fewest_rows, parts
from infolm.information.segments import Segments, segment_pairs, shared_by_pairs

untimed = settings(deadline=None, max_examples=60)

# Each state has a favourite next: I = 0.80 nats between neighbours, 0.33 at a gap of two.
CHAIN = MarkovChain(0.8 * np.roll(np.eye(4), 1, axis=1) + 0.05)


def chain_pairs(pairs, length, gap, seed=1):
    tokens = CHAIN.sample(pairs * (2 * length + gap), np.random.default_rng(seed))
    return segment_pairs(tokens, length, gap)


# Pairs


@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 5), st.none() | st.integers(1, 20))
@untimed
def test_pairs_are_slices_of_the_text(size, length, gap, stride):
    tokens = np.arange(size) * 7
    span = 2 * length + gap
    if size < span:
        with pytest.raises(InfolmError, match=f"the text has {size} tokens, too few"):
            segment_pairs(tokens, length, gap, stride)
        return
    x, y = segment_pairs(tokens, length, gap, stride)
    starts = range(0, size - span + 1, stride or span)
    assert x.tolist() == [tokens[at : at + length].tolist() for at in starts]
    assert y.tolist() == [tokens[at + length + gap : at + span].tolist() for at in starts]


@given(st.integers(0, 120), st.integers(1, 5), st.integers(0, 4), st.integers(1, 20))
@untimed
def test_no_token_is_on_both_sides_of_a_cut(more, length, gap, stride):
    folds, span = 3, 2 * length + gap
    samples = fewest_rows(folds) + more
    x, y = segment_pairs(np.arange((samples - 1) * stride + span), length, gap, stride)
    assert len(x) == samples
    tokens = np.concatenate([x, y], 1)
    overlap = (span - 1) // stride  # how many rows on begin before this one ends
    for fold in parts(samples, folds, overlap, seed=0):
        train, valid, test = (set(tokens[part].flat) for part in fold)
        assert train
        assert valid
        assert test
        assert not (test & train | test & valid | valid & train)
    # One row less would not do where a row has no gap in it.
    if overlap and not gap:
        closer = parts(samples, folds, overlap - 1, seed=0)
        assert any(set(tokens[fold.test].flat) & set(tokens[fold.train].flat) for fold in closer)


@given(st.integers(0, 120), st.integers(1, 5), st.integers(0, 4), st.integers(1, 20))
@untimed
def test_pairs_that_are_read_share_no_token_with_any_other(more, length, gap, stride):
    """Those of training overlap each other; each of the others is tested once."""
    folds, span = 3, 2 * length + gap
    overlap = (span - 1) // stride
    samples = (fewest_rows(folds) - 1) * (overlap + 1) + 1 + more
    x, y = segment_pairs(np.arange((samples - 1) * stride + span), length, gap, stride)
    tokens = np.concatenate([x, y], 1)
    apart = np.arange(0, samples, overlap + 1)
    cut = list(parts(samples, folds, overlap, 0, apart))
    tested = np.concatenate([fold.test for fold in cut])
    assert tested.tolist() == apart.tolist()
    assert len(np.unique(tokens[tested])) == tokens[tested].size  # also from fold to fold
    for fold in cut:
        train, valid, test = (set(tokens[part].flat) for part in fold)
        assert len(valid) == tokens[fold.valid].size
        assert set(fold.valid) <= set(apart)
        assert not (test & train | test & valid | valid & train)
        # All that neither shares a token nor lies between those held out is learnt from.
        assert len(fold.train) >= samples - (overlap + 1) * (len(fold.test) + len(fold.valid) + 3)


# The bound


def test_overlapping_pairs_of_noise_share_nothing_and_would_if_they_leaked():
    tokens = np.random.default_rng(0).integers(0, 1000, 8000)
    x, y = segment_pairs(tokens, 5, 0, stride=2)
    estimator = Segments(1000, folds=2, steps=80, overlap=4)
    estimate = estimator.estimate(x, y)
    assert (len(x), estimate.samples) == (3996, 800)
    assert estimate.value < 3 * estimate.stderr + neural.TOLERANCE
    # Cut at random, pairs share tokens with those learnt from, and the same text seems to tell.
    prepare, steps = estimator._prepare, estimator.steps
    leaking = cross_fitted("", x, y, prepare, "js-dv", 2, None, steps, 0, None)
    assert leaking.value > 8 * leaking.stderr


@pytest.mark.parametrize(("length", "gap"), [(3, 0), (2, 2)])
def test_the_bound_recovers_the_information_of_a_markov_chain(length, gap):
    truth = CHAIN.segment_information(length, gap, length)
    estimate = Segments(CHAIN.types, folds=3, steps=80).estimate(*chain_pairs(2500, length, gap))
    assert 0.8 * truth < estimate.value < truth + 4 * estimate.stderr
    assert estimate.bound == "lower"
    assert estimate.samples == 2500
    assert len(estimate.folds) == 3
    assert abs(estimate.permuted) < 4 * np.sqrt(3) * estimate.stderr
    low, high = estimate.interval
    assert low <= truth <= high


def test_segments_of_noise_share_nothing():
    tokens = np.random.default_rng(0).integers(0, 4, 6 * 300)
    estimate = Segments(4, folds=2, steps=100).estimate(*segment_pairs(tokens, 3, 0))
    assert estimate.value < 4 * estimate.stderr + 0.01
    assert estimate.interval[0] < 0.01


def languages(flip, rows, seed, types=8, length=6):
    """Sentences that step by 1 or by 3, by a bit that y has too but for flips: single tokens tell
    nothing of it, and I(X; Y) = ln 2 - H(flip) exactly."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, rows)
    other = bits ^ (rng.random(rows) < flip)
    begin = rng.integers(0, types, (2, rows, 1))
    return [
        (begin[side] + np.arange(length) * np.where(each == 1, 3, 1)[:, None]) % types
        for side, each in enumerate((bits, other))
    ]


def test_what_pairs_of_tokens_show_is_a_lower_bound():
    for seed in range(20):
        sure = shared_by_pairs(*languages(0.0, 800, seed))
        assert 0.5 < sure <= math.log(2)
        doubtful = shared_by_pairs(*languages(0.2, 800, seed))
        assert 0.05 < doubtful < math.log(2) + 0.2 * math.log(0.2) + 0.8 * math.log(0.8)
        assert shared_by_pairs(*languages(0.5, 800, seed)) < 0.005
    x, y = languages(0.0, 800, 0)
    assert shared_by_pairs(x[:, :1], y) == 0  # no pairs
    assert shared_by_pairs(x[:60], y[:60]) == 0  # too few


def test_critics_that_miss_what_pairs_of_tokens_show_are_warned_of():
    estimator = Segments(8, folds=2, steps=60)
    missed = estimator.estimate(*languages(0.0, 800, 1))
    assert missed.interval[1] < 0.3
    assert re.search(r"pairs of neighbouring tokens show at least 0\.\d+ nats", missed.warning)
    nothing = estimator.estimate(*languages(0.5, 800, 1))
    assert "found nothing" in nothing.warning
    seen = Segments(CHAIN.types, folds=3, steps=80).estimate(*chain_pairs(2500, 3, 0))
    assert "tokens show" not in (seen.warning or "")


def test_the_two_sides_may_have_different_lengths():
    x, y = chain_pairs(400, 3, 0)
    truth = CHAIN.segment_information(1, 0, 3)
    estimate = Segments(4, folds=2, steps=100).estimate(x[:, 2:], y)
    assert 0.5 * truth < estimate.value < truth + 4 * estimate.stderr


@pytest.mark.parametrize("kind", sorted(set(BOUNDS) - {"club"}))
def test_any_bound_of_scores_can_be_chosen(kind):
    estimate = Segments(4, kind, "separable", folds=2, steps=5).estimate(*chain_pairs(90, 2, 0))
    assert estimate.estimator == kind
    assert estimate.bound == BOUNDS[kind].side
    assert np.isfinite([estimate.value, estimate.stderr, *estimate.interval]).all()


def test_a_seed_decides_all_whatever_the_number_of_threads():
    threads = torch.get_num_threads()
    x, y = chain_pairs(400, 2, 0)
    estimator = Segments(4, folds=2, steps=neural.EVERY)
    try:
        estimates = []
        for count in (1, 3):
            torch.set_num_threads(count)
            estimates.append(estimator.estimate(x, y))
        assert estimates[0] == estimates[1]
        assert estimates[0].value > 0
    finally:
        torch.set_num_threads(threads)


def test_rows_beside_a_cut_are_left_out_as_told():
    x, y = chain_pairs(200, 2, 0)
    apart, closer = (
        Segments(4, folds=2, steps=neural.EVERY, overlap=overlap).estimate(x, y, np.arange(200))
        for overlap in (20, 0)
    )
    assert apart.folds != closer.folds


# Bad input


@pytest.mark.parametrize(
    ("length", "gap", "stride", "words"),
    [(0, 1, None, "one token"), (3, -4, None, "0 tokens or more"), (3, 1, 0, "1 token or more")],
)
def test_segments_that_cannot_be_are_refused(length, gap, stride, words):
    with pytest.raises(InfolmError, match=words):
        segment_pairs(np.arange(30), length, gap, stride)


@pytest.mark.parametrize(
    ("x", "overlap", "words"),
    [
        (np.full((400, 3), 9), 0, "not among 4 types"),
        (np.zeros(400, int), 0, r"give \(N, L\) integers"),
        (np.zeros((400, 3)), 0, r"give \(N, L\) integers"),
        (np.arange(1200).reshape(400, 3) % 4, 5, "67 pairs of segments that share no token"),
    ],
)
def test_tokens_that_are_none_and_too_much_overlap_are_refused(x, overlap, words):
    with pytest.raises(InfolmError, match=words):
        Segments(types=4, folds=2, overlap=overlap).estimate(x, x)


@pytest.mark.parametrize(
    ("estimator", "rows", "words"),
    [
        (Segments(4), (399, 399), "399 pairs of segments that share no token.*at least 400"),
        (Segments(4, folds=2), (100, 99), "100 and 99 segments: give as many"),
        (Segments(4, folds=1), (100, 100), "1 folds are too few"),
        (Segments(4, "club", folds=2), (100, 100), "club needs rows of numbers"),
    ],
)
def test_bad_input_is_told_in_a_sentence(estimator, rows, words):
    x, y = chain_pairs(400, 2, 0)
    with pytest.raises(InfolmError, match=words):
        estimator.estimate(x[: rows[0]], y[: rows[1]])
