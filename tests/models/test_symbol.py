"""The model of single symbols: its formulas, and what it reads."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from training_tiny import Silent, quiet

from infolm.config import Recipe
from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.evaluation.usage import tensors
from infolm.families.train import train
from infolm.models.codes.categorical import CategoricalConfig
from infolm.models.codes.gaussian import GaussianConfig
from infolm.models.codes.quantised import QuantisedConfig
from infolm.models.recurrent import SoftmaxConfig
from infolm.models.symbol import SymbolConfig, SymbolModel
from infolm.objectives.monte_carlo import MonteCarlo, MonteCarloConfig

KINDS = {
    "gaussian": GaussianConfig(size=3),
    "categorical": CategoricalConfig(variables=2, classes=3, embedding=4),
    "quantised": QuantisedConfig(variables=2, classes=3, embedding=4),
}
SYMBOLS = 6


def model(kind="gaussian", **config) -> SymbolModel:
    torch.manual_seed(0)
    return SymbolModel(SymbolConfig(hidden=5, latent=KINDS[kind], **config), SYMBOLS + 2).double()


def batch(words=(3, 1, 6)):
    text = Lines.of([[word] for word in words], 0)
    return tensors(text.packed(np.arange(len(words))), torch.device("cpu"))


def layers(network: nn.Sequential, x):
    for layer in network:
        x = torch.tanh(x) if isinstance(layer, nn.Tanh) else x @ layer.weight.T + layer.bias
    return x


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_its_formulas(kind):
    made, words = model(kind), [3, 1, 6]
    rows = batch(words)
    found = made.encode(rows.read, rows.sizes)
    h = torch.stack([layers(made.encoder, made.embedding[word]) for word in words])
    for ours, theirs in zip(found, made.latent(h), strict=True):
        torch.testing.assert_close(ours, theirs)
    z = found.sample(4)
    log_p = made.log_likelihood(z, rows)
    assert log_p.shape == (4, 3)
    for k in range(4):
        for b, word in enumerate(words):
            hidden = layers(made.decoder, made.latent.read(z[k, b][None]))[0]
            logits = made.softmax.weight @ hidden + made.softmax.bias
            torch.testing.assert_close(log_p[k, b], logits.log_softmax(0)[word])
    assert torch.equal(made.log_likelihood(z, rows, own=True), log_p)


@pytest.mark.parametrize(("kind", "count"), [("gaussian", 2), ("categorical", 1), ("quantised", 1)])
def test_a_code_that_is_embedded_has_one_layer_less_behind_it(kind, count):
    assert sum(isinstance(layer, nn.Tanh) for layer in model(kind).decoder) == count


@pytest.mark.parametrize("experts", [1, 3])
def test_symbols_given_a_code_sum_to_one(experts):
    made = model("categorical", softmax=SoftmaxConfig(experts=experts))
    rows = batch(range(SYMBOLS + 2))  # with <eos> and <unk>, which are words here as any
    z = torch.tensor([[0, 2], [1, 1]])[:, None].expand(-1, SYMBOLS + 2, -1)
    total = made.log_likelihood(z, rows).exp().sum(1)
    torch.testing.assert_close(total, torch.ones(2).double())


def test_the_eos_of_a_line_is_not_counted():
    made, rows = model(), batch()
    assert not made.ends
    estimate = MonteCarlo(MonteCarloConfig(samples=2))(made, rows, None)
    assert estimate.count == 3
    torch.testing.assert_close(estimate.terms["nll"], estimate.loss.detach())


def recipe(data, **model) -> Recipe:
    return Recipe.model_validate(
        {
            "data": data,
            "feed": {"kind": "sentences", "batch": 4},
            "model": {"kind": "symbol", "hidden": 5, **model},
            "objective": {"kind": "monte-carlo", "samples": 2},
            "optimiser": {"kind": "adam", "learning_rate": 0.01},
            "train": {"max_steps": 4, "validate_every": 2, "log_every": 2},
        }
    )


def test_lines_of_several_words_are_refused(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text("a\nb\nc\n")
    (tmp_path / "valid.txt").write_text("a\nb c b\n")
    with pytest.raises(InfolmError, match=r"line 2 of the valid split has 3: choose model\.kind"):
        train(recipe({"path": str(tmp_path)}), tmp_path / "run", False, Silent(), quiet)
    assert not (tmp_path / "run").exists()


def test_it_is_trained_on_single_symbols(tmp_path):
    data = {"corpus": "uniform", "uniform": {"symbols": 9}}
    loss = train(recipe(data), tmp_path / "run", False, Silent(), quiet)
    assert 0 < loss < 3 * math.log(9)
