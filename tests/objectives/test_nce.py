"""Noise-contrastive estimation of a recurrent model: by hand, padded, refused, trained."""

import math

import numpy as np
import pytest
import torch
from largest_tensor import LargestTensor
from torch.nn import functional
from training_tiny import Silent, quiet, tiny_tree

from infolm.config import Recipe
from infolm.data import corpora
from infolm.data.corpora import unigram_counts
from infolm.data.stream import Batch
from infolm.data.synthetic import language, spelt, symbols
from infolm.families.running.run import LanguageRun
from infolm.families.train import train
from infolm.models.recurrent import RecurrentConfig, RecurrentModel
from infolm.objectives.nce import Nce, NceConfig

TYPES = 15
COUNTS = torch.arange(TYPES)
LOSSES = ["binary", "ranking"]


def make(**config):
    torch.manual_seed(0)
    return RecurrentModel(
        RecurrentConfig(embedding=6, hidden=9, layers=1, **config), TYPES
    ).double()


def batch(fresh=True, seed=1):
    torch.manual_seed(seed)
    tokens = torch.randint(0, TYPES, (6, 3))
    return Batch(tokens[:-1], tokens[1:], fresh, 1.0)


def estimate(objective, model, b, carry=None, seed=5):
    torch.manual_seed(seed)
    return objective(model, b, carry)


def test_counts_do_not_depend_on_the_blocks(monkeypatch):
    tokens = np.array([3, 1, 1, 0, 3, 3, 1], np.uint16)
    for block in (1, 3, 100):
        monkeypatch.setattr(corpora, "BLOCK", block)
        assert unigram_counts(tokens, 5).tolist() == [1, 3, 0, 3, 0]


@pytest.mark.parametrize("config", [{}, {"tied": False}, {"connections": "residual"}])
def test_the_losses_from_the_logits_of_all_words(config):
    """Residual layers have another size than the embedding: what the softmax reads is projected."""
    model, b, k = make(**config), batch(), 7
    objectives = {loss: Nce(NceConfig(loss=loss, noise=k), COUNTS) for loss in LOSSES}
    estimates = {loss: estimate(each, model, b) for loss, each in objectives.items()}
    torch.manual_seed(5)
    words = objectives["binary"].noise.draw(k)
    q = (COUNTS + 1.0).double() / (COUNTS + 1.0).sum()
    x = model(b.tokens, model.initial_state(3)).hidden.flatten(0, 1)
    if model.softmax.projection is not None:
        x = x @ model.softmax.projection.t()
    weight = model.embedding if model.softmax.weight is None else model.softmax.weight
    d = x @ weight.t() + model.softmax.bias - (k * q).log()
    targets = b.targets.reshape(-1)
    own, noise = d.gather(1, targets[:, None]), d[:, words]
    binary = -own.sigmoid().log().sum() - (1 - noise.sigmoid()).log().sum()
    ranking = -(own.exp() / (own.exp() + noise.exp().sum(1, keepdim=True))).log().sum()
    torch.testing.assert_close(estimates["binary"].loss, binary / 15)
    torch.testing.assert_close(estimates["ranking"].loss, ranking / 15)
    for each in estimates.values():
        assert set(each.terms) == {"nll", "log_z", "nce"}
        torch.testing.assert_close(each.terms["nce"], each.loss.detach())
        assert each.count == 15
        assert not any(term.requires_grad for term in each.terms.values())


def test_with_much_noise_nll_and_log_z_are_exact():
    model, b = make(), batch()
    with torch.no_grad():
        model.embedding.mul_(20)
    x = model(b.tokens, model.initial_state(3)).hidden
    logits = functional.linear(x, model.embedding, model.softmax.bias)
    objective = Nce(NceConfig(noise=20_000), COUNTS)
    terms = [estimate(objective, model, b, seed=seed).terms for seed in range(30)]
    for name, exact in {
        "log_z": logits.logsumexp(-1).mean(),
        "nll": -model.log_prob(x, b.targets).mean(),
    }.items():
        drawn = torch.stack([each[name] for each in terms])
        error = float(drawn.std() / math.sqrt(30))
        assert abs(drawn.mean() - exact).item() < 4 * error + 1e-3
        assert error < 0.01


@pytest.mark.parametrize("loss", LOSSES)
def test_padding_does_not_count(loss):
    model, b = make(), batch()
    objective = Nce(NceConfig(loss=loss, noise=4, ar=1, tar=1), COUNTS)
    whole = estimate(objective, model, b)
    assert {"ar", "tar"} < set(whole.terms)
    tokens = torch.cat([b.tokens, torch.zeros(4, 3, dtype=torch.long)])
    targets = torch.cat([b.targets, -torch.ones(4, 3, dtype=torch.long)])
    padded = estimate(objective, model, Batch(tokens, targets, True, 1.0))
    torch.testing.assert_close(padded.loss, whole.loss)
    torch.testing.assert_close(padded.terms, whole.terms)
    assert padded.count == whole.count == 15


