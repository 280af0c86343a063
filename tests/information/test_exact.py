"""Truths are true: against loops, quadrature and the mean log-ratio of densities."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from infolm.errors import InfolmError
from infolm.information.exact import (
    CorrelatedGaussian,
    StudentT,
    Table,
    Transformed,
    UniformNoise,
    UniformSquare,
    asinh,
    conditional_entropy,
    conditional_mutual_information,
    entropy,
    gaussian_entropy,
    gaussian_information,
    half_cube,
    kullback_leibler,
    mutual_information,
    normal_cdf,
    probabilities,
    spiral,
    swiss_roll,
    total_correlation,
)

RNG = np.random.default_rng


def tables(*shape):
    """Joint tables with zeros in them."""
    weights = arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.1, 0.5, 1.0, 7.0]))
    return weights.filter(np.any).map(lambda w: w / w.sum())


# Discrete


def test_a_table_by_hand():
    p = np.array([[1 / 2, 0], [1 / 4, 1 / 4]])
    assert entropy(p) == pytest.approx(1.5 * math.log(2))
    assert conditional_entropy(p) == pytest.approx(0.5 * math.log(2))
    margin = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)
    assert mutual_information(p) == pytest.approx(margin - 0.5 * math.log(2))
    assert kullback_leibler(p, np.full((2, 2), 0.25)) == pytest.approx(0.5 * math.log(2))
    assert kullback_leibler(np.full((2, 2), 0.25), p) == math.inf


@given(tables(3, 4))
def test_information_is_the_divergence_from_independence(p):
    independent = np.outer(p.sum(1), p.sum(0))
    slow = sum(
        p[i, j] * math.log(p[i, j] / independent[i, j])
        for i, j in product(range(3), range(4))
        if p[i, j]
    )
    assert mutual_information(p) == pytest.approx(slow, abs=1e-12)
    assert kullback_leibler(p, independent) == pytest.approx(slow, abs=1e-12)
    assert total_correlation(p) == pytest.approx(slow, abs=1e-12)
    assert conditional_entropy(p) == pytest.approx(entropy(p.sum(0)) - slow, abs=1e-12)


@given(tables(2, 3, 2))
def test_conditional_information_is_the_mean_over_what_is_given(p):
    slow = sum(
        p[..., z].sum() * mutual_information(p[..., z] / p[..., z].sum())
        for z in range(2)
        if p[..., z].any()
    )
    assert conditional_mutual_information(p) == pytest.approx(slow, abs=1e-12)
    # The chain rule: I(X; Y, Z) = I(X; Z) + I(X; Y | Z).
    whole = mutual_information(p.reshape(2, 6))
    assert whole == pytest.approx(mutual_information(p.sum(1)) + slow, abs=1e-12)


def test_a_table_is_sampled_by_its_probabilities():
    table = Table(np.array([[0.1, 0.2, 0.0], [0.3, 0.0, 0.4]]))
    n = 20_000
    x, y = table.sample(n, RNG(0))
    counts = np.zeros((2, 3))
    np.add.at(counts, (x, y), 1)
    error = np.sqrt(table.p * (1 - table.p) / n)
    assert (np.abs(counts / n - table.p) <= 4 * error).all()
    assert table.mutual_information == mutual_information(table.p)


@pytest.mark.parametrize(
    ("p", "match"),
    [
        ([[0.5, 0.6]], "sums to 1.1: it must sum to 1"),
        ([[1.5, -0.5]], "none below zero"),
        ([[math.nan, 1]], "finite"),
        ([0.5, 0.5], "two axes, not 1"),
    ],
)
def test_what_is_no_table_is_refused(p, match):
    with pytest.raises(InfolmError, match=match):
        Table(np.array(p))


def test_the_row_that_does_not_sum_to_one_is_named():
    with pytest.raises(InfolmError, match=r"row 1 of it sums to 0\.9"):
        probabilities([[1, 0], [0.4, 0.5]], "it", axis=1)


# Gaussians


def mean_log_ratio(task, joint, margin_x, margin_y, n=20_000):
    """The mean of ln p(x, y) / p(x) p(y) over a sample, and its standard error."""
    x, y = task.sample(n, RNG(1))
    ratio = joint.logpdf(np.hstack([x, y])) - margin_x.logpdf(x) - margin_y.logpdf(y)
    return ratio.mean(), ratio.std(ddof=1) / math.sqrt(n)


def wishart_like(dimension, seed):
    root = RNG(seed).standard_normal((dimension, 2 * dimension))
    return root @ root.T / dimension


def test_the_information_of_any_gaussian():
    covariance = wishart_like(5, 0)
    task = CorrelatedGaussian(covariance, 2)
    normal = stats.multivariate_normal
    value, error = mean_log_ratio(
        task,
        normal(cov=covariance),
        normal(cov=covariance[:2, :2]),
        normal(cov=covariance[2:, 2:]),
    )
    assert error < 0.02
    assert task.mutual_information == pytest.approx(value, abs=4 * error)
    x, y = task.sample(20_000, RNG(2))
    assert (x.shape, y.shape) == ((20_000, 2), (20_000, 3))
    assert np.cov(np.hstack([x, y]).T) == pytest.approx(covariance, abs=0.1)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("dimension", "nats"), [(1, 0.0), (1, 0.2), (5, 1.0), (25, 3.0)])
def test_a_gaussian_with_the_information_asked_for(dimension, nats, sparse):
    task = CorrelatedGaussian.with_information(dimension, nats, sparse)
    assert task.mutual_information == pytest.approx(nats, abs=1e-12)
    correlations = np.diag(task.covariance[:dimension, dimension:])
    assert task.mutual_information == pytest.approx(-0.5 * np.log1p(-(correlations**2)).sum())
    assert np.count_nonzero(correlations) == (0 if nats == 0 else 1 if sparse else dimension)
    assert len(set(correlations)) == (2 if sparse and dimension > 1 and nats else 1)


def test_the_entropy_of_a_gaussian_and_its_chain_rules():
    covariance = wishart_like(4, 3)
    assert gaussian_entropy(covariance) == pytest.approx(
        stats.multivariate_normal(cov=covariance).entropy()
    )
    assert gaussian_entropy([[1.0]]) == pytest.approx(0.5 * math.log(2 * math.pi * math.e))
    information = gaussian_information(covariance, [0], [1, 2])
    entropies = [gaussian_entropy(covariance[np.ix_(c, c)]) for c in ([0], [1, 2], [0, 1, 2])]
    assert information == pytest.approx(entropies[0] + entropies[1] - entropies[2])
    whole = gaussian_information(covariance, [0], [1, 2, 3])
    rest = gaussian_information(covariance, [0], [3], given=[1, 2])
    assert whole == pytest.approx(information + rest)


def test_what_is_no_covariance_is_refused():
    with pytest.raises(InfolmError, match="positive definite"):
        CorrelatedGaussian.from_correlations([1.0])
    with pytest.raises(InfolmError, match="symmetric"):
        CorrelatedGaussian(np.array([[1, 0.5], [0, 1]]), 1)
    with pytest.raises(InfolmError, match="cannot have 2 of 2 columns"):
        CorrelatedGaussian(np.eye(2), 2)
    with pytest.raises(InfolmError, match="finite nats"):
        CorrelatedGaussian.with_information(2, -1)


@pytest.mark.parametrize("degrees", [2.0, 5.0])
def test_student_t_by_quadrature(degrees):
    """With x = sinh(s) the integrand falls off so fast that the trapezoid rule is near exact."""
    task = StudentT(CorrelatedGaussian.from_correlations([0.6]), degrees)
    s = np.linspace(-14, 14, 601)
    x, weight = np.sinh(s), np.cosh(s) * (s[1] - s[0])
    grid = np.stack(np.meshgrid(x, x, indexing="ij"), -1)
    shape = task.gaussian.covariance
    log_joint = stats.multivariate_t(shape=shape, df=degrees).logpdf(grid)
    log_margin = stats.t(degrees).logpdf(x)
    log_ratio = log_joint - log_margin[:, None] - log_margin
    truth = (np.exp(log_joint) * log_ratio * np.outer(weight, weight)).sum()
    assert task.mutual_information == pytest.approx(truth, abs=1e-6)


def test_student_t_in_more_dimensions():
    covariance = wishart_like(5, 4)
    task = StudentT(CorrelatedGaussian(covariance, 2), 4)

    def t(shape):
        return stats.multivariate_t(shape=shape, df=4)

    value, error = mean_log_ratio(task, t(covariance), t(covariance[:2, :2]), t(covariance[2:, 2:]))
    assert error < 0.02
    assert task.mutual_information == pytest.approx(value, abs=4 * error)


def test_student_t_tends_to_the_gaussian_and_is_never_independent():
    gaussian = CorrelatedGaussian.from_correlations([0.5, 0.1])
    values = [StudentT(gaussian, degrees).mutual_information for degrees in (1, 3, 30, 1e6)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(gaussian.mutual_information, abs=1e-5)
    assert StudentT(CorrelatedGaussian(np.eye(2), 1), 3).mutual_information > 0.02
    with pytest.raises(InfolmError, match="degrees"):
        StudentT(gaussian, 0)


# Uniforms


@pytest.mark.parametrize("noise", [0.05, 0.3, 0.5, 0.8, 3.0])
def test_uniform_noise_by_quadrature(noise):
    """H(Y) - H(N), the density of Y = X + N being the overlap of two intervals."""
    y = np.linspace(-noise, 1 + noise, 400_001)
    density = np.clip(np.minimum(y + noise, 1) - np.maximum(y - noise, 0), 0, None) / (2 * noise)
    height = np.trapezoid(-density * np.log(np.where(density > 0, density, 1)), y)
    task = UniformNoise(noise)
    assert task.mutual_information == pytest.approx(height - math.log(2 * noise), abs=1e-8)
    x, seen = task.sample(1000, RNG(0))
    assert ((x >= 0) & (x < 1) & (np.abs(seen - x) <= noise)).all()


def test_a_square_has_an_area_and_no_information():
    task = UniformSquare(3.0)
    assert task.mutual_information == 0
    assert task.entropy == pytest.approx(math.log(9))
    x, y = task.sample(10_000, RNG(0))
    assert np.hstack([x, y]).max(0) == pytest.approx([3, 3], abs=0.01)
    assert abs(np.corrcoef(x[:, 0], y[:, 0])[0, 1]) < 4 / 100
    with pytest.raises(InfolmError, match="infinite information"):
        UniformNoise(0)


# Transformations


def undo_spiral(x):
    return spiral(x, speed=-1 / 80)


def undo_roll(x):
    return (21 * np.hypot(x[:, :1], x[:, 1:]) / (1.5 * math.pi) - 1) / 2


@pytest.mark.parametrize(
    ("forth", "back"),
    [
        (half_cube, lambda x: np.sign(x) * np.abs(x) ** (2 / 3)),
        (asinh, np.sinh),
        (normal_cdf, stats.norm.ppf),
        (spiral, undo_spiral),
    ],
)
def test_what_leaves_information_as_it_is_can_be_undone(forth, back):
    x = RNG(0).standard_normal((500, 3))
    assert back(forth(x)) == pytest.approx(x, abs=1e-9)
    assert not np.allclose(forth(x), x)


def test_the_swiss_roll_can_be_unrolled():
    x = RNG(0).random((500, 1))
    assert swiss_roll(x).shape == (500, 2)
    assert undo_roll(swiss_roll(x)) == pytest.approx(x)


def test_a_transformed_task_keeps_its_truth_and_its_pairs():
    base = CorrelatedGaussian.with_information(1, 0.7)
    uniform = Transformed(base, normal_cdf, normal_cdf)
    task = Transformed(uniform, swiss_roll)
    assert task.mutual_information == base.mutual_information
    assert "swiss-roll" in task.name
    x, y = task.sample(5000, RNG(3))
    a, b = base.sample(5000, RNG(3))
    assert undo_roll(x) == pytest.approx(stats.norm.cdf(a))
    assert y == pytest.approx(stats.norm.cdf(b))
    assert stats.kstest(y[:, 0], "uniform").pvalue > 0.001
