"""Conditional information and transfer entropy against exact truths."""

import math

import numpy as np
import pytest

from infolm.errors import InfolmError
from infolm.information.conditional import (
    _among,
    _neighbours_in,
    conditional_information,
    counted,
    frenzel_pompe,
    transfer_entropy,
)
from infolm.information.exact import conditional_mutual_information, gaussian_information
from infolm.information.nearest import ksg_local


def test_without_a_condition_it_is_ksg():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 300, 1))
    x, y = (side / side.std() - (side / side.std()).mean() for side in (x, y + x))
    constant = np.zeros((300, 1))
    np.testing.assert_allclose(frenzel_pompe(x, y, constant, 4), ksg_local(x, y, 4), rtol=1e-9)


def test_a_gaussian_whose_truth_is_known():
    rng = np.random.default_rng(1)
    z = rng.standard_normal((1_500, 1))
    x = z + rng.standard_normal((1_500, 1))
    y = z + 0.8 * x + rng.standard_normal((1_500, 1))
    covariance = np.array([[2.0, 2.6, 1.0], [2.6, 4.88, 1.8], [1.0, 1.8, 1.0]])
    truth = gaussian_information(covariance, [0], [1], [2])
    found = conditional_information(x, y, z, permutations=19)
    low, high = found.interval
    assert low <= truth <= high
    assert found.value == pytest.approx(truth, abs=0.08)
    assert found.p_value == 0.05
    assert found.warning is None


def test_a_common_cause_is_explained_away():
    rng = np.random.default_rng(7)
    z = rng.standard_normal((600, 1))
    x, y = (z + 0.5 * rng.standard_normal((600, 1)) for _ in "xy")
    found = conditional_information(x, y, z, permutations=39)
    assert found.kind == "none"
    assert found.interval[0] == 0


@pytest.mark.parametrize(
    ("f", "g"), [(lambda z: np.sin(3 * z), lambda z: np.cos(3 * z)), (np.square, np.square)]
)
def test_the_level_holds_where_the_cause_sets_both_sides_along_bent_lines(f, g):
    """At a level of 5 %, 2 of 40 are expected; residuals about no fit are rejected 10 times."""
    rejected = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        z = rng.standard_normal(200)
        x, y = (h(z) + 0.1 * rng.standard_normal(200) for h in (f, g))
        answer = conditional_information(x, y, z, seed=seed, permutations=19)
        rejected += answer.p_value <= 0.05
    assert rejected <= 5


def test_a_discrete_table():
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(12)).reshape(2, 3, 2)
    drawn = np.stack(np.unravel_index(rng.choice(12, 4_000, p=p.ravel()), p.shape), 1)
    x, y, z = (drawn[:, [at]] for at in range(3))
    truth = conditional_mutual_information(p)
    assert counted(x, y, z)[0] == pytest.approx(truth, abs=0.03)
    found = conditional_information(x, y, z, permutations=19)
    low, high = found.interval
    assert low <= truth <= high


def coupled(strength, samples, rng):
    """x drives y: y_t+1 = 0.5 y_t + strength x_t + noise, x an AR(1)."""
    x, y = np.zeros((2, samples))
    for t in range(samples - 1):
        x[t + 1] = 0.5 * x[t] + rng.standard_normal()
        y[t + 1] = 0.5 * y[t] + strength * x[t] + rng.standard_normal()
    return x, y


def test_transfer_of_a_gaussian_chain_goes_one_way():
    rng = np.random.default_rng(4)
    x, y = coupled(0.8, 800, rng)
    # Exact: 1/2 ln of var(y' | y) / var(y' | y, x), from the stationary covariance.
    long_x, long_y = coupled(0.8, 60_000, rng)
    covariance = np.cov([long_x[:-1], long_y[1:], long_y[:-1]])
    truth = gaussian_information(covariance, [0], [1], [2])
    forth, back = (transfer_entropy(*pair, permutations=19) for pair in ((x, y), (y, x)))
    low, high = forth.interval
    assert low <= truth <= high
    assert forth.kind == "about"
    assert back.kind == "none"


def test_transfer_of_a_markov_chain_is_exact():
    """y copies the last x with probability 0.8, else a coin: I(x; y') = ln 2 - H(0.9)."""
    rng = np.random.default_rng(5)
    x = rng.integers(0, 2, 1_500)
    y = np.where(rng.random(1_500) < 0.8, np.roll(x, 1), rng.integers(0, 2, 1_500))
    truth = math.log(2) + 0.9 * math.log(0.9) + 0.1 * math.log(0.1)
    found = transfer_entropy(x, y, permutations=19)
    low, high = found.interval
    assert low <= truth <= high
    assert found.value == pytest.approx(truth, abs=0.04)
    assert transfer_entropy(y, x, permutations=19).kind == "none"


def test_shuffled_rows_change_places_with_rows_of_nearly_the_same_condition():
    rng = np.random.default_rng(8)
    z = rng.standard_normal((200, 2))
    beside = _neighbours_in(z, 5)
    order = _among(beside, rng)
    assert sorted(order) == list(range(200))  # no row twice
    np.testing.assert_array_equal(order[order], np.arange(200))  # in pairs
    moved = order != np.arange(200)
    assert moved.mean() > 0.6
    assert all(
        order[row] in beside[row] or row in beside[order[row]] for row in np.flatnonzero(moved)
    )
    gone = np.linalg.norm(z - z[order], axis=1)[moved].mean()
    assert gone < 0.3 * np.linalg.norm(z - z[rng.permutation(200)], axis=1).mean()


def test_what_cannot_be():
    x = np.random.default_rng(6).standard_normal((100, 1))
    with pytest.raises(InfolmError, match="z has 99 rows"):
        conditional_information(x, x[::-1], x[:99])
    with pytest.raises(InfolmError, match="history has at least one row"):
        transfer_entropy(x, x[::-1], history=0)
