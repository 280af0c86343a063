"""The best temperature: against a general minimiser, for a softmax and for a mixture."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from infolm.evaluation import temperature
from infolm.evaluation.temperature import (
    COLDEST,
    HOTTEST,
    best_temperature,
    interpolated,
    slope_and_curvature,
)
from infolm.models.recurrent import ProjectedSoftmaxConfig, RecurrentConfig, RecurrentModel


def make(experts=1, scale=20.0):
    """A model, outputs, and targets that a softmax at another temperature would draw."""
    torch.manual_seed(3)
    config = RecurrentConfig(
        embedding=5, hidden=7, layers=1, softmax=ProjectedSoftmaxConfig(experts=experts)
    )
    model = RecurrentModel(config, 11).double()
    with torch.no_grad():
        model.embedding.mul_(scale)
    hidden = torch.randn(400, 5, dtype=torch.float64)
    with torch.no_grad():
        targets = torch.multinomial(model.log_probs(hidden, 1.7).exp(), 1)[:, 0]
    return model, hidden, targets


def nll(model, hidden, targets, tau):
    return -float(model.log_prob(hidden, targets, tau).mean())


@pytest.mark.parametrize("experts", [1, 3])
def test_equals_scipys_minimiser(experts):
    model, hidden, targets = make(experts)
    best = best_temperature(model, hidden, targets)
    found = minimize_scalar(
        lambda tau: nll(model, hidden, targets, tau),
        bounds=(COLDEST, HOTTEST),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert best == pytest.approx(found.x, abs=1e-5)
    assert abs(slope_and_curvature(model, hidden, targets, 1 / best)[0]) < 1e-6
    assert nll(model, hidden, targets, best) < nll(model, hidden, targets, 1.0)


@pytest.mark.parametrize("experts", [1, 3])
def test_within_each_expert_it_is_the_best_of_a_fine_grid(experts):
    model, hidden, targets = make(experts)
    best = best_temperature(model, hidden, targets, tempering="expert")
    grid = np.geomspace(COLDEST, HOTTEST, 801)
    losses = [-float(model.log_prob(hidden, targets, tau, "expert").mean()) for tau in grid]
    assert best == pytest.approx(grid[np.argmin(losses)], rel=math.log(HOTTEST / COLDEST) / 800)
    if experts == 1:
        assert best == best_temperature(model, hidden, targets)
    else:
        assert abs(best - best_temperature(model, hidden, targets)) > 0.01


@pytest.mark.parametrize("experts", [1, 3])
def test_slope_and_curvature_are_derivatives_in_one_over_tau(experts, monkeypatch):
    model, hidden, targets = make(experts)
    beta, step = 0.8, 1e-4

    def loss(b):
        return nll(model, hidden, targets, 1 / b)

    slope = (loss(beta + step) - loss(beta - step)) / (2 * step)
    curvature = (loss(beta + step) - 2 * loss(beta) + loss(beta - step)) / step**2
    expected = pytest.approx((slope, curvature), rel=1e-5)
    assert slope_and_curvature(model, hidden, targets, beta) == expected
    monkeypatch.setattr(temperature, "BLOCK_ELEMENTS", 11 * 7)  # 7 tokens a block
    assert slope_and_curvature(model, hidden, targets, beta) == expected


def test_a_model_that_is_always_right_or_always_wrong_gives_an_end():
    model, hidden, _ = make()
    right = model.log_probs(hidden).argmax(1)
    wrong = model.log_probs(hidden).argmin(1)
    assert best_temperature(model, hidden, right) == pytest.approx(COLDEST, rel=1e-4)
    assert best_temperature(model, hidden, wrong) == pytest.approx(HOTTEST, rel=1e-4)


def test_a_model_without_opinion_needs_no_temperature():
    model, hidden, targets = make(scale=0.0)
    with torch.no_grad():
        model.softmax.bias.zero_()
    assert COLDEST <= best_temperature(model, hidden, targets) <= HOTTEST


def test_interpolation_finds_the_bottom_between_the_points():
    grid = np.geomspace(0.7, 1.4, 9)
    losses = [3 + (math.log(tau) - 0.07) ** 2 + 0.1 * math.log(tau) ** 3 for tau in grid]
    exact = minimize_scalar(lambda x: (x - 0.07) ** 2 + 0.1 * x**3, bounds=(-0.3, 0.3)).x
    assert math.log(interpolated(grid, losses)) == pytest.approx(exact, abs=5e-4)
    cold = [math.nan, math.inf, *losses[2:]]
    assert math.log(interpolated(grid, cold)) == pytest.approx(exact, abs=5e-4)
