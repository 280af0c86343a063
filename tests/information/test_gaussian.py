"""Gaussian information: closed forms, exact biases, and what the surrogates promise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import rankdata
from whole import WHOLE

from infolm.errors import InfolmError
from infolm.information.gaussian import (
    Gaussian,
    NormalScores,
    Trial,
    canonical_correlations,
    gaussian_information,
    information,
    null_variance,
    sample_bias,
    surrogate,
    tried,
)

untimed = settings(deadline=None, max_examples=30)


def gaussians(samples, dx, dy, nats, seed):
    """Rows whose min(dx, dy) canonical correlations are equal, with so much information."""
    generator = np.random.default_rng(seed)
    x, y = generator.standard_normal((samples, dx)), generator.standard_normal((samples, dy))
    k = min(dx, dy)
    rho = math.sqrt(1 - math.exp(-2 * nats / k))
    y[:, :k] = rho * x[:, :k] + math.sqrt(1 - rho**2) * y[:, :k]
    return x @ rotation(dx, generator), y @ rotation(dy, generator)


def rotation(size, generator):
    return np.linalg.qr(generator.standard_normal((size, size)))[0]


# Normal scores


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=40).filter(lambda v: len(set(v)) > 1))
@untimed
def test_the_scores_of_the_training_rows_are_the_quantiles_of_their_average_ranks(values):
    x = np.array(values, dtype=float)
    expected = ndtri((rankdata(x) - 0.5) / len(x))
    np.testing.assert_allclose(NormalScores.fit(x)(x)[:, 0], expected, atol=1e-12)


@given(
    st.lists(st.floats(-50, 50, width=16), min_size=2, max_size=40, unique=True),
    st.lists(st.floats(-100, 100, width=16), min_size=2, max_size=20, unique=True),
)
@untimed
def test_the_map_increases_between_and_beyond_the_training_values(training, new):
    scores = NormalScores.fit(np.array(training))(np.sort(new))[:, 0]
    assert (np.diff(scores) > 0).all()


def test_scores_forget_monotone_maps_of_a_column():
    x = np.random.default_rng(0).standard_normal((50, 2))
    bent = np.stack([np.exp(x[:, 0]), x[:, 1] ** 3], axis=1)
    np.testing.assert_allclose(NormalScores.fit(bent)(bent), NormalScores.fit(x)(x), atol=1e-12)


# Canonical correlations and the information


@pytest.mark.parametrize(("dx", "dy"), [(1, 1), (2, 5), (5, 2), (4, 4)])
def test_canonical_correlations_are_the_eigenvalues_of_the_textbook(dx, dy):
    x, y = gaussians(80, dx, dy, 1.0, seed=1)
    s = np.cov(np.concatenate([x, y], axis=1).T)
    a, c, b = s[:dx, :dx], s[:dx, dx:], s[dx:, dx:]
    squares = np.linalg.eigvals(np.linalg.inv(a) @ c @ np.linalg.inv(b) @ c.T).real
    expected = np.sqrt(np.sort(squares)[::-1][: min(dx, dy)])
    np.testing.assert_allclose(canonical_correlations(x, y), expected, atol=1e-9)


def test_information_is_that_of_the_determinants():
    x, y = gaussians(80, 2, 3, 1.0, seed=1)
    s = np.cov(np.concatenate([x, y], axis=1).T)
    determinants = [np.linalg.slogdet(m)[1] for m in (s[:2, :2], s[2:, 2:], s)]
    expected = 0.5 * (determinants[0] + determinants[1] - determinants[2])
    assert information(canonical_correlations(x, y)) == pytest.approx(expected, abs=1e-9)
    assert gaussian_information(x, y) == pytest.approx(expected - sample_bias(80, 2, 3), abs=1e-9)


def test_the_bias_is_symmetric_and_about_dx_dy_over_two_n():
    assert sample_bias(40, 3, 7) == pytest.approx(sample_bias(40, 7, 3), abs=1e-12)
    assert null_variance(40, 3, 7) == pytest.approx(null_variance(40, 7, 3), abs=1e-12)
    assert sample_bias(10**6, 3, 7) == pytest.approx(21 / 2e6, rel=1e-3)
    assert null_variance(10**6, 3, 7) == pytest.approx(21 / 2e12, rel=1e-3)


@pytest.mark.parametrize("nats", [0.0, 0.5, 3.0])
def test_unbiased_from_few_pairs_whatever_the_truth(nats):
    values = [gaussian_information(*gaussians(20, 3, 4, nats, seed)) for seed in range(400)]
    assert np.mean(values) == pytest.approx(nats, abs=4 * np.std(values) / math.sqrt(400))


def test_the_variance_at_independence_is_exact():
    values = [gaussian_information(*gaussians(20, 3, 4, 0.0, seed)) for seed in range(400)]
    # the standard error of a standard deviation is about 1 / sqrt(2 * 400) of it
    assert np.std(values) == pytest.approx(math.sqrt(null_variance(20, 3, 4)), rel=0.14)


CASES = [(1, 0.0), (1, 1.0), (1, 3.0), (5, 0.2), (5, 3.0)]


@pytest.mark.parametrize(
    ("dimension", "nats", "copula"),
    [(*c, copula) for i, c in enumerate(CASES) for copula in (0, 1) if WHOLE or copula == i % 2],
)
def test_intervals_cover_the_truth_and_errors_are_honest(dimension, nats, copula):
    runs = 60 if WHOLE else 30
    estimates = [
        Gaussian(bool(copula)).estimate(*gaussians(300, dimension, dimension, nats, 100 + seed))
        for seed in range(runs)
    ]
    covered = sum(e.interval[0] <= nats <= e.interval[1] for e in estimates)
    assert covered >= 0.95 * runs - 3 * math.sqrt(0.95 * 0.05 * runs)
    spread = np.std([e.value for e in estimates])
    assert 0.7 < np.mean([e.stderr for e in estimates]) / spread < 1.5
    assert abs(np.mean([e.permuted for e in estimates])) < 0.02


def test_the_copula_sees_through_monotone_columns_which_the_plain_form_does_not():
    x, y = gaussians(1000, 1, 1, 1.0, seed=3)
    estimate = Gaussian(copula=True).estimate(np.exp(3 * x), y**3)
    assert estimate.value == Gaussian(copula=True).estimate(x, y).value
    assert abs(estimate.value - 1) < 4 * estimate.stderr
    assert estimate.warning is None
    plain = Gaussian().estimate(np.exp(3 * x), y**3)
    assert "not Gaussian" in plain.warning


def test_dependence_that_is_not_gaussian_is_told():
    x = np.random.default_rng(0).standard_normal(1000)
    assert "not Gaussian" in Gaussian(copula=True).estimate(x, x**2).warning


def test_it_is_named_and_leaves_its_settings_alone():
    assert (Gaussian().name, Gaussian(copula=True).name) == ("gaussian", "copula")
    x, y = gaussians(50, 1, 1, 1.0, seed=0)
    assert Gaussian(seed=5).estimate(x, y) == Gaussian(seed=5).estimate(x, y)
    assert Gaussian(seed=5).estimate(x, y).permuted != Gaussian(seed=6).estimate(x, y).permuted


# Surrogates


def test_a_surrogate_resembles_the_scores_and_knows_its_truth():
    x, y = gaussians(5000, 2, 3, 1.0, seed=2)
    a, b, truth = surrogate(np.exp(x), y, seed=1)
    assert a.shape == x.shape
    assert b.shape == y.shape
    scores = np.concatenate([NormalScores.fit(x)(x), NormalScores.fit(y)(y)], axis=1)
    here = np.concatenate([a, b], axis=1)
    # entries of a covariance of 5,000 rows have errors up to sqrt(2 / 5000) = 0.02
    np.testing.assert_allclose(np.cov(here.T), np.cov(scores.T), atol=0.09)
    estimate = Gaussian().estimate(a, b)
    assert abs(estimate.value - truth) < 4 * estimate.stderr
    assert truth == pytest.approx(gaussian_information(scores[:, :2], scores[:, 2:]), abs=1e-9)


def test_surrogates_of_discrete_collinear_and_equal_columns_are_finite():
    x = np.random.default_rng(0).integers(0, 3, (200, 2))
    twice = np.concatenate([x, x[:, :1]], axis=1)
    a, b, truth = surrogate(twice, x)
    np.testing.assert_allclose(a[:, 0], a[:, 2], atol=1e-9)
    assert np.isfinite(truth)
    assert truth > 5
    assert np.isfinite(b).all()


def test_surrogates_of_independent_rows_share_nothing():
    x, y = np.random.default_rng(4).standard_normal((2, 300, 3))
    assert 0 <= surrogate(x, y)[2] < 0.03


def test_a_trial_finds_the_bias_of_an_estimator_and_the_interval_allows_for_it():
    x, y = gaussians(200, 2, 2, 1.0, seed=5)
    assert tried(gaussian_information, x, y).bias == pytest.approx(0, abs=1e-9)
    trial = tried(lambda a, b: gaussian_information(a, b) - 0.3, x, y)
    assert trial.bias == pytest.approx(-0.3, abs=1e-9)
    assert "off by -0.30 nats" in trial.warning
    low, high = trial.interval(0.7, 0.05, 200)
    assert low == pytest.approx(0.7 - 1.96 * 0.05, abs=1e-4)
    assert high > 1.0 + 1.96 * 0.05
    assert Trial(0.0, 0.05).warning is None
    assert Trial(0.0, 0.05).interval(-0.3, 0.01, 10**9) == pytest.approx((0, 0), abs=1e-6)


# Bad input

GOOD = np.random.default_rng(9).standard_normal((30, 2))
WITH_NAN = np.where(np.arange(60).reshape(30, 2) == 7, np.nan, GOOD)


@pytest.mark.parametrize("copula", [False, True])
@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (WITH_NAN, GOOD, "x is not a finite number in row 3, column 1"),
        (GOOD, GOOD + np.where(np.arange(30) == 4, np.inf, 0)[:, None], "y is not a finite"),
        (GOOD, np.ones(30), "constant"),
        (GOOD, GOOD[:20], "30 rows and y has 20"),
        (GOOD[:5], GOOD[5:10], "too few"),
        (GOOD[None], GOOD, "shape"),
        (np.array(["a"] * 30), GOOD, "numbers"),
        (GOOD[:, [0, 1, 0]], GOOD[::-1], "of x is a linear combination"),
        (GOOD, GOOD @ np.diag([2.0, 1.0]), "infinite"),
    ],
)
def test_bad_input_is_told_in_a_sentence(copula, x, y, words):
    with pytest.raises(InfolmError, match=words):
        Gaussian(copula).estimate(x, y)


def test_single_precision_is_enough_of_an_input():
    x, y = (side.astype(np.float32) for side in gaussians(100, 2, 2, 1.0, seed=0))
    expected = gaussian_information(x.astype(float), y.astype(float))
    assert gaussian_information(x, y) == pytest.approx(expected, abs=1e-12)
