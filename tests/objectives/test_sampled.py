"""The sampled softmax: by hand, unbiased, exact with all words, switched, resumed."""

import math

import numpy as np
import pytest
import torch
from training_tiny import Silent, quiet, tiny_tree

from infolm.config import Recipe
from infolm.data.stream import Batch
from infolm.data.synthetic import language, spelt, symbols
from infolm.families.train import train
from infolm.models.recurrent import RecurrentConfig, RecurrentModel
from infolm.nn.softmax import Candidates
from infolm.objectives.likelihood import Likelihood, LikelihoodConfig
from infolm.objectives.sampled import WHOLE, Sampled, SampledConfig

TYPES = 15
COUNTS = torch.arange(TYPES) ** 2


def make(**config):
    torch.manual_seed(0)
    model = RecurrentModel(
        RecurrentConfig(embedding=6, hidden=9, layers=1, **config), TYPES
    ).double()
    with torch.no_grad():
        model.embedding.mul_(20)
    return model


def batch(seed=1):
    torch.manual_seed(seed)
    tokens = torch.randint(0, TYPES, (6, 3))
    return Batch(tokens[:-1], tokens[1:], True, 1.0)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


MODELS = [{}, {"tied": False}, {"connections": "residual"}, {"softmax": {"experts": 3}}]


@pytest.mark.parametrize("config", MODELS)
def test_loss_and_gradients_are_those_of_a_literal_sum(config):
    model, b = make(**config), batch()
    objective = Sampled(SampledConfig(drawn=4), COUNTS)
    torch.manual_seed(5)
    found = objective(model, b, None)
    fast = gradients(model, found.loss)
    torch.manual_seed(5)
    words, log_included = objective.candidates(b.targets.flatten())
    assert len(words) < TYPES
    included = torch.full((TYPES,), 1.0).double().scatter(0, words, log_included.exp())
    x = model(b.tokens, model.initial_state(3)).hidden.flatten(0, 1)
    softmax, total = model.softmax, 0.0
    weight = model.embedding if softmax.weight is None else softmax.weight
    y, log_weights = softmax._components(x[:, None], weight)
    for n, target in enumerate(b.targets.flatten().tolist()):
        p = 0.0
        for k in range(y.shape[1]):
            score = (weight @ y[n, k] + softmax.bias).exp()
            others = [score[w] / included[w] for w in words.tolist() if w != target]
            p = p + log_weights[n, k].exp() * score[target] / (score[target] + sum(others))
        total = total - p.log()
    slow = gradients(model, total / 15)
    torch.testing.assert_close(found.loss, total / 15)
    torch.testing.assert_close(fast, slow)
    assert found.count == 15
    assert set(found.terms) == {"nll"}


@pytest.mark.parametrize("config", MODELS)
def test_with_all_words_it_is_the_likelihood(config):
    model, b = make(**config), batch()
    exact = Likelihood(LikelihoodConfig())(model, b, None).loss
    whole = Candidates(torch.arange(TYPES), torch.zeros(TYPES))
    x = model(b.tokens, model.initial_state(3)).hidden
    sampled = model.softmax.nll_sum(x, b.targets, model.embedding, among=whole) / 15
    torch.testing.assert_close(sampled, exact)
    torch.testing.assert_close(gradients(model, sampled), gradients(model, exact))


def test_words_are_included_as_often_as_is_said():
    objective = Sampled(SampledConfig(drawn=5, power=0.5), COUNTS)
    draws, tokens = 4000, 7
    u = COUNTS / COUNTS.sum()
    torch.manual_seed(3)
    times, said = torch.zeros(TYPES), torch.zeros(TYPES).double()
    for _ in range(draws):
        words, log_included = objective.candidates(torch.multinomial(u, tokens, replacement=True))
        times[words] += 1
        said[words] = log_included.exp()
    share = times / draws
    error = (said * (1 - said) / draws).sqrt()
    assert ((share - said).abs() < 4.5 * error + 1e-12).all()


