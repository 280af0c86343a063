"""Noise and losses against enumeration: expected gradients, their zero, their limit."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.nn.nce import Noise, binary_loss, log_z, ranking_loss

COUNTS = torch.tensor([5, 0, 2, 9])
DATA = torch.tensor([0.1, 0.2, 0.6, 0.1], dtype=torch.double)
SCORES = torch.tensor([0.3, -1.2, 0.4, -2.0], dtype=torch.double)  # far from normalised
LOSSES = [binary_loss, ranking_loss]


def expected(value, k, noise):
    """The sum over every target and every k-tuple of noise words, by their probabilities."""
    q, total = noise.log_q.exp(), 0
    for target in range(len(DATA)):
        for words in itertools.product(range(len(DATA)), repeat=k):
            total = total + DATA[target] * q[list(words)].prod() * value(target, list(words))
    return total


def loss_of(loss, scores, target, words, noise):
    targets, words = torch.tensor([target]), torch.tensor(words)
    k = len(words)
    return loss(
        noise.log_ratio(scores[targets], targets, k),
        noise.log_ratio(scores[words][None], words, k),
    )


def expected_gradient(loss, scores, k, noise):
    scores = scores.clone().requires_grad_()
    value = expected(lambda target, words: loss_of(loss, scores, target, words, noise), k, noise)
    return torch.autograd.grad(value, scores)[0]


# -- the noise ----------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_noise_is_a_power_of_the_counts_plus_one(power):
    weights = [6**power, 1, 3**power, 10**power]
    q = Noise(COUNTS, power).log_q.exp()
    assert q.tolist() == pytest.approx([weight / sum(weights) for weight in weights])


def test_words_are_drawn_as_often_as_the_noise_says():
    torch.manual_seed(0)
    noise, n = Noise(COUNTS, 0.75), 100_000
    q = noise.log_q.exp()
    drawn = torch.bincount(noise.draw(n), minlength=4) / n
    assert (drawn - q).abs().le(4 * (q * (1 - q) / n).sqrt()).all()


def _full(uniform):
    return lambda *shape, generator, **kind: torch.full(shape, uniform, **kind)


@pytest.mark.parametrize(("uniform", "word"), [(0.0, 0), (0.31, 1), (math.nextafter(1, 0), 3)])
def test_the_ends_of_the_unit_interval_are_words_too(monkeypatch, uniform, word):
    monkeypatch.setattr(torch, "rand", _full(uniform))
    assert Noise(COUNTS).draw(2).tolist() == [word] * 2  # 6/20 begins the second


# -- the losses ---------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_the_losses_by_hand():
    target, noise = [0.5, -1.0], [[0.1, 2.0, -3.0], [-0.2, 0.0, 1.0]]
    binary = ranking = 0.0
    for d, others in zip(target, noise, strict=True):
        binary -= math.log(sigmoid(d)) + sum(math.log(sigmoid(-other)) for other in others)
        ranking -= math.log(math.exp(d) / (math.exp(d) + sum(math.exp(o) for o in others)))
    tensors = torch.tensor(target).double(), torch.tensor(noise).double()
    assert binary_loss(*tensors).item() == pytest.approx(binary)
    assert ranking_loss(*tensors).item() == pytest.approx(ranking)


@pytest.mark.parametrize("power", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_expected_gradient_of_nce_is_that_of_the_population(k, power):
    """Mnih & Teh (2012), equation 11: sum_w kq / (exp(s) + kq) (p_data - exp(s)), negated."""
    noise = Noise(COUNTS, power)
    kq, model = k * noise.log_q.exp(), SCORES.exp()
    population = -kq / (model + kq) * (DATA - model)
    torch.testing.assert_close(expected_gradient(binary_loss, SCORES, k, noise), population)


@pytest.mark.parametrize("k", [1, 3])
def test_the_gradient_is_zero_at_the_data_s_distribution(k):
    """Whatever Z is for the ranking loss, and only for Z = 1 for the binary one."""
    noise, zero = Noise(COUNTS), torch.zeros(4).double()
    for loss in LOSSES:
        torch.testing.assert_close(expected_gradient(loss, DATA.log(), k, noise), zero)
    shifted = DATA.log() + 1
    torch.testing.assert_close(expected_gradient(ranking_loss, shifted, k, noise), zero)
    assert (expected_gradient(binary_loss, shifted, k, noise) > 0.01).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_with_much_noise_the_gradient_is_that_of_maximum_likelihood(loss):
    """Mnih & Teh (2012), equation 12, which needs Z = 1; the ranking loss takes any Z."""
    torch.manual_seed(0)
    noise, k, repeats = Noise(COUNTS), 5000, 200
    scores = SCORES.log_softmax(0) if loss is binary_loss else SCORES
    targets = torch.arange(4)
    gradients = []
    for _ in range(repeats):
        # Every target is a row of its own, weighted by its probability: only the noise is drawn.
        words, rows = noise.draw(k), scores.repeat(4, 1).requires_grad_()
        target = noise.log_ratio(rows.gather(1, targets[:, None]).squeeze(1), targets, k)
        ratios = noise.log_ratio(rows[:, words], words, k)
        gradients.append(DATA @ torch.autograd.grad(loss(target, ratios), rows)[0])
    drawn = torch.stack(gradients)
    likelihood = scores.softmax(0) - DATA
    bias = 5 / k  # of the order exp(s) / (k q)
    allowed = 4 * drawn.std(0) / math.sqrt(repeats) + bias
    assert (drawn.mean(0) - likelihood).abs().le(allowed).all()
    assert allowed.max() < likelihood.abs().max() / 20


@settings(deadline=None)
@given(d=st.floats(-1e4, 1e4), other=st.floats(-1e4, 1e4))
@pytest.mark.parametrize("loss", LOSSES)
def test_the_losses_are_finite_and_not_negative_in_single_precision(loss, d, other):
    target = torch.tensor([d], dtype=torch.float, requires_grad=True)
    noise = torch.tensor([[other, 0.0]], dtype=torch.float, requires_grad=True)
    value = loss(target, noise)
    assert math.isfinite(value.item())
    assert value.item() >= 0
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(value, (target, noise)))


# -- ln Z ---------------------------------------------------------------------------------------


def z_of(target, words, noise):
    targets, words = torch.tensor([target]), torch.tensor(words)
    ratios = noise.log_ratio(SCORES[words][None], words, len(words))
    return log_z(SCORES[targets], ratios, targets, words)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_estimate_of_z_has_the_right_expectation_and_no_p_above_one(k):
    noise = Noise(COUNTS)
    mean = expected(lambda target, words: z_of(target, words, noise).exp(), k, noise)
    torch.testing.assert_close(mean.squeeze(), SCORES.exp().sum())
    for target in range(4):
        for words in itertools.product(range(4), repeat=k):
            assert z_of(target, list(words), noise) >= SCORES[target] - 1e-12
