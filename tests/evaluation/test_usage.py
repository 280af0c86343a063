"""Likelihood and information by importance sampling, against codes that are enumerated."""

import itertools
import math

import numpy as np
import pytest
import torch

from infolm.data.sentences import Lines
from infolm.evaluation import usage as module
from infolm.evaluation.usage import usage, weigh
from infolm.models.codes.categorical import CategoricalConfig
from infolm.models.codes.gaussian import GaussianConfig
from infolm.models.codes.quantised import QuantisedConfig
from infolm.models.sentence import CoderConfig, SentenceConfig, SentenceModel
from infolm.models.symbol import SymbolConfig, SymbolModel
from infolm.objectives.estimators import Draws
from infolm.training.loop import tensors

SYMBOLS, VARIABLES, CLASSES = 12, 2, 3


@pytest.fixture
def model() -> SymbolModel:
    """Far from uniform, and q is not p(z | x)."""
    torch.manual_seed(0)
    codes = CategoricalConfig(variables=VARIABLES, classes=CLASSES, embedding=4)
    made = SymbolModel(SymbolConfig(hidden=6, latent=codes), SYMBOLS + 2).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2)
    return made


TEXT = Lines.of([[word + 1] for word in range(SYMBOLS)], 0)


def truth(model) -> tuple[np.ndarray, np.ndarray]:
    """-ln p(x) and KL(p(z | x) || p(z)), summed over all codes, (S,) each."""
    rows = tensors(TEXT.packed(np.arange(SYMBOLS)), torch.device("cpu"))
    z = torch.tensor(list(itertools.product(range(CLASSES), repeat=VARIABLES)))
    with torch.no_grad():
        log_p = model.log_likelihood(z[:, None].expand(-1, SYMBOLS, -1), rows)
    log_marginal = log_p.logsumexp(0) - math.log(len(z))
    posterior = log_p.softmax(0)
    information = (posterior * (log_p - log_marginal)).sum(0)
    return -log_marginal.numpy(), information.numpy()


def many(draws: Draws, size: int) -> Draws:
    """Draws of K codes as K / size independent ones of `size`: (size, K / size, S)."""
    both = (x.unflatten(0, (size, -1)) for x in draws[:2])
    return Draws(*both, draws.kl)


def test_many_codes_come_to_the_sums_over_all(model):
    nll, information = truth(model)
    exact = usage(weigh(model, TEXT, 40_000))
    # Twenty estimates with 2,000 codes give the standard error of one.
    apart = usage(many(weigh(model, TEXT, 40_000, seed=7), 2000))
    for name, known in (("nll", nll), ("information", information)):
        error = getattr(apart, name).std(0, ddof=1)
        assert (np.abs(getattr(apart, name)[0] - known) < 5 * error).all()
        assert (np.abs(getattr(exact, name) - known) < 5 * error / math.sqrt(20) + 1e-9).all()
        assert error.max() < 0.2


def test_of_one_code_they_are_the_elbo_and_ln_q_over_p_and_too_high(model):
    nll, _ = truth(model)
    draws = weigh(model, TEXT, 4000)
    apart = usage(many(draws, 1))
    np.testing.assert_allclose(apart.nll, -(draws.log_p + draws.log_ratio))
    np.testing.assert_allclose(apart.information, -draws.log_ratio)
    error = apart.nll.std(0, ddof=1) / math.sqrt(4000)
    assert (apart.nll.mean(0) > nll + 4 * error).all()
    # KL(q || p) of q's own codes, to which the mean of ln q / p comes.
    error = apart.information.std(0, ddof=1) / math.sqrt(4000)
    assert (np.abs(apart.information.mean(0) - draws.kl.numpy()) < 5 * error).all()


