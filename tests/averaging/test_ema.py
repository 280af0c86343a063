"""The exponential moving average against its definition, and its limits."""

import pytest
import torch
from torch import nn

from infolm.averaging.base import MEAN, newest_share
from infolm.averaging.ema import Ema, EmaConfig


def walk(beta, steps):
    """A random walk; gives the mean at each step and the iterates up to it."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    averager = Ema(model, EmaConfig(beta=beta))
    iterates = []
    for step in range(1, steps + 1):
        with torch.no_grad():
            for p in model.parameters():
                p += torch.randn_like(p)
        averager.update(step)
        iterates.append(model.weight.detach().clone())
        yield averager.weights(MEAN)[0], torch.stack(iterates)


@pytest.mark.parametrize("beta", [0.3, 0.9, 0.999])
def test_each_iterate_weighs_beta_times_the_next(beta):
    for mean, iterates in walk(beta, 30):
        weights = beta ** torch.arange(len(iterates) - 1, -1, -1, dtype=torch.float64)
        plain = torch.tensordot(weights / weights.sum(), iterates, dims=1)
        torch.testing.assert_close(mean, plain)


def test_it_is_adams_corrected_mean():
    beta, moving = 0.9, 0.0
    for step, (mean, iterates) in enumerate(walk(beta, 20), 1):
        moving = beta * moving + (1 - beta) * iterates[-1]
        torch.testing.assert_close(mean, moving / (1 - beta**step))


def test_without_memory_it_is_the_iterate():
    for mean, iterates in walk(0.0, 10):
        assert torch.equal(mean, iterates[-1])


def test_with_endless_memory_it_is_the_mean_of_all():
    for mean, iterates in walk(1 - 1e-9, 20):
        torch.testing.assert_close(mean, iterates.mean(0), rtol=1e-6, atol=1e-6)
    assert newest_share(7, 1.0) == 1 / 7
    assert newest_share(7, 1 - 1e-9) == pytest.approx(1 / 7)
