"""BMI by hand: the encoding, the bound, importance weights, RAML by enumeration, a language whose
mutual information is known."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from infolm.data.pairs import HeldOutPairs, NeighbourPairs, PairBatch, documents, segments
from infolm.data.stream import PADDING
from infolm.data.synthetic import markov
from infolm.errors import InfolmError
from infolm.information import bounds
from infolm.information.neural import jackknife
from infolm.models.recurrent import DropoutConfig, MogrifierConfig, RecurrentConfig, RecurrentModel
from infolm.objectives.bmi import (
    PHASE_TWO,
    Bmi,
    BmiConfig,
    accuracy,
    continuation_nll,
    continued,
    encode,
    importance_weights,
    lengths,
    read_scores,
)
from infolm.section import OF_A_RUN

TYPES = 9
CONFIGS = {
    "lstm": RecurrentConfig(),
    "mogrifier": RecurrentConfig(mogrifier=MogrifierConfig(rounds=3), connections="residual"),
    "rewired": RecurrentConfig(cell="rewired", connections="skip"),
    "gru": RecurrentConfig(cell="gru"),
    "mixture": RecurrentConfig(last_hidden=7, softmax={"experts": 3}),
}


def make(config=CONFIGS["lstm"], dropout=0.0, types=TYPES):
    torch.manual_seed(0)
    rates = DropoutConfig(input=dropout, hidden=dropout, output=dropout)
    sizes = {"embedding": 5, "hidden": 6, "layers": 2, "dropout": rates}
    return RecurrentModel(config.model_copy(update=sizes), types).double()


def columns(*sentences):
    """Sentences as (T, B), padded."""
    longest = max(map(len, sentences))
    padded = [[*sentence, *[PADDING] * (longest - len(sentence))] for sentence in sentences]
    return torch.tensor(padded).T


X = columns([3, 1, 4, 0], [5, 0], [6, 2, 0], [7, 7, 1, 1, 0])
Y = columns([2, 0], [8, 3, 2, 5, 0], [1, 0], [4, 0])
DRAWN = columns([2, 0], [6, 6, 0], [0], [3, 1, 2, 0])
LOG_G = torch.tensor([-1.2, -1.6, -0.4, -2.0])
BATCH = PairBatch(X, Y, DRAWN, LOG_G)


def build(model, critic_seed=1, **config):
    """A regulariser whose critic already says something."""
    bmi = Bmi(BmiConfig(**config), model)
    bmi.critic.double()
    torch.manual_seed(critic_seed)
    for parameter in bmi.critic.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return bmi


def sentence(group, i):
    column = group[:, i]
    return column[column != PADDING]


def phi(model, tokens):
    """One sentence alone, no padding, no packing."""
    output = model(tokens[:, None], model.initial_state(1))
    return torch.cat([layer[:, 0].max(0).values for layer in output.layers])


@pytest.mark.parametrize("name", CONFIGS)
def test_the_encoding_is_the_maximum_over_each_sentence_by_itself(name):
    model = make(CONFIGS[name])
    found = encode(model, X)
    expected = torch.stack([phi(model, sentence(X, i)) for i in range(4)])
    torch.testing.assert_close(found, expected)
    assert found.shape == (4, sum(model.stack.widths))


def test_what_follows_is_predicted_token_by_token_and_nothing_after_it():
    read, targets, count = continued(X, DRAWN)
    assert count.tolist() == [5, 4, 3, 8]
    assert read[:5, 0].tolist() == [3, 1, 4, 0, 2]
    assert targets[:5, 0].tolist() == [PADDING, PADDING, PADDING, 2, 0]
    assert read[:3, 2].tolist() == [6, 2, 0]
    assert targets[:3, 2].tolist() == [PADDING, PADDING, 0]
    assert (targets != PADDING).sum().item() == lengths(DRAWN).sum().item()


def log_q(model, x, y):
    """ln Q(y | x), a token at a time."""
    state, total = model.initial_state(1), 0.0
    for token in x[:-1]:
        state = model(token.view(1, 1), state).state
    last = x[-1]
    for token in y:
        output = model(last.view(1, 1), state)
        total = total + model.log_probs(output.dropped)[0, 0, token]
        state, last = output.state, token
    return total


@pytest.mark.parametrize("name", CONFIGS)
def test_the_likelihood_of_what_follows_and_its_gradient_by_hand(name):
    model = make(CONFIGS[name])
    weights = torch.tensor([0.1, 0.5, 0.4, 0.0]).double()
    nll = continuation_nll(model, X, DRAWN, weights)
    expected = -sum(weights[i] * log_q(model, sentence(X, i), sentence(DRAWN, i)) for i in range(4))
    torch.testing.assert_close(nll, expected)
    ours = torch.autograd.grad(nll, list(model.parameters()))
    theirs = torch.autograd.grad(expected, list(model.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-6)


def test_eq_6_over_all_pairs_of_the_batch():
    model = make()
    bmi = build(model, phase_two=False)
    estimate = bmi(model, BATCH, None)
    x, y = encode(model, X), encode(model, Y)
    scores = [
        [bmi.critic(x[i : i + 1], y[j : j + 1]).squeeze() for j in range(4)] for i in range(4)
    ]
    positive = torch.stack([-softplus(-scores[i][i]) for i in range(4)]).mean()
    others = [softplus(scores[i][j]) for i in range(4) for j in range(4) if i != j]
    expected = positive - torch.stack(others).mean()
    torch.testing.assert_close(estimate.loss, -expected)
    torch.testing.assert_close(estimate.terms["jensen_shannon"], expected.detach())
    told = [scores[i][i] > 0 for i in range(4)]
    apart = [scores[i][j] <= 0 for i in range(4) for j in range(4) if i != j]
    accuracy = (np.mean(told) + np.mean(apart)) / 2
    assert estimate.terms["accuracy"].item() == pytest.approx(accuracy)
    assert estimate.count == 4
    assert set(estimate.terms) == {"loss", "jensen_shannon", "mine", "accuracy"}


def test_a_score_of_zero_is_told_by_half():
    """Of positive and negative pairs alike."""
    model = make()
    bmi = build(model, phase_two=False)
    scores = torch.tensor([[0.0, 1.0, -1.0], [0.0, 2.0, 0.0], [-3.0, -1.0, -2.0]])
    bmi.critic = lambda x, y: scores
    told = bmi(model, BATCH, None).terms["accuracy"].item()
    positive, negative = (1 / 2 + 1 + 0) / 3, (0 + 1 + 1 / 2 + 1 / 2 + 1 + 1) / 6
    assert told == pytest.approx((positive + negative) / 2)


def test_a_new_critic_knows_nothing():
    model = make()
    bmi = Bmi(BmiConfig(), model)
    bmi.critic.double()
    terms = bmi(model, BATCH, None).terms
    assert terms["jensen_shannon"].item() == pytest.approx(-2 * math.log(2))
    assert terms["mine"].item() == pytest.approx(0)
    assert terms["accuracy"].item() == 0.5


def test_gradients_reach_the_language_model_and_the_critic():
    model = make()
    bmi = build(model, phase_two=False)
    bmi(model, BATCH, None).loss.backward()
    reached = {name for name, p in model.named_parameters() if p.grad is not None}
    assert "embedding" in reached
    assert any(name.startswith("stack.cells.1") for name in reached)
    assert not any(name.startswith("softmax") for name in reached)  # phase one predicts nothing
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in bmi.critic.parameters())


def test_a_step_follows_its_own_gradient_alone_and_a_discarded_one_not_at_all():
    model = make()
    bmi = build(model, phase_two=False)
    bmi(model, BATCH, None).loss.backward()
    before = [p.detach().clone() for p in bmi.critic.parameters()]
    bmi.discard()
    bmi.step()
    assert all(map(torch.equal, before, bmi.critic.parameters()))
    bmi(model, BATCH, None).loss.backward()
    bmi.step()
    assert not any(map(torch.equal, before, bmi.critic.parameters()))
    assert all(p.grad is None for p in bmi.critic.parameters())


def test_importance_weights_by_hand():
    reward, log_g = (
        torch.tensor([0.5, -1.0, 0.0]).double(),
        torch.log(torch.tensor([0.3, 0.21, 0.147])),
    )
    raw = [math.exp(0.5 / 2) / 0.3, math.exp(-1 / 2) / 0.21, 1 / 0.147]
    found = importance_weights(reward, log_g.double(), beta=2.0)
    np.testing.assert_allclose(found, np.array(raw) / sum(raw), rtol=1e-6)
    assert found.sum().item() == pytest.approx(1)


def test_rewards_of_thousands_do_not_overflow():
    weights = importance_weights(torch.tensor([5000.0, 0.0]), torch.zeros(2), 1.0)
    assert weights.tolist() == [1, 0]


def test_limits_of_the_temperature_are_the_proposal_and_the_best():
    reward, log_g = (
        torch.tensor([1.0, 0.5, -2.0]).double(),
        torch.tensor([-1.0, -1.5, -3.0]).double(),
    )
    cold = importance_weights(reward, log_g, 1e-4)
    hot = importance_weights(reward, log_g, 1e6)
    np.testing.assert_allclose(cold, [1, 0, 0], atol=1e-12)
    inverse = np.exp([1.0, 1.5, 3.0])
    np.testing.assert_allclose(hot, inverse / inverse.sum(), rtol=1e-4)


def test_the_reward_is_the_critics_preference_over_the_true_sentence_without_dropout():
    model = make(dropout=0.5)
    bmi = build(model)
    model.train()
    reward = bmi.reward(model, BATCH)
    assert model.training  # as before
    model.eval()
    for i in range(4):
        x, y, drawn = (phi(model, sentence(group, i))[None] for group in (X, Y, DRAWN))
        expected = bmi.critic(x, drawn) - bmi.critic(x, y)
        torch.testing.assert_close(reward[i], expected.squeeze())
    assert reward[0].item() == pytest.approx(0, abs=1e-12)  # drawn was the true next sentence
    assert not reward.requires_grad


def test_phase_two_weighs_what_the_recipe_says_over_all_tokens_of_the_batch():
    """By hand: weight_2 sum_i w_i nll_i / (all 10 tokens drawn), whatever phase one weighs."""
    model = make()
    for weight, weight_2 in ((0.1, 1.0), (0.02, 0.05)):
        base, full = (
            build(model, phase_two=two, switch=0, weight=weight, phase_two_weight=weight_2)
            for two in (False, True)
        )
        one, two = base(model, BATCH, None), full(model, BATCH, None)
        shares = []
        for i in range(4):
            x, y, drawn = (phi(model, sentence(group, i))[None] for group in (X, Y, DRAWN))
            reward = (full.critic(x, drawn) - full.critic(x, y)).item()
            shares.append(math.exp(reward) / math.exp(LOG_G[i].item()))
        shares = [share / sum(shares) for share in shares]
        nll = [-log_q(model, sentence(X, i), sentence(DRAWN, i)) for i in range(4)]
        weighted = sum(share * each for share, each in zip(shares, nll, strict=True))
        parameters = list(model.parameters())
        added = weight * (two.loss - one.loss)
        torch.testing.assert_close(added, weight_2 * weighted / 10, rtol=1e-6, atol=1e-9)
        ours = torch.autograd.grad(added, parameters, allow_unused=True)
        theirs = torch.autograd.grad(weight_2 * weighted / 10, parameters)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-5)
        # The record is in nats per token, by the mean length, whatever the weight.
        torch.testing.assert_close(two.terms["raml"], weighted.detach() / 2.5, rtol=1e-6, atol=1e-9)
        effective = 1 / (4 * sum(share**2 for share in shares))
        assert two.terms["effective"].item() == pytest.approx(effective, rel=1e-6)


def test_without_a_weight_of_its_own_phase_two_has_that_of_phase_one_per_token():
    model = make()
    base = build(model, phase_two=False)
    former = build(model, switch=0, phase_two_weight=None)
    one, two = base(model, BATCH, None), former(model, BATCH, None)
    weights = importance_weights(former.reward(model, BATCH), LOG_G, 1.0)
    per_token = continuation_nll(model, X, DRAWN, weights) / (10 / 4)
    torch.testing.assert_close(two.loss - one.loss, per_token)
    as_much = build(model, switch=0, weight=0.1, phase_two_weight=0.1 * 4)
    torch.testing.assert_close(as_much(model, BATCH, None).loss, two.loss)


def test_a_run_older_than_the_weight_of_phase_two_keeps_what_it_did():
    assert BmiConfig().phase_two_weight == 1.0
    older = BmiConfig.model_validate({"weight": 0.02}, context=OF_A_RUN)
    assert older.phase_two_weight is None


# The critic on pairs that nothing was learnt from


def test_the_accuracy_counts_a_score_of_0_a_half():
    positive = torch.tensor([2.0, 0.0, -1.0, 3.0])
    negative = torch.tensor([[-1.0, 0.0], [-2.0, 1.0], [0.0, 0.0], [-1.0, -1.0]])
    told = (1 + 0.5 + 0 + 1) / 4
    apart = (1 + 0.5 + 1 + 0 + 0.5 + 0.5 + 1 + 1) / 8
    assert accuracy(positive, negative).item() == pytest.approx((told + apart) / 2)
    assert accuracy(torch.zeros(3), torch.zeros(3, 2)).item() == 0.5


def test_what_is_read_of_scores_by_hand():
    scores = torch.randn(40, 5, 5, generator=torch.Generator().manual_seed(0)).double()
    scores = scores + 2 * torch.eye(5) - 1
    found = read_scores(scores)
    own = np.array([scores[g, i, i] for g in range(40) for i in range(5)])
    others = np.array(
        [scores[g, i, j] for g in range(40) for i in range(5) for j in range(5) if i != j]
    )
    eq_6 = -np.log1p(np.exp(-own)).mean() - np.log1p(np.exp(others)).mean()
    eq_4 = own.mean() - math.log(np.exp(others).mean())
    share = ((own > 0).mean() + (others < 0).mean()) / 2
    assert found["jensen_shannon"].value == pytest.approx(eq_6)
    assert found["mine"].value == pytest.approx(eq_4)
    assert found["accuracy"].value == pytest.approx(share)
    # Each group left out in turn: the same errors but for what the linearisation leaves out.
    for name, tolerance in (("jensen_shannon", 1e-9), ("accuracy", 1e-9), ("mine", 0.05)):
        left = [read_scores(scores[torch.arange(40) != g])[name].value for g in range(40)]
        error = math.sqrt(39 * np.var(left))
        assert found[name].stderr == pytest.approx(error, rel=tolerance)
    assert read_scores(scores[:1])["mine"].stderr is None


def test_the_critic_is_read_on_every_pair_and_without_dropout():
    tokens = np.array([3, 1, 0, 5, 0, 6, 2, 2, 0, 7, 0, 1, 4, 0, 8, 8, 0, 2, 0])
    text = documents(tokens, eos=0)
    pairs = HeldOutPairs.draw(text, batch=3, longest=9)
    assert pairs.pairs == 6
    model = make(dropout=0.5)
    bmi = build(model, critic={"dropout": 0.5, "hidden": 7})
    model.train()
    found = bmi.read(model, pairs)
    assert model.training
    assert bmi.critic.training
    model.eval()
    bmi.critic.eval()
    codes = [phi(model, torch.from_numpy(text.read(np.array([i]))[:, 0])) for i in range(7)]
    rows = [
        [[bmi.critic(codes[i][None], codes[j + 1][None]).item() for j in group] for i in group]
        for group in pairs.first
    ]
    expected = read_scores(torch.tensor(rows, dtype=torch.float64))
    for name, (value, stderr) in expected.items():
        assert found[name].value == pytest.approx(value)
        assert found[name].stderr == pytest.approx(stderr)
    told = Bmi(BmiConfig(), model, pairs).held_out
    assert told(make().float())["pairs"] == 6
    assert Bmi(BmiConfig(), model).held_out(model) == {}


def test_the_critics_size_and_dropout_are_the_recipes():
    model = make()
    small = build(model, critic={"hidden": 7, "dropout": 0.6})
    assert small.critic.of_x.out_features == 7
    assert Bmi(BmiConfig(), model).critic.of_x.out_features == 500
    one, two = (small(model, BATCH, None).terms["jensen_shannon"] for _ in range(2))
    assert one != two  # dropped units, in training
    assert torch.equal(small.reward(model, BATCH), small.reward(model, BATCH))
    with pytest.raises(InfolmError, match=r"has 7 hidden units, and .*critic.hidden is 500"):
        Bmi(BmiConfig(), model).load_state_dict(small.state_dict())


CORPUS = [[2, 0], [8, 3, 0], [1, 0], [4, 4, 4, 0], [6, 2, 0]]


def raml_gradient(model, bmi, x, true, beta):
    """-sum_Y p*(Y) grad ln Q(Y|X) over all sentences of the corpus, eqs. 12 and 14."""
    x_code, true_code = phi(model, x)[None], phi(model, true)[None]
    with torch.no_grad():
        scores = [bmi.critic(x_code, phi(model, torch.tensor(y))[None]) for y in CORPUS]
        reward = torch.cat(scores).flatten() - bmi.critic(x_code, true_code).flatten()
        payoff = (reward / beta).exp()
        payoff = payoff / payoff.sum()
    loss = -sum(p * log_q(model, x, torch.tensor(y)) for p, y in zip(payoff, CORPUS, strict=True))
    return torch.autograd.grad(loss, list(model.parameters())), payoff


def weighted_gradient(model, bmi, x, true, drawn, log_g, beta):
    """What phase two follows where these sentences were drawn with these probabilities."""
    copies = len(drawn)
    batch = PairBatch(
        columns(*[x.tolist()] * copies), columns(*[true.tolist()] * copies), columns(*drawn), log_g
    )
    weights = importance_weights(bmi.reward(model, batch), log_g, beta)
    nll = continuation_nll(model, batch.x, batch.drawn, weights)
    return torch.autograd.grad(nll, list(model.parameters()))


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
def test_over_the_whole_corpus_the_weighted_gradient_is_ramls(beta):
    # Every sentence once, under a uniform proposal: the weights must be the pay-off distribution.
    model = make()
    bmi = build(model)
    x, true = torch.tensor([3, 1, 0]), torch.tensor(CORPUS[1])
    expected, _ = raml_gradient(model, bmi, x, true, beta)
    uniform = torch.full((len(CORPUS),), -math.log(len(CORPUS))).double()
    found = weighted_gradient(model, bmi, x, true, CORPUS, uniform, beta)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-8)


def test_with_the_exact_pay_off_as_the_proposal_the_mean_gradient_is_ramls():
    # Drawn by p* itself all weights are alike, whatever was drawn: the mean over draws in
    # proportion to p* is RAML's gradient.
    model = make()
    bmi = build(model)
    x, true = torch.tensor([3, 1, 0]), torch.tensor(CORPUS[1])
    expected, payoff = raml_gradient(model, bmi, x, true, 1.0)
    log_p = payoff.log()
    pairs = [(i, j) for i in range(len(CORPUS)) for j in range(len(CORPUS))]
    total = [torch.zeros_like(p) for p in model.parameters()]
    for i, j in pairs:  # every mini-batch of two, with its probability
        drawn, log_g = [CORPUS[i], CORPUS[j]], torch.stack([log_p[i], log_p[j]])
        found = weighted_gradient(model, bmi, x, true, drawn, log_g, 1.0)
        for sum_, gradient in zip(total, found, strict=True):
            sum_ += payoff[i] * payoff[j] * gradient
    for a, b in zip(total, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-8)


def permuted(batch, order):
    return PairBatch(*(group[..., order] for group in batch[:4]))


def more_padding(batch):
    def pad(group):
        return torch.cat([group, torch.full((3, group.shape[1]), PADDING)])

    return batch._replace(x=pad(batch.x), y=pad(batch.y), drawn=pad(batch.drawn))


@pytest.mark.parametrize("change", [more_padding, lambda b: permuted(b, [2, 0, 3, 1])])
@pytest.mark.parametrize("name", CONFIGS)
def test_padding_and_the_order_of_the_batch_change_nothing(name, change):
    model = make(CONFIGS[name])
    bmi = build(model, switch=0)
    values = []
    for batch in (BATCH, change(BATCH)):
        estimate = bmi(model, batch, None)
        parameters = [*model.parameters(), *bmi.critic.parameters()]
        values.append((estimate, torch.autograd.grad(estimate.loss, parameters, allow_unused=True)))
    (one, ours), (two, theirs) = values
    for term in one.terms:
        torch.testing.assert_close(one.terms[term], two.terms[term])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-6)


def test_the_phase_changes_at_the_trigger_or_at_its_latest_share():
    model = make()
    bmi = Bmi(BmiConfig(switch=0.6), model)
    assert bmi.validated([], 0.5, {}) == []
    assert not bmi.phase_two
    assert bmi.validated(["triggered"], 0.5, {}) == [PHASE_TWO]
    assert bmi.phase_two
    assert bmi.validated(["triggered"], 0.9, {}) == []  # only once
    late = Bmi(BmiConfig(switch=0.6), model)
    assert late.validated([], 0.6, {}) == [PHASE_TWO]
    waiting = Bmi(BmiConfig(switch=1), model)
    assert waiting.validated([], 1.0, {}) == []
    base = Bmi(BmiConfig(phase_two=False, switch=0), model)
    assert not base.phase_two
    assert base.validated(["triggered"], 1.0, {}) == []


def test_eq_6_rises_on_a_known_language_and_mine_stays_below_its_information():
    language = markov()
    tokens = language.sample(30_000, np.random.default_rng(0))
    text, unseen = segments(tokens[:28_000], 2), segments(tokens[28_000:], 2)
    exact = language.segment_information(2, 0, 2)
    torch.manual_seed(0)
    model = RecurrentModel(RecurrentConfig(embedding=32, hidden=32, layers=1), language.types)
    bmi = Bmi(BmiConfig(critic={"learning_rate": 1e-2}), model)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-2)
    feed = NeighbourPairs(text, 16, 0.3, seed=1)
    known = []
    for _ in range(250):
        estimate = bmi(model, PairBatch(*map(torch.from_numpy, feed.next()[:4])), None)
        known.append(estimate.terms["jensen_shannon"].item())
        estimate.loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        bmi.step()
    late = known[-50:]
    assert np.mean(late) > -2 * math.log(2) + 5 * np.std(late) / math.sqrt(50)
    everything = NeighbourPairs(unseen, 999, 0.3, seed=2).next()
    with torch.no_grad():
        x, y = (encode(model, torch.from_numpy(group)) for group in everything[:2])
        scores = torch.cat([bmi.critic(some, y) for some in x.split(100)])
    mine = bounds.donsker_varadhan(*bounds.contrast(scores)).item()
    error = jackknife(scores, bounds.donsker_varadhan)
    assert 3 * error < mine < exact + 3 * error
