"""Dynamic evaluation: against literal loops, its order, its limits, and weights left alone."""

import copy
import json
import math
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from infolm.errors import InfolmError
from infolm.evaluation import dynamic
from infolm.evaluation.dynamic import (
    FORMER_STATISTICS,
    DynamicSettings,
    StatisticsSettings,
    climb,
    dynamic_stream,
    gradient_statistics,
    tune,
)
from infolm.evaluation.likelihood import log_probs
from infolm.evaluation.monte_carlo import MonteCarlo, MonteCarloSettings, monte_carlo_stream
from infolm.models.recurrent import (
    DropoutConfig,
    MogrifierConfig,
    ProjectedSoftmaxConfig,
    RecurrentConfig,
    RecurrentModel,
)

VOCABULARY = 9
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 64).astype(np.uint16)
TRAIN = np.random.default_rng(1).integers(0, VOCABULARY, 400).astype(np.uint16)
RMS = DynamicSettings(rate=0.01, decay=0.1, epsilon=1e-3, segment=7)
SGD = DynamicSettings(rate=0.3, decay=0.0, segment=7, rule="sgd")


def make(**options):
    torch.manual_seed(0)
    dropout = DropoutConfig(input=0.3, hidden=0.3, state=0.2, output=0.3)
    config = RecurrentConfig(
        embedding=5, hidden=6, layers=2, weight_drop=0.2, dropout=dropout, **options
    )
    model = RecurrentModel(config, VOCABULARY).double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    return model.eval()


MODEL = make()
STATISTICS = gradient_statistics(MODEL, TRAIN)


def read(model, settings, statistics=None, tokens=TOKENS, **options):
    chunks = dynamic_stream(model, tokens, settings, statistics, **options)
    return np.concatenate([chunk.log_probs[0].numpy() for chunk in chunks])


def mean_loss(model, inputs, targets, state):
    """Cross entropy without infolm's own loss, and the state without its gradient."""
    output = model(inputs[:, None], state)
    logits = functional.linear(output.dropped[:, 0], model.embedding, model.softmax.bias)
    log_p = -functional.cross_entropy(logits, targets, reduction="none")
    return log_p, [tuple(t.detach() for t in layer) for layer in output.state]


def slow(model, settings, statistics, tokens=TOKENS, seeds=None, rate=1.0):
    """Measure a segment, then move every weight, one tensor after the other, by the equations.

    seeds: of one dropout sample: each segment has masks of the next one, at `rate` x the rates.
    """
    model = copy.deepcopy(model).train(seeds is not None)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    text = torch.from_numpy(tokens.astype(np.int64))
    state, out = model.initial_state(1), []
    every = torch.cat([s.sqrt().flatten() for s in statistics.values()])
    for first in range(0, len(text) - 1, settings.segment):
        last = min(first + settings.segment, len(text) - 1)
        if seeds is not None:
            torch.manual_seed(int(torch.randint(2**62, (), generator=seeds)))
        with model.dropout_scaled(rate):
            log_p, state = mean_loss(model, text[first:last], text[first + 1 : last + 1], state)
        out += log_p.tolist()
        model.zero_grad()
        (-log_p.mean()).backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                rms = statistics[name].sqrt()
                mean = rms.mean() if settings.mean == "tensor" else every.mean()
                d = torch.minimum(settings.decay * rms / mean, torch.ones_like(rms))
                new = p - settings.rate * p.grad / (rms + settings.epsilon) + d * (start[name] - p)
                p.copy_(new)
    return np.array(out)


def test_the_rms_rule_equals_a_literal_loop():
    ours = read(MODEL, RMS, STATISTICS)
    np.testing.assert_allclose(ours, slow(MODEL, RMS, STATISTICS), rtol=0, atol=1e-10)
    assert np.abs(ours - log_probs(MODEL, TOKENS, 7))[7:].max() > 0.01  # it does something


def test_the_mean_of_rms_is_over_all_parameters_or_over_those_of_a_tensor():
    by_tensor = replace(RMS, mean="tensor")
    ours = read(MODEL, by_tensor, STATISTICS)
    np.testing.assert_allclose(ours, slow(MODEL, by_tensor, STATISTICS), rtol=0, atol=1e-10)
    assert np.abs(ours - read(MODEL, RMS, STATISTICS)).max() > 1e-4


