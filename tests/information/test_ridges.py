"""Waves along a direction of several columns, which no two columns show."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from infolm.information.panel import Panel
from infolm.information.ranks import random_scores
from infolm.information.ridges import _ascent, ridges


def ranks(rng, *sides):
    return [ndtr(random_scores(side.reshape(len(side), -1), rng)) for side in sides]


def found(u, v, rng):
    return max(ridges(u, v, rng), key=lambda hit: hit.information)


def wave(columns, rows, seed, noise=0.3):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns))
    t = 5 * np.linalg.qr(rng.standard_normal((columns, 1)))[0][:, 0]
    return x, np.sin(x @ t) + noise * rng.standard_normal(rows), rng


@pytest.mark.parametrize("columns", [2, 4, 6])
def test_a_wave_along_a_direction_is_seen_from_either_side(columns):
    x, y, rng = wave(columns, 300, columns)
    for sides in ((x, y), (y, x)):
        hit = found(*ranks(rng, *sides), rng)
        assert hit.p_value < 1e-6
        assert f"{columns} columns" in hit.what
        assert 0.1 < hit.information < 0.94  # of sin plus noise 0.3, by quadrature


def test_a_phase_that_goes_round_is_seen():
    """y is an angle of the direction: neither its scores nor their absolute values follow."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((400, 3))
    y = (x @ [1.5, -1.0, 0.8] + 0.1 * rng.standard_normal(400)) % 1
    hit = found(*ranks(rng, x, y), rng)
    assert hit.p_value < 1e-6
    assert 0.3 < hit.information < -math.log(0.1 * math.sqrt(2 * math.pi * math.e))


def test_p_values_are_uniform_where_nothing_is_shared():
    """Of 100, at most 25 are expected below 1/4 after the correction for three tries, with a
    standard deviation of 4.3. Columns of x depend on each other."""
    rng = np.random.default_rng(4)
    small = 0
    for _ in range(100):
        x, y = rng.standard_normal((120, 3)).cumsum(1), rng.standard_normal((120, 1))
        small += min(hit.p_value for hit in ridges(*ranks(rng, x, y), rng)) < 0.25
    assert 8 <= small <= 38


def test_one_column_or_few_rows_are_left_to_others():
    rng = np.random.default_rng(5)
    assert ridges(rng.random((200, 1)), rng.random((200, 1)), rng) == []
    assert ridges(rng.random((50, 3)), rng.random((50, 1)), rng) == []


def test_ascent_finds_the_wave_from_nearby():
    """From 0.5 away, the length of the mean grows to within 1 % of that of the true vector."""
    rng = np.random.default_rng(6)
    x, true = rng.standard_normal((4_000, 3)), np.array([[3.0, -2.0, 1.0]])
    target = np.sin(x @ true.T).T.astype(complex)
    t = true + 0.5 * np.array([[0.6, 0.8, 0.0]])
    for _ in range(25):
        t = t + _ascent(x, t, target)
    lengths = [abs(np.mean(target * np.exp(1j * (each @ x.T)))) for each in (t, true)]
    assert lengths[0] > 0.99 * lengths[1]
    assert t == pytest.approx(true, abs=0.1) or t == pytest.approx(-true, abs=0.1)


def test_the_panel_says_so():
    x, y, _ = wave(6, 300, 7)
    answer = Panel(fast=True, permutations=39).estimate(x, y)
    assert "a direction of 6 columns" in answer.warning
    assert answer.kind == "at least"
    assert answer.p_value < 1e-4
