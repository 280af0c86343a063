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
    carried_on,
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


# -- several dropout samples, padding ----------------------------------------------------------


def test_probabilities_are_averaged_over_the_samples_not_their_logs():
    """Against the samples' own outputs: ln(1/D sum_d p_d) per token, the state of each its own."""
    model, b = make(output_dropout=0.5), batch()
    model.train()
    torch.manual_seed(3)
    estimate = Likelihood(LikelihoodConfig(dropout_samples=4))(model, b, None)
    torch.manual_seed(3)
    output = model(torch.cat([b.tokens] * 4, 1), model.initial_state(12))
    log_p = model.log_probs(output.dropped).gather(-1, torch.cat([b.targets] * 4, 1)[..., None])
    columns = [log_p[:, 3 * d : 3 * d + 3, 0] for d in range(4)]
    assert not torch.equal(columns[0], columns[1])  # each has its own mask
    mean = sum(column.exp() for column in columns) / 4
    torch.testing.assert_close(estimate.loss, -mean.log().mean())
    assert estimate.count == 15
    assert [h.shape[1] for h, _ in estimate.carry] == [12, 12]


def test_more_samples_bound_tighter():
    """In expectation the loss falls with D (Burda et al. 2016, theorem 1)."""
    model, b = make(output_dropout=0.5), batch()
    model.train()
    with torch.no_grad():
        model.embedding.mul_(30)  # far from flat, so that masks matter
        means, errors = [], []
        for samples in (1, 4):
            objective = Likelihood(LikelihoodConfig(dropout_samples=samples))
            losses = torch.stack([objective(model, b, None).loss for _ in range(100)])
            means.append(float(losses.mean()))
            errors.append(float(losses.var()) / 100)
    assert means[0] - means[1] > 4 * sum(errors) ** 0.5


def test_without_dropout_the_number_of_samples_changes_nothing():
    model, b = make(), batch()
    config = {"ar": 1, "tar": 1}
    one = Likelihood(LikelihoodConfig(**config))(model, b, None)
    three = Likelihood(LikelihoodConfig(dropout_samples=3, **config))(model, b, None)
    torch.testing.assert_close(one.loss, three.loss)
    torch.testing.assert_close(one.terms, three.terms)


@pytest.mark.parametrize("samples", [1, 3])
def test_padding_does_not_count_in_the_loss_nor_in_the_penalties(samples):
    model, b = make(), batch()
    objective = Likelihood(LikelihoodConfig(ar=1, tar=1, dropout_samples=samples))
    whole = objective(model, b, None)
    tokens = torch.cat([b.tokens, torch.zeros(4, 3, dtype=torch.long)])
    targets = torch.cat([b.targets, -torch.ones(4, 3, dtype=torch.long)])
    padded = objective(model, Batch(tokens, targets, True, 1.0), None)
    torch.testing.assert_close(padded.loss, whole.loss)
    torch.testing.assert_close(padded.terms, whole.terms)
    assert padded.count == whole.count


# -- streams that start anew at random ---------------------------------------------------------


def states(streams, samples=1, layers=2):
    """States that say which layer, sample and stream they are of."""
    columns = 1 + torch.arange(samples * streams).double()[None, :, None]
    return [(columns * (layer + 1), -columns * (layer + 1)) for layer in range(layers)]


def test_a_stream_is_reset_in_all_layers_and_samples_at_once():
    torch.manual_seed(3)
    streams, samples = 40, 3
    before = states(streams, samples)
    after = make().kept(before, carried_on(streams, samples, 0.5))
    zero = (after[0][0] == 0).view(samples, streams)
    assert zero[0].any()
    assert not zero[0].all()
    for old, new in zip(before, after, strict=True):
        for a, b in zip(old, new, strict=True):
            gone = (b == 0).view(samples, streams)
            assert torch.equal(gone, zero[:1].expand(samples, -1))
            assert torch.equal(b[b != 0], a[b != 0])


def test_the_share_of_streams_that_are_reset_is_the_probability():
    torch.manual_seed(0)
    n, p = 200_000, 0.01
    share = 1 - float(carried_on(n, 1, p).double().mean())
    assert share == pytest.approx(p, abs=4 * (p * (1 - p) / n) ** 0.5)


def test_resetting_never_is_carrying_and_resetting_always_is_starting_anew():
    model, b = make().train(), batch(fresh=False, seed=2)
    carry = Likelihood(LikelihoodConfig())(model, batch(), None).carry
    carried = Likelihood(LikelihoodConfig())(model, b, carry).loss
    anew = Likelihood(LikelihoodConfig())(model, b, None).loss
    random = torch.get_rng_state()
    never = Likelihood(LikelihoodConfig(state_reset=0.0))(model, b, carry).loss
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(never, carried)
    always = Likelihood(LikelihoodConfig(state_reset=1.0))
    torch.testing.assert_close(always(model, b, carry).loss, anew)
    assert abs(carried.item() - anew.item()) > 1e-6
    torch.testing.assert_close(always(model.eval(), b, carry).loss, carried)
