"""Monte Carlo objectives against the truth: every draw of the codes is listed with its probability.

Categorical codes are enumerated; Gaussian ones, of one dimension, stand on the nodes of a
Gauss-Hermite grid. A draw of K codes is a sentence of a batch that has all of them, and each
sentence has a copy of the weights, so that one backward pass of `MonteCarlo` gives the gradient of
every draw: its mean and its variance are sums, without any randomness.
"""

import itertools
import math
from functools import cache
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial.hermite_e import hermegauss

from infolm.data.sentences import SentenceBatch
from infolm.models.codes.categorical import Categories
from infolm.models.codes.gaussian import Posterior
from infolm.objectives.estimators import (
    LEAST,
    Coefficients,
    Draws,
    Settings,
    augmented,
    estimated,
    gated,
    information,
    left_out,
    log_mean_weight,
    mean_log_likelihood,
    surrogate,
    weighted_log_likelihood,
)
from infolm.objectives.monte_carlo import MonteCarlo, MonteCarloConfig

NODES = 24
"""Of a grid; with three codes its error is below 1e-6."""


def real(values):
    """In double precision, as everything here."""
    return torch.tensor(values, dtype=torch.double)


# -- worlds of which everything is known ----------------------------------------------------


class OnGrid(Posterior):
    """A posterior whose samples are the nodes."""

    def sample(self, count):
        return self.at(grid(count)[0][..., None])


class Listed(Categories):
    """Two variables of two classes whose samples are all there are."""

    def sample(self, count):
        return CODES[lists(count)]


CODES = torch.tensor(list(itertools.product(range(2), repeat=2)))


@cache
def grid(count):
    """Nodes (K, NODES^K) and weights (NODES^K,) of K independent standard normal variables."""
    nodes, weights = map(torch.from_numpy, hermegauss(NODES))
    noise = torch.cartesian_prod(*[nodes] * count).view(-1, count).T
    shares = torch.cartesian_prod(*[weights / weights.sum()] * count).view(-1, count).prod(1)
    return noise, shares


@cache
def lists(count):
    """The numbers of K codes, (K, 4^K)."""
    return torch.cartesian_prod(*[torch.arange(4)] * count).view(-1, count).T


class Gaussian:
    """q = N(m, exp v); p(x | z) = softmax(a z + b)[0]."""

    def weights(self):
        phi = real([0.4, -0.3])
        theta = real([[1.2, -0.5, 0.3], [0.2, 0.1, -0.4]])
        return phi, theta

    def proposal(self, phi):
        return OnGrid(phi[:, :1], phi[:, 1:])

    def log_p(self, theta, z):
        """theta (B, 2, 3) or (1, 2, 3), z (K, B, 1)."""
        return (z * theta[:, 0] + theta[:, 1]).log_softmax(-1)[..., 0]

    def shares(self, phi, count):
        return grid(count)[1]


class Categorical:
    """q of two variables of two classes; p(x | z) = softmax(t_z)[0], with a table of all codes."""

    def weights(self):
        phi = real([[0.5, -0.2], [-0.4, 0.3]])
        theta = real([[1.5, 0.2, -0.3], [-1.0, 0.6, 0.1], [0.3, 0.9, -1.2], [0.1, -0.7, 0.4]])
        return phi, theta

    def proposal(self, phi):
        return Listed(phi.log_softmax(-1))

    def log_p(self, theta, z):
        numbers = 2 * z[..., 0] + z[..., 1]
        table = theta.log_softmax(-1)[..., 0].expand(numbers.shape[1], -1)
        return table.gather(1, numbers.T).T

    def shares(self, phi, count):
        q = self.proposal(phi[None])
        return q.log_density(CODES[lists(count)]).sum(0).exp()


class Model:
    """What `MonteCarlo` asks of a model, of weights with a copy for each draw, (B, ...)."""

    ends = True

    def __init__(self, world, phi, theta):
        self.world, self.phi, self.theta = world, phi, theta

    def encode(self, read, sizes):
        return self.world.proposal(self.phi)

    def log_likelihood(self, z, batch, own):
        return self.world.log_p(self.theta, z)


def every_gradient(world, config, baseline=None):
    """Of each draw by the estimator: the encoder's (B, ...), the decoder's, and the shares (B,)."""
    if baseline is not None:
        config = config.model_copy(update={"baseline": "mean"})
    objective = MonteCarlo(config)
    if baseline is not None:
        objective.mean, objective.batches = baseline, 10**6
    count = objective.settings.drawn
    phi, theta = world.weights()
    shares = world.shares(phi, count)
    copies = [w.expand(len(shares), *w.shape).clone().requires_grad_() for w in (phi, theta)]
    batch = SentenceBatch(None, None, None, [len(shares)])
    objective(Model(world, *copies), batch, None).loss.backward()
    return [-len(shares) * copy.grad for copy in copies], shares


def expected(gradients, shares):
    return [torch.tensordot(shares, each, 1) for each in gradients]


def total_variance(gradients, shares):
    """Of the encoder's gradient, all its weights together."""
    encoder = gradients[0].flatten(1)
    return (shares @ (encoder - shares @ encoder).square()).sum()


# -- the objectives as the thesis prints them -----------------------------------------------


