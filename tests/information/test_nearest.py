"""Nearest neighbours: against loops over all pairs, and on distributions whose truth is known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import digamma
from whole import WHOLE

from infolm.errors import InfolmError
from infolm.information import nearest
from infolm.information.discrete import Table
from infolm.information.nearest import (
    KSG,
    Mixture,
    kozachenko_leonenko,
    ksg_local,
    mixture_local,
)

untimed = settings(deadline=None, max_examples=40)
ESTIMATORS = [KSG(), KSG(variant=2), Mixture()]


def gaussians(samples, dimension, nats, seed):
    x, noise = np.random.default_rng(seed).standard_normal((2, samples, dimension))
    rho = math.sqrt(1 - math.exp(-2 * nats / dimension))
    return x, rho * x + math.sqrt(1 - rho**2) * noise


# The slow reference: exact where columns are scaled by powers of two, so ties stay ties.


def distances(x):
    x = np.asarray(x, float)
    x = x / x.std(0)
    return np.array([[np.abs(a - b).max() for b in x] for a in x]).round(10)


def slow(x, y, k, method):
    """Local values, a row at a time, straight from the papers' definitions."""
    dx, dy = distances(x), distances(y)
    joint, samples, result = np.maximum(dx, dy), len(x), []
    for i in range(samples):
        others = np.arange(samples) != i
        ranked = sorted(np.flatnonzero(others), key=lambda j: joint[i, j])
        rho = joint[i, ranked[k - 1]]
        if method == "ksg2":
            ex, ey = dx[i, ranked[:k]].max(), dy[i, ranked[:k]].max()
            nx, ny = (dx[i, others] <= ex).sum(), (dy[i, others] <= ey).sum()
            result.append(digamma(k) - 1 / k + digamma(samples) - digamma(nx) - digamma(ny))
            continue
        inside = (joint[i, others] <= rho).sum()
        if method == "mixture" and (inside > k or rho == 0):
            ki, nx, ny = inside + 1, (dx[i] <= rho).sum(), (dy[i] <= rho).sum()
        else:
            ki, nx, ny = k, (dx[i, others] < rho).sum() + 1, (dy[i, others] < rho).sum() + 1
        result.append(digamma(ki) + digamma(samples) - digamma(nx) - digamma(ny))
    return np.array(result)


def fast(x, y, k, method):
    if method == "mixture":
        return mixture_local(x, y, k)
    return ksg_local(x, y, k, variant=2 if method == "ksg2" else 1)


@pytest.mark.parametrize("method", ["ksg", "ksg2", "mixture"])
@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize(("dx", "dy"), [(1, 1), (1, 3), (4, 4), (7, 5)])
def test_local_values_against_all_pairs(method, k, dx, dy):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((60, dx)) * 10.0 ** np.arange(dx)
    y = x[:, :1] + generator.standard_normal((60, dy))
    np.testing.assert_allclose(fast(x, y, k, method), slow(x, y, k, method), atol=1e-9)


@pytest.mark.parametrize("method", ["ksg", "mixture"])  # ksg2 must choose among tied neighbours
@pytest.mark.parametrize("columns", [1, 2, 6])
@pytest.mark.parametrize("discrete", ["x", "both"])
def test_local_values_against_all_pairs_with_ties(method, columns, discrete):
    generator = np.random.default_rng(1)
    x = generator.integers(0, 3, (50, columns))
    y = x + (generator.integers(0, 2, x.shape) if discrete == "both" else generator.random(x.shape))
    np.testing.assert_allclose(fast(x, y, 3, method), slow(x, y, 3, method), atol=1e-9)


def test_tree_and_all_distances_agree(monkeypatch):
    x, y = gaussians(300, 2, 1.0, seed=0)
    by_tree = [fast(x, y, 4, method) for method in ("ksg", "ksg2", "mixture")]
    monkeypatch.setattr(nearest, "TREE_COLUMNS", 0)
    monkeypatch.setattr(nearest, "BLOCK", 300 * 8 * 7)  # blocks of seven rows, the last not full
    by_blocks = [fast(x, y, 4, method) for method in ("ksg", "ksg2", "mixture")]
    np.testing.assert_allclose(by_blocks, by_tree, atol=1e-12)


def test_the_first_rows_alone_have_the_same_local_values(monkeypatch):
    x, y = gaussians(100, 2, 1.0, seed=0)
    whole, _ = nearest._ksg1(x, y, 3, 100)
    for columns in (0, 8):
        monkeypatch.setattr(nearest, "TREE_COLUMNS", columns)
        np.testing.assert_allclose(nearest._ksg1(x, y, 3, 40)[0], whole[:40], atol=1e-12)


# What must be true


