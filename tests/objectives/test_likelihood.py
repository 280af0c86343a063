"""The loss by hand, its two penalties, and truncated back-propagation."""

import pytest
import torch
from torch.nn import functional

from infolm.data.stream import Batch
from infolm.models.recurrent import DropoutConfig, RecurrentConfig, RecurrentModel
from infolm.objectives.likelihood import (
    Likelihood,
    LikelihoodConfig,
    activation_penalty,
    temporal_activation_penalty,
)


def make(output_dropout=0.0):
    torch.manual_seed(0)
    config = RecurrentConfig(
        embedding=6, hidden=9, layers=2, dropout=DropoutConfig(output=output_dropout)
    )
    return RecurrentModel(config, 15).double()


def batch(fresh=True, seed=1):
    torch.manual_seed(seed)
    tokens = torch.randint(0, 15, (6, 3))
    return Batch(tokens[:-1], tokens[1:], fresh, 1.0)


def test_plain_likelihood_is_cross_entropy():
    model, b = make(), batch()
    estimate = Likelihood(LikelihoodConfig())(model, b, None)
    logits = model.log_probs(model(b.tokens, model.initial_state(3)).hidden)
    expected = functional.nll_loss(logits.reshape(-1, 15), b.targets.reshape(-1))
    torch.testing.assert_close(estimate.loss, expected)
    assert estimate.count == 15
    assert set(estimate.terms) == {"nll"}


def test_the_penalties_by_a_slow_loop():
    h = torch.randn(4, 2, 3, dtype=torch.double)
    ar = sum(float(v) ** 2 for v in h.flatten()) / h.numel()
    differences = [
        h[t + 1, b, e] - h[t, b, e] for t in range(3) for b in range(2) for e in range(3)
    ]
    tar = sum(float(d) ** 2 for d in differences) / len(differences)
    assert activation_penalty(h).item() == pytest.approx(ar)
    assert temporal_activation_penalty(h).item() == pytest.approx(tar)
    assert temporal_activation_penalty(h[:1]).item() == 0


def test_ar_reads_the_dropped_and_tar_the_undropped_output():
    model, b = make(output_dropout=0.5), batch()
    model.train()
    torch.manual_seed(7)
    estimate = Likelihood(LikelihoodConfig(ar=2, tar=1))(model, b, None)
    torch.manual_seed(7)
    output = model(b.tokens, model.initial_state(3))
    assert not torch.equal(output.dropped, output.hidden)
    torch.testing.assert_close(estimate.terms["ar"], output.dropped.square().mean())
    torch.testing.assert_close(estimate.terms["tar"], output.hidden.diff(dim=0).square().mean())
    total = estimate.terms["nll"] + 2 * estimate.terms["ar"] + estimate.terms["tar"]
    torch.testing.assert_close(estimate.loss.detach(), total)


def test_the_state_is_carried_without_gradient_and_starts_anew_where_the_batch_is_fresh():
    model, objective = make(), Likelihood(LikelihoodConfig())
    first = objective(model, batch(), None)
    assert not any(t.requires_grad for pair in first.carry for t in pair)
    carried = objective(model, batch(fresh=False, seed=2), first.carry)
    anew = objective(model, batch(fresh=True, seed=2), first.carry)
    fresh = objective(model, batch(fresh=True, seed=2), None)
    torch.testing.assert_close(anew.loss, fresh.loss)
    assert abs(carried.loss.item() - anew.loss.item()) > 1e-6
