"""MIM, VAE and auto-encoder against their formulas; the remedies; whose turn it is."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal

from infolm.data.sentences import Lines
from infolm.models.codes.gaussian import GaussianConfig
from infolm.models.sentence import CoderConfig, SentenceConfig, SentenceModel
from infolm.objectives.mim import Mim
from infolm.objectives.sentence import Ae
from infolm.objectives.vae import (
    CAUGHT_UP,
    MOST,
    WINDOW,
    FreeBitsConfig,
    KlConfig,
    Lag,
    Vae,
    VaeConfig,
    beyond_free,
    frozen,
    kl_weight,
)


@pytest.fixture
def model() -> SentenceModel:
    torch.manual_seed(0)
    coder = CoderConfig(hidden=5)
    config = SentenceConfig(
        embedding=3, latent=GaussianConfig(size=2), encoder=coder, decoder=coder
    )
    return SentenceModel(config, 7).double()


@pytest.fixture
def batch():
    found = Lines.of([[1, 2, 3], [4, 5], [6]], 0).packed(np.arange(3))
    return found._replace(**{k: torch.from_numpy(getattr(found, k)) for k in found._fields[:3]})


def parts(model, batch, z=None):
    """-ln p(x | z) summed, q and z, sentence by sentence from the model's own distributions."""
    torch.manual_seed(5)
    posterior = model.encode(batch.read, batch.sizes)
    if z is None:
        z = posterior.at(torch.randn_like(posterior.mean))
    log_probs = model.log_probs(model.decode(z, batch.inputs, batch.sizes))
    nll = -log_probs.gather(1, batch.targets[:, None]).sum()
    return nll, Normal(posterior.mean, (posterior.log_variance / 2).exp()), z


def value(objective, model, batch):
    torch.manual_seed(5)
    estimate = objective(model, batch, None)
    objective.stepped(estimate.sums)
    return estimate


def test_the_loss_of_mim_is_its_formula(model, batch):
    nll, q, z = parts(model, batch)
    penalty = -0.5 * (q.log_prob(z) + Normal(0.0, 1.0).log_prob(z)).sum()
    found = value(Mim(), model, batch)
    torch.testing.assert_close(found.loss, (nll + penalty) / 3)
    torch.testing.assert_close(found.terms["nll"], nll / 9)  # six words and three <eos>
    assert found.count == 9
    assert found.per == dict.fromkeys(["kl", "loss", "floored"], 3)


def test_mim_has_no_minimum_in_the_variance(model, batch):
    """The gradient with respect to every log-variance is at least 1/4 where the code does not
    matter to the decoder: only the floor holds it."""
    with torch.no_grad():
        model.start.weight.zero_()
        model.decoder.cells[0].weight_ih[:, 3:] = 0  # the columns of z
    torch.manual_seed(5)
    value(Mim(), model, batch).loss.backward()
    assert model.latent.log_variance.bias.grad.min() >= 0.25


def test_the_loss_of_a_vae_is_the_negative_elbo(model, batch):
    nll, q, _ = parts(model, batch)
    kl = torch.distributions.kl_divergence(q, Normal(0.0, 1.0)).sum()
    found = value(Vae(VaeConfig()), model, batch)
    torch.testing.assert_close(found.loss, (nll + kl) / 3)
    torch.testing.assert_close(found.terms["kl"], kl / 3)
    beta = value(Vae(VaeConfig(kl=KlConfig(weight=0.3))), model, batch)
    torch.testing.assert_close(beta.loss, (nll + 0.3 * kl) / 3)


def test_an_auto_encoder_reads_the_mean_alone(model, batch):
    mean = model.encode(batch.read, batch.sizes).mean
    nll, _, _ = parts(model, batch, mean)
    found = value(Ae(), model, batch)
    torch.testing.assert_close(found.loss, nll / 3)
    found.loss.backward()
    assert model.latent.log_variance.weight.grad is None


def test_the_weight_of_the_kl_rises():
    linear = KlConfig(weight=2.0, schedule="linear", steps=10)
    assert [kl_weight(linear, b) for b in (0, 5, 10, 99)] == [0, 1, 2, 2]
    cyclical = KlConfig(schedule="cyclical", steps=10, rising=0.5)
    expected = [0, 0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1]
    assert [kl_weight(cyclical, b) for b in range(20)] == pytest.approx(2 * expected)
    assert kl_weight(KlConfig(), 0) == 1


