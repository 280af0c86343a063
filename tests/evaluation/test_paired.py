"""Tests of a difference: scipy's numbers, and false positives as often as they say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from infolm.evaluation.paired import (
    PAIRED,
    SHORTEST,
    TEXT,
    WELCH,
    holm,
    over_text,
    paired_t,
    welch_t,
)

numbers = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=2, max_size=8)


def samples(seed, n, m):
    rng = np.random.default_rng(seed)
    return rng.normal(60, 1, n), rng.normal(59, 3, m)


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_the_paired_test_is_scipys(n):
    a, b = samples(n, n, n)
    found, theirs = paired_t(a, b), stats.ttest_rel(b, a)
    assert found.kind == PAIRED
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert found.difference / found.stderr == pytest.approx(theirs.statistic)
    assert found.df == theirs.df == n - 1


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 5), (10, 4)])
def test_welchs_test_is_scipys(n, m):
    a, b = samples(n, n, m)
    found, theirs = welch_t(a, b), stats.ttest_ind(b, a, equal_var=False)
    assert found.kind == WELCH
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert found.df == pytest.approx(theirs.df)
    assert found.difference / found.stderr == pytest.approx(theirs.statistic)


@given(numbers, numbers)
def test_no_p_is_outside_0_and_1_and_the_sign_turns_with_the_order(a, b):
    one, other = welch_t(a, b), welch_t(b, a)
    assert one.p is None or 0 <= one.p <= 1
    assert one.difference == pytest.approx(-other.difference)


def test_equal_numbers_are_no_difference_and_no_spread_is_no_test():
    assert paired_t([1, 2, 3], [1, 2, 3]).p == 1
    assert paired_t([1, 2, 3], [2, 3, 4]).p is None
    assert welch_t([1, 1], [2, 2]).p is None


def test_a_text_is_tested_by_the_means_of_its_blocks():
    rng = np.random.default_rng(0)
    a = rng.exponential(4, 20_030)
    b = a + rng.normal(0.02, 1, len(a))
    found = over_text(a, b)
    blocks = (b - a)[:20_000].reshape(100, 200).mean(1)
    theirs = stats.ttest_1samp(blocks, 0)
    assert (found.kind, found.number) == (TEXT, 100)
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert over_text(a[: 19 * SHORTEST], b[: 19 * SHORTEST]) is None
    assert over_text(a[: 20 * SHORTEST], b[: 20 * SHORTEST]).number == 20


@pytest.mark.parametrize(("tokens", "memory"), [(20_000, 0.0), (20_000, 0.6), (2_000, 0.3)])
def test_equal_models_are_found_different_as_often_as_chance_has_it(tokens, memory):
    """Differences with a memory from token to token (AR(1)), and a loss both models share."""
    rng, trials = np.random.default_rng(7), 1500
    noise = rng.standard_t(4, (trials, tokens)).astype(np.float32)
    for t in range(1, tokens if memory else 0):
        noise[:, t] += memory * noise[:, t - 1]
    a = rng.exponential(4, tokens)
    clear = np.mean([over_text(a, a + row).p < 0.05 for row in noise])
    assert clear == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / trials))


def test_holms_correction():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.02]) == [0.02]
    assert holm([None, 0.5, 0.9]) == [None, 1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_corrected_is_never_below_and_keeps_the_order(ps):
    found = holm(ps)
    assert all(p <= q <= 1 for p, q in zip(ps, found, strict=True))
    order = np.argsort(ps, kind="stable")
    assert np.all(np.diff(np.array(found)[order]) >= 0)
