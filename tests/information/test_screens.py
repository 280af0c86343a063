"""Quick looks for dependence: what they see, and how rarely they see what is not there."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from infolm.information.ranks import random_scores
from infolm.information.screens import (
    CLASSES,
    SMOOTH,
    _beyond,
    _cosines,
    _sums,
    _triples,
    _walsh,
    corrected,
    of_resultant,
    screened,
    strongest,
)


def screen(x, y, seed=0):
    rng = np.random.default_rng(seed)
    x, y = (np.asarray(side, float).reshape(len(side), -1) for side in (x, y))
    hits = screened(x, y, *(ndtr(random_scores(side, rng)) for side in (x, y)))
    return corrected(strongest(*hits), len(hits))


@pytest.mark.parametrize("periods", [3, 40, 1_000])
def test_an_oscillation_is_seen_and_counted(periods):
    rng = np.random.default_rng(periods)
    x = rng.random(500)
    y = np.sin(2 * np.pi * periods * x) + 0.3 * rng.standard_normal(500)
    hit = screen(x, y)
    assert hit.p_value < 1e-6
    assert hit.information > 0.4
    if periods > 30:  # over the middle 98 % of the values
        counted = float(hit.what.split()[-2].replace(",", ""))
        assert counted == pytest.approx(0.98 * periods, rel=0.05)


@pytest.mark.parametrize(("dx", "dy", "hidden"), [(2, 1, 2), (8, 2, 5), (30, 2, 3)])
def test_a_parity_of_signs_is_seen(dx, dy, hidden):
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((1_000, dx)), rng.standard_normal((1_000, dy))
    y[:, 0] = np.abs(y[:, 0]) * np.sign(x[:, :hidden].prod(1))
    hit = screen(x, y)
    assert hit.p_value < 1e-6
    assert f"{hidden + 1} columns" in hit.what
    assert 0.2 < hit.information <= math.log(2)


def test_a_checkerboard_is_a_fine_pattern():
    rng = np.random.default_rng(6)
    i = rng.integers(0, 16, 600)
    j = 2 * rng.integers(0, 8, 600) + i % 2
    hit = screen((i + rng.random(600)) / 16, (j + rng.random(600)) / 16)
    assert hit.p_value < 1e-6
    assert "pattern" in hit.what


def test_near_equality_of_a_part_of_the_rows_is_seen():
    """A tenth of the rows are equal, the others independent: the event alone is worth more than a
    third of q ln(q / f)."""
    rng = np.random.default_rng(7)
    x, y = rng.standard_normal((2, 300))
    y[:30] = x[:30]
    hit = screen(x, y)
    assert hit.p_value < 1e-6
    assert "near equality" in hit.what
    assert 0.1 < hit.information < 0.1 * math.log(0.1 * 300 * 66)


def test_a_bit_tells_no_more_of_a_column_than_it_can():
    """Sign of a Gaussian's first column, the second beside it: no screen claims more than the truth
    (0.267 nats), which holds for few values too."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal(1_000)
    y = 0.8 * x + 0.6 * rng.standard_normal(1_000)
    p = ndtr(0.8 * y / 0.6)
    truth = np.mean(math.log(2) + p * np.log(p) + (1 - p) * np.log1p(-p))
    rows = (x > 0).astype(float)[:, None], y[:, None]
    hits = screened(*rows, *(ndtr(random_scores(side, rng)) for side in rows))
    assert strongest(*hits).p_value < 1e-20
    assert max(hit.information for hit in hits) <= truth + 0.02


def test_nothing_is_seen_in_independent_columns():
    """The p-values are no smaller than they should be: of 30, 1.5 are expected below 0.05, at
    most 6 with a probability of 0.999."""
    small = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        columns = (1, 1) if seed % 2 else (3, 2)
        x, y = (rng.standard_normal((200, size)) for size in columns)
        hit = screen(x if seed % 3 else np.round(x), y, seed)
        small += hit.p_value < 0.05
        assert hit.p_value > 1e-4
    assert small <= 6


@pytest.mark.parametrize("columns", [3, 12])  # by all sets, and by sets of three at most
def test_columns_of_a_side_may_depend_on_each_other(columns):
    rng = np.random.default_rng(11)
    x, y = (0.4 * rng.standard_normal((400, columns)) + rng.standard_normal((400, 1)) for _ in "xy")
    assert screen(x, y).p_value > 0.01


def test_walsh_coefficients_by_brute_force():
    rng = np.random.default_rng(8)
    x, y = rng.choice([-1.0, 1.0], (64, 3)), rng.choice([-1.0, 1.0], (64, 2))

    def correlation(a, b):
        """The covariance of two products of signs, scaled and as it is."""
        p, q = x[:, np.array(a, bool)].prod(1), y[:, np.array(b, bool)].prod(1)
        covariance = abs((p * q).mean() - p.mean() * q.mean())
        return covariance / math.sqrt(p.var() * q.var()), covariance

    sets = [(a, b) for a in np.ndindex(2, 2, 2) for b in np.ndindex(2, 2) if any(a) and any(b)]
    _, largest = max(correlation(a, b) for a, b in sets)
    q = (1 + largest) / 2
    expected = math.log(2) + sum(s * math.log(s) for s in (q, 1 - q) if s > 0)
    assert _walsh(x, y).resolved == pytest.approx(1.1 * expected)


