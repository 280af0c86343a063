"""The VQ-VAE: its loss by hand, and that it learns what its parts are for."""

import math

import numpy as np
import pytest
import torch

from infolm.data.sentences import Lines, SentenceFeed, SentencesConfig
from infolm.evaluation.usage import tensors, usage, weigh
from infolm.evaluation.validation import monte_carlo_validation
from infolm.models.codes.quantised import QuantisedConfig
from infolm.models.sentence import CoderConfig, SentenceConfig, SentenceModel
from infolm.models.symbol import SymbolConfig, SymbolModel
from infolm.objectives.vq import Vq, VqConfig

CODES = QuantisedConfig(variables=2, classes=4, embedding=3)


def sentence_model() -> SentenceModel:
    torch.manual_seed(0)
    coder = CoderConfig(hidden=5)
    config = SentenceConfig(embedding=3, latent=CODES, encoder=coder, decoder=coder)
    return SentenceModel(config, 7).double()


def symbol_model(symbols=6, codes=CODES, hidden=5, seed=0) -> SymbolModel:
    torch.manual_seed(seed)
    return SymbolModel(SymbolConfig(hidden=hidden, latent=codes), symbols + 2)


def batch(sentences):
    return tensors(Lines.of(sentences, 0).packed(np.arange(len(sentences))), torch.device("cpu"))


@pytest.mark.parametrize(
    ("model", "sentences", "tokens"),
    [(sentence_model, [[1, 2, 3], [4, 5], [6]], 9), (symbol_model, [[1], [2], [5]], 3)],
)
def test_the_loss_is_its_formula(model, sentences, tokens):
    made, rows = model().double(), batch(sentences)
    before = made.latent.codebook.clone()
    q = made.encode(rows.read, rows.sizes)
    log_p = made.log_likelihood(before[[0, 1], q.codes].flatten(1)[None], rows)
    distance = ((q.vectors - before[[0, 1], q.codes]) ** 2).sum((1, 2)).mean() / 3
    found = Vq(VqConfig(commitment=0.3))(made, rows, None)
    torch.testing.assert_close(found.loss, -log_p.mean() + 2 * math.log(4) + 0.3 * distance)
    torch.testing.assert_close(found.terms["nll"], (6 * math.log(4) - log_p.sum()) / tokens)
    torch.testing.assert_close(found.terms["commitment"], distance)
    assert found.terms["information"].item() == pytest.approx(2 * math.log(4))
    assert found.count == found.per["nll"] == tokens
    assert found.per["commitment"] == 3
    # The commitment's own gradient, behind the one of what the decoder reads.
    made.zero_grad()
    z = q.sample(1)
    loss = 0.1 * (q.vectors - q.entries).square().sum() / 3 - made.log_likelihood(z, rows).mean()
    expected = torch.autograd.grad(loss, made.latent.vectors.weight)[0]
    found.loss.backward()
    torch.testing.assert_close(made.latent.vectors.weight.grad, expected)
    assert not torch.equal(made.latent.codebook, before)


def test_validation_is_the_bound_without_the_commitment_and_moves_nothing():
    made, text = sentence_model(), Lines.of([[1, 2], [3], [4, 5, 6]], 0)
    before = made.latent.codebook.clone()
    found = monte_carlo_validation(made, Vq(VqConfig()), text)
    rows = batch([[4, 5, 6], [1, 2], [3]])
    log_p = made.log_likelihood(made.encode(rows.read, rows.sizes).sample(1), rows).sum()
    assert found.loss == pytest.approx((3 * 2 * math.log(4) - log_p.item()) / 9)
    assert found.terms == pytest.approx({"nll": found.loss, "information": 2 * math.log(4)})
    assert torch.equal(made.latent.codebook, before)


def trained(seed: int, symbols=16, steps=250) -> float:
    """nats per symbol"""
    codes = QuantisedConfig(variables=2, classes=4, embedding=16)
    made, objective = symbol_model(symbols, codes, 32, seed), Vq(VqConfig(commitment=0.03))
    text = Lines.of([[word + 1] for word in range(symbols)], 0)
    feed = SentenceFeed(text, SentencesConfig(batch=16), seed, None)
    optimiser = torch.optim.Adam(made.parameters(), 0.005, betas=(0.0, 0.999))
    for _ in range(steps):
        optimiser.zero_grad()
        objective(made, tensors(feed.next(), torch.device("cpu")), None).loss.backward()
        optimiser.step()
    return usage(weigh(made, text, 1)).nll.mean()


def test_it_tells_symbols_apart():
    """16 symbols and as many codes: ln 16 = 2.8 at best, 5.5 where codes say nothing. Of four
    seeds the nats are 3.0 to 3.5; without the gradient that goes straight through 3.7 to 4.2, with
    entries that do not follow 3.6 to 4.0."""
    assert (trained(0) + trained(1)) / 2 < 3.5
