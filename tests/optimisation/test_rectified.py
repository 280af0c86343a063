"""RAdam by Adam's fused step is PyTorch's own RAdam."""

from copy import deepcopy

import pytest
import torch

from infolm.optimisation.optimisers import load_optimiser
from infolm.optimisation.rectified import RAdam, rectified

STEPS = 40
"""The first five of them are not rectified, and with beta2 = 0 none is."""


def weights(seed=0, dtype=torch.float):
    torch.manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in [(7, 5), (3,), (1,)]]


def descend(parameters, optimiser, steps, seed):
    """With gradients of many sizes."""
    draws = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for p in parameters:
            noise = torch.randn(p.shape, generator=draws, dtype=torch.double).to(p.dtype)
            p.grad = p.detach() * 0.1 + noise * 10.0 ** (noise * 3).round()
        optimiser.step()


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1}, {"betas": (0.0, 0.0)}])
@pytest.mark.parametrize("beta2", [0.9, 0.99, 0.999])
@pytest.mark.parametrize("fused", [True, False])
def test_every_step_is_that_of_pytorch(settings, beta2, fused):
    settings = {"lr": 0.05, "betas": (0.9, beta2), "eps": 1e-3, **settings}
    ours, theirs = weights(dtype=torch.double), weights(dtype=torch.double)
    own, reference = RAdam(ours, fused=fused, **settings), torch.optim.RAdam(theirs, **settings)
    for step in range(STEPS):
        descend(ours, own, 1, step)
        descend(theirs, reference, 1, step)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_in_single_precision_too():
    ours, theirs = weights(), weights()
    descend(ours, RAdam(ours, lr=0.01, fused=True), STEPS, 0)
    descend(theirs, torch.optim.RAdam(theirs, lr=0.01), STEPS, 0)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_the_rate_and_epsilon_of_its_groups_stay():
    parameters = weights()
    optimiser = RAdam(parameters, lr=0.01, eps=1e-8, fused=True)
    descend(parameters, optimiser, 1, 0)
    assert (optimiser.param_groups[0]["lr"], optimiser.param_groups[0]["eps"]) == (0.01, 1e-8)


def test_a_parameter_without_a_gradient_stays_and_has_no_state():
    first, second, third = weights()
    optimiser, before = RAdam([first, second, third], lr=0.01, fused=True), first.detach().clone()
    descend([second, third], optimiser, 9, 0)
    assert torch.equal(first, before)
    assert first not in optimiser.state
    assert int(optimiser.state[second]["step"]) == 9


def test_it_goes_on_from_the_state_of_pytorchs():
    """As runs do whose checkpoints are of former versions."""
    theirs = weights()
    reference = torch.optim.RAdam(theirs, lr=0.01)
    descend(theirs, reference, 20, 0)
    ours = [torch.nn.Parameter(p.detach().clone()) for p in theirs]
    own = RAdam(ours, lr=0.01, fused=True)
    load_optimiser(own, deepcopy(reference.state_dict()))
    descend(ours, own, 20, 1)
    descend(theirs, reference, 20, 1)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_the_step_is_not_rectified_until_there_are_enough_squares():
    """rho_t passes 5 at the sixth step of beta2 = 0.999."""
    scales = [rectified(1.0, 1e-8, 0.999, step)[1] for step in range(1, 9)]
    assert [scale > 1 for scale in scales] == [True] * 5 + [False] * 3
