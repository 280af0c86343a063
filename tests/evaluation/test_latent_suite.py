"""Measurements of a model with a latent code: by hand, and what they say of themselves."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.evaluation.latent import (
    Aggregated,
    draw,
    importance_weighted,
    log_likelihoods,
    posteriors,
)
from infolm.evaluation.latent_suite import (
    LatentSettings,
    Weighting,
    code_measurements,
    latent_measurements,
    per_sentence,
    perplexity,
)
from infolm.models.codes.gaussian import NORMAL, GaussianConfig, Posterior
from infolm.models.sentence import SentenceConfig, SentenceModel

EOS = 0
LINES = Lines.of([[1 + (i * k) % 4 for k in range(1 + i % 7)] for i in range(30)], EOS)
SETTINGS = LatentSettings(samples=2, weighted_samples=8, weighted_sentences=10)


def make(size=3):
    torch.manual_seed(1)
    coder = {"hidden": 6}
    config = SentenceConfig(
        embedding=4, latent=GaussianConfig(size=size), encoder=coder, decoder=coder
    )
    return SentenceModel(config, 5).double().eval()


def measured(settings=SETTINGS):
    found, remarks = latent_measurements(make(), LINES, "test", settings)
    return {each.metric: each for each in found}, remarks


@pytest.mark.parametrize("eos", [True, False])
def test_both_conventions_of_eos_by_hand(eos):
    found, _ = measured(LatentSettings(2, 8, 10, eos=eos))
    model, posterior = make(), posteriors(make(), LINES)
    draws = draw(model, LINES, posterior, 2, torch.Generator().manual_seed(1))
    losses = -draws.likelihoods.words.mean(0)
    tokens = int(LINES.lengths.sum())
    if eos:
        losses = losses - draws.likelihoods.eos.mean(0)
        tokens += 30
    kl = posterior.kl().sum(1).numpy()
    for name, nll in {
        "reconstruction": losses.mean(),
        "elbo": (losses + kl).mean(),
        "melbo": losses.mean() + math.log(30),
    }.items():
        assert found[f"{name}_nll"].value == pytest.approx(nll)
        assert found[f"{name}_nll"].unit == "nats per sentence"
        whole = found[f"{name}_perplexity"]
        assert whole.value == pytest.approx(math.exp(30 * nll / tokens))
        assert whole.tokens == tokens
        said = "<eos> kept in both" if eos else "<eos> removed from both"
        assert said in whole.convention
        assert ("without <eos>" in whole.method) is not eos


def test_the_perplexities_without_eos_are_those_of_the_other_convention():
    """And leave what stands beside them as it is."""
    kept, _ = measured()
    removed, _ = measured(replace(SETTINGS, eos=False))
    assert not [metric for metric in removed if metric.endswith("without_eos")]
    for name in ("reconstruction", "elbo", "melbo", "importance_weighted"):
        found, expected = kept[f"{name}_perplexity_without_eos"], removed[f"{name}_perplexity"]
        assert found.value == expected.value != kept[f"{name}_perplexity"].value
        assert (found.stderr, found.tokens) == (expected.stderr, expected.tokens)
        assert found.convention == expected.convention
        assert "<eos> removed from both" in found.convention
        assert "<eos> kept in both" in kept[f"{name}_perplexity"].convention


def test_the_gain_of_a_code_is_by_pairs():
    found, _ = measured()
    model, posterior = make(), posteriors(make(), LINES)
    noise = torch.randn(30, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z = posterior.at(noise)
    (shift,) = np.random.default_rng(1).choice(29, 1, replace=False) + 1
    own = log_likelihoods(model, LINES, z).counted(True)
    other = log_likelihoods(model, LINES, z[(torch.arange(30) - shift) % 30]).counted(True)
    gain = found["likelihood_gain"]
    assert gain.value == pytest.approx((own - other).mean())
    assert gain.stderr == pytest.approx((own - other).std(ddof=1) / math.sqrt(30))
    assert gain.tokens == LINES.lengths.sum() + 30


def test_the_size_at_which_melbo_meets_another_model():
    """There -mean ln p(x | z) + ln K is the other's loss."""
    found, _ = latent_measurements(make(), LINES, "test", replace(SETTINGS, competitor=50.0))
    values = {each.metric: each.value for each in found}
    assert values["reconstruction_nll"] + values["melbo_meets"] == pytest.approx(50)
    (met,) = [each for each in found if each.metric == "melbo_meets"]
    assert met.unit == "ln of a number of sentences"
    assert met.stderr == next(m.stderr for m in found if m.metric == "reconstruction_nll")