def test_the_information_of_an_angle_is_that_of_a_von_mises_distribution():
    from scipy.special import i0, i1

    for kappa in (0.3, 1.0, 3.0, 8.0):
        length = i1(kappa) / i0(kappa)
        expected = kappa * length - math.log(i0(kappa))
        assert of_resultant(length) == pytest.approx(expected, rel=0.02)


def test_a_rough_function_is_seen_though_no_frequency_stands_out():
    """A chirp of up to 40 periods: its cosines tell most of its 1.15 nats, and no more."""
    rng = np.random.default_rng(12)
    x = np.sort(rng.random(1_000))
    y = np.sin(40 * np.pi * x**2) + 0.2 * rng.standard_normal(1_000)
    hit = _cosines(random_scores(y[:, None], rng)[:, 0])
    assert hit.p_value < 1e-50
    assert 0.5 < hit.information < 1.15
    assert "waves" in hit.what
    # Of a Gaussian, no more than the truth, -1/2 ln(1 - 0.36).
    z = random_scores(
        (0.6 * random_scores(x[:, None], rng) + 0.8 * rng.standard_normal((1_000, 1))), rng
    )
    assert 0.15 < _cosines(z[:, 0]).information < 0.223


def uniforms(rng, *sides):
    return [ndtr(random_scores(np.asarray(side, float), rng)) for side in sides]


def test_a_wave_across_two_columns_is_seen():
    rng = np.random.default_rng(13)
    x = rng.random((600, 2))
    y = np.sin(14 * np.pi * x.sum(1, keepdims=True)) + 0.2 * rng.standard_normal((600, 1))
    for sides in ((x, y), (y, x)):
        hit = _triples(*uniforms(rng, *sides))
        assert hit.p_value < 1e-6
        assert "3 columns" in hit.what
    assert _triples(*uniforms(rng, x, rng.permutation(y))).p_value > 0.01


def test_a_sum_of_digits_modulo_three_is_seen():
    rng = np.random.default_rng(14)
    x = rng.integers(0, 3, (300, 5))
    y = (
        x[:, :3].sum(1, keepdims=True) + rng.integers(0, 3, (300, 1)) * (rng.random((300, 1)) < 0.1)
    ) % 3
    hit = _sums(*uniforms(rng, x, y))
    assert hit.p_value < 1e-6
    assert "4 columns" in hit.what
    assert 0.1 < hit.information < math.log(3)


def test_four_classes_make_no_waves():
    """One of four classes is higher than the others: whatever sees it, its name is not a wave's."""
    rng = np.random.default_rng(17)
    x = rng.integers(0, 4, (800, 1))
    y = (x == 2) + 0.8 * rng.standard_normal((800, 1))
    hits = [hit for hit in screened(x, y, *uniforms(rng, x, y)) if hit.p_value < 1e-4]
    assert {hit.what for hit in hits} <= {SMOOTH, CLASSES}
    assert CLASSES in {hit.what for hit in hits}


def test_a_wave_across_three_columns_is_seen():
    rng = np.random.default_rng(16)
    x = rng.random((300, 3))
    y = (x @ [[2], [3], [1]] + 0.1 * rng.standard_normal((300, 1))) % 1
    hit = _sums(*uniforms(rng, x, y))
    assert hit.p_value < 1e-6
    assert "4 columns" in hit.what
    assert 0.3 < hit.information < 0.89  # -ln(0.1 sqrt(2 pi e)), the truth
    assert _sums(*uniforms(rng, x, rng.permutation(y))).p_value > 0.01


def test_two_values_lie_on_a_line():
    """Two coins: N |coefficient|^2 has one degree of freedom, so that its tail is e^{-t/2}."""
    x, y = np.random.default_rng(15).integers(0, 2, (2, 100_000))
    f, g = np.exp(2j * np.pi * 0.3 * x), np.exp(2j * np.pi * 0.4 * y)
    means = [np.atleast_1d(each.mean()) for each in (f * g, f, g, f**2, g**2)]
    length, line = _beyond(*means)
    assert line == pytest.approx(2, abs=1e-3)
    assert length**2 * 100_000 < 15  # of a variable that is one for independent coins
    angle = 2 * np.pi * np.random.default_rng(16).random((2, 100_000))
    f, g = np.exp(1j * angle)
    assert _beyond(*(np.atleast_1d(each.mean()) for each in (f * g, f, g, f**2, g**2)))[1] < 1.001
