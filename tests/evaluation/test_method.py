"""Methods combined: every line equals what it says, and no text is walked through twice."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from infolm.errors import RunError
from infolm.evaluation import method as module
from infolm.evaluation.dynamic import (
    DynamicSettings,
    StatisticsSettings,
    dynamic_stream,
    gradient_statistics,
)
from infolm.evaluation.likelihood import log_probs, one_stream
from infolm.evaluation.method import STATIC, Method, measure
from infolm.evaluation.monte_carlo import MonteCarlo, MonteCarloSettings, monte_carlo_stream
from infolm.evaluation.neural_cache import CacheSettings, NeuralCache, mix
from infolm.models.recurrent import (
    DropoutConfig,
    ProjectedSoftmaxConfig,
    RecurrentConfig,
    RecurrentModel,
)

TOKENS = np.random.default_rng(0).integers(0, 9, 80).astype(np.uint16)
TRAIN = np.random.default_rng(1).integers(0, 9, 300).astype(np.uint16)
DYNAMIC = DynamicSettings(rate=0.01, decay=0.1, epsilon=1e-3, segment=7)
SAMPLES = MonteCarloSettings(samples=4, rate=0.8, span=11, seed=2)
CACHE = CacheSettings(window=20, weight=0.2, flatness=0.5)


def make():
    torch.manual_seed(0)
    dropout = DropoutConfig(input=0.3, hidden=0.3, output=0.3)
    model = RecurrentModel(RecurrentConfig(embedding=5, hidden=6, layers=2, dropout=dropout), 9)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    return model.double().eval()


MODEL = make()
STATISTICS = gradient_statistics(MODEL, TRAIN)


def by_hand(chunks, cache=None):
    recent = NeuralCache(cache.window, cache.flatness) if cache else None
    parts = []
    for (log_p,), hidden, targets in chunks:
        mixed = mix(log_p, recent.log_prob(hidden, targets), cache.weight) if recent else log_p
        parts.append(mixed.numpy())
    return np.concatenate(parts)


def test_lines_of_one_walk_are_measured_in_it():
    methods = [
        STATIC,
        Method(temperature=0.8),
        Method(cache=CACHE),
        Method(temperature=0.8, cache=CACHE),
    ]
    plain, cold, cached, both = measure(MODEL, TOKENS, methods, 13)
    np.testing.assert_array_equal(plain.log_probs, log_probs(MODEL, TOKENS, 13))
    np.testing.assert_allclose(cold.log_probs, by_hand(one_stream(MODEL, TOKENS, 13, (0.8,))))
    np.testing.assert_allclose(cached.log_probs, by_hand(one_stream(MODEL, TOKENS, 13), CACHE))
    expected = by_hand(one_stream(MODEL, TOKENS, 13, (0.8,)), CACHE)
    np.testing.assert_allclose(both.log_probs, expected)
    assert plain.sampling_error is None


def test_the_cache_remembers_the_outputs_of_the_adapted_model():
    settings = {"settings": DYNAMIC, "statistics": STATISTICS}
    (ours,) = measure(MODEL, TOKENS, [Method(dynamic=DYNAMIC, cache=CACHE)], 13, STATISTICS)
    expected = by_hand(dynamic_stream(MODEL, TOKENS, **settings), CACHE)
    np.testing.assert_allclose(ours.log_probs, expected)


def test_all_together():
    method = Method(DYNAMIC, SAMPLES, 0.9, CACHE)
    (ours,) = measure(MODEL, TOKENS, [method], 13, STATISTICS)
    samples = MonteCarlo(MODEL, SAMPLES)
    chunks = dynamic_stream(MODEL, TOKENS, DYNAMIC, STATISTICS, (0.9,), samples)
    np.testing.assert_allclose(ours.log_probs, by_hand(chunks, CACHE))
    assert ours.sampling_error == pytest.approx(samples.standard_errors()[0])


def test_samples_with_a_cache():
    (ours,) = measure(MODEL, TOKENS, [Method(monte_carlo=SAMPLES, cache=CACHE)], 13)
    chunks = monte_carlo_stream(MonteCarlo(MODEL, SAMPLES), TOKENS)
    np.testing.assert_allclose(ours.log_probs, by_hand(chunks, CACHE))


def test_a_method_names_itself():
    assert str(STATIC) == "static, one stream"
    shared = replace(SAMPLES, adaptation="shared")
    assert str(Method(DYNAMIC, shared, 0.9, CACHE)) == (
        "dynamic evaluation (rms, rate 0.01, decay 0.1, epsilon 0.001, segments of 7 tokens), "
        "Monte Carlo dropout (4 masks, rates x 0.8, drawn anew every segment, seed 2), "
        "temperature 0.9, neural cache (window 20, lambda 0.2, theta 0.5), one stream"
    )
    assert "(4 masks, each adapting by itself, rates" in str(Method(DYNAMIC, SAMPLES))
    assert "every 11 tokens" in str(Method(monte_carlo=SAMPLES))
    assert "by itself" not in str(Method(monte_carlo=SAMPLES))
    assert "epsilon" not in str(Method(DynamicSettings(1, 0, rule="sgd")))
    other = replace(DYNAMIC, mean="tensor", statistics=StatisticsSettings(None, 1024))
    told = "epsilon 0.001, mean of RMS by tensor, RMS of all batches of 1,024 x 20 tokens, segments"
    assert told in str(Method(other))
    within = Method(temperature=0.9, tempering="expert")
    assert str(within) == "temperature 0.9 within each expert, one stream"
    assert str(Method(tempering="expert")) == str(STATIC)


def test_temperatures_within_each_expert_share_the_walk():
    torch.manual_seed(0)
    config = RecurrentConfig(
        embedding=5, hidden=6, layers=1, softmax=ProjectedSoftmaxConfig(experts=3)
    )
    model = RecurrentModel(config, 9).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    methods = [STATIC, Method(temperature=0.5, tempering="expert")]
    plain, within = measure(model, TOKENS, methods, 13)
    np.testing.assert_array_equal(plain.log_probs, log_probs(model, TOKENS, 13))
    hidden, targets = (
        torch.cat(column) for column in list(zip(*one_stream(model, TOKENS, 13), strict=True))[1:]
    )
    expected = model.log_prob(hidden, targets, 0.5, "expert").numpy()
    np.testing.assert_allclose(within.log_probs, expected)
    mixture = model.log_prob(hidden, targets, 0.5).numpy()
    assert np.abs(within.log_probs - mixture).max() > 1e-3
    dropped = Method(monte_carlo=SAMPLES, temperature=0.5, tempering="expert")
    dynamic = Method(replace(DYNAMIC, rule="sgd", rate=0.0), None, 0.5, tempering="expert")
    for method in (dropped, dynamic):  # no rates of dropout, and no learning
        (found,) = measure(model, TOKENS, [method], 13)
        np.testing.assert_allclose(found.log_probs, expected)


def test_a_walk_that_fails_midway_leaves_the_weights_as_they_were(monkeypatch):
    places = [p.data_ptr() for p in MODEL.parameters()]

    def fails(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "mix", fails)
    with pytest.raises(KeyboardInterrupt):
        measure(MODEL, TOKENS, [Method(dynamic=DYNAMIC, cache=CACHE)], 13, STATISTICS)
    assert places == [p.data_ptr() for p in MODEL.parameters()]


@pytest.mark.parametrize("rule", ["rms", "sgd"])
@pytest.mark.parametrize("precision", [torch.float, torch.double])
def test_weights_that_run_away_are_told_of(precision, rule):
    """By a rate that single precision cannot hold."""
    model = deepcopy(MODEL).to(precision)
    statistics = {name: each.to(precision) for name, each in STATISTICS.items()}
    wild = DynamicSettings(rate=1e300, decay=0.0, segment=7, rule=rule)
    with pytest.raises(RunError, match="no longer a finite number: lower the rate"):
        measure(model, TOKENS, [Method(dynamic=wild)], 13, statistics)