def test_the_weight_follows_the_batches_and_validation_has_it_in_full(model, batch):
    objective = Vae(VaeConfig(kl=KlConfig(schedule="linear", steps=4)))
    weights = [value(objective, model, batch).terms["kl_weight"] for _ in range(6)]
    assert weights == [0, 0.25, 0.5, 0.75, 1, 1]
    posterior = model.encode(batch.read, batch.sizes)
    fresh = Vae(VaeConfig(kl=KlConfig(schedule="linear", steps=4)))
    torch.testing.assert_close(fresh.penalty(posterior, posterior.mean), posterior.kl().sum(1))
    resumed = Vae(objective.config)
    resumed.load_state_dict(objective.state_dict())
    assert resumed.batches == 6


kls = st.lists(st.lists(st.floats(0, 5), min_size=3, max_size=3), min_size=1, max_size=4)


@given(kls, st.floats(0, 3))
def test_free_bits(found, nats):
    kl = torch.tensor(found, dtype=torch.double)
    by_dimension = sum(max(nats, sum(row[d] for row in found) / len(found)) for d in range(3))
    in_all = max(nats, sum(map(sum, found)) / len(found))
    assert beyond_free(kl, FreeBitsConfig(nats=nats)).item() == pytest.approx(by_dimension)
    whole = FreeBitsConfig(nats=nats, per="sentence")
    assert beyond_free(kl, whole).item() == pytest.approx(in_all)
    none = beyond_free(kl, FreeBitsConfig()).item()
    assert none == pytest.approx(kl.sum(1).mean().item())


def test_what_is_free_has_no_gradient():
    kl = torch.tensor([[0.1, 2.0], [0.3, 1.0]], requires_grad=True)
    beyond_free(kl, FreeBitsConfig(nats=0.5)).backward()
    torch.testing.assert_close(kl.grad, torch.tensor([[0, 0.5], [0, 0.5]]))


# -- the lagging encoder --------------------------------------------------------------------


def reached(model: SentenceModel) -> set[str]:
    return {name for name, p in model.named_parameters() if p.grad is not None}


def test_one_side_alone_is_moved(model, batch):
    names = {name for name, _ in model.named_parameters()}
    encoders = {n for n in names if n.startswith(("encoder.", "latent."))}
    for encoder, expected in ((False, encoders), (True, names - encoders)):
        model.zero_grad()
        with frozen(model, encoder=encoder):
            estimate = value(Vae(VaeConfig()), model, batch)
        estimate.loss.backward()
        assert reached(model) == expected
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_decoder_waits_until_the_encoder_is_no_better():
    lag = Lag(True)
    turns = []
    for loss in [*[3.0] * WINDOW, *[2.0] * WINDOW, *[2.0] * WINDOW, 9.0, 1.0]:
        turns.append(lag.waited)
        lag.took(10 * loss, 10)
    assert turns == [*[False] * 3 * WINDOW, True, False]
    assert lag.before == math.inf  # begun anew after the decoder's turn


def test_the_encoder_does_not_go_on_for_ever():
    lag, turns = Lag(True), 0
    while not lag.waited:
        turns += 1
        lag.took(1000.0 - turns, 1)
    assert turns == MOST


def test_it_ends_when_the_information_no_longer_rises():
    lag = Lag(True)
    assert lag.validated(0.5) == []
    assert lag.validated(0.7) == []
    assert lag.validated(0.7) == [CAUGHT_UP]
    assert not lag.aggressive
    assert lag.validated(9.0) == []
    assert Lag(False).validated(1.0) == []


def test_a_lagging_vae_takes_turns_and_can_be_resumed(model, batch):
    objective = Vae(VaeConfig(lagging=True))
    optimiser = torch.optim.SGD(model.parameters(), 0.0)  # so the loss does not fall
    moved = []
    for _ in range(2 * WINDOW + 2):
        model.zero_grad()
        value(objective, model, batch).loss.backward()
        moved.append("decoder" if model.start.weight.grad is not None else "encoder")
        optimiser.step()
    assert moved == [*["encoder"] * 2 * WINDOW, "decoder", "encoder"]
    other = Vae(VaeConfig(lagging=True))
    other.load_state_dict(objective.state_dict())
    assert other.lag == objective.lag
    assert objective.validated([], 0.1, {"information": 1.0}) == []
    assert objective.validated([], 0.2, {"information": 0.5}) == [CAUGHT_UP]
    model.zero_grad()
    value(objective, model, batch).loss.backward()
    assert reached(model) == {name for name, _ in model.named_parameters()}