def objective_value(config, log_p, log_ratio, kl):
    """eqs. 5.9, 5.11, 5.15 and 5.18; with the grouping `information` 5.12 and 5.16."""
    lam, alpha, elbo = config.weight, config.alpha, config.estimator == "elbo"

    def s(count, power=1.0):
        if elbo:
            return power * log_p[:count].mean(0) - kl
        return (power * log_p[:count] + log_ratio[:count]).exp().mean(0).log()

    def u(count):
        w = (log_p[:count] + log_ratio[:count]).exp()
        return (w * log_p[:count]).mean(0) / w.mean(0)

    k, m = config.samples, config.mi_samples or config.samples
    match config.augment, config.grouping:
        case "none", _:
            return s(k)
        case "kl", "likelihood":
            return (1 - lam) * s(k) + lam * u(m)
        case "kl", "information":
            return s(k) + lam * (u(m) - s(m))
        case "renyi", "likelihood":
            return lam / (alpha - 1) * s(m, alpha) - (lam * alpha / (alpha - 1) - 1) * s(k)
        case "renyi", "information":
            return s(k) + lam * (s(m, alpha) - alpha * s(m)) / (alpha - 1)
        case "power", _:
            return s(k, alpha) / alpha


def exact_gradient(world, config):
    """By differentiating the expectation itself: of listed codes through their probabilities, of
    nodes through the codes."""
    count = max(config.samples, config.mi_samples or 1)
    phi, theta = (weight.requires_grad_() for weight in world.weights())
    q = world.proposal(phi[None])
    z = q.sample(count)
    log_p = world.log_p(theta[None], z)
    log_ratio = q.log_prior(z) - q.log_density(z)
    value = objective_value(config, log_p, log_ratio, q.kl().sum())
    return torch.autograd.grad(world.shares(phi, count) @ value, [phi, theta])


AUGMENTATIONS = {
    "none": {},
    "kl": {"augment": "kl", "lambda": 0.6},
    "renyi below 1": {"augment": "renyi", "lambda": 0.6, "alpha": 0.5},
    "renyi above 1": {"augment": "renyi", "lambda": 0.5, "alpha": 2.5},
    "power below 1": {"augment": "power", "alpha": 0.6},
    "power above 1": {"augment": "power", "alpha": 1.8},
}
COUNTS = [(1, 1), (2, 2), (3, 3), (3, 1), (1, 3)]
GROUPINGS = ("likelihood", "information")


def configs(estimator):
    """All objectives with 1 to 3 samples by an estimator, those that are refused left out."""
    found = []
    for augment in AUGMENTATIONS.values():
        for samples, mi_samples in COUNTS:
            if samples == mi_samples:
                if estimator != "vimco" or samples > 1:
                    found.append(MonteCarloConfig(estimator=estimator, samples=samples, **augment))
            elif "lambda" in augment:
                counts = {"samples": samples, "mi_samples": mi_samples, **augment}
                found += [
                    MonteCarloConfig(estimator=estimator, grouping=grouping, **counts)
                    for grouping in GROUPINGS
                ]
    return found


def named(config):
    counts = f"{config.samples}/{config.mi_samples or config.samples}"
    return f"{config.estimator}-{counts}-{config.augment}-{config.alpha}-{config.grouping}"


CONTINUOUS = [
    (Gaussian(), config)
    for estimator in ("elbo", "iwae", "dreg", "reinforce", "vimco")
    for config in configs(estimator)
]
DISCRETE = [
    (Categorical(), config) for estimator in ("reinforce", "vimco") for config in configs(estimator)
]


@pytest.mark.parametrize(
    ("world", "config"),
    [
        pytest.param(world, config, id=f"{type(world).__name__}-{named(config)}")
        for world, config in CONTINUOUS + DISCRETE
    ],
)
def test_the_mean_gradient_is_the_exact_one(world, config):
    found = expected(*every_gradient(world, config))
    for ours, exact in zip(found, exact_gradient(world, config), strict=True):
        torch.testing.assert_close(ours, exact, rtol=0, atol=1e-6)
        assert exact.abs().max() > 0.001


@pytest.mark.parametrize("config", configs("stl"), ids=named)
def test_stl_is_right_of_one_sample_and_biased_of_more(config):
    phi, theta = expected(*every_gradient(Gaussian(), config))
    exact_phi, exact_theta = exact_gradient(Gaussian(), config)
    torch.testing.assert_close(theta, exact_theta, rtol=0, atol=1e-6)
    if config.settings.drawn == 1:
        torch.testing.assert_close(phi, exact_phi, rtol=0, atol=1e-6)
    else:
        assert (phi - exact_phi).abs().max() > 0.001


@pytest.mark.parametrize("baseline", [-2.0, 0.7])
def test_a_baseline_moves_no_mean(baseline):
    config = MonteCarloConfig(estimator="reinforce", samples=2, **AUGMENTATIONS["kl"])
    found = expected(*every_gradient(Categorical(), config, baseline))
    for ours, exact in zip(found, exact_gradient(Categorical(), config), strict=True):
        torch.testing.assert_close(ours, exact, rtol=0, atol=1e-12)


# -- values ---------------------------------------------------------------------------------