def test_the_state_is_carried():
    model, objective = make(), Nce(NceConfig(noise=4), COUNTS)
    first = estimate(objective, model, batch())
    assert not any(t.requires_grad for pair in first.carry for t in pair)
    carried = estimate(objective, model, batch(False, 2), first.carry)
    fresh = estimate(objective, model, batch(True, 2), first.carry)
    assert abs(carried.loss.item() - fresh.loss.item()) > 1e-6


def test_a_model_that_begins_with_the_frequencies_is_nearly_the_noise_and_normalised():
    model, objective = make(), Nce(NceConfig(noise=1), COUNTS)
    model.softmax.begin_with(COUNTS)
    torch.testing.assert_close(model.softmax.bias.detach(), objective.noise.log_q)
    b = batch()
    x = model(b.tokens, model.initial_state(3)).hidden
    z = functional.linear(x, model.embedding, model.softmax.bias).logsumexp(-1)
    assert z.abs().max() < 0.05


def test_nothing_of_tokens_by_vocabulary_is_made():
    types, tokens, k = 20_000, 200, 50
    model = RecurrentModel(RecurrentConfig(embedding=4, hidden=4, layers=1), types)
    text = torch.randint(0, types, (11, tokens // 10))
    objective = Nce(NceConfig(noise=k), torch.ones(types))
    with LargestTensor() as largest:
        objective(model, Batch(text[:-1], text[1:], True, 1.0), None).loss.backward()
    assert largest.elements < tokens * types / 10


# -- in a recipe --------------------------------------------------------------------------------


def tree(text, objective, **train):
    return tiny_tree(text, **train) | {"objective": {"kind": "nce", **objective}}


def test_a_mixture_of_softmaxes_is_refused(small_text):
    refused = tree(small_text, {})
    refused["model"]["softmax"] = {"experts": 3}
    with pytest.raises(ValueError, match=r"experts is 3: set that to 1"):
        Recipe.model_validate(refused)


@pytest.mark.parametrize("bias", ["uniform", "unigram"])
def test_the_likelihood_too_can_begin_with_the_frequencies(tmp_path, small_text, bias):
    """After a step of no length the model is what it began as: hardly better than its bias."""
    without = tiny_tree(small_text, max_steps=1)
    without["model"]["softmax"] = {"bias": bias}
    without["optimiser"] = {"kind": "sgd", "learning_rate": 1e-12}
    loss = train(Recipe.model_validate(without), tmp_path / "run", False, Silent(), quiet)
    corpus = LanguageRun.open(tmp_path / "run").corpus
    counts = unigram_counts(corpus.splits["train"].tokens, len(corpus.tokenizer)) + 1
    q = counts / counts.sum() if bias == "unigram" else np.full(len(counts), 1 / len(counts))
    expected = -np.log(q[corpus.splits["valid"].tokens[1:]]).mean()
    assert loss == pytest.approx(expected, abs=0.05)


def test_an_objective_without_a_kind_is_the_likelihood(small_text):
    assert Recipe.model_validate(tiny_tree(small_text)).objective.kind == "likelihood"


@pytest.mark.parametrize("loss", LOSSES)
def test_a_resumed_run_ends_like_one_left_alone(tmp_path, small_text, loss):
    def run(out, steps, resume=False):
        objective = {"loss": loss, "noise": 20, "power": 0.75, "ar": 1}
        recipe = Recipe.model_validate(tree(small_text, objective, max_steps=steps))
        return train(recipe, tmp_path / out, resume, Silent(), quiet)

    alone = run("alone", 10)
    run("stopped", 5)
    assert run("stopped", 10, resume=True) == alone
    record = (tmp_path / "alone" / "metrics.jsonl").read_text().splitlines()[0]
    assert '"nce/log_z"' in record


@pytest.mark.parametrize("loss", LOSSES)
def test_a_markov_chain_is_learnt_to_near_its_entropy(tmp_path, loss):
    chain = language("markov")
    text = spelt(chain.sample(60_000, np.random.default_rng(0)), symbols("markov"))
    (tmp_path / "chain.txt").write_text(text)
    recipe = {
        "data": {"path": str(tmp_path / "chain.txt"), "pretokenised": True},
        "feed": {"batch": 64, "bptt": 12, "variable": False},
        "model": {"cell": "gru", "embedding": 32, "hidden": 32, "layers": 1, "tied": False},
        "objective": {"kind": "nce", "loss": loss, "noise": 50},
        "optimiser": {"kind": "adam", "learning_rate": 0.01, "clip": 1},
        "train": {"max_steps": 200, "validate_every": 200},
    }
    exact = train(Recipe.model_validate(recipe), tmp_path / "run", False, Silent(), quiet)
    # 3,000 tokens of validation have a standard error of 0.02; words by frequency alone cost 3.3.
    assert -0.08 < exact - chain.entropy_rate < 0.1
    opened = LanguageRun.open(tmp_path / "run")
    tokens = torch.from_numpy(opened.corpus.splits["valid"].tokens[:500].astype(np.int64))
    model = opened.model
    with torch.no_grad():
        hidden = model(tokens[:, None], model.initial_state(1)).hidden
        log_z = functional.linear(hidden, model.softmax.weight, model.softmax.bias).logsumexp(-1)
    if loss == "binary":  # which normalises itself
        assert abs(log_z.mean()) < 0.1
    else:
        assert abs(log_z.mean()) > 0.3
