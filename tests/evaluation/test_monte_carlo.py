"""Monte Carlo dropout: against every mask enumerated, its limit cases, and its standard error."""

import itertools
import math

import numpy as np
import pytest
import torch

from infolm.errors import InfolmError
from infolm.evaluation import monte_carlo
from infolm.evaluation.likelihood import log_probs
from infolm.evaluation.monte_carlo import MonteCarlo, MonteCarloSettings, monte_carlo_stream
from infolm.models.recurrent import DropoutConfig, RecurrentConfig, RecurrentModel

TOKENS = np.random.default_rng(0).integers(0, 7, 61).astype(np.uint16)


def make(weight_drop=0.0, layers=1, embedding=3, words=0.0, **rates):
    torch.manual_seed(1)
    config = RecurrentConfig(
        embedding=embedding,
        hidden=4,
        layers=layers,
        weight_drop=weight_drop,
        dropout=DropoutConfig(embedding=words, **rates),
    )
    model = RecurrentModel(config, 7).double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    return model.eval()


def sampled(model, tokens=TOKENS, temperatures=(1.0,), **settings):
    samples = MonteCarlo(model, MonteCarloSettings(**settings))
    chunks = list(monte_carlo_stream(samples, tokens, temperatures))
    return torch.cat([chunk.log_probs for chunk in chunks], 1).numpy(), samples


def test_equals_the_weighted_sum_over_all_masks():
    """Output dropout of 3 units, one mask over time: 8 masks."""
    p = 0.4
    model = make(output=p)
    tokens = TOKENS[:6]
    with torch.no_grad():
        output = model(
            torch.from_numpy(tokens[:-1].astype(np.int64))[:, None], model.initial_state(1)
        )
    targets = torch.from_numpy(tokens[1:].astype(np.int64))
    exact = torch.zeros(5, dtype=torch.float64)
    squares = torch.zeros(5, dtype=torch.float64)
    for kept in itertools.product([0, 1], repeat=3):
        weight = math.prod(1 - p if k else p for k in kept)
        mask = torch.tensor(kept, dtype=torch.float64) / (1 - p)
        probability = model.log_prob(output.hidden[:, 0] * mask, targets).exp()
        exact += weight * probability
        squares += weight * probability.square()
    samples = 4000
    log_p, _ = sampled(model, tokens, samples=samples, span=5)
    error = ((squares - exact.square()) / samples).sqrt().numpy()
    assert np.all(np.abs(np.exp(log_p[0]) - exact.numpy()) < 4 * error)
    assert np.abs(log_p[0] - log_probs(model, tokens, 5)).max() > 10 * error.max()  # not static


def test_the_mean_is_over_probabilities_that_each_have_their_own_state():
    """Input dropout of one unit: two masks, drawn anew for each of two cuts; four histories."""
    p = 0.3
    model = make(input=p, embedding=1)
    tokens = torch.from_numpy(TOKENS[:5].astype(np.int64))
    exact = torch.zeros(4, dtype=torch.float64)
    for kept in itertools.product([0, 1], repeat=2):
        state, parts = model.initial_state(1), []
        for keep, start in zip(kept, (0, 2), strict=True):
            with torch.no_grad():
                x = model.embedding[tokens[start : start + 2]][:, None] * keep / (1 - p)
                hidden, _, state = model.stack(x, state)
            parts.append(model.log_prob(hidden[:, 0], tokens[start + 1 : start + 3]))
        exact += math.prod(1 - p if k else p for k in kept) * torch.cat(parts).exp()
    log_p, samples = sampled(model, TOKENS[:5], samples=4000, span=2)
    assert np.abs(np.exp(log_p[0]) - exact.numpy()).max() < 4 * 0.5 / math.sqrt(4000)
    mean_error = samples.standard_errors()[0]
    assert log_p[0].mean() == pytest.approx(float(exact.log().mean()), abs=4 * mean_error)


def test_one_sample_and_no_dropout_is_the_model_itself():
    model = make(weight_drop=0.5, layers=2, embedding=3, input=0.3, state=0.2, output=0.4)
    log_p, samples = sampled(model, samples=1, rate=0.0, span=9)
    np.testing.assert_array_equal(log_p[0], log_probs(model, TOKENS, 9))
    assert samples.standard_errors() is None
    several, samples = sampled(model, samples=3, rate=0.0, span=9)
    np.testing.assert_allclose(several, log_p, rtol=1e-12)
    assert samples.standard_errors()[0] < 1e-12


def test_the_same_seed_gives_the_same_numbers_and_leaves_all_as_it_was():
    model = make(hidden=0.3, layers=2, output=0.3)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = sampled(model, samples=5, span=20, seed=3)[0]
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    torch.manual_seed(8)
    assert np.array_equal(sampled(model, samples=5, span=20, seed=3)[0], first)
    assert not np.array_equal(sampled(model, samples=5, span=20, seed=4)[0], first)


def test_a_temperature_acts_within_each_sample():
    model = make(output=0.5)
    both, _ = sampled(model, samples=4, span=20, temperatures=(1.0, 0.5))
    cold, _ = sampled(model, samples=4, span=20, temperatures=(0.5,))
    np.testing.assert_allclose(both[1], cold[0])
    np.testing.assert_allclose(both[0], sampled(model, samples=4, span=20)[0][0])
    hot, _ = sampled(model, samples=4, span=20, temperatures=(1e9,))
    np.testing.assert_allclose(hot, -math.log(7), rtol=1e-6)


@pytest.mark.parametrize(
    "model", [make(weight_drop=0.5), make(words=0.5)], ids=["weights", "words"]
)
def test_masks_that_a_batch_shares_are_drawn_for_each_sample(model):
    """Were they shared, the average over many would be as rough as one sample."""
    many = [sampled(model, TOKENS, samples=64, span=20, seed=s)[0][0] for s in range(4)]
    one = [sampled(model, TOKENS, samples=1, span=20, seed=s)[0][0] for s in range(8)]
    assert np.std(many, axis=0).mean() < 0.4 * np.std(one, axis=0).mean()


def test_how_many_samples_stand_side_by_side_changes_nothing_but_the_draws(monkeypatch):
    model = make(output=0.3)
    together, a = sampled(model, samples=600, span=20)
    monkeypatch.setattr(monte_carlo, "ELEMENTS", 20 * 8 * 4 * 7)  # 7 columns
    in_turns, b = sampled(model, samples=600, span=20)
    assert len(a._states) == 1
    assert len(b._states) == 86
    error = math.hypot(a.standard_errors()[0], b.standard_errors()[0])
    assert together.mean() == pytest.approx(in_turns.mean(), abs=4 * error)


def test_the_standard_error_is_the_spread_over_seeds():
    model = make(input=0.3, state=0.2, output=0.3)
    means, errors = [], []
    for seed in range(60):
        log_p, samples = sampled(model, samples=20, span=10, seed=seed)
        means.append(log_p.mean())
        errors.append(samples.standard_errors()[0])
    # The spread of 60 means is known to 1/sqrt(120) = 9%; first order leaves some more.
    assert np.mean(errors) == pytest.approx(np.std(means, ddof=1), rel=0.35)


def test_bad_settings():
    for bad in ({"samples": 0}, {"rate": -1.0}, {"rate": math.inf}, {"span": 0}):
        with pytest.raises(InfolmError, match="Monte Carlo dropout needs"):
            MonteCarloSettings(**bad)
    with pytest.raises(InfolmError, match="times 3"):
        sampled(make(output=0.5), samples=2, rate=3.0)