class Known:
    """A code of three classes with q, prior and p(x | z) given: all draws of K by how often each
    class comes, with the probability of that (the multinomial one), and the truth."""

    def __init__(self, q, prior, p):
        self.q, self.prior, self.p = map(real, (q, prior, p))
        self.joint = self.prior * self.p
        self.evidence = self.joint.sum()
        self.posterior = self.joint / self.evidence
        self.log_evidence = self.evidence.log()
        self.kl = (self.posterior * (self.posterior / self.prior).log()).sum()
        self.fit = (self.posterior * self.p.log()).sum()

    def log_power(self, alpha):
        """ln p^alpha(x)."""
        return (self.prior * self.p**alpha).sum().log()

    def renyi(self, alpha):
        powers = (self.posterior / self.prior) ** alpha
        return (self.prior * powers).sum().log() / (alpha - 1)

    @cache  # noqa: B019
    def draws(self, count):
        """l and r (count, B), and the probabilities (B,)."""
        classes = torch.tensor(list(itertools.combinations_with_replacement(range(3), count))).T
        often = torch.stack([(classes == c).sum(0) for c in range(3)])
        ways = torch.lgamma(real(count + 1.0)) - torch.lgamma(often.double() + 1).sum(0)
        shares = (ways + (often * self.q.log()[:, None]).sum(0)).exp()
        kl = (self.q * (self.q / self.prior).log()).sum().expand(len(shares))
        log_p, ratio = self.p.log()[classes], (self.prior / self.q).log()[classes]
        return Draws(log_p, ratio, kl), shares

    def mean(self, quantity, count):
        draws, shares = self.draws(count)
        return shares @ quantity(draws).value

    def deviation(self, quantity, count):
        draws, shares = self.draws(count)
        value = quantity(draws).value
        return (shares @ (value - shares @ value).square()).sqrt()


NARROW = Known([0.8, 0.15, 0.05], [0.3, 0.3, 0.4], [0.8, 0.3, 0.1])
BROAD = Known([0.3, 0.3, 0.4], [0.3, 0.3, 0.4], [0.8, 0.3, 0.1])
GROWING = (1, 2, 4, 8, 16, 32, 64)


def settings(augment, count, weight=0.0, alpha=1.0, estimator="iwae"):
    return Settings(estimator, augment, count, count, weight, alpha)


def test_the_worlds_probabilities_add_up():
    for count in GROWING:
        assert NARROW.draws(count)[1].sum().item() == pytest.approx(1)


@pytest.mark.parametrize("world", [NARROW, BROAD], ids=["narrow", "broad"])
@pytest.mark.parametrize(
    ("quantity", "limit"),
    [
        (log_mean_weight, lambda w: w.log_evidence),
        (lambda d: log_mean_weight(d, 1.7), lambda w: w.log_power(1.7)),
        (lambda d: log_mean_weight(d, 0.4), lambda w: w.log_power(0.4)),
        (weighted_log_likelihood, lambda w: w.fit),
        (
            lambda d: augmented(settings("kl", len(d.log_p), 0.6), d),
            lambda w: w.log_evidence + 0.6 * w.kl,
        ),
        (
            lambda d: augmented(settings("renyi", len(d.log_p), 0.6, 1.7), d),
            lambda w: w.log_evidence + 0.6 * w.renyi(1.7),
        ),
        (
            lambda d: augmented(settings("renyi", len(d.log_p), -0.5, 0.4), d),
            lambda w: w.log_evidence - 0.5 * w.renyi(0.4),
        ),
        (
            lambda d: augmented(settings("power", len(d.log_p), alpha=1.7), d),
            lambda w: w.log_power(1.7) / 1.7,
        ),
    ],
    ids=["S", "S_1.7", "S_0.4", "U", "kl", "renyi-1.7", "renyi-0.4", "power"],
)
def test_values_converge_as_one_over_k(world, quantity, limit):
    """Bias and variance, which are exact here, both fall as 1 / K."""
    bias = {count: world.mean(quantity, count) - limit(world) for count in (16, 32, 64)}
    assert abs(bias[64]) < 0.02
    assert (bias[64] / bias[32]).item() == pytest.approx(1 / 2, abs=0.06)
    spread = [world.deviation(quantity, count) for count in (16, 64)]
    assert (spread[1] / spread[0]).item() == pytest.approx(1 / 2, abs=0.06)


def ordered(world, count):
    """Every draw of `count` codes in its order, l and r (count, 3^count), and probabilities."""
    classes = torch.tensor(list(itertools.product(range(3), repeat=count))).T
    log_p, ratio = world.p.log()[classes], (world.prior / world.q).log()[classes]
    return Draws(log_p, ratio, torch.zeros(3**count)), world.q[classes].prod(0)


