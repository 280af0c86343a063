"""The policy gradient is unbiased, by enumeration, and variances and their ratios are right.

The model of most tests has three types and says sentences of two tokens at most, so that every
pair of sentences and every batch of three pairs can be listed with its probability.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import softplus

from infolm.data.pairs import NeighbourPairs, PairBatch, documents
from infolm.data.stream import PADDING
from infolm.errors import InfolmError
from infolm.evaluation import gradient_variance
from infolm.evaluation.gradient_variance import (
    Moments,
    SentenceEnd,
    advantages,
    compare,
    draw_sentence,
    estimators,
    policy_loss,
    raml_loss,
)
from infolm.models.recurrent import DropoutConfig, RecurrentConfig, RecurrentModel
from infolm.objectives.bmi import Bmi, BmiConfig, encode, lengths

EOS, WORD, STOP = range(3)
END = SentenceEnd(EOS, (EOS, STOP), 2)
# An <eos> in front ends nothing, a stop does.
SENTENCES = [(STOP,), *itertools.product((EOS, WORD), (EOS, WORD, STOP))]
PAIRS = list(itertools.product(range(len(SENTENCES)), repeat=2))


def tiny(dropout=0.0):
    """Model and BMI in double precision, with weights so large that Y depends on X."""
    torch.manual_seed(5)
    rates = DropoutConfig(input=dropout, output=dropout)
    config = RecurrentConfig(embedding=2, hidden=2, layers=1, weight_drop=dropout, dropout=rates)
    model = RecurrentModel(config, 3).double().eval()
    bmi = Bmi(BmiConfig(switch=0, temperature=0.5), model)
    bmi.critic.double()
    with torch.no_grad():
        for parameter in [*model.parameters(), *bmi.critic.parameters()]:
            parameter.uniform_(-1.5, 1.5)
        bmi.critic.rest[-1].weight.div_(6)
    return model, bmi


def log_q(model, before, sentence):
    """ln Q(sentence | before), token by token."""
    text = torch.tensor([*before, *sentence])[:, None]
    hidden = model(text[:-1], model.initial_state(1)).hidden[:, 0]
    told = model.log_probs(hidden)[torch.arange(len(text) - 1), text[1:, 0]]
    return told[len(before) - 1 :].sum()


def columns(chosen):
    steps = max(map(len, chosen))
    return torch.tensor([[*s, *[PADDING] * (steps - len(s))] for s in chosen]).T


class Enumerated:
    """Every pair (X, Y): ln Q(X) and ln Q(Y | X), (49,) with gradient, and D of all X and Y."""

    def __init__(self, model, critic):
        single = [log_q(model, [EOS], sentence) for sentence in SENTENCES]
        self.each_x = [single[x] for x, _ in PAIRS]
        self.each_y = [log_q(model, [EOS, *SENTENCES[x]], SENTENCES[y]) for x, y in PAIRS]
        self.of_x, self.of_y = torch.stack(self.each_x), torch.stack(self.each_y)
        with torch.no_grad():
            codes = torch.cat([encode(model, columns([s])) for s in SENTENCES])
            scores = critic(codes, codes)
        x, y = torch.tensor(PAIRS).T
        self.scores = scores[x][:, y]  # of the X of one pair and the Y of another, (49, 49)

    @property
    def log_joint(self):
        return self.of_x + self.of_y


@pytest.fixture(scope="module")
def world():
    model, bmi = tiny()
    return model, bmi, Enumerated(model, bmi.critic)


@pytest.fixture(scope="module")
def batches_of_three(world):
    """All of them, (49^3, 3), their probabilities and their scores (49^3, 3, 3)."""
    every = torch.cartesian_prod(*[torch.arange(len(PAIRS))] * 3)
    _, _, known = world
    probability = known.log_joint.detach()[every].sum(1).exp()
    return every, probability, known.scores[every[:, :, None], every[:, None]]


def flat(parts):
    return torch.cat([part.flatten() for part in parts])


def gradient(model, value):
    return flat(torch.autograd.grad(value, list(model.parameters()), retain_graph=True))


def exact_gradient(model, known):
    """Of E_Q[R], through the probabilities, with the rewards held constant."""
    joint = known.log_joint.exp()
    gain = (joint * -softplus(-known.scores.diagonal())).sum()
    loss = joint @ softplus(known.scores) @ joint  # X of one pair, Y of an independent one
    return gradient(model, gain - loss)


def without_baseline(scores):
    """The plain estimator of eq. 10."""
    count = len(scores)
    gain = -softplus(-scores.diagonal()) / count
    loss = softplus(scores) * (1 - torch.eye(count)) / (count * (count - 1))
    return gain - loss.sum(1) - loss.sum(0), gain - loss.sum(0)


def expected(model, known, batches, estimator):
    """E of the estimated gradient over all batches of three."""
    every, probability, scores = batches
    of_x, of_y = torch.vmap(estimator)(scores)
    shares = [
        torch.zeros(len(PAIRS), dtype=torch.double).index_add(
            0, every.flatten(), (probability[:, None] * counts).flatten()
        )
        for counts in (of_x, of_y)
    ]
    return gradient(model, shares[0] @ known.of_x + shares[1] @ known.of_y)


def total_variances(model, known, batches, kinds):
    """The summed variance of the gradient by each kind of estimator, over all batches of three."""
    every, probability, scores = batches
    score_x, score_y = (
        torch.stack([gradient(model, each) for each in logs])
        for logs in (known.each_x, known.each_y)
    )
    found = []
    for estimator in kinds:
        of_x, of_y = torch.vmap(estimator)(scores)
        estimates = sum(
            of_x[:, i, None] * score_x[every[:, i]] + of_y[:, i, None] * score_y[every[:, i]]
            for i in range(3)
        )
        mean = probability @ estimates
        found.append(float(probability @ (estimates - mean).square().sum(1)))
    return found


def test_what_the_model_can_say_is_all_there(world):
    _, _, known = world
    assert float(known.log_joint.detach().exp().sum()) == pytest.approx(1, abs=1e-12)


def test_sentences_are_drawn_with_the_models_probabilities(world):
    model, _, known = world
    number, generator = 40_000, torch.Generator().manual_seed(1)
    with torch.no_grad():
        start = torch.full((1, number), EOS)
        x = draw_sentence(model, start, END, generator)
        y = draw_sentence(model, torch.cat([start, x]), END, generator)
    told = [
        tuple(t for t in column if t != PADDING) for both in (x, y) for column in both.T.tolist()
    ]
    found = [
        PAIRS.index((SENTENCES.index(a), SENTENCES.index(b)))
        for a, b in zip(told[:number], told[number:], strict=True)
    ]
    share = np.bincount(found, minlength=len(PAIRS)) / number
    p = known.log_joint.detach().exp().numpy()
    assert (abs(share - p) < 4.5 * np.sqrt(p * (1 - p) / number)).all()


def test_without_stops_a_sentence_has_its_length():
    model, _ = tiny()
    end = SentenceEnd(EOS, (), 5)
    drawn = draw_sentence(model, torch.full((1, 30), EOS), end, torch.Generator().manual_seed(1))
    assert drawn.shape == (5, 30)
    assert (drawn >= 0).all()


def test_the_policy_gradient_is_unbiased(world, batches_of_three):
    model, _, known = world
    truth = exact_gradient(model, known)
    assert truth.norm() > 1e-3
    found = expected(model, known, batches_of_three, advantages)
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-12)


def test_the_baseline_changes_the_variance_alone(world, batches_of_three):
    model, _, known = world
    plain = expected(model, known, batches_of_three, without_baseline)
    torch.testing.assert_close(plain, exact_gradient(model, known), rtol=1e-9, atol=1e-12)
    kinds = advantages, without_baseline
    less, more = total_variances(model, known, batches_of_three, kinds)
    assert less < 0.8 * more


def test_without_a_baseline_it_is_the_plain_estimator(world):
    _, _, known = world
    scores = known.scores[5:11, 5:11]
    torch.testing.assert_close(advantages(scores, baseline=False), without_baseline(scores))


def test_a_reward_that_is_always_the_same_teaches_nothing():
    for part in advantages(torch.full((5, 5), 0.7, dtype=torch.double)):
        torch.testing.assert_close(part, torch.zeros_like(part))


def test_the_loss_has_the_gradient_of_its_samples(world):
    model, bmi, known = world
    chosen = [3, 17, 40, 8, 44]
    x, y = (columns([SENTENCES[PAIRS[k][side]] for k in chosen]) for side in (0, 1))
    of_x, of_y = advantages(known.scores[chosen][:, chosen])
    truth = gradient(model, of_x @ known.of_x[chosen] + of_y @ known.of_y[chosen])
    found = gradient(model, policy_loss(model, bmi.critic, EOS, x, y))
    torch.testing.assert_close(found, -truth)


def pairs_feed(batch=4):
    rng = np.random.default_rng(5)
    text = np.concatenate([[*rng.integers(1, 3, rng.integers(1, 6)), EOS] for _ in range(40)])
    return NeighbourPairs(documents(text, EOS), batch, 0.3, seed=2)


def test_raml_is_that_of_training_per_sentence():
    model, bmi = tiny()
    batch = PairBatch(*map(torch.from_numpy, pairs_feed().next()[:4]))
    trained = bmi(model, batch, None).terms["raml"] * lengths(batch.drawn).double().mean()
    loss = raml_loss(model, bmi, batch)
    torch.testing.assert_close(loss.detach(), trained)
    reward = bmi.reward(model, batch)
    weights = np.exp(reward.numpy() / 0.5 - batch.log_proposal.double().numpy())
    told = [
        float(log_q(model, x[x >= 0].tolist(), y[y >= 0].tolist()).detach())
        for x, y in zip(batch.x.T, batch.drawn.T, strict=True)
    ]
    assert loss.detach().item() == pytest.approx(-np.average(told, weights=weights), rel=1e-6)


def test_dropout_has_no_part_in_it():
    def found(rate):
        model, bmi = tiny(dropout=rate)
        rl, raml = estimators(model, bmi, pairs_feed(), END, seed=1)
        return rl(), raml(), rl()

    once, _, again = found(0.0)
    assert not once.equal(again)
    torch.testing.assert_close(found(0.0), found(0.4))


def test_too_few_pairs_for_a_baseline():
    model, bmi = tiny()
    with pytest.raises(InfolmError, match=r"regularisers\.bmi\.batch is 2"):
        estimators(model, bmi, pairs_feed(batch=2), END, seed=1)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    offset=st.sampled_from([0.0, 1.0, 1e6]),
    seed=st.integers(0, 1000),
)
def test_moments_are_those_of_all_vectors_together(sizes, offset, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(offset, rng.uniform(0.1, 3, 6), (sum(sizes) + 2, 6))
    whole, first = Moments(), Moments()
    for part in np.split(vectors, [2, *(2 + np.cumsum(sizes))[:-1]]):
        moments = Moments()
        for vector in part:
            moments.add(torch.from_numpy(vector))
            first.add(torch.from_numpy(vector))
        whole.merge(moments)
    for found in (whole, first):
        assert found.count == len(vectors)
        np.testing.assert_allclose(found.mean, vectors.mean(0), rtol=1e-12)
        np.testing.assert_allclose(found.variance, vectors.var(0, ddof=1), rtol=1e-7)
        assert found.noise == pytest.approx(vectors.var(0, ddof=1).sum(), rel=1e-7)


def stream(vectors):
    following = iter(torch.from_numpy(np.asarray(vectors)))
    return lambda: next(following)


def test_a_gradient_scaled_has_the_square_of_the_scale():
    vectors = np.random.default_rng(1).normal(1, 2, (21, 50))
    found = compare(stream(4 * vectors), stream(vectors), 21)
    np.testing.assert_allclose(found.log_ratios, math.log10(16), rtol=1e-9)
    numbers = found.numbers()
    for name in ("mean_ratio", "median_ratio"):
        assert numbers[name] == pytest.approx(16)
    assert numbers["mean_log10_stderr"] == pytest.approx(0, abs=1e-9)
    assert (numbers["above_1"], numbers["above_10"], numbers["below_0.1"]) == (1, 1, 0)
    assert numbers["relative_error_ratio"] == pytest.approx(1)


def test_ratios_are_of_numpys_variances():
    rng = np.random.default_rng(2)
    rl, raml = rng.normal(0, rng.uniform(0.1, 9, 30), (12, 30)), rng.normal(0, 1, (12, 30))
    truth = np.log10(rl.var(0) / raml.var(0))
    done = []
    found = compare(stream(rl), stream(raml), 12, lambda *part: done.append(part))
    np.testing.assert_allclose(found.log_ratios, truth)
    assert found.numbers()["quantiles"]["0.25"] == pytest.approx(10 ** np.quantile(truth, 0.25))
    assert done == [(i, 12) for i in range(1, 13)]
    groups = [np.log10(rl[i : i + 3].var(0) / raml[i : i + 3].var(0)) for i in (0, 3, 6, 9)]
    for own, statistic in ((found.mean_log_stderr, np.mean), (found.median_log_stderr, np.median)):
        assert own == pytest.approx(np.std([statistic(g) for g in groups], ddof=1) / 2)


def test_weights_that_do_not_vary_are_counted_and_left_out():
    rng = np.random.default_rng(3)
    rl, raml = rng.normal(size=(8, 10)), rng.normal(size=(8, 10))
    rl[:, :5] = 0.0
    raml[:, 3:9] = 0.25
    found = compare(stream(rl), stream(raml), 8)
    assert (found.raml_only, found.unused, found.rl_only) == (3, 2, 4)
    assert (len(found.log_ratios), found.weights) == (1, 10)


def test_the_relative_error_is_of_the_true_mean():
    rng, weights, batches = np.random.default_rng(4), 400, 60
    mean = rng.normal(0, 0.3, weights)
    rl, raml = (rng.normal(mean, deviation, (batches, weights)) for deviation in (3, 1))
    found = compare(stream(rl), stream(raml), batches)
    signal, noise = np.square(mean).sum(), 9 * weights
    # Var|m|^2 = 4 s^2 |mu|^2 / B + 2 W s^4 / B^2 for W weights of deviation s
    error = math.sqrt(4 * 9 * signal / batches + 2 * weights * 81 / batches**2)
    assert abs(found.rl.signal - signal) < 4 * error
    assert error / 2 < found.rl.signal_stderr < 6 * error
    assert found.rl.noise == pytest.approx(noise, rel=4 * math.sqrt(2 / (batches * weights)))
    assert found.raml.relative_error == pytest.approx(weights / signal, rel=0.2)


def test_a_mean_that_is_not_told_from_zero_has_a_bound_only():
    rng = np.random.default_rng(5)
    found = compare(stream(rng.normal(size=(16, 300))), stream(rng.normal(1, 1, (16, 300))), 16)
    numbers = found.numbers()
    assert numbers["rl_relative_error"] is None
    assert numbers["relative_error_ratio"] is None
    assert numbers["rl_relative_error_at_least"] > 4
    assert numbers["relative_error_ratio_at_least"] > 3
    assert numbers["raml_relative_error"] == pytest.approx(1, rel=0.2)


def test_too_few_batches():
    with pytest.raises(InfolmError, match="--batches is 7, too few"):
        compare(stream([]), stream([]), 2 * gradient_variance.GROUPS - 1)