@pytest.mark.parametrize("certain", [False, True])
def test_with_few_codes_the_information_leans_to_what_q_says(model, certain):
    """Above the truth where q is nearly certain; below it where q is the prior, and of one code
    then 0, whatever p(z | x)."""
    with torch.no_grad():
        model.latent.logits.weight.mul_(2 if certain else 0)
        model.latent.logits.bias.mul_(2 if certain else 0)
    _, information = truth(model)
    draws = weigh(model, TEXT, 24_000)
    means = np.array([usage(many(draws, size)).information.mean() for size in (1, 2, 8, 60)])
    away = means - information.mean()
    assert (away > 0 if certain else away < 0).all()
    assert (np.diff(np.abs(away)) < 0).all()
    assert certain or means[0] == pytest.approx(0, abs=1e-12)


def test_with_more_codes_the_bound_falls_to_the_likelihood(model):
    nll, _ = truth(model)
    draws = weigh(model, TEXT, 24_000)
    means = [usage(many(draws, size)).nll.mean() for size in (1, 2, 8, 60)]
    assert means == sorted(means, reverse=True)
    assert means[-1] == pytest.approx(nll.mean(), abs=0.05)


def test_numbers_hang_on_the_seed_alone_and_nothing_else_is_touched(model):
    model.train()
    before = torch.get_rng_state()
    first = weigh(model, TEXT, 5, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    torch.manual_seed(99)
    again, other = weigh(model, TEXT, 5, seed=3), weigh(model, TEXT, 5, seed=4)
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)
        assert a.dtype == torch.float64
        assert not a.requires_grad
    assert not torch.equal(first.log_p, other.log_p)


KINDS = [
    GaussianConfig(size=3),
    CategoricalConfig(variables=2, classes=3, embedding=4),
    QuantisedConfig(variables=2, classes=3, embedding=4),
]


@pytest.mark.parametrize("codes", KINDS, ids=lambda config: config.kind)
def test_how_many_are_decoded_together_changes_nothing(codes, monkeypatch):
    """Of sentences of several lengths. Codes are drawn in other portions, and so are others."""
    torch.manual_seed(0)
    coder = CoderConfig(hidden=5)
    config = SentenceConfig(embedding=3, latent=codes, encoder=coder, decoder=coder)
    made = SentenceModel(config, 5).double()
    text = Lines.of([[1, 2, 3], [4], [2, 2], [3, 1, 1, 4]], 0)
    found = weigh(made, text, 7)
    alone = torch.stack([weigh(made, text.chosen(np.array([n])), 7).kl[0] for n in range(4)])
    torch.testing.assert_close(found.kl, alone)
    monkeypatch.setattr(module, "TOGETHER", 2 * 14)  # two codes of the fourteen tokens
    drawn = []
    sample = type(made.encode(*batch(text))).sample
    monkeypatch.setattr(
        type(made.encode(*batch(text))),
        "sample",
        lambda self, count: drawn.append(sample(self, count)) or drawn[-1],
    )
    portions = weigh(made, text, 7)
    assert [len(z) for z in drawn] == [2, 2, 2, 1]
    order = next(text.batches())[0]
    rows = tensors(text.packed(order), torch.device("cpu"))
    with torch.inference_mode():
        once = made.log_likelihood(torch.cat(drawn), rows)
        q = made.encode(rows.read, rows.sizes)
        ratio = q.log_prior(torch.cat(drawn)) - q.log_density(torch.cat(drawn))
    torch.testing.assert_close(portions.log_p[:, order], once.clone())
    torch.testing.assert_close(portions.log_ratio[:, order], ratio.clone())


def batch(text: Lines):
    rows = tensors(text.packed(next(text.batches())[0]), torch.device("cpu"))
    return rows.read, rows.sizes


def test_progress_is_in_tokens_and_ends_with_all():
    torch.manual_seed(0)
    made = SymbolModel(SymbolConfig(hidden=4, latent=GaussianConfig(size=2)), 14)
    said: list[tuple[int, int]] = []
    weigh(made, TEXT, 2, report=lambda done, total: said.append((done, total)))
    assert said[-1] == (24, 24)