@given(st.integers(0, 100), st.sampled_from([1e-6, 0.3, 7.0, 1e9]), st.sampled_from([1, 2]))
@untimed
def test_scales_shifts_and_the_order_of_rows_change_nothing(seed, scale, variant):
    x, y = gaussians(50, 2, 1.0, seed)
    local = ksg_local(x, y, 3, variant)
    np.testing.assert_allclose(ksg_local(x * [scale, 1], 5 - 2 * y, 3, variant), local, atol=1e-9)
    order = np.random.default_rng(seed).permutation(50)
    np.testing.assert_allclose(ksg_local(x[order], y[order], 3, variant), local[order], atol=1e-9)
    np.testing.assert_allclose(ksg_local(y, x, 3, variant), local, atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
def test_a_monotone_map_of_a_column_changes_little(estimator):
    x, y = gaussians(1000, 1, 1.0, seed=2)
    plain, bent = estimator.estimate(x, y), estimator.estimate(x + 0.3 * np.sin(x), np.sinh(y))
    assert abs(plain.value - bent.value) < 2 * plain.stderr


def test_the_mixture_is_ksg_on_continuous_data():
    x, y = gaussians(200, 3, 1.0, seed=1)
    np.testing.assert_array_equal(mixture_local(x, y), ksg_local(x, y))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
@pytest.mark.parametrize(("dimension", "nats"), [(1, 0.0), (1, 0.2), (1, 3.0), (2, 1.0), (3, 0.0)])
def test_gaussians_where_it_is_nearly_unbiased(estimator, dimension, nats):
    estimate = estimator.estimate(*gaussians(2000, dimension, nats, seed=3))
    assert abs(estimate.value - nats) < 4 * estimate.stderr + 0.03
    assert abs(estimate.permuted) < 4 * estimate.stderr
    assert estimate.warning is None


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
def test_uniform_on_a_square_cut_into_two(estimator):
    """x uniform on (0, 1); y uniform on the half of (0, 1) that x lies in: ln 2."""
    x, y = np.random.default_rng(0).random((2, 3000))
    estimate = estimator.estimate(x, (y + np.floor(2 * x)) / 2)
    assert abs(estimate.value - math.log(2)) < 4 * estimate.stderr


def test_where_it_fails_it_says_so_and_the_interval_holds_the_truth():
    estimate = KSG().estimate(*gaussians(1000, 10, 3.0, seed=0))
    assert estimate.value < 2
    assert (
        "on Gaussian data with the same covariance this estimator is off by -" in estimate.warning
    )
    assert estimate.interval[0] <= estimate.value <= 3.0 <= estimate.interval[1]


@pytest.mark.parametrize(("dimension", "nats"), [(1, 0.0), (1, 1.0), (5, 1.0)])
def test_intervals_cover_the_truth_and_errors_are_honest(dimension, nats):
    runs = 50 if WHOLE else 30
    estimates = [KSG().estimate(*gaussians(300, dimension, nats, seed)) for seed in range(runs)]
    covered = sum(e.interval[0] <= nats <= e.interval[1] for e in estimates)
    assert covered >= 0.95 * runs - 3 * math.sqrt(0.95 * 0.05 * runs)
    ratio = np.mean([e.stderr for e in estimates]) / np.std([e.value for e in estimates])
    assert 0.6 < ratio < 1.7


def test_seeds_repeat_and_names_are_told():
    x, y = gaussians(100, 1, 1.0, seed=0)
    assert [e.name for e in ESTIMATORS] == ["ksg", "ksg2", "mixture"]
    assert KSG(seed=1).estimate(x, y) == KSG(seed=1).estimate(x, y)
    assert KSG(seed=1).estimate(x, y).permuted != KSG(seed=2).estimate(x, y).permuted


def test_torch_tensors_lists_and_narrow_types_are_taken_as_they_are():
    x, y = (side.astype(np.float32) for side in gaussians(100, 2, 1.0, seed=0))
    expected = KSG().estimate(x.astype(float), y.astype(float))
    assert KSG().estimate(torch.tensor(x, requires_grad=True), y.tolist()) == expected


# Mixtures and ties


@pytest.mark.parametrize("symbols", [2, 5])
def test_a_discrete_x_and_a_uniform_y_on_overlapping_intervals(symbols):
    """x of m symbols, y uniform on (x, x + 2): ln m - (m - 1)/m ln 2 (Gao et al., section 4)."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, symbols, 3000)
    estimate = Mixture().estimate(x, x + 2 * generator.random(3000))
    truth = math.log(symbols) - (symbols - 1) / symbols * math.log(2)
    assert abs(estimate.value - truth) < 4 * estimate.stderr


def test_half_discrete_half_continuous_in_one_column():
    """x = y = one of two symbols, or independent uniforms, by a fair coin: two parts, known."""
    generator = np.random.default_rng(0)
    coin, symbol = generator.integers(0, 2, (2, 4000))
    x, y = (np.where(coin, symbol + 5.0, generator.random(4000)) for _ in range(2))
    # I = I of the coin (ln 2, as both see it) + half of the two symbols' ln 2
    estimate = Mixture().estimate(x, y)
    assert abs(estimate.value - 1.5 * math.log(2)) < 4 * estimate.stderr


def test_on_a_table_the_mixture_is_the_plug_in_with_digammas():
    generator = np.random.default_rng(0)
    x = generator.integers(0, 3, 2000)
    y = np.where(generator.random(2000) < 0.5, x, generator.integers(0, 3, 2000))
    table = Table.of(x[:, None], y[:, None])
    value = Mixture().estimate(x, y).value
    assert value == pytest.approx(table.miller_madow(), abs=1e-4)
    assert abs(value - table.plug_in()) > 5e-4


def test_ksg_tells_of_ties_and_the_mixture_is_made_for_them():
    generator = np.random.default_rng(0)
    x = generator.integers(0, 3, 500)
    assert "100% of the pairs are tied" in KSG().estimate(x, x).warning
    assert "use mixture" in KSG(variant=2).estimate(x, x).warning
    estimate = Mixture().estimate(x, x)
    assert abs(estimate.value - math.log(3)) < 0.02
    assert estimate.warning is None or "tied" not in estimate.warning


# Entropy


def test_entropy_on_a_line_against_a_loop():
    x = np.random.default_rng(0).exponential(size=80)
    kth = [sorted(abs(a - b) for b in x)[3] for a in x]  # the first is the point itself
    local = [digamma(80) - digamma(3) + math.log(2 * r) for r in kth]
    value, error = kozachenko_leonenko(x, 3)
    assert value == pytest.approx(np.mean(local), abs=1e-9)
    assert error == pytest.approx(np.std(local) * math.sqrt(2 / 80), abs=1e-9)


@pytest.mark.parametrize(
    ("sample", "truth"),
    [
        (lambda g: 3 * g.standard_normal(3000), 0.5 * math.log(2 * math.pi * math.e) + math.log(3)),
        (lambda g: g.uniform(0, 5, 3000), math.log(5)),
        (lambda g: g.exponential(2, 3000), 1 + math.log(2)),
        (lambda g: g.random((3000, 2)) * [1, 1000], math.log(1000)),
        (lambda g: g.standard_normal((3000, 3)), 1.5 * math.log(2 * math.pi * math.e)),
    ],
    ids=["gaussian", "uniform", "exponential", "rectangle", "three columns"],
)
def test_entropies_that_are_known(sample, truth):
    value, error = kozachenko_leonenko(sample(np.random.default_rng(1)))
    assert abs(value - truth) < 4 * error


def test_the_entropy_of_columns_as_they_are_against_a_loop():
    """Kraskov et al. (2004), equation 20, the volume of a cube of edge 2 rho."""
    x = np.random.default_rng(0).standard_normal((80, 2)) * [1, 100]
    kth = [sorted(np.abs(a - b).max() for b in x)[3] for a in x]
    local = [digamma(80) - digamma(3) + 2 * math.log(2 * r) for r in kth]
    value, error = kozachenko_leonenko(x, 3, standardise=False)
    assert value == pytest.approx(np.mean(local), abs=1e-9)
    assert error == pytest.approx(np.std(local) * math.sqrt(2 / 80), abs=1e-9)
    assert abs(value - kozachenko_leonenko(x, 3)[0]) > 0.1


def test_the_entropy_of_many_columns_uses_all_distances():
    x = np.random.default_rng(0).standard_normal((200, 10))
    value, error = kozachenko_leonenko(x)
    assert value == pytest.approx(5 * math.log(2 * math.pi * math.e), abs=1 + 4 * error)


def test_entropy_of_equal_rows_is_refused():
    with pytest.raises(InfolmError, match="20 rows of x equal 3 others"):
        kozachenko_leonenko([0, 1] * 10)
    with pytest.raises(InfolmError, match="too few"):
        kozachenko_leonenko([0.0, 1.0, 3.0])


# Bad input

GOOD = np.random.default_rng(9).standard_normal((30, 2))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.where(np.arange(60).reshape(30, 2) == 7, np.nan, GOOD), GOOD, "row 3, column 1"),
        (GOOD, np.where(np.arange(60).reshape(30, 2) == 7, np.inf, GOOD), "y is not a finite"),
        (GOOD, np.ones(30), "constant"),
        (GOOD, GOOD[:20], "30 rows and y has 20"),
        (GOOD[:3], GOOD[3:6], "3 pairs are too few: this estimator needs 5"),
        (GOOD[None], GOOD, "shape"),
        (np.array(["a"] * 30), GOOD, "numbers"),
    ],
)
def test_bad_input_is_told_in_a_sentence(estimator, x, y, words):
    with pytest.raises(InfolmError, match=words):
        estimator.estimate(x, y)


def test_bad_settings_are_told():
    with pytest.raises(InfolmError, match="at least 1, not 0"):
        KSG(neighbours=0).estimate(GOOD, GOOD)
    with pytest.raises(InfolmError, match="variants 1 and 2, not 3"):
        KSG(variant=3)
