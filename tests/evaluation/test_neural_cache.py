"""The neural cache: against a loop over tokens with one-hot vectors, and its limit cases."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.evaluation.neural_cache import (
    ROWS,
    CacheSettings,
    NeuralCache,
    WordChange,
    best_weight,
    mix,
    tune,
    word_table,
)

VOCABULARY = 7


def stream(length, seed=0, size=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(length, size, generator=generator, dtype=dtype)
    return hidden, torch.randint(0, VOCABULARY, (length,), generator=generator)


def slow_distributions(hidden, targets, window, flatness):
    """p_cache(.) before each token, (N, V): the definition, one token at a time."""
    one_hot = torch.nn.functional.one_hot(targets, VOCABULARY).to(hidden.dtype)
    rows = [torch.full((VOCABULARY,), math.nan, dtype=hidden.dtype)]
    for t in range(1, len(hidden)):
        first = max(0, t - window)
        weights = (flatness * hidden[first:t] @ hidden[t]).softmax(0)
        rows.append((weights[:, None] * one_hot[first:t]).sum(0))
    return torch.stack(rows)


def slow_log_prob(hidden, targets, window, flatness):
    distributions = slow_distributions(hidden, targets, window, flatness)
    return distributions.gather(1, targets[:, None])[:, 0].log()


def same(actual, expected, **tolerance):
    torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)


@pytest.mark.parametrize("window", [1, 2, 17, 299, 300, 1000])
@pytest.mark.parametrize("flatness", [0.0, 0.3, 2.0])
def test_equals_the_slow_loop(window, flatness):
    hidden, targets = stream(300)
    fast = NeuralCache(window, flatness).log_prob(hidden, targets)
    same(fast, slow_log_prob(hidden, targets, window, flatness))


def test_equals_the_slow_loop_when_the_memory_has_moved_many_times():
    hidden, targets = stream(8 * ROWS)
    same(NeuralCache(5, 0.5).log_prob(hidden, targets), slow_log_prob(hidden, targets, 5, 0.5))


@given(
    lengths=st.lists(st.integers(1, 2 * ROWS), min_size=1, max_size=6),
    window=st.integers(1, 400),
)
@settings(max_examples=40, deadline=None)
def test_the_chunks_in_which_a_text_arrives_change_nothing(lengths, window):
    hidden, targets = stream(sum(lengths))
    whole = NeuralCache(window, 0.7).log_prob(hidden, targets)
    cache = NeuralCache(window, 0.7)
    chunks = zip(hidden.split(lengths), targets.split(lengths), strict=True)
    same(torch.cat([cache.log_prob(*chunk) for chunk in chunks]), whole)


def test_append_is_log_prob_without_the_scores():
    hidden, targets = stream(300)
    appended, scored = NeuralCache(150, 0.7), NeuralCache(150, 0.7)
    appended.append(hidden[:200], targets[:200])
    scored.log_prob(hidden[:200], targets[:200])
    same(
        appended.log_prob(hidden[200:], targets[200:]), scored.log_prob(hidden[200:], targets[200:])
    )


def test_distribution_equals_the_slow_loop_and_sums_to_one():
    hidden, targets = stream(60)
    slow = slow_distributions(hidden, targets, 20, 0.7)
    cache = NeuralCache(20, 0.7)
    for t in range(60):
        distribution = cache.distribution(hidden[t], VOCABULARY)
        same(distribution.exp(), slow[t])
        assert t == 0 or float(distribution.exp().sum()) == pytest.approx(1, abs=1e-12)
        cache.append(hidden[t : t + 1], targets[t : t + 1])


def test_flatness_zero_counts_the_words_of_the_window():
    hidden, targets = stream(100)
    log_prob = NeuralCache(30, 0.0).log_prob(hidden, targets)
    for t in range(1, 100):
        recent = targets[max(0, t - 30) : t]
        same(log_prob[t].exp(), (recent == targets[t]).double().mean())


def test_a_window_of_one_repeats_the_last_word():
    hidden, targets = stream(50)
    log_prob = NeuralCache(1, 1.3).log_prob(hidden, targets)
    assert log_prob[0].isnan()
    expected = torch.where(targets[1:] == targets[:-1], 0.0, -math.inf).double()
    same(log_prob[1:], expected)


def test_memory_does_not_grow_with_the_text():
    cache = NeuralCache(50, 1.0)
    cache.log_prob(*stream(10))
    size = cache.hidden.shape
    cache.log_prob(*stream(3000))
    assert cache.hidden.shape == size
    assert size[0] <= 2 * (50 + ROWS)


def test_large_scores_in_single_precision_are_finite():
    hidden, targets = stream(400, dtype=torch.float32)
    hidden = 100 * torch.nn.functional.normalize(hidden, dim=1)  # h.h = 10,000
    log_prob = NeuralCache(200, 1.0).log_prob(hidden, targets)[1:]
    assert not log_prob.isnan().any()
    assert (log_prob <= 1e-6).all()
    distribution = NeuralCache(200, 1.0)
    distribution.append(hidden, targets)
    assert float(distribution.distribution(hidden[0], VOCABULARY).exp().sum()) == pytest.approx(1)


def test_takes_tensors_from_inside_and_outside_inference_mode():
    hidden, targets = stream(20)
    cache = NeuralCache(5, 1.0)
    with torch.inference_mode():
        cache.log_prob(hidden[:10] + 0, targets[:10])
    later = cache.log_prob(hidden[10:].requires_grad_(), targets[10:])
    assert not later.requires_grad
    same(later, slow_log_prob(hidden.detach(), targets, 5, 1.0)[10:])


def test_mix_is_the_mixture():
    log_model = torch.tensor([0.5, 0.2, 0.1], dtype=torch.float64).log()
    log_cache = torch.tensor([0.25, 0.0, math.nan], dtype=torch.float64).log()
    expected = torch.tensor([0.8 * 0.5 + 0.2 * 0.25, 0.8 * 0.2, 0.1], dtype=torch.float64).log()
    same(mix(log_model, log_cache, 0.2), expected)


def test_mix_is_exact_where_probabilities_underflow():
    log_model = torch.tensor([-2000.0, -2000.0])
    log_cache = torch.tensor([-math.inf, -2000.0])
    same(mix(log_model, log_cache, 0.1), torch.tensor([-2000 + math.log(0.9), -2000.0]))


def test_weight_zero_is_the_model():
    log_model = torch.randn(4).log_softmax(0)
    log_cache = torch.tensor([-1.0, -math.inf, math.nan, 0.0])
    assert torch.equal(mix(log_model, log_cache, 0.0), log_model)


def test_weight_one_is_the_cache():
    log_cache = torch.tensor([-1.0, -math.inf])
    assert torch.equal(mix(torch.tensor([-3.0, -3.0]), log_cache, 1.0), log_cache)


def test_the_mixture_sums_to_one():
    hidden, targets = stream(30)
    cache = NeuralCache(20, 0.7)
    cache.append(hidden, targets)
    log_model = torch.randn(VOCABULARY, dtype=torch.float64).log_softmax(0)
    mixed = mix(log_model, cache.distribution(hidden[0], VOCABULARY), 0.3)
    assert float(mixed.exp().sum()) == pytest.approx(1, abs=1e-12)


@given(st.integers(0, 1000))
@settings(deadline=None)
def test_best_weight_is_no_worse_than_any_on_a_grid(seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.rand(2, 20, generator=generator, dtype=torch.float64).log()
    b[:3] = torch.tensor([-math.inf, math.nan, -1500.0])
    a[4] = -1500.0
    best = mix(a, b, best_weight(a, b)).mean()
    assert all(best >= mix(a, b, weight / 100).mean() - 1e-7 for weight in range(100))


def test_best_weight_of_a_cache_that_only_hurts_is_zero():
    assert best_weight(torch.tensor([-1.0, -2.0]), torch.tensor([-3.0, -math.inf])) == 0


def test_tune_equals_brute_force():
    hidden, targets = stream(400, seed=5)
    # Words that hang together with the hidden vector, so that the cache has something to say.
    targets = hidden[:, :3].argmax(1)
    log_model = torch.full((400,), -math.log(VOCABULARY), dtype=torch.float64)
    windows, flatnesses = (10, 60, 500), (0.0, 0.5, 1.5, 5.0)
    tuned, loss = tune(log_model, hidden, targets, windows, flatnesses)

    def brute(window, flatness, weight):
        log_cache = slow_log_prob(hidden, targets, window, flatness)
        return -float(mix(log_model, log_cache, weight).mean())

    tried = {
        (window, flatness, weight / 20): brute(window, flatness, weight / 20)
        for window in windows
        for flatness in flatnesses
        for weight in range(20)
    }
    window, flatness, weight = min(tried, key=tried.__getitem__)
    assert (tuned.window, tuned.flatness) == (window, flatness)
    assert tuned.weight == pytest.approx(weight, abs=0.05)
    assert loss <= min(tried.values())
    assert loss == pytest.approx(brute(tuned.window, tuned.flatness, tuned.weight), abs=1e-12)


def test_the_settings_are_the_papers_for_the_penn_treebank():
    assert CacheSettings() == CacheSettings(window=2000, weight=0.1, flatness=1.0)


def test_word_table_sums_the_change_of_each_word():
    targets = torch.tensor([4, 1, 4, 2])
    log_model = torch.tensor([-1.0, -2.0, -3.0, -1.0])
    log_mixed = torch.tensor([-1.5, -1.0, -2.0, -1.25])
    assert word_table(log_model, log_mixed, targets) == [
        WordChange(token=1, count=1, change=1.0),
        WordChange(token=4, count=2, change=0.5),
        WordChange(token=2, count=1, change=-0.25),
    ]