def test_z_is_right_on_average():
    """A target's own term counts once, any other by one over its probability."""
    torch.manual_seed(2)
    scores = torch.randn(TYPES).double()
    objective = Sampled(SampledConfig(drawn=6), COUNTS)
    u, target, found = COUNTS / COUNTS.sum(), 9, []
    for _ in range(6000):
        others = torch.multinomial(u, 8, replacement=True)
        words, log_included = objective.candidates(others)
        weights = torch.where(words == target, 0.0, (-log_included).exp())
        found.append(scores[target].exp() + (weights * scores[words].exp()).sum())
    drawn = torch.stack(found)
    error = float(drawn.std() / math.sqrt(len(found)))
    assert abs(float(drawn.mean() - scores.exp().sum())) < 4 * error


def test_rounded_products_are_near_the_exact_ones():
    model, b = make().float(), batch()
    x = model(b.tokens, model.initial_state(3)).hidden.detach()
    words = torch.tensor(sorted({*b.targets.flatten().tolist(), 0, 14}))
    among = Candidates(words, torch.linspace(-2, 0, len(words)))
    exact = model.softmax.nll_sum(x, b.targets, model.embedding, among=among)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model.softmax.nll_sum(x, b.targets, model.embedding, among=among)
    assert rounded.item() == pytest.approx(exact.item(), rel=0.01)
    assert rounded.item() != exact.item()


def test_after_the_switch_it_is_the_likelihood():
    model, b = make(), batch()
    objective = Sampled(SampledConfig(drawn=1, switch=0.5, ar=1), COUNTS)
    assert objective.validated([], 0.4, {}) == []
    assert not objective.exact
    assert objective.validated([], 0.6, {}) == [WHOLE]
    assert objective.validated([], 0.7, {}) == []
    exact = Likelihood(LikelihoodConfig(ar=1))(model, b, None)
    torch.testing.assert_close(objective(model, b, None).loss, exact.loss)
    other = Sampled(SampledConfig(drawn=1), COUNTS)
    other.load_state_dict(objective.state_dict())
    assert other.exact
    never = Sampled(SampledConfig(drawn=1, switch=1), COUNTS)
    assert never.validated([], 1.0, {}) == []


def test_its_phases_are_sampled_and_then_whole():
    config = SampledConfig(drawn=3, switch=0.7, ar=2.0)
    (until, first), (end, last) = config.phases()
    assert (until, end) == (0.7, 1.0)
    assert first == SampledConfig(drawn=3, switch=1, ar=2.0)
    assert last == LikelihoodConfig(ar=2.0)
    assert first.phases() == [(1.0, first)]


def test_a_resumed_run_ends_like_one_left_alone(tmp_path, small_text):
    def run(out, steps, resume=False):
        tree = tiny_tree(small_text, max_steps=steps, validate_every=2)
        tree["objective"] = {"kind": "sampled", "drawn": 5, "switch": 0.5}
        return train(Recipe.model_validate(tree), tmp_path / out, resume, Silent(), quiet)

    alone = run("alone", 10)
    events = (tmp_path / "alone" / "metrics.jsonl").read_text()
    assert events.count(WHOLE) == 1
    run("stopped", 10)
    assert run("stopped", 10, resume=True) == alone


@pytest.mark.parametrize("switch", [0.5, 1])
def test_a_markov_chain_is_learnt_to_near_its_entropy(tmp_path, switch):
    chain = language("markov")
    text = spelt(chain.sample(60_000, np.random.default_rng(0)), symbols("markov"))
    (tmp_path / "chain.txt").write_text(text)
    recipe = {
        "data": {"path": str(tmp_path / "chain.txt"), "pretokenised": True},
        "feed": {"batch": 2, "bptt": 12, "variable": False},
        "model": {"cell": "gru", "embedding": 32, "hidden": 32, "layers": 1, "tied": False},
        "objective": {"kind": "sampled", "drawn": 8, "switch": switch},
        "optimiser": {"kind": "adam", "learning_rate": 0.005, "clip": 1},
        "train": {"max_steps": 600, "validate_every": 100},
    }
    exact = train(Recipe.model_validate(recipe), tmp_path / "run", False, Silent(), quiet)
    assert -0.08 < exact - chain.entropy_rate < 0.12
