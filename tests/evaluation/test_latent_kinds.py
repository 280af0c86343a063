"""Codes of every kind measured: against all codes enumerated, and against quadrature over a code of
one dimension."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.evaluation.latent import (
    Weighting,
    draw,
    encoded,
    log_likelihoods,
    posteriors,
)
from infolm.evaluation.latent_suite import LatentSettings, latent_measurements, per_token
from infolm.evaluation.posterior import (
    activity,
    classes_in_use,
    code_information,
    entropies,
    picture,
)
from infolm.models.codes.base import Uniform
from infolm.models.codes.categorical import Categories
from infolm.models.codes.gaussian import NORMAL
from infolm.models.codes.quantised import Quantised
from infolm.models.sentence import SentenceConfig, SentenceModel
from infolm.models.symbol import SymbolConfig, SymbolModel

EOS, VARIABLES, CLASSES = 0, 2, 3
LATENTS = {
    "gaussian": {"kind": "gaussian", "size": 1},
    "categorical": {
        "kind": "categorical",
        "variables": VARIABLES,
        "classes": CLASSES,
        "embedding": 4,
    },
    "quantised": {"kind": "quantised", "variables": VARIABLES, "classes": CLASSES, "embedding": 2},
}
SENTENCES = Lines.of([[1 + (i * k) % 4 for k in range(1 + i % 5)] for i in range(12)], EOS)
SYMBOLS = Lines.of([[1 + i % 4] for i in range(12)], EOS)
EVERY = torch.tensor(list(itertools.product(range(CLASSES), repeat=VARIABLES)))
"""All codes of classes, (9, 2)."""
GRID = torch.linspace(-12, 12, 4001, dtype=torch.float64)[:, None]
UNIFORM = Weighting(Uniform(VARIABLES, CLASSES))


def make(kind, symbols=False):
    """Decoders to which the code matters, and posteriors that are near enough to weigh."""
    torch.manual_seed(2)
    latent = LATENTS[kind]
    if symbols:
        model = SymbolModel(SymbolConfig(hidden=6, latent=latent), 5).double().eval()
    else:
        coder = {"hidden": 6}
        config = SentenceConfig(embedding=4, latent=latent, encoder=coder, decoder=coder)
        model = SentenceModel(config, 5).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight *= 1 if name.startswith(("encoder", "latent.l", "latent.m")) else 2
    return model


def text(symbols):
    return SYMBOLS if symbols else SENTENCES


def exact(model, lines, codes, log_prior, eos=True):
    """ln p(x), and KL(p(z | x) || p(z)), of each sentence, (S,), with M codes enumerated; log_prior
    (M,): with the distances of a grid in it."""
    repeated = lines.chosen(np.repeat(np.arange(len(lines)), len(codes)))
    z = codes.repeat(len(lines), *[1] * (codes.dim() - 1))
    found = log_likelihoods(model, repeated, z).counted(eos)
    log_p = torch.from_numpy(found).view(len(lines), -1)
    joint = log_p + log_prior
    total = joint.logsumexp(1)
    told = ((joint - total[:, None]).exp() * log_p).sum(1) - total
    return total.numpy(), told.numpy()


def truth(kind, model, lines, eos=True):
    if kind == "categorical":
        return exact(model, lines, EVERY, torch.full((9,), -math.log(9)).double(), eos)
    log_prior = -0.5 * (GRID[:, 0].square() + math.log(2 * math.pi))
    return exact(model, lines, GRID, log_prior + math.log(GRID[1] - GRID[0]), eos)


def measured(model, lines, *weightings, **settings):
    found, remarks = latent_measurements(
        model, lines, "test", LatentSettings(**settings), weightings
    )
    return {each.metric: each for each in found}, remarks


# -- bounds and usage -------------------------------------------------------------------------


@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("symbols", [False, True])
@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_the_bound_and_the_usage_tend_to_the_truth(kind, symbols, eos):
    """The bias falls with the number of codes: at 4,000 it is below the error, which the weights
    of the draws themselves give."""
    model, lines = make(kind, symbols), text(symbols)
    weighting = UNIFORM if kind == "categorical" else Weighting()
    found, remarks = measured(model, lines, weighting, weighted_samples=4000, eos=eos)
    log_p, told = truth(kind, model, lines, eos)
    assert told.mean() > 0.05
    # The relative error of a mean of weights that count as m is at most 1 / sqrt(m).
    error = 1 / math.sqrt(12 * found["latent_usage_effective"].value)
    assert error < 0.03
    assert abs(found["importance_weighted_nll"].value + log_p.mean()) < 4 * error
    assert abs(found["latent_usage"].value - told.mean()) < 4 * error
    tokens = lines.lengths + (eos and not symbols)
    per, error = found["latent_usage_per_token"].value, found["latent_usage_per_token"].stderr
    assert per == pytest.approx(12 * found["latent_usage"].value / tokens.sum())
    assert error == pytest.approx(per_token(told, tokens.astype(float))[1], rel=0.3)
    assert found["latent_usage"].tokens == tokens.sum()
    assert 2 < found["latent_usage_effective"].value <= 4000
    assert remarks == []


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_of_one_code_the_usage_is_its_ratio(kind):
    """ln q(z | x) / p(z), which is all that one code can say."""
    model = make(kind)
    weighting = UNIFORM if kind == "categorical" else Weighting()
    found, _ = measured(model, SENTENCES, weighting, weighted_samples=1)
    draws = draw(model, SENTENCES, encoded(model, SENTENCES), 1, torch.Generator().manual_seed(1))
    assert found["latent_usage"].value == pytest.approx(-draws.log_ratio.mean())
    assert found["latent_usage_effective"].value == pytest.approx(1)


def test_a_proposal_that_misses_the_posterior_is_remarked():
    """A hundred times as wide as q in 40 dimensions: one of its codes outweighs the others."""
    torch.manual_seed(2)
    model = SymbolModel(SymbolConfig(hidden=6), 5).double().eval()
    found, remarks = measured(model, SYMBOLS, Weighting(NORMAL, 100.0), weighted_samples=50)
    assert 1 <= found["latent_usage_effective"].value < 2
    (said,) = [each for each in remarks if "latent usage" in each]
    assert "of 50 codes a sentence, too few to rely on" in said


def test_the_usage_says_what_it_is():
    found, _ = measured(make("categorical"), SENTENCES, UNIFORM, weighted_samples=7)
    said = found["latent_usage"].convention
    for part in ("self-normalised", "Melis 2023, eq. 5.9", "with few codes too high"):
        assert part in said
    assert "the prior is uniform over 3^2 codes, 7 codes a sentence from q(z | x)" in said
    assert "<eos> kept in" in said
    assert found["latent_usage"].unit == "nats per sentence"
    assert found["latent_usage_per_token"].unit == "nats per token"
    assert "of 7 codes a sentence" in found["latent_usage_effective"].convention
    single, _ = measured(make("categorical", True), SYMBOLS, UNIFORM, weighted_samples=7)
    assert "the <eos> of a single symbol is certain, and no token" in single["elbo_nll"].convention


@pytest.mark.parametrize("symbols", [False, True])
def test_the_elbo_of_classes_is_that_of_all_codes(symbols):
    """E_q ln p(x | z) - KL, with the expectation enumerated, within the error of its draws."""
    model, lines = make("categorical", symbols), text(symbols)
    q = encoded(model, lines)
    log_p = np.stack(
        [log_likelihoods(model, lines, code.expand(len(lines), -1)).counted(True) for code in EVERY]
    )
    weights = q.log_densities(EVERY).exp().numpy()  # (9, S)
    np.testing.assert_allclose(weights.sum(0), 1)
    mean = (weights * log_p).sum(0)
    spread = np.sqrt((weights * (log_p - mean) ** 2).sum(0))
    expected = -(mean - q.kl().sum(1).numpy()).mean()
    found, _ = measured(model, lines, samples=500)
    error = np.sqrt((spread**2 / 500).sum()) / len(lines)
    assert abs(found["elbo_nll"].value - expected) < 4 * error
    assert found["kl"].value == pytest.approx(q.kl().sum(1).mean().item())


@pytest.mark.parametrize("symbols", [False, True])
def test_the_bound_of_a_quantised_code_has_what_the_code_costs(symbols):
    model, lines = make("quantised", symbols), text(symbols)
    found, remarks = measured(model, lines)
    log_p = log_likelihoods(model, lines, encoded(model, lines).centre).counted(True)
    cost = VARIABLES * math.log(CLASSES)
    assert found["reconstruction_nll"].value == pytest.approx(-log_p.mean())
    assert found["elbo_nll"].value == pytest.approx(-log_p.mean() + cost)
    assert found["kl"].value == pytest.approx(cost)
    assert found["kl"].stderr == pytest.approx(0, abs=1e-12)
    assert "latent_usage" not in found
    assert "which q(z | x) is certain of" in found["elbo_nll"].convention
    assert not [each for each in remarks if "ceiling" not in each]


def test_the_probabilities_of_all_symbols_sum_to_one():
    model = make("categorical", symbols=True)
    every = Lines.of([[word] for word in range(5)], EOS)
    found = log_likelihoods(model, every, EVERY[3].expand(5, -1))
    assert np.exp(found.counted(True)).sum() == pytest.approx(1)
    assert (found.eos == 0).all()


@pytest.mark.parametrize("symbols", [False, True])
@pytest.mark.parametrize("kind", list(LATENTS))
def test_likelihoods_are_those_that_training_sees(kind, symbols):
    model, lines = make(kind, symbols), text(symbols)
    z = encoded(model, lines).centre
    numbers = np.argsort(-lines.lengths, kind="stable")
    batch = lines.packed(numbers)
    rows = [torch.from_numpy(each) for each in batch[:3]]
    batch = batch._replace(read=rows[0], inputs=rows[1], targets=rows[2])
    with torch.no_grad():
        expected = model.log_likelihood(z[torch.from_numpy(numbers)][None], batch)[0]
    found = log_likelihoods(model, lines, z).counted(True)[numbers]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)


# -- codes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(LATENTS))
def test_each_sentence_has_its_own_posterior(kind):
    model = make(kind)
    whole = encoded(model, SENTENCES)
    for number in (0, 7, 11):
        alone = encoded(model, SENTENCES.chosen(np.array([number])))
        picked = whole.rows(torch.tensor([number]))
        for ours, theirs in zip(picked, alone, strict=True):
            torch.testing.assert_close(ours, theirs)
        assert type(whole) is type(alone)


@pytest.mark.parametrize("kind", ["categorical", "quantised"])
def test_what_needs_gaussian_codes_is_refused_for_others(kind):
    with pytest.raises(InfolmError, match=r"needs Gaussian codes.*model\.latent\.kind is gaussian"):
        posteriors(make(kind), SENTENCES)


def test_classes_are_drawn_as_likely_as_q_has_them():
    log_probs = torch.tensor([[[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]]], dtype=torch.float64).log()
    z = Categories(log_probs).drawn(3000, torch.Generator().manual_seed(1))
    assert z.shape == (3000, 1, 2)
    expected = 3000 * Categories(log_probs).log_densities(EVERY).exp()[:, 0].numpy()
    counts = np.array([(z[:, 0] == code).all(1).sum().item() for code in EVERY])
    assert chi2.sf(((counts - expected) ** 2 / expected).sum(), 8) > 1e-3


@pytest.mark.parametrize("kind", list(LATENTS))
def test_ratios_are_those_of_prior_and_posterior(kind):
    model = make(kind)
    q = encoded(model, SENTENCES)
    found = draw(model, SENTENCES, q, 3, torch.Generator().manual_seed(1))
    z = q.drawn(3, torch.Generator().manual_seed(1))
    expected = q.log_prior(z) - q.log_density(z)
    np.testing.assert_allclose(found.log_ratio, expected.numpy(), rtol=1e-6)
    prior = q.prior.log_density(z.flatten(0, 1)).view(3, -1)
    torch.testing.assert_close(prior, q.log_prior(z).double())


def test_the_information_of_classes_is_that_of_all_codes():
    """I(x; z) with z enumerated, within the error of a code drawn for each sentence."""
    q = encoded(make("categorical"), SENTENCES)
    p = q.log_densities(EVERY).exp()  # (9, S)
    expected = float(torch.special.xlogy(p, p / p.mean(1, keepdim=True)).sum(0).mean())
    values = []
    for seed in range(300):
        (z,) = q.drawn(1, torch.Generator().manual_seed(seed))
        values.append(code_information(q, z).value)
    assert abs(np.mean(values) - expected) < 4 * np.std(values) / math.sqrt(300)
    assert expected < q.kl().sum(1).mean()


def quantised(codes):
    codes = torch.tensor(codes)
    entries = torch.zeros(*codes.shape, 1, dtype=torch.float64)
    return Quantised(entries, codes, entries, CLASSES)


def test_the_information_of_certain_codes_is_their_entropy():
    q = quantised([[0, 0], [0, 0], [0, 1], [2, 1]])
    found = code_information(q, q.centre)
    assert found.value == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4))
    assert found.ceiling == math.log(4)
    same = quantised([[1, 2]] * 4)
    assert code_information(same, same.centre).value == pytest.approx(0)


def test_classes_in_use_and_what_each_variable_tells():
    q = quantised([[0, 1], [1, 1], [2, 1], [0, 1]])
    together = -(0.5 * math.log(0.5) + 0.5 * math.log(0.25))
    np.testing.assert_allclose(classes_in_use(q), [math.exp(together), 1])
    np.testing.assert_allclose(activity(q), [together, 0], atol=1e-12)
    torch.testing.assert_close(q.over_classes.log_probs.exp().sum(-1), torch.ones(4, 2).double())
    # Classes that are drawn regardless of the sentence are all in use, and tell nothing.
    idle = Categories(torch.full((4, 2, 3), -math.log(3), dtype=torch.float64))
    np.testing.assert_allclose(classes_in_use(idle), [3, 3])
    np.testing.assert_allclose(activity(idle), 0, atol=1e-12)
    np.testing.assert_allclose(entropies(idle), math.log(3))


def test_codes_of_classes_have_no_density():
    found, _ = measured(make("categorical"), SENTENCES)
    assert not [metric for metric in found if metric.startswith("latent_entropy")]
    assert found["active_units"].unit == "variables"
    used = found["perplexity_of_classes"]
    assert 1 <= used.value <= CLASSES
    assert used.unit == "classes"


@pytest.mark.parametrize("symbols", [False, True])
@pytest.mark.parametrize("kind", list(LATENTS))
def test_every_kind_has_its_picture(kind, symbols):
    found = picture(make(kind, symbols), text(symbols))
    assert found.tokens == text(symbols).lengths.sum() + (0 if symbols else 12)
    assert len(found.kl) == len(found.active) == (1 if kind == "gaussian" else VARIABLES)
    assert len(found.classes) == (0 if kind == "gaussian" else VARIABLES)
    assert found.information <= found.ceiling + 1e-9
    assert len(found.own_likelihood) == 12
    np.testing.assert_allclose((found.melbo - found.elbo).mean(), found.mean_kl)