@pytest.mark.parametrize("counts", [(4, 1), (1, 4), (3, 2), (2, 2)], ids=str)
@pytest.mark.parametrize("weight", [0.0, 0.35, 1.0])
def test_the_mean_of_each_grouping_is_that_of_its_parts(counts, weight):
    """Eqs. 5.11, 5.15 and 5.12, 5.16, each part enumerated with its own number of codes."""
    k, m = counts
    world, alpha = NARROW, 1.8
    draws, shares = ordered(world, max(counts))
    s_k, s_m = (world.mean(log_mean_weight, count) for count in counts)
    s_alpha = world.mean(lambda d: log_mean_weight(d, alpha), m)
    u = world.mean(weighted_log_likelihood, m)
    a = weight / (alpha - 1)
    expected = {
        ("kl", "likelihood"): (1 - weight) * s_k + weight * u,
        ("kl", "information"): s_k + weight * (u - s_m),
        ("renyi", "likelihood"): a * s_alpha - (a * alpha - 1) * s_k,
        ("renyi", "information"): s_k + a * (s_alpha - alpha * s_m),
    }
    for (augment, grouping), mean in expected.items():
        chosen = Settings("iwae", augment, k, m, weight, alpha, grouping)
        ours = shares @ augmented(chosen, draws).value
        assert ours.item() == pytest.approx(mean.item(), abs=1e-12)
    apart = abs(expected["kl", "likelihood"] - expected["kl", "information"])
    assert (apart > 0.001) == (k != m and weight > 0)


ENDLESS = [  # grouping, augmentation, samples, of the information, lambda, alpha
    ("information", "kl", 16, 1, 0.02, 1.0),
    ("information", "kl", 16, 1, 0.9, 1.0),
    ("information", "renyi", 16, 1, 0.05, 1.5),
    ("likelihood", "renyi", 16, 1, 0.05, 0.5),
    ("likelihood", "renyi", 1, 16, 0.6, 1.5),  # lambda > (alpha - 1) / alpha
]
BOUNDED = [
    ("likelihood", "kl", 16, 1, 0.05, 1.0),
    ("likelihood", "kl", 16, 1, 0.95, 1.0),
    ("likelihood", "renyi", 16, 1, 0.05, 1.5),
    ("likelihood", "renyi", 16, 1, 0.95, 1.5),
    ("likelihood", "kl", 1, 16, 0.95, 1.0),
    ("likelihood", "renyi", 1, 16, 0.6, 3.0),
    ("likelihood", "renyi", 1, 16, 0.6, 0.5),
    ("information", "kl", 16, 1, 0.005, 1.0),  # below E min n_k^2, which is 0.0104
    ("information", "kl", 1, 16, 0.95, 1.0),
    ("information", "renyi", 1, 16, 0.95, 1.5),
    ("information", "kl", 16, 16, 0.95, 1.0),
    ("information", "renyi", 16, 16, 0.95, 1.5),
]


@pytest.mark.parametrize("case", ENDLESS + BOUNDED, ids=str)
def test_which_of_n_over_m_reward_a_wide_q_without_end(case):
    """Of Gaussian codes: N(0, sigma^2) has KL ~ sigma^2 / 2 from the prior, and the nearest of 16
    codes is E min n_k^2 = 1/96 of that away. Here p(x | z) = 1: no information, 0 is the truth."""
    grouping, augment, samples, mi_samples, weight, alpha = case
    chosen = Settings("dreg", augment, samples, mi_samples, weight, alpha, grouping)
    noise = torch.randn(16, 20_000, generator=torch.Generator().manual_seed(0)).double()
    values = {}
    for sigma in (1.0, 10.0, 100.0):
        log_ratio = math.log(sigma) + 0.5 * noise.square() * (1 - sigma**2)
        draws = Draws(torch.zeros_like(noise), log_ratio, torch.zeros(20_000))
        values[sigma] = augmented(chosen, draws).value.mean().item()
    assert values[1.0] == pytest.approx(0, abs=1e-12)
    if case in ENDLESS:
        assert values[10.0] > 0.5
        assert values[100.0] > 50 * values[10.0]
    else:
        assert values[100.0] < values[10.0] < 0


def test_the_bound_rises_towards_the_likelihood():
    for world in (NARROW, BROAD):
        means = [world.mean(log_mean_weight, count).item() for count in GROWING]
        assert means == sorted(means)
        assert means[-1] < world.log_evidence


def told(draws):
    return information(settings("kl", len(draws.log_p)), draws)


def test_the_information_is_too_high_and_falls_where_q_is_narrow():
    """Proposition 9 (ii)."""
    means = [NARROW.mean(told, count).item() for count in GROWING]
    assert means == sorted(means, reverse=True)
    assert means[-1] > NARROW.kl


def test_the_information_is_too_low_where_q_is_the_prior():
    """Against proposition 9 (ii), which has it too high whatever q is: one sample gives
    ln q(z) / p(z), which is 0 here (so says proposition 11), and the KL is not."""
    assert BROAD.mean(told, 1).item() == pytest.approx(0, abs=1e-15)
    means = [BROAD.mean(told, count).item() for count in GROWING]
    assert means == sorted(means)
    assert means[-1] < BROAD.kl


@pytest.mark.parametrize("world", [NARROW, BROAD], ids=["narrow", "broad"])
def test_the_bias_of_the_information_is_that_of_its_docstring(world):
    v = world.posterior / world.q
    variance = (world.q * (v - 1).square()).sum()
    covariance = (world.posterior * v * (world.p.log() - world.fit)).sum()
    # The rest falls as 1 / K^2, and is taken out by Richardson's extrapolation.
    bias = [count * (world.mean(told, count) - world.kl) for count in (32, 64)]
    first = 2 * bias[1] - bias[0]
    assert first.item() == pytest.approx((variance / 2 - covariance).item(), abs=0.01)