def test_weighted_bounds_by_hand():
    training = Aggregated(posteriors(make(), LINES.chosen(np.arange(12))), "training")
    found, _ = latent_measurements(
        make(), LINES, "test", SETTINGS, (Weighting(NORMAL, 2.0), Weighting(training, 4.0))
    )
    weighted = [each for each in found if each.metric.startswith("importance_weighted_nll")]
    assert len(weighted) == 2
    chosen = LINES.chosen(np.sort(np.random.default_rng(1).choice(30, 10, replace=False)))
    for each, prior, scale in zip(weighted, (NORMAL, training), (2.0, 4.0), strict=True):
        generator = torch.Generator().manual_seed(1)
        posterior = posteriors(make(), chosen)
        draws = draw(make(), chosen, posterior, 8, generator, prior, scale)
        bound = importance_weighted(draws.likelihoods.counted(True), draws.log_ratio)
        assert each.value == pytest.approx(-bound.mean())
        assert each.stderr == pytest.approx(bound.std(ddof=1) / math.sqrt(10))
        assert each.tokens == chosen.lengths.sum() + 10
        assert f"the prior is {prior.name}, 8 codes a sentence" in each.convention
        assert f"{scale:g} times the deviation" in each.convention
    assert weighted[0].method != weighted[1].method


def test_every_measurement_says_what_it_is():
    found, remarks = measured()
    likelihoods = ("reconstruction", "elbo", "melbo", "importance_weighted")
    assert set(found) == {
        *(f"{name}_{kind}" for name in likelihoods for kind in ("nll", "perplexity")),
        *(f"{name}_perplexity_without_eos" for name in likelihoods),
        *("latent_usage", "latent_usage_per_token", "latent_usage_effective"),
        *("kl", "active_units", "units_above_noise", "mutual_information", "likelihood_gain"),
        *("latent_entropy", "latent_entropy_control", "latent_entropy_normal"),
        "latent_entropy_unstandardised",
    }
    assert all(each.split == "test" and each.convention and each.unit for each in found.values())
    without = [each.metric for each in found.values() if each.stderr is None]
    assert without == ["active_units", "units_above_noise"]
    assert "of these 30 sentences themselves" in found["melbo_nll"].convention
    assert "2 codes of q(z | x) a sentence" in found["melbo_nll"].convention
    assert found["latent_entropy_normal"].value == pytest.approx(
        1.5 * math.log(2 * math.pi * math.e)
    )
    assert remarks == []


def test_progress_names_what_is_done():
    heard = []
    latent_measurements(make(), LINES, "test", SETTINGS, report=lambda *at: heard.append(at))
    stages = dict.fromkeys(stage for stage, *_ in heard)
    assert list(stages) == [
        "encoding the test split",
        "decoding the test split",
        "weighing codes of the test split under N(0, 1)",
    ]
    assert all(done <= total for _, done, total in heard)
    assert heard[-1][1:] == (8, 8)


def test_what_limits_a_measurement_is_remarked():
    """Information at its ceiling; too few sentences for an entropy."""
    apart = torch.arange(40, dtype=torch.float64)[:, None] * torch.ones(2, dtype=torch.float64)
    posterior = Posterior(100 * apart, torch.full_like(apart, -10))
    found, remarks = code_measurements(posterior, 100, "test", 1)
    assert {each.metric: each.value for each in found}["active_units"] == 2
    assert len(remarks) == 1
    assert "near the ceiling ln 40" in remarks[0]
    few = Posterior(*(side[:3] for side in posterior))
    found, remarks = code_measurements(few, 10, "test", 1)
    metrics = ["kl", "active_units", "units_above_noise", "mutual_information"]
    assert [each.metric for each in found] == metrics
    assert remarks[-1].startswith("the entropy of the codes has no estimate: 3 rows are too few")


def test_the_error_of_a_perplexity_is_that_over_draws_of_sentences():
    rng, found = np.random.default_rng(1), []
    for _ in range(1000):
        tokens = rng.integers(1, 40, 200).astype(float)
        found.append(perplexity(4 * tokens + 3 + rng.normal(0, 5, 200), tokens))
    values, stated = np.array(found).T
    assert stated.mean() == pytest.approx(values.std(), rel=0.1)


def test_the_error_of_a_mean():
    value, error = per_sentence(np.array([1.0, 2.0, 6.0]))
    assert value == 3
    assert error == pytest.approx(math.sqrt(7 / 3))


def test_bad_input_is_told():
    with pytest.raises(InfolmError, match="the test split has 1 sentence with a word"):
        latent_measurements(make(), LINES.chosen(np.array([3])), "test", SETTINGS)
    with pytest.raises(InfolmError, match="1 code a sentence or more"):
        LatentSettings(samples=0)
