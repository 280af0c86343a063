"""What codes are like: mutual information against quadrature and its error against repetitions,
and the parts of a picture."""

import math

import numpy as np
import pytest
import torch

from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.evaluation import posterior as module
from infolm.evaluation.latent import log_likelihoods, posteriors
from infolm.evaluation.posterior import (
    above_noise,
    contrast,
    latent_entropy,
    mutual_information,
    picture,
    variances,
)
from infolm.models.codes.gaussian import GaussianConfig, Posterior
from infolm.models.sentence import SentenceConfig, SentenceModel

EOS = 0
LINES = Lines.of([[1 + (i * k) % 4 for k in range(i % 7)] for i in range(30)], EOS)


def make(size=3):
    torch.manual_seed(1)
    coder = {"hidden": 6}
    config = SentenceConfig(
        embedding=4, latent=GaussianConfig(size=size), encoder=coder, decoder=coder
    )
    return SentenceModel(config, 5).double().eval()


def normals(mean, deviation):
    mean = torch.as_tensor(mean, dtype=torch.float64)
    return Posterior(mean, torch.full_like(mean, 2 * math.log(deviation)))


def noise(posterior, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(posterior.mean.shape, generator=generator, dtype=torch.float64)


def test_identical_posteriors_tell_nothing():
    posterior = normals(np.full((50, 3), 0.7), 0.1)
    found = mutual_information(posterior, posterior.at(noise(posterior, 1)))
    assert found.value == pytest.approx(0, abs=1e-9)
    assert found.stderr == pytest.approx(0, abs=1e-9)
    assert found.ceiling == math.log(50)


@pytest.mark.parametrize("apart", [1.0, 1000.0])
def test_posteriors_far_apart_tell_all_there_is(apart):
    """At the floor of the variance, too."""
    posterior = normals(apart * np.arange(50)[:, None] * np.ones(2), math.exp(-5))
    found = mutual_information(posterior, posterior.at(noise(posterior, 1)))
    assert found.value == pytest.approx(math.log(50), abs=1e-9)
    assert found.value <= found.ceiling
    assert found.stderr == pytest.approx(0, abs=1e-9)


def test_mutual_information_equals_quadrature():
    posterior = Posterior(
        torch.tensor([[-1.0], [0.2], [0.5], [3.0]], dtype=torch.float64),
        torch.tensor([[0.0], [-3.0], [1.0], [-1.0]], dtype=torch.float64),
    )
    grid = torch.linspace(-15, 15, 20001, dtype=torch.float64)[:, None]
    q = posterior.log_density(grid[:, None]).exp()  # (G, N)
    integrand = torch.special.xlogy(q, q / q.mean(1, keepdim=True)).mean(1)
    truth = float(torch.trapezoid(integrand, grid[:, 0]))
    values = [
        mutual_information(posterior, posterior.at(noise(posterior, seed))).value
        for seed in range(1500)
    ]
    assert abs(np.mean(values) - truth) < 4 * np.std(values) / math.sqrt(1500)
    assert truth < posterior.kl().mean()


def test_blocks_change_nothing(monkeypatch):
    posterior = normals(torch.randn(23, 2, generator=torch.Generator().manual_seed(1)), 0.5)
    z = posterior.at(noise(posterior, 2))
    whole = mutual_information(posterior, z)
    monkeypatch.setattr(module, "BLOCK", 100)
    assert mutual_information(posterior, z) == pytest.approx(whole)


def test_the_error_of_mutual_information_is_the_jackknife():
    """Against leaving out each sentence in turn."""
    posterior = normals(torch.randn(12, 2, generator=torch.Generator().manual_seed(1)), 0.5)
    z = posterior.at(noise(posterior, 2))
    values = []
    for i in range(12):
        kept = [j for j in range(12) if j != i]
        rest = Posterior(*(side[kept] for side in posterior))
        values.append(mutual_information(rest, z[kept]).value)
    expected = math.sqrt(11 * np.var(values))
    assert mutual_information(posterior, z).stderr == pytest.approx(expected)


@pytest.mark.parametrize(
    ("size", "deviation", "most"), [(1, 3.0, 1.2), (1, 0.3, 1.2), (2, 0.1, 1.3), (2, 0.02, 1.6)]
)
def test_the_stated_error_of_mutual_information_is_the_true_one(size, deviation, most):
    """Over repeated draws of 200 sentences, from little information to nearly ln 200, where it is
    too large by up to sqrt 2."""
    found = []
    for seed in range(200):
        generator = torch.Generator().manual_seed(1000 + seed)
        means = torch.randn(200, size, generator=generator, dtype=torch.float64)
        posterior = normals(means, deviation)
        found.append(mutual_information(posterior, posterior.at(noise(posterior, seed))))
    spread = np.std([each.value for each in found])
    stated = np.mean([each.stderr for each in found])
    assert 0.85 < stated / spread < most


def test_variances_are_those_of_the_means():
    posterior = normals([[0.0, 1.0], [2.0, 1.0], [4.0, 1.3]], 0.1)
    np.testing.assert_allclose(variances(posterior), np.var([[0, 1], [2, 1], [4, 1.3]], axis=0))


@pytest.mark.parametrize("log_variance", [-10.0, -2.0, 0.0, 3.0])
def test_units_above_the_noise_are_so_at_any_width(log_variance):
    """Means with a variance of 0, 0.9, 1.1 and 100 times that of q(z | x); the sign alternates, so
    the variance over the sentences is exact."""
    noise = math.exp(log_variance)
    spread = np.sqrt(np.array([0.0, 0.9, 1.1, 100.0]) * noise)
    means = np.where(np.arange(40)[:, None] % 2, 1, -1) * spread + 5
    posterior = normals(means, math.exp(log_variance / 2))
    assert above_noise(posterior).tolist() == [False, False, True, True]
    active = (variances(posterior) > 0.01).sum()  # by the threshold of a VAE
    assert active == {-10: 0, -2: 3, 0: 3, 3: 3}[int(log_variance)]


def test_the_noise_is_the_mean_of_the_variances_not_of_their_logarithms():
    """One wide posterior among narrow ones: ln sigma^2 is -9 on average, and sigma^2 0.1."""
    log_variance = torch.full((10, 2), -10.0, dtype=torch.float64)
    log_variance[0] = 0.0
    mean = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(5)[:, None]
    spread = torch.tensor([0.09, 0.11], dtype=torch.float64).sqrt()
    assert above_noise(Posterior(mean * spread, log_variance)).tolist() == [False, True]


def test_units_above_the_noise_carry_half_a_bit():
    """A Gaussian channel whose signal has the variance of its noise: 1/2 ln 2 nats."""
    means = torch.randn(4000, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    posterior = normals(means / means.std(correction=0), 1.0)
    found = mutual_information(posterior, posterior.at(noise(posterior, 2)))
    assert found.value == pytest.approx(0.5 * math.log(2), abs=4 * found.stderr)


def test_kl_equals_that_of_torch():
    posterior = posteriors(make(), LINES)
    normal = torch.distributions.Normal
    deviation = (posterior.log_variance / 2).exp()
    expected = torch.distributions.kl_divergence(normal(posterior.mean, deviation), normal(0, 1))
    np.testing.assert_allclose(picture(make(), LINES).kl, expected.mean(0))


def test_the_entropy_of_normal_codes():
    """Deviation 2 in two dimensions; the control is the same estimate of deviation 1."""
    z = 2 * noise(normals(np.zeros((3000, 2)), 1), 1)
    found = latent_entropy(z, torch.Generator().manual_seed(2))
    assert found.normal == pytest.approx(math.log(2 * math.pi * math.e))
    assert abs(found.value - found.normal - 2 * math.log(2)) < 4 * found.stderr
    assert abs(found.control - found.normal) < 4 * found.control_stderr


def test_the_entropy_of_codes_as_they_are():
    """Equal widths: the same as of standardised ones. Beside wide columns a narrow one is not seen,
    and its entropy comes out far too high; standardised, all do."""
    z = 2 * noise(normals(np.zeros((2000, 2)), 1), 1)
    found = latent_entropy(z, torch.Generator().manual_seed(2))
    assert found.unstandardised == pytest.approx(found.value, abs=0.05)
    truth = found.normal + 2 * math.log(2)
    assert abs(found.unstandardised - truth) < 4 * found.unstandardised_stderr
    narrow = latent_entropy(z * torch.tensor([1.0, 1e-4]), torch.Generator().manual_seed(2))
    truth += math.log(1e-4)
    assert abs(narrow.value - truth) < 4 * narrow.stderr
    assert narrow.unstandardised > truth + 1


def test_codes_that_coincide_have_no_entropy():
    z = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64).repeat(10, 1)
    with pytest.raises(InfolmError, match="no density"):
        latent_entropy(z, torch.Generator())


def test_each_sentence_is_set_against_its_own_code_and_those_of_others():
    """With all 4 others of 5, every pair is there once."""
    model, lines = make(), LINES.chosen(np.arange(5))
    posterior = posteriors(model, lines)
    z = posterior.at(noise(posterior, 1))
    found = contrast(model, lines, posterior, z, others=4, seed=1)
    pairs = [(i, j) for i in range(5) for j in range(5)]
    repeated = lines.chosen(np.array([i for i, _ in pairs]))
    log_p = log_likelihoods(model, repeated, z[[j for _, j in pairs]]).counted(True).reshape(5, 5)
    log_q = posterior.log_density(z[:, None]).numpy()
    same = np.eye(5, dtype=bool)
    np.testing.assert_allclose(found.own_likelihood, log_p[same])
    np.testing.assert_allclose(found.own_density, log_q[same])
    np.testing.assert_allclose(np.sort(found.other_likelihood), np.sort(log_p[~same]))
    np.testing.assert_allclose(np.sort(found.other_density), np.sort(log_q[~same]))


def test_a_picture_agrees_with_itself():
    found = picture(make(), LINES, seed=2)
    assert found.sentences == 30
    assert found.tokens == LINES.lengths.sum() + 30
    assert found.mean_kl == pytest.approx(found.kl.sum())
    assert found.ceiling == math.log(30)
    assert found.information < found.ceiling
    assert found.information - 4 * found.information_error < found.mean_kl
    assert (found.active == (variances(posteriors(make(), LINES)) > 0.01)).all()
    assert (found.above_noise == above_noise(posteriors(make(), LINES))).all()
    assert len(found.above_noise) == len(found.active)
    assert len(found.classes) == 0
    assert (found.elbo < found.melbo).all()
    assert (found.melbo - found.elbo).mean() == pytest.approx(found.mean_kl)
    assert found.sizes[0] == 10
    assert found.sizes[-1] == 30
    assert found.bound[-1] == pytest.approx(-found.melbo.mean() + math.log(30))
    assert found.bound_error[-1] == 0
    assert len(found.own_likelihood) == len(found.own_density) == 30
    assert len(found.other_likelihood) == len(found.other_density) == 90
    again = picture(make(), LINES, seed=2)
    np.testing.assert_array_equal(again.elbo, found.elbo)


def test_a_picture_takes_no_more_sentences_than_asked_and_two_at_least():
    assert picture(make(), LINES, most=7).sentences == 7
    assert len(picture(make(), LINES, most=2).other_density) == 2
    with pytest.raises(InfolmError, match="needs at least 2 sentences, not 1"):
        picture(make(), LINES, most=1)
