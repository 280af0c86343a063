"""Normal scores by ranks."""

import numpy as np
import pytest
from scipy.special import ndtri

from infolm.information.discrete import Table
from infolm.information.ranks import average_scores, random_scores


def test_scores_are_normal_quantiles_of_ranks():
    x = np.array([[3.0, -1.0], [1.0, 5.0], [2.0, 0.0]])
    expected = ndtri((np.array([[3, 1], [1, 3], [2, 2]]) - 0.5) / 3)
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(average_scores(x), expected)
    np.testing.assert_allclose(random_scores(x, rng), expected)


def test_ties_share_a_score_or_are_put_in_random_order():
    x = np.array([0, 0, 0, 1])[:, None]
    assert len(np.unique(average_scores(x))) == 2
    orders = {
        tuple(random_scores(x, np.random.default_rng(seed))[:3, 0].argsort()) for seed in range(40)
    }
    assert len(orders) == 6
    assert random_scores(x, np.random.default_rng(0))[3, 0] == pytest.approx(ndtri(7 / 8))


def test_a_rounded_column_can_be_read_off_its_random_scores():
    rng = np.random.default_rng(1)
    x = rng.poisson(3, (500, 1))
    scores = random_scores(x, rng)
    ordered = x[scores[:, 0].argsort(), 0]
    assert (np.diff(ordered) >= 0).all()  # so x is a function of its scores


def test_within_a_tie_scores_tell_nothing():
    rng = np.random.default_rng(2)
    x, y = rng.integers(0, 2, (2, 5_000, 1))
    above = random_scores(x, rng) > random_scores(x, rng)  # two draws
    table = Table.of(above.astype(int), y)
    assert table.miller_madow() < 4 / 5_000