def test_a_tensor_that_no_gradient_reaches_stays_where_it_is():
    still = {name: torch.zeros_like(square) for name, square in STATISTICS.items()}
    for mean in ("all", "tensor"):
        settings = replace(RMS, mean=mean, epsilon=1.0)
        mixed = STATISTICS | {"softmax.bias": still["softmax.bias"]}
        assert np.isfinite(read(MODEL, settings, mixed)).all()
        assert np.isfinite(read(MODEL, settings, still)).all()


def test_a_decay_that_is_cut_off_at_one_starts_every_segment_anew():
    settings = DynamicSettings(rate=0.01, decay=1e9, epsilon=1e-3, segment=7)
    ours = read(MODEL, settings, STATISTICS)
    np.testing.assert_allclose(ours, slow(MODEL, settings, STATISTICS), rtol=0, atol=1e-10)


def test_the_sgd_rule_equals_torchs_sgd():
    model = copy.deepcopy(MODEL)
    optimiser = torch.optim.SGD(model.parameters(), lr=SGD.rate)
    text, state, expected = torch.from_numpy(TOKENS.astype(np.int64)), model.initial_state(1), []
    for first in range(0, len(text) - 1, 7):
        last = min(first + 7, len(text) - 1)
        log_p, state = mean_loss(model, text[first:last], text[first + 1 : last + 1], state)
        expected += log_p.tolist()
        optimiser.zero_grad()
        (-log_p.mean()).backward()
        optimiser.step()
    np.testing.assert_allclose(read(MODEL, SGD), expected, rtol=0, atol=1e-10)


