"""Rows in time: what they are worth, and how they are shuffled."""

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from infolm.information.evidence import Evidence
from infolm.information.serial import block_shuffled, serial


def autoregressive(phi, samples, rng, columns=1):
    return lfilter([1.0], [1.0, -phi], rng.standard_normal((samples + 200, columns)), axis=0)[200:]


def test_the_worth_of_autoregressive_rows():
    # tau = 1 + 2 sum phi^2l = (1 + phi^2) / (1 - phi^2)
    rng = np.random.default_rng(0)
    phi = 0.8
    x, y = (autoregressive(phi, 20_000, rng) for _ in "xy")
    found = serial(x, y)
    assert found.tau == pytest.approx((1 + phi**2) / (1 - phi**2), rel=0.15)
    assert found.series
    assert "--sequence" in found.warning
    # From `step` rows on what both share is gone: phi^(2 step) < 0.05.
    assert found.step >= math.log(0.05) / (2 * math.log(phi))


def test_the_mean_of_a_product_varies_as_the_worth_says():
    rng = np.random.default_rng(1)
    means = []
    for _ in range(400):
        x, y = (autoregressive(0.7, 400, rng)[:, 0] for _ in "xy")
        means.append((x * y).mean() / (x.std() * y.std()))
    x, y = (autoregressive(0.7, 20_000, rng) for _ in "xy")
    assert 1 / np.var(means) == pytest.approx(400 / serial(x, y).tau, rel=0.25)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_independent_rows_are_worth_themselves(rho):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x, z = rng.standard_normal((2, 500, 2))
        found = serial(x, rho * x + math.sqrt(1 - rho**2) * z)
        assert not found.series, seed
        assert found.warning is None


def test_one_side_may_depend_on_its_neighbours():
    rng = np.random.default_rng(2)
    assert not serial(autoregressive(0.95, 2_000, rng), rng.standard_normal((2_000, 1))).series


def test_walks_cycles_and_swinging_variances_are_series():
    rng = np.random.default_rng(3)
    walks = rng.standard_normal((2, 1_000, 1)).cumsum(1)
    assert serial(*walks).effective < 50
    days = np.sin(2 * np.pi * np.arange(1_000) / 24)[:, None]
    noisy = days + 0.5 * rng.standard_normal((2, 1_000, 1))
    assert serial(*noisy).series
    swings = np.exp([autoregressive(0.97, 2_000, rng) * 0.25 for _ in "xy"])
    assert serial(*(swings * rng.standard_normal(swings.shape))).series


def test_blocks_keep_their_order():
    rng = np.random.default_rng(4)
    rows = np.arange(1_000)
    found = block_shuffled(rows, 50, rng)
    assert sorted(found) == rows.tolist()
    follows = np.mean((found[1:] - found[:-1]) % 1_000 == 1)
    assert 0.95 < follows < 1
    assert np.mean(np.diff(block_shuffled(rows, 1, rng)) == 1) < 0.05


def test_series_permuted_in_blocks_vary_nearly_as_the_series_do():
    """The variance of mean(x y) is tau / N (Bartlett), which too short blocks fall short of by a
    quarter: a p-value by permutations would reject too often."""
    phi, samples, ratios = 0.9, 2_000, []
    tau = (1 + phi**2) / (1 - phi**2)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x, y = (autoregressive(phi, samples, rng)[:, 0] * math.sqrt(1 - phi**2) for _ in "xy")
        length = Evidence(x[:, None], y[:, None])._block(samples)
        found = [x @ block_shuffled(y, length, rng) / samples for _ in range(300)]
        ratios.append(np.var(found) * samples / tau / (x.var() * y.var()))
    error = np.std(ratios) / math.sqrt(len(ratios))
    assert np.mean(ratios) > 0.8 + 2 * error
    assert np.mean(ratios) < 1 + 2 * error
    rng = np.random.default_rng(0)
    assert Evidence(*rng.standard_normal((2, 500, 1)))._block(500) == 1
