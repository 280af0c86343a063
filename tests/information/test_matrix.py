"""All pairs of columns, and p-values of many tests."""

import numpy as np
import pytest

from infolm.information.matrix import corrected, matrix
from infolm.information.panel import Panel


def test_corrected_p_values_by_hand():
    # Sorted p times M / rank: 0.04, 0.04, 0.0533, 0.2; from the largest down none may be smaller.
    assert corrected([0.01, 0.04, 0.02, 0.2]) == pytest.approx([0.04, 0.16 / 3, 0.04, 0.2])
    assert corrected([0.9, 0.8]).tolist() == [0.9, 0.9]


def test_corrected_p_values_keep_their_promise():
    """All hypotheses true: some is called false in a share of at most q, here 0.1."""
    rng = np.random.default_rng(0)
    wrong = np.mean([corrected(rng.random(20)).min() <= 0.1 for _ in range(2_000)])
    assert wrong == pytest.approx(0.1, abs=4 * np.sqrt(0.1 * 0.9 / 2_000))


def test_every_pair_of_columns_is_there_once():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((100, 3))
    x[:, 2] += 2 * x[:, 0]
    seen = []
    found = matrix(x, "abc", Panel(fast=True, permutations=19), lambda *done: seen.append(done))
    assert [(pair.x, pair.y) for pair in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert max(found, key=lambda pair: pair.answer.value) is found[1]
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_clear_pair_is_found_among_many_though_permutations_are_few():
    """19 permutations show no p-value below 0.05, which 10 pairs would make 0.5; screens do."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((150, 5))
    x[:, 3] = 0.9 * x[:, 1] + 0.4 * x[:, 3]
    found = matrix(x, "abcde", Panel(fast=True, permutations=19))
    assert [(pair.x, pair.y) for pair in found if pair.corrected_p <= 0.05] == [("b", "d")]