probabilities = st.lists(st.floats(0.01, 1), min_size=3, max_size=3)


@given(probabilities, probabilities, st.floats(1.01, 6))
def test_a_power_lies_between(prior, p, alpha):
    """Proposition 10, with equality where every p(x | z) is 0 or 1; Renyi's divergence beside."""
    prior = [share / sum(prior) for share in prior]
    world = Known(prior, prior, p)
    power, evidence = world.log_power(alpha), world.log_evidence
    assert alpha * evidence - 1e-12 <= power <= evidence + 1e-12
    ours = (power - alpha * evidence) / (alpha - 1)
    assert ours.item() == pytest.approx(world.renyi(alpha).item(), abs=1e-9)
    assert ours >= world.kl - 1e-9
    sure = Known(prior, prior, [1.0, 1.0, 1.0])
    assert sure.log_power(alpha).item() == pytest.approx(0, abs=1e-12)


# -- one sample, and other limits -----------------------------------------------------------


def some_draws(count, sentences=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    log_p, log_ratio = torch.randn(2, count, sentences, generator=generator, dtype=torch.double)
    return Draws(log_p, log_ratio, torch.rand(sentences, generator=generator, dtype=torch.double))


def all_close(found, other, **tolerance):
    """Coefficients."""
    for ours, theirs in zip(found, other, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.parametrize("beta", [0.2, 1.0, 1.7])
@pytest.mark.parametrize("estimator", ["elbo", "iwae", "stl", "dreg", "reinforce"])
def test_one_sample_is_the_beta_vae(estimator, beta):
    """Proposition 13, draw by draw, value and gradient: all objectives are l + beta r, or with the
    ELBO l - beta KL."""
    draws = some_draws(1)
    (log_p,), (ratio,), kl = draws
    cost = -kl if estimator == "elbo" else ratio
    found = [
        estimated(each, draws, baseline=0.3)
        for each in (
            settings("kl", 1, 1 - beta, estimator=estimator),
            settings("renyi", 1, 1 - beta, 0.4, estimator),
            settings("power", 1, alpha=1 / beta, estimator=estimator),
        )
    ]
    ones = torch.ones(1, 5, dtype=torch.double)
    of_ratio = 0 * ones if estimator == "elbo" else beta * ones
    value = log_p + beta * cost
    match estimator:
        case "reinforce":
            path, of_code, score = 0 * ones, 0 * ones, (value - 0.3 - beta)[None]
        case "stl" | "dreg":
            path, of_code, score = ones, of_ratio, 0 * ones
        case _:
            path, of_code, score = ones, of_ratio, -of_ratio
    by_kl = -beta if estimator == "elbo" else 0.0
    for each in found:
        all_close(each, Coefficients(value, ones, path, of_code, score, by_kl))


@pytest.mark.parametrize("beta", [0.3, 1.4])
def test_one_samples_mean_is_the_beta_vae_s_objective(beta):
    """eq. 5.19, in expectation, with the exact KL."""
    world = NARROW
    kl = (world.q * (world.q / world.prior).log()).sum()
    fit = (world.q * world.p.log()).sum()
    for each in (settings("kl", 1, 1 - beta), settings("renyi", 1, 1 - beta, 2.0)):
        mean = world.mean(lambda draws, each=each: augmented(each, draws), 1)
        assert mean.item() == pytest.approx((fit - beta * kl).item())


@pytest.mark.parametrize("estimator", ["iwae", "dreg", "reinforce", "vimco"])
@pytest.mark.parametrize("counts", [(4, 4), (4, 2), (1, 3)])
def test_renyi_tends_to_kl(estimator, counts):
    """(S_a - a S) / (a - 1) -> dS_a/da - S = U - S as a -> 1, whatever the draws, for dS_a/da is
    the mean of l with the weights' shares: value and gradient. Grouped by the likelihood there is
    no limit where K and M differ: S_M - S_K is divided by a - 1."""
    draws = some_draws(max(counts))

    def both(grouping, alpha):
        kl = Settings(estimator, "kl", *counts, 0.7, grouping=grouping)
        renyi = Settings(estimator, "renyi", *counts, 0.7, alpha, grouping)
        return estimated(renyi, draws), estimated(kl, draws)

    for alpha in (1 - 1e-5, 1 + 1e-5):
        found, kl = both("information", alpha)
        all_close(found, kl, rtol=0, atol=1e-4)
        assert (found.value - kl.value).abs().max() > 1e-7  # and is not it
        found, kl = both("likelihood", alpha)
        assert ((found.value - kl.value).abs().max() > 1000) == (counts[0] != counts[1])


@pytest.mark.parametrize("estimator", ["elbo", "iwae", "stl", "dreg", "reinforce", "vimco"])
@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_power_is_renyi_with_its_own_lambda(estimator, alpha):
    draws = some_draws(4)
    power = estimated(settings("power", 4, alpha=alpha, estimator=estimator), draws)
    renyi = settings("renyi", 4, (alpha - 1) / alpha, alpha, estimator)
    all_close(power, estimated(renyi, draws))


def test_power_one_and_lambda_nought_are_the_plain_bound():
    draws = some_draws(3)
    for estimator in ("elbo", "iwae", "stl", "dreg", "reinforce", "vimco"):
        plain = estimated(settings("none", 3, estimator=estimator), draws)
        all_close(estimated(settings("power", 3, estimator=estimator), draws), plain)
        all_close(estimated(settings("kl", 3, estimator=estimator), draws), plain)
        renyi = settings("renyi", 3, 0.0, 2.0, estimator)
        all_close(estimated(renyi, draws), plain)


ESTIMATORS = ("elbo", "iwae", "stl", "dreg", "reinforce", "vimco")


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("augment", ["kl", "renyi"])
def test_with_as_many_samples_for_both_the_groupings_are_one(estimator, augment):
    """To the last bit, value and gradient; not so with 4/1 and 1/4."""
    for counts in [(2, 2), (4, 4), (4, 1), (1, 4)]:
        draws = some_draws(max(counts))
        ours, other = (
            estimated(Settings(estimator, augment, *counts, 0.7, 1.6, grouping), draws)
            for grouping in GROUPINGS
        )
        same = all(torch.equal(a, b) for a, b in zip(ours[:-1], other[:-1], strict=True))
        assert same == (counts[0] == counts[1])
        assert ours.by_kl == pytest.approx(other.by_kl)  # both groupings have 1 - lambda of it


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("counts", [(4, 1), (1, 4), (3, 4)], ids=str)
def test_lambda_nought_is_the_likelihood_of_its_own_samples(estimator, grouping, counts):
    """O = S_K: what the other codes are changes nothing but VIMCO's baselines, the mean of all."""
    k, m = counts
    draws = some_draws(max(counts))
    plain = augmented(settings("none", k, estimator=estimator), draws.first(k))
    for augment in ("kl", "renyi"):
        chosen = Settings(estimator, augment, k, m, 0.0, 1.6, grouping)
        found = augmented(chosen, draws)
        torch.testing.assert_close(found.value, plain.value)
        for ours, theirs in zip(found._derivatives, plain._derivatives, strict=True):
            torch.testing.assert_close(ours[:k], theirs)
            assert (ours[k:] == 0).all()


@pytest.mark.parametrize("counts", [(4, 1), (1, 4), (3, 4)], ids=str)
def test_lambda_one(counts):
    """By the likelihood KL is U_M alone, and S_K is out of it; Renyi is (S_alpha,M - S_K) / (alpha
    - 1). By information S_K stays."""
    k, m = counts
    draws = some_draws(max(counts))
    u = weighted_log_likelihood(draws.first(m))
    s_k, s_m = (log_mean_weight(draws.first(count)) for count in counts)
    s_alpha = log_mean_weight(draws.first(m), 1.6)
    expected = {
        ("kl", "likelihood"): u,
        ("kl", "information"): s_k + u - s_m,
        ("renyi", "likelihood"): (1 / 0.6) * (s_alpha - s_k),
        ("renyi", "information"): s_k + (1 / 0.6) * (s_alpha - 1.6 * s_m),
    }
    for (augment, grouping), wanted in expected.items():
        found = augmented(Settings("dreg", augment, k, m, 1.0, 1.6, grouping), draws)
        torch.testing.assert_close(found.value, wanted.value)
        for ours, theirs in zip(found._derivatives, wanted._derivatives, strict=True):
            torch.testing.assert_close(ours[: len(theirs)], theirs)
            torch.testing.assert_close(ours[len(theirs) :], 0 * ours[len(theirs) :])


# -- variance -------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
@pytest.mark.parametrize("samples", [2, 3])
def test_vimco_is_less_noisy_than_reinforce(augment, samples):
    """Even than with the best that a running mean can be, the objective's own."""
    vimco, reinforce = (
        MonteCarloConfig(estimator=estimator, samples=samples, **augment)
        for estimator in ("vimco", "reinforce")
    )
    world = Categorical()
    phi, theta = world.weights()
    q = world.proposal(phi[None])
    z = q.sample(samples)
    ratio = q.log_prior(z) - q.log_density(z)
    value = objective_value(vimco, world.log_p(theta[None], z), ratio, None)
    baseline = (world.shares(phi, samples) @ value).item()
    ours = total_variance(*every_gradient(world, vimco))
    assert ours < total_variance(*every_gradient(world, reinforce, baseline))
    assert ours < 0.5 * total_variance(*every_gradient(world, reinforce))


def test_what_is_known_of_the_code_lowers_the_noise():
    noise = {
        estimator: total_variance(
            *every_gradient(Gaussian(), MonteCarloConfig(estimator=estimator, samples=3))
        )
        for estimator in ("iwae", "dreg", "reinforce", "vimco")
    }
    assert noise["dreg"] < noise["iwae"] < noise["reinforce"]
    assert noise["dreg"] < noise["vimco"] < noise["reinforce"]


def ratios(estimator, count, groups=20, size=1500):
    """|mean| / deviation of the gradient by q's mean, in groups of draws: (groups,)."""
    generator = torch.Generator().manual_seed(3)
    columns = groups * size
    noise = torch.randn(count, columns, 1, generator=generator, dtype=torch.double)
    phi, theta = Gaussian().weights()
    phi, theta = phi.expand(columns, 2).clone().requires_grad_(), theta[None]
    drawn = SimpleNamespace(ends=True, log_likelihood=lambda z, *_: Gaussian().log_p(theta, z))

    class Drawn(Posterior):
        def sample(self, count):
            return self.at(noise)

    drawn.encode = lambda *_: Drawn(phi[:, :1], phi[:, 1:])
    objective = MonteCarlo(MonteCarloConfig(estimator=estimator, samples=count))
    objective(drawn, SentenceBatch(None, None, None, [columns]), None).loss.backward()
    gradient = phi.grad[:, 0].view(groups, size)
    return gradient.mean(1).abs() / gradient.std(1)


def test_the_signal_to_noise_of_dreg_rises_with_the_samples_and_that_of_iwae_falls():
    """As 1 / sqrt(K) of IWAE (Rainforth et al. 2018), as sqrt(K) of DReG (Tucker et al. 2018)."""
    for estimator, sign in (("dreg", 1), ("iwae", -1)):
        found = [ratios(estimator, count) for count in (1, 4, 16)]
        for few, many in itertools.pairwise(found):
            change = sign * (many - few)
            assert change.mean() > 4 * change.std() / math.sqrt(len(change))


def test_with_the_true_posterior_stl_and_dreg_have_no_variance():
    """p(x | z) = N(x; z, 1/2): the posterior is N(2 x / 3, 1/3), and w is p(x) whatever z."""
    x, variance = 0.9, real(0.5)

    class Conjugate(Gaussian):
        def weights(self):
            return real([x / 1.5, -math.log(3)]), real([1.0])

        def log_p(self, theta, z):
            gap = (x - theta[:, 0] * z[..., 0]).square() / variance
            return -0.5 * (gap + (2 * math.pi * variance).log())

    for samples, estimator in itertools.product((1, 2), ("stl", "dreg")):
        config = MonteCarloConfig(estimator=estimator, samples=samples)
        (encoder, _), _ = every_gradient(Conjugate(), config)
        assert encoder.abs().max() < 1e-12
    iwae = every_gradient(Conjugate(), MonteCarloConfig(estimator="iwae"))
    assert total_variance(*iwae) > 0.5


# -- the algebra ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "quantity",
    [
        log_mean_weight,
        lambda d: log_mean_weight(d, 0.3),
        weighted_log_likelihood,
        mean_log_likelihood,
        lambda d: mean_log_likelihood(d, 2.0),
        lambda d: augmented(Settings("iwae", "kl", 2, 4, 0.7), d),
        lambda d: augmented(Settings("iwae", "renyi", 4, 1, 0.7, 0.4), d),
        lambda d: augmented(Settings("iwae", "renyi", 4, 1, 0.7, 0.4, "information"), d),
        lambda d: augmented(Settings("elbo", "kl", 4, 2, 0.7), d),
    ],
)
def test_derivatives_are_those_of_the_value(quantity):
    inputs = Draws(*(each.requires_grad_() for each in some_draws(4)))
    found = quantity(inputs)
    exact = torch.autograd.grad(found.value.sum(), inputs, allow_unused=True, retain_graph=True)
    for ours, theirs in zip((found.by_log_p, found.by_log_ratio), exact[:2], strict=True):
        torch.testing.assert_close(ours, torch.zeros_like(ours) if theirs is None else theirs)
    by_kl = 0.0 if exact[2] is None else exact[2]
    torch.testing.assert_close(torch.full_like(inputs.kl, found.by_kl), 0 * inputs.kl + by_kl)


def test_quantities_of_different_sample_counts_add_up():
    draws = some_draws(3)
    one, all_of_them = weighted_log_likelihood(draws.first(1)), log_mean_weight(draws)
    for found in (one + all_of_them, all_of_them + one):
        torch.testing.assert_close(found.value, one.value + all_of_them.value)
        torch.testing.assert_close(found.by_log_p[1:], all_of_them.by_log_p[1:])
        torch.testing.assert_close(found.by_log_p[0], all_of_them.by_log_p[0] + one.by_log_p[0])
    difference = 3.0 * mean_log_likelihood(draws) - all_of_them
    torch.testing.assert_close(
        difference.value, 3 * draws.log_p.mean(0) - 3 * draws.kl - all_of_them.value
    )
    assert difference.by_kl == -3


def test_left_out_is_a_loop():
    draws = some_draws(4)
    found = left_out(draws)
    for k in range(4):
        for ours, x in ((found.log_p, draws.log_p), (found.log_ratio, draws.log_ratio)):
            copy = x.clone()
            copy[k] = sum(x[j] for j in range(4) if j != k) / 3
            torch.testing.assert_close(ours[:, k], copy)


numbers = st.floats(-30, 5)
both = st.lists(st.tuples(numbers, numbers), min_size=2, max_size=6)


def drawn(pairs):
    log_p, ratio = real(pairs).T[..., None]
    return Draws(log_p, ratio, real([0.4]))


@given(both, st.floats(-20, 20), st.floats(0.2, 4))
@hypothesis.settings(max_examples=50)
def test_a_shift_of_the_log_likelihood(pairs, c, alpha):
    """Moves S and U by c, S_alpha by alpha c, information and the gradient's coefficients not."""
    draws = drawn(pairs)
    moved = draws._replace(log_p=draws.log_p + c)
    shifts = [
        (log_mean_weight, c),
        (weighted_log_likelihood, c),
        (lambda d: log_mean_weight(d, alpha), alpha * c),
        (told, 0.0),
        (lambda d: information(settings("renyi", len(pairs), alpha=alpha + 1), d), 0.0),
    ]
    for quantity, shift in shifts:
        torch.testing.assert_close(
            quantity(moved).value, quantity(draws).value + shift, rtol=0, atol=1e-9
        )
    for estimator in ("iwae", "stl", "dreg", "vimco"):
        each = settings("kl", len(pairs), 0.6, estimator=estimator)
        found, before = estimated(each, moved), estimated(each, draws)
        all_close(found[1:], before[1:], rtol=0, atol=1e-9)


@given(both, st.randoms(use_true_random=False))
@hypothesis.settings(max_examples=30)
def test_the_order_of_the_samples_does_not_matter(pairs, random):
    order = list(range(len(pairs)))
    random.shuffle(order)
    draws = drawn(pairs)
    turned = Draws(draws.log_p[order], draws.log_ratio[order], draws.kl)
    for estimator in ("elbo", "iwae", "stl", "dreg", "reinforce", "vimco"):
        for augment in ({"augment": "kl", "weight": 0.6}, {"augment": "power", "alpha": 2.0}):
            each = Settings(estimator, samples=len(pairs), mi_samples=len(pairs), **augment)
            value, *parts, by_kl = estimated(each, draws)
            other, *others, _ = estimated(each, turned)
            expected = (other, *others, by_kl)
            all_close((value, *(part[order] for part in parts), by_kl), expected, atol=1e-9, rtol=0)


def coded(coefficients):
    """The gradient by the decoder's weight a and by the code of l = a z, at z = a = 1."""
    a, z = real([[1.0]]).requires_grad_(), real([[[1.0]]]).requires_grad_()
    known = []
    log_p = a * gated(z, known)[..., 0]
    known.append(coefficients)
    zeros = real([[0.0]])
    surrogate(coefficients, log_p, zeros, zeros, real([0.0])).backward()
    return a.grad.item(), z.grad.item()


@pytest.mark.parametrize("decoder", [0.0, 1e-300, -1e-12, 1e-9, 0.5, -2.0])
@pytest.mark.parametrize("path", [0.0, 0.7, -0.2])
def test_the_gate_where_the_decoders_coefficient_vanishes(decoder, path):
    """1 + lambda d_k can be 0, where nothing of l_k reaches the decoder's weights and much of it
    the code."""
    zero = real([[0.0]])
    found = coded(Coefficients(zero, zero + decoder, zero + path, zero, zero, 0.0))
    assert found[0] == pytest.approx(decoder, abs=2 * LEAST * abs(path))
    assert found[1] == pytest.approx(path)


def test_where_lambda_d_is_minus_one_dregs_gradient_is_right():
    """Two codes with 1 + lambda (l_0 - U) = 0: v_0 = 1/2, l_0 - U = (l_0 - l_1) / 2 = -1 / 0.5."""
    draws = Draws(real([[-5.0], [-1.0]]), real([[4.0], [0.0]]), real([0.0]))
    found = estimated(settings("kl", 2, 0.5, estimator="dreg"), draws)
    assert found.decoder[0].item() == pytest.approx(0, abs=1e-15)
    path = 0.25 * (1 - 2)  # v^2 (1 + 2 lambda d)
    assert found.path[0].item() == pytest.approx(path)
    first = Coefficients(found.value[None], *(each[:1] for each in found[1:5]), 0.0)
    a, z = coded(first)
    assert a == pytest.approx(0, abs=2 * LEAST)
    assert z == pytest.approx(path)


@pytest.mark.parametrize("estimator", ["elbo", "iwae", "stl", "dreg", "reinforce", "vimco"])
@pytest.mark.parametrize("augment", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
def test_weights_far_apart(estimator, augment):
    config = MonteCarloConfig(estimator=estimator, samples=3, **augment)
    values = real([[-1.0, -1e4, -2.0], [-1e4, -2e4, -3e4], [-1e-300, -1.0, -1e4]]).T
    for log_p in (values, values.float()):
        draws = Draws(log_p, 0 * log_p, log_p.new_ones(3))
        for each in estimated(config.settings, draws)[:-1]:
            assert each.isfinite().all()


@pytest.mark.parametrize("estimator", ["iwae", "stl", "dreg", "reinforce", "vimco"])
@pytest.mark.parametrize("augment", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
def test_a_code_from_which_the_sentence_cannot_come(estimator, augment):
    """ln p(x | z_1) = -inf: it counts nothing, and the others as if it were a very bad one."""
    config = MonteCarloConfig(estimator=estimator, samples=3, **augment)
    impossible, bad = (
        Draws(real([[-1.0], [worst], [-2.0]]), real([[0.3], [0.1], [-0.2]]), real([1.0]))
        for worst in (-math.inf, -1e5)
    )
    found = estimated(config.settings, impossible)
    all_close(found, estimated(config.settings, bad))
    assert np.all([each.isfinite().all() for each in found[:-1]])