def test_the_sgd_rule_is_pulled_back_by_its_decay():
    """One segment by hand: theta_0 - eta g, then a second by lambda towards theta_0."""
    settings = DynamicSettings(rate=0.3, decay=0.25, segment=7, rule="sgd")
    model = copy.deepcopy(MODEL)
    start = [p.detach().clone() for p in model.parameters()]
    text, state = torch.from_numpy(TOKENS.astype(np.int64)), model.initial_state(1)
    expected = []
    for first in (0, 7, 14):
        log_p, state = mean_loss(model, text[first : first + 7], text[first + 1 : first + 8], state)
        expected += log_p.tolist()
        gradients = torch.autograd.grad(-log_p.mean(), list(model.parameters()))
        with torch.no_grad():
            for p, own, g in zip(model.parameters(), start, gradients, strict=True):
                p.copy_(p - 0.3 * g + 0.25 * (own - p))
    np.testing.assert_allclose(read(MODEL, settings)[:21], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rule", ["rms", "sgd"])
def test_a_rate_of_zero_is_the_static_model(rule):
    settings = DynamicSettings(rate=0.0, decay=0.3, segment=5, rule=rule)
    ours = read(MODEL, settings, STATISTICS)
    np.testing.assert_allclose(ours, log_probs(MODEL, TOKENS, 50), rtol=0, atol=1e-12)


@pytest.mark.parametrize("segment", [1, 5, 7, 63, 100])
def test_a_token_is_measured_before_anything_is_learnt_from_it(segment):
    """Another last token changes its own probability alone, and that to what it was before it."""
    settings = DynamicSettings(rate=0.02, decay=0.01, segment=segment)
    other = TOKENS.copy()
    other[-1] = (other[-1] + 1) % VOCABULARY
    ours, changed = (read(MODEL, settings, STATISTICS, tokens) for tokens in (TOKENS, other))
    np.testing.assert_array_equal(ours[:-1], changed[:-1])
    every = [
        math.exp(read(MODEL, settings, STATISTICS, np.append(TOKENS[:-1], np.uint16(w)))[-1])
        for w in range(VOCABULARY)
    ]
    assert sum(every) == pytest.approx(1, abs=1e-12)  # one distribution, whatever comes


def snapshot(model):
    return [p.detach().clone() for p in model.parameters()], [
        p.data_ptr() for p in model.parameters()
    ]


def test_the_weights_are_the_same_to_the_bit_after():
    weights, places = snapshot(MODEL)
    read(MODEL, RMS, STATISTICS)
    assert all(torch.equal(a, b) for a, b in zip(weights, MODEL.parameters(), strict=True))
    assert places == [p.data_ptr() for p in MODEL.parameters()]
    assert not MODEL.training
    assert all(p.grad is None for p in MODEL.parameters())


def test_an_exception_leaves_them_so_too():
    weights, places = snapshot(MODEL)

    def fails(done, total):
        if done > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(MODEL, RMS, STATISTICS, report=fails)
    walk = dynamic_stream(MODEL, TOKENS, RMS, STATISTICS)
    next(walk), next(walk)
    assert places != [p.data_ptr() for p in MODEL.parameters()]
    walk.close()
    assert places == [p.data_ptr() for p in MODEL.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(weights, MODEL.parameters(), strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {"cell": "gru"},
        {"cell": "elman", "connections": "skip"},
        {"cell": "rewired", "connections": "residual", "tied": False},
        {"cell": "multiplicative"},
        {"cell": "lstm", "capped": True, "mogrifier": MogrifierConfig(rounds=3, rank=2)},
        {"softmax": ProjectedSoftmaxConfig(experts=3)},
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_every_model_can_be_adapted(options):
    model = make(**options)
    statistics = gradient_statistics(model, TRAIN)
    settings = DynamicSettings(rate=0.0, decay=0.1, segment=6)
    still = read(model, settings, statistics)
    np.testing.assert_allclose(still, log_probs(model, TOKENS, 50), rtol=0, atol=1e-12)
    repeated = np.tile(TOKENS[:10], 12)  # what is seen again and again is learnt
    moved = read(model, DynamicSettings(0.003, 0.0, 1e-3, 10), statistics, repeated)
    assert moved[-20:].mean() > log_probs(model, repeated, 50)[-20:].mean() + 0.1


@pytest.mark.parametrize(("batches", "read"), [(4, 4), (None, 13), (1000, 13)])
def test_statistics_are_the_mean_square_of_batch_gradients(batches, read):
    """Of some batches or of the whole text: 3 columns of 133 tokens are 13 batches of 10."""
    height = len(TRAIN) // 3
    folded = torch.from_numpy(TRAIN[: 3 * height].astype(np.int64)).reshape(3, height).T
    state, sums = MODEL.initial_state(3), [torch.zeros_like(p) for p in MODEL.parameters()]
    for k in range(read):
        cut = folded[10 * k : 10 * k + 11]
        output = MODEL(cut[:-1], state)
        state = [tuple(t.detach() for t in layer) for layer in output.state]
        logits = functional.linear(output.hidden, MODEL.embedding, MODEL.softmax.bias)
        loss = functional.cross_entropy(logits.reshape(30, -1), cut[1:].reshape(-1))
        for total, g in zip(sums, torch.autograd.grad(loss, list(MODEL.parameters())), strict=True):
            total += g.square() / read
    found = gradient_statistics(MODEL, TRAIN, StatisticsSettings(batches, 3, 10))
    assert list(found) == [name for name, _ in MODEL.named_parameters()]
    for ours, expected in zip(found.values(), sums, strict=True):
        torch.testing.assert_close(ours, expected)


def test_statistics_of_a_short_text_and_of_one_too_short():
    assert len(gradient_statistics(MODEL, TRAIN[:21])) == len(list(MODEL.parameters()))
    with pytest.raises(InfolmError, match="20 tokens, fewer than 21"):
        gradient_statistics(MODEL, TRAIN[:20])


def test_without_statistics_the_rms_rule_says_what_it_needs():
    with pytest.raises(InfolmError, match="needs the mean square gradients"):
        read(MODEL, RMS)


def of_samples(settings=RMS, statistics=STATISTICS, temperatures=(1.0,), **options):
    samples = MonteCarlo(MODEL, MonteCarloSettings(**options))
    chunks = list(
        dynamic_stream(MODEL, TOKENS, settings, statistics, temperatures, samples=samples)
    )
    return torch.cat([chunk.log_probs for chunk in chunks], 1).numpy(), chunks, samples


@pytest.mark.parametrize("adaptation", ["own", "shared"])
@pytest.mark.parametrize("samples", [1, 3])
def test_without_dropout_samples_say_what_the_adapted_model_itself_says(adaptation, samples):
    (ours,), *_ = of_samples(samples=samples, rate=0.0, adaptation=adaptation)
    np.testing.assert_allclose(ours, read(MODEL, RMS, STATISTICS), rtol=0, atol=1e-12)
    (dropped,), *_ = of_samples(samples=samples, rate=1.0, adaptation=adaptation)
    assert np.abs(dropped - ours).max() > 0.01


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("settings", [RMS, replace(RMS, mean="tensor")], ids=["all", "tensor"])
def test_own_adaptation_is_the_mean_of_separate_dynamic_evaluations(samples, settings):
    """Each with masks of its own, that it is measured under and learns under."""
    (ours,), chunks, found = of_samples(settings, samples=samples, rate=0.8, seed=5)
    each = [
        slow(MODEL, settings, STATISTICS, seeds=seeds, rate=0.8)
        for seeds in MonteCarlo(MODEL, found.settings).generators()
    ]
    np.testing.assert_allclose(np.exp(ours), np.exp(each).mean(0), rtol=1e-9)
    assert [len(chunk.targets) for chunk in chunks] == [7] * 9
    if samples > 1:
        shares = (np.exp(each) / np.exp(ours)).mean(1)
        error = shares.std(ddof=1) / math.sqrt(samples)
        assert found.standard_errors()[0] == pytest.approx(error, rel=1e-9)


def test_shared_adaptation_measures_all_samples_with_one_set_of_weights():
    """Weights that do not move are measured as Monte Carlo dropout alone does."""
    still = DynamicSettings(rate=0.0, decay=0.0, segment=7)
    (shared,), *_ = of_samples(still, samples=4, seed=2, adaptation="shared")
    samples = MonteCarlo(MODEL, MonteCarloSettings(samples=4, span=7, seed=2))
    plain = torch.cat([c.log_probs for c in monte_carlo_stream(samples, TOKENS)], 1)
    np.testing.assert_allclose(shared, plain[0].numpy(), rtol=0, atol=1e-12)
    (moved,), *_ = of_samples(samples=4, seed=2, adaptation="shared")
    (own,), *_ = of_samples(samples=4, seed=2, adaptation="own")
    assert np.abs(moved - own)[7:].max() > 0.01


def test_own_adaptation_at_several_temperatures_and_what_it_leaves_behind():
    weights, places = snapshot(MODEL)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    both, chunks, _ = of_samples(samples=3, temperatures=(1.0, 0.5))
    assert torch.equal(torch.get_rng_state(), before)
    assert places == [p.data_ptr() for p in MODEL.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(weights, MODEL.parameters(), strict=True))
    np.testing.assert_array_equal(both[0], of_samples(samples=3)[0][0])
    np.testing.assert_array_equal(both[1], of_samples(samples=3, temperatures=(0.5,))[0][0])
    assert torch.cat([chunk.hidden for chunk in chunks]).shape == (63, 5)
    told = []
    samples = MonteCarlo(MODEL, MonteCarloSettings(samples=3))
    read(MODEL, RMS, STATISTICS, samples=samples, report=lambda *done: told.append(done))
    assert told[-1] == (3 * 63, 3 * 63)
    assert told == sorted(told)


def test_an_exception_under_own_adaptation_leaves_the_weights_alone():
    weights, places = snapshot(MODEL)

    def fails(done, total):
        if done > 80:
            raise KeyboardInterrupt

    samples = MonteCarlo(MODEL, MonteCarloSettings(samples=3))
    with pytest.raises(KeyboardInterrupt):
        read(MODEL, RMS, STATISTICS, samples=samples, report=fails)
    assert places == [p.data_ptr() for p in MODEL.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(weights, MODEL.parameters(), strict=True))
    assert not MODEL.training


def test_settings_are_read_again_and_old_ones_mean_what_they_meant():
    settings = DynamicSettings(1e-3, 0.1, mean="tensor", statistics=StatisticsSettings(None, 9))
    assert DynamicSettings.read(json.loads(json.dumps(asdict(settings)))) == settings
    old = {"rate": 1e-3, "decay": 0.1, "epsilon": 1e-4, "segment": 20, "rule": "rms"}
    assert DynamicSettings.read(old).mean == "all"
    assert DynamicSettings.read(old).statistics == FORMER_STATISTICS


def test_climbing_finds_the_bottom_of_a_valley_from_anywhere():
    def valley(x):
        return abs(math.log10(x / 3e-4)) if x < 1e-2 else math.nan

    for start in (1e-7, 1e-4, 1.0):
        assert climb(valley, start, 10**0.5) == pytest.approx(3e-4, rel=0.8)
    assert climb(lambda x: 1.0, 5.0, 10) == 5.0


def test_tuning_is_no_worse_than_the_static_model_and_than_where_it_began():
    text = np.tile(TOKENS[:20], 10)
    start = DynamicSettings(rate=1e-3, decay=1e-2, epsilon=1e-3, segment=20)
    told = []
    found = tune(MODEL, text, start, STATISTICS, (10, 5), lambda *done: told.append(done))
    tuned, began = (read(MODEL, s, STATISTICS, text).mean() for s in (found, start))
    assert tuned >= began
    assert tuned > log_probs(MODEL, text, 50).mean() + 0.1
    assert told[-1][0] == told[-1][1]
    assert found.segment in (20, 10, 5)


def test_tuning_follows_a_valley_in_which_rate_and_epsilon_grow_together(monkeypatch):
    """The bottom is at a rate of 1e-4, a decay of 1e-3 and an epsilon of 1e-3; its sides are steep,
    so that either of rate and epsilon alone leads nowhere."""

    def loss(model, tokens, settings, statistics):
        rate, decay, epsilon = (
            math.log10(value) for value in (settings.rate, settings.decay, settings.epsilon)
        )
        across = rate + 4 - 0.75 * (epsilon + 3)
        value = 4 + 3 * across**2 + 0.1 * (epsilon + 3) ** 2 + 0.1 * (decay + 3) ** 2
        yield SimpleNamespace(log_probs=torch.full((100,), -value))

    monkeypatch.setattr(dynamic, "dynamic_stream", loss)
    for epsilon in (1e-5, 1e-4, 1e-2):
        start = DynamicSettings(rate=3e-4, decay=1e-2, epsilon=epsilon)
        found = tune(MODEL, np.zeros(101), start, None)
        assert found.rate == pytest.approx(1e-4, rel=0.8)
        assert found.decay == pytest.approx(1e-3)
        assert found.epsilon == pytest.approx(1e-3, rel=0.8)


def test_tuning_ends_with_the_best_so_far_where_that_is_enough(monkeypatch):
    read = []

    def loss(model, tokens, settings, statistics):
        read.append(settings)
        value = 4 + abs(math.log10(settings.rate) + 6)  # falls with the rate down to 1e-6
        yield SimpleNamespace(log_probs=torch.full((100,), -value))

    monkeypatch.setattr(dynamic, "dynamic_stream", loss)
    start = DynamicSettings(rate=1e-3, decay=1e-2, epsilon=1e-3)
    for trials in (1, 2, 3, 5):
        read.clear()
        found = tune(MODEL, np.zeros(101), start, None, enough=lambda n=trials: len(read) >= n)
        assert len(read) == trials
        assert found == min(read, key=lambda settings: abs(math.log10(settings.rate) + 6))


def test_bad_settings():
    for bad in ((-1, 0), (math.nan, 0), (0, -1), (0, 0, 0.0), (0, 0, 1e-3, 0)):
        with pytest.raises(InfolmError, match="dynamic evaluation needs"):
            DynamicSettings(*bad)
    for bad in ((0,), (-1,), (None, 0), (200, 64, 0)):
        with pytest.raises(InfolmError, match="statistics of gradients need"):
            StatisticsSettings(*bad)
