"""Bounds on the likelihood of sentences: against all sentences enumerated, and against quadrature
over a code of one dimension."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.data import sentences
from infolm.data.sentences import Lines
from infolm.evaluation import latent
from infolm.evaluation.latent import (
    SCALES,
    Aggregated,
    LogLikelihoods,
    Weighting,
    draw,
    elbo,
    importance_weighted,
    log_likelihoods,
    melbo,
    melbo_by_size,
    melbo_meets,
    posteriors,
    some,
    tuned_weighting,
)
from infolm.models.codes.gaussian import NORMAL, GaussianConfig, Posterior
from infolm.models.recurrent import DropoutConfig
from infolm.models.sentence import CoderConfig, SentenceConfig, SentenceModel

EOS = 0
X = Lines.of([[1, 2, 2], [2], [1, 1, 1, 2, 1], [], [2, 1]], EOS)
GRID = torch.linspace(-12, 12, 6001, dtype=torch.float64)
"""Codes of one dimension; the sum over them times their distance is an integral."""


def make(size=1, vocabulary=3, dropout=0.0, narrow=0.0, factor=4.0):
    """A small random model; narrow: what is taken off ln sigma^2 of its posteriors."""
    torch.manual_seed(1)
    coder = CoderConfig(hidden=5, dropout=DropoutConfig(input=dropout, output=dropout))
    config = SentenceConfig(
        embedding=3, latent=GaussianConfig(size=size), encoder=coder, decoder=coder
    )
    model = SentenceModel(config, vocabulary).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
        model.latent.log_variance.bias.sub_(narrow)
    return model.eval()


def integral(log_f):
    """ln of the integral over GRID, (..., G) -> (...)."""
    return torch.logsumexp(log_f, -1) + math.log(GRID[1] - GRID[0])


def on_grid(model, lines=X):
    """ln p(x | z) on GRID, (S, G), words and <eos>."""
    repeated = [sentence for sentence in lines for _ in GRID]
    found = log_likelihoods(model, Lines.of(repeated, EOS), GRID.repeat(len(lines))[:, None])
    return LogLikelihoods(*(torch.from_numpy(part).view(len(lines), -1) for part in found))


def exact(model, prior=NORMAL, eos=True):
    """ln p(x) of each of X, (S,)."""
    return integral(on_grid(model).counted(eos) + prior.log_density(GRID[:, None])).numpy()


def drawn(model, prior, samples, scale, eos=True):
    """ln p(x | z) and ln p(z) / r(z | x) of draws for each of X, (K, S) each."""
    generator = torch.Generator().manual_seed(samples)
    draws = draw(model, X, posteriors(model, X), samples, generator, prior, scale)
    return draws.likelihoods.counted(eos), draws.log_ratio


def repeated_bounds(model, prior, samples, scale, times, eos=True):
    """`times` independent importance-weighted bounds of each of X: their mean and its error."""
    parts = drawn(model, prior, samples * times, scale, eos)
    bounds = importance_weighted(*(part.reshape(samples, -1) for part in parts))
    bounds = bounds.reshape(times, len(X))
    return bounds.mean(0), bounds.std(0) / math.sqrt(times)


def narrow_normals(count, size, seed=0):
    """Posteriors with variances down to e^-10 and means of size 1, as MIM has them."""
    rng = torch.Generator().manual_seed(seed)
    mean = torch.randn(count, size, generator=rng, dtype=torch.float64)
    spread = torch.rand(count, size, generator=rng, dtype=torch.float64)
    return Posterior(mean, -10 + 2 * spread)


@pytest.mark.parametrize("z", [-1.3, 0.0, 2.0])
def test_probabilities_of_all_sentences_sum_to_one(z):
    """Those of up to 4 words, and what begins with any 5."""
    model = make()
    every = [x for n in range(6) for x in itertools.product((1, 2), repeat=n)]
    lines = Lines.of(every, EOS)
    found = log_likelihoods(model, lines, torch.full((len(every), 1), z))
    ended = np.exp(found.counted(True))[lines.lengths < 5].sum()
    begun = np.exp(found.counted(False))[lines.lengths == 5].sum()
    assert begun > 1e-4
    assert ended + begun == pytest.approx(1, abs=1e-12)


def test_likelihoods_equal_those_of_reading_word_by_word():
    model, z = make(size=2), torch.randn(len(X), 2, dtype=torch.float64)
    found = log_likelihoods(model, X, z)
    for i, sentence in enumerate(X):
        state, words, log_p = model.initial_state(z[i : i + 1]), [EOS, *sentence], []
        for word, target in zip(words, [*sentence, EOS], strict=True):
            hidden, state = model.step(torch.tensor([word]), z[i : i + 1], state)
            log_p.append(float(model.log_probs(hidden)[0, target].detach()))
        assert found.words[i] == pytest.approx(sum(log_p[:-1]), abs=1e-10)
        assert found.eos[i] == pytest.approx(log_p[-1], abs=1e-10)
    np.testing.assert_allclose(found.counted(True), found.words + found.eos)
    np.testing.assert_array_equal(found.counted(False), found.words)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 4), max_size=7), min_size=1, max_size=9),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
def test_order_and_batches_change_nothing(words, area, random):
    model = make(size=2, vocabulary=5)
    z = torch.randn(len(words), 2, dtype=torch.float64)
    alone = [posteriors(model, Lines.of([x], EOS)) for x in words]
    order = random.sample(range(len(words)), len(words))
    lines = Lines.of([words[i] for i in order], EOS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "AREA", area)
        found, likelihoods = posteriors(model, lines), log_likelihoods(model, lines, z[order])
    for place, i in enumerate(order):
        torch.testing.assert_close(found.mean[place], alone[i].mean[0])
        torch.testing.assert_close(found.log_variance[place], alone[i].log_variance[0])
        single = log_likelihoods(model, Lines.of([words[i]], EOS), z[i : i + 1])
        np.testing.assert_allclose(np.array(likelihoods)[:, place], np.array(single)[:, 0])


def test_dropout_is_off_and_the_mode_put_back():
    model = make(dropout=0.5)
    expected = posteriors(model, X).mean
    likelihoods = log_likelihoods(model, X, expected).words
    model.train()
    torch.testing.assert_close(posteriors(model, X).mean, expected)
    np.testing.assert_array_equal(log_likelihoods(model, X, expected).words, likelihoods)
    assert model.training


def test_progress_is_told_in_tokens():
    heard = []
    posteriors(make(), X, lambda *at: heard.append(at))
    log_likelihoods(make(), X, torch.zeros(5, 1), lambda *at: heard.append(at))
    assert heard == [(16, 16), (16, 16)]


@pytest.mark.parametrize("eos", [True, False])
def test_the_elbo_equals_quadrature(eos):
    model, posterior = make(), posteriors(make(), X)
    log_p = on_grid(model).counted(eos)
    q = posterior.log_densities(GRID[:, None]).T
    truth = (q.exp() * (log_p + NORMAL.log_density(GRID[:, None]) - q)).sum(1)
    truth = (truth * (GRID[1] - GRID[0])).numpy()
    draws = draw(model, X, posterior, 4000, torch.Generator().manual_seed(1))
    sampled = draws.likelihoods.counted(eos)
    found = elbo(sampled, posterior.kl().sum(1).numpy())
    error = sampled.std(0) / math.sqrt(4000)
    assert (np.abs(found - truth) < 4 * error + 1e-9).all()
    assert (truth < exact(model, eos=eos)).all()


def priors(model):
    other = Lines.of([[1], [2, 2], [1, 2, 1, 2]], EOS)
    return NORMAL, Aggregated(posteriors(model, other), "training")


@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("which", [0, 1])
def test_weighted_bounds_rise_to_the_likelihood(which, scale, eos):
    """K = 1, 4, 64 lie in this order below ln p(x), and K = 8,000 is there, within errors."""
    model = make(factor=2.0)
    prior = priors(model)[which]
    truth = exact(model, prior, eos)
    before = -np.inf
    for samples, times in ((1, 3000), (4, 1000), (64, 50)):
        bound, error = repeated_bounds(model, prior, samples, scale, times, eos)
        assert (bound < truth + 4 * error + 1e-9).all()
        assert (bound > before - 4 * error).all()
        before = bound
    log_p, log_ratio = drawn(model, prior, 8000, scale, eos)
    error = np.exp(log_p + log_ratio - truth).std(0) / math.sqrt(8000)
    assert (error < 0.06).all()
    assert (np.abs(importance_weighted(log_p, log_ratio) - truth) < 4 * error + 1e-9).all()


def test_one_sample_of_q_is_the_elbo():
    model = make()
    posterior = posteriors(model, X)
    draws = draw(model, X, posterior, 1, torch.Generator().manual_seed(1))
    log_p, log_ratio = draws.likelihoods.counted(True), draws.log_ratio
    expected = log_p[0] + log_ratio[0]
    np.testing.assert_allclose(importance_weighted(log_p, log_ratio), expected)
    more = draw(model, X, posterior, 5000, torch.Generator().manual_seed(2)).log_ratio
    kl = posterior.kl().sum(1).numpy()
    assert (np.abs(more.mean(0) + kl) < 4 * more.std(0) / math.sqrt(5000)).all()


CHOICES = [Weighting(NORMAL, scale) for scale in SCALES]


def test_a_narrow_posterior_wants_a_wide_proposal():
    """ln sigma^2 falls to the floor, as with MIM: bounds with scale 1 are nats below the truth, and
    those with the scale that is chosen half a nat at most."""
    model = make(narrow=40)
    assert (posteriors(model, X).log_variance == -10).all()
    truth, (_, scale) = exact(model), tuned_weighting(model, X, CHOICES)
    plain, _ = repeated_bounds(model, NORMAL, 20, 1.0, 20)
    tuned, _ = repeated_bounds(model, NORMAL, 20, scale, 20)
    assert scale >= 16
    assert (truth - plain).min() > 2
    assert (tuned - plain).min() > 2
    assert (truth - tuned).max() < 0.5


def test_a_posterior_that_is_the_prior_wants_none():
    """Then every weight is p(x | z), here of a decoder that does not look at z, so exact."""
    model = make()
    with torch.no_grad():
        for parameter in (*model.latent.mean.parameters(), *model.latent.log_variance.parameters()):
            parameter.zero_()
        model.start.weight.zero_()
        next(p for p in model.decoder.parameters() if p.shape[-1] == 4)[:, 3:].zero_()
    heard = []
    many = X.chosen(np.tile(np.arange(5), 40))
    chosen = tuned_weighting(model, many, CHOICES, samples=1, report=lambda *at: heard.append(at))
    assert chosen == (NORMAL, 1)
    assert heard[-1] == (len(SCALES), len(SCALES))
    draws = draw(model, X, posteriors(model, X), 2, torch.Generator())
    found = importance_weighted(draws.likelihoods.counted(True), draws.log_ratio)
    np.testing.assert_allclose(found, exact(model), atol=1e-6)


def test_densities_of_narrow_posteriors_keep_their_digits():
    """In 512 dimensions, against differences that are taken before they are squared."""
    posterior = narrow_normals(40, 512)
    noise = torch.randn(40, 512, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z = posterior.at(noise)
    found = posterior.log_densities(z)
    expected = posterior.log_density(z[:, None])
    torch.testing.assert_close(found.diagonal(), expected.diagonal(), rtol=0, atol=1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 16.0])
def test_the_aggregated_posterior_is_a_mixture(scale, monkeypatch):
    monkeypatch.setattr(latent, "COMPONENTS", 3)
    monkeypatch.setattr(latent, "ROWS", 4)
    posterior = narrow_normals(10, 2)
    z = torch.cat([posterior.mean, posterior.at(torch.ones(10, 2)), torch.zeros(1, 2)])
    deviation = scale * (posterior.log_variance / 2).exp()
    normals = torch.distributions.Normal(posterior.mean, deviation)
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(10, dtype=torch.float64)),
        torch.distributions.Independent(normals, 1),
    )
    prior = Aggregated(posterior, "training", scale)
    torch.testing.assert_close(prior.log_density(z), mixture.log_prob(z))
    wide = "" if scale == 1 else ", each 16 times as wide"
    assert prior.name == f"the aggregated posterior of 10 training sentences{wide}"


def test_the_aggregated_posterior_integrates_to_one():
    prior = Aggregated(posteriors(make(), X), "test")
    assert float(integral(prior.log_density(GRID[:, None]))) == pytest.approx(0, abs=1e-9)


def test_a_wider_posterior_has_the_same_means():
    posterior = narrow_normals(3, 2)
    wide = posterior.widened(8)
    assert wide.mean is posterior.mean
    torch.testing.assert_close(wide.log_variance.exp(), 64 * posterior.log_variance.exp())


@pytest.mark.parametrize("narrow", [0, 3, 40])
@pytest.mark.parametrize("eos", [True, False])
def test_melbo_is_below_the_likelihood_under_the_aggregated_posterior(narrow, eos):
    model = make(narrow=narrow)
    posterior = posteriors(model, X)
    draws = draw(model, X, posterior, 2000, torch.Generator().manual_seed(1))
    log_p = draws.likelihoods.counted(eos)
    found, error = melbo(log_p, len(X)), log_p.std(0) / math.sqrt(2000)
    truth = exact(model, Aggregated(posterior, "test"), eos)
    assert (found < truth + 4 * error).all()


def test_melbo_is_exact_where_codes_are_far_apart_and_certain():
    """Posteriors at the floor, and means moved 100 apart: the mixture at x's codes is q / N."""
    model = make(narrow=40)
    with torch.no_grad():
        model.start.weight.zero_()
        next(p for p in model.decoder.parameters() if p.shape[-1] == 4)[:, 3:].zero_()
    near = posteriors(model, X)
    apart = near._replace(mean=100 * torch.arange(5, dtype=torch.float64)[:, None])
    draws = draw(model, X, apart, 3, torch.Generator(), Aggregated(apart, "test"))
    log_p = draws.likelihoods.counted(True)
    np.testing.assert_allclose(melbo(log_p, 5), importance_weighted(log_p, draws.log_ratio))


def test_melbo_by_size_is_that_of_all_subsets():
    log_p = np.array([-3.0, -7.0, -4.0, -12.0, -5.5])
    mean, deviation = melbo_by_size(log_p, [1, 2, 4, 5, 1000])
    for at, size in enumerate((1, 2, 4, 5)):
        bounds = [
            -np.mean(chosen) + math.log(size) for chosen in itertools.combinations(log_p, size)
        ]
        assert mean[at] == pytest.approx(np.mean(bounds))
        assert deviation[at] == pytest.approx(np.std(bounds), abs=1e-12)
    assert mean[-1] == pytest.approx(6.3 + math.log(1000))
    assert deviation[-1] == 0


def test_melbo_meets_a_competitor_at_that_size():
    log_p = np.array([-3.0, -7.0, -4.0])
    size = math.exp(melbo_meets(log_p, nll=9.0))
    assert melbo_by_size(log_p, [size])[0][0] == pytest.approx(9.0)


def test_some_sentences_are_drawn_in_order_and_once():
    lines = Lines.of([[1] * n for n in range(50)], EOS)
    chosen = some(lines, 20, seed=3)
    assert len(chosen) == 20
    assert (np.diff(chosen.lengths) > 0).all()
    assert some(lines, 50, seed=3) is lines
