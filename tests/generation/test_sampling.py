"""Sampling: each filter against its definition, and a Markov chain whose text is known."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from torch import Tensor

from infolm.errors import InfolmError
from infolm.evaluation.neural_cache import CacheSettings
from infolm.generation.sampling import (
    SamplingSettings,
    draw,
    eta,
    generate,
    greedy,
    nucleus,
    temperature,
    top_k,
    typical,
)
from infolm.generation.text import STREAMS, write_long
from infolm.models.recurrent import ProjectedSoftmaxConfig, RecurrentConfig, RecurrentModel

V = 8


def distributions(seed, rows=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(rows, V, generator=generator, dtype=dtype)).log_softmax(-1)


def kept_words(log_probs):
    return [set(row.isfinite().nonzero()[:, 0].tolist()) for row in log_probs]


def renormalised(log_probs, kept):
    """The slow way: zero what is not kept, divide by the sum."""
    rows = []
    for row, words in zip(log_probs.exp().tolist(), kept, strict=True):
        total = sum(row[w] for w in words)
        rows.append([row[w] / total if w in words else 0.0 for w in range(V)])
    return torch.tensor(rows, dtype=log_probs.dtype)


def fewest(p, order, mass):
    """The definition: take words in this order until they hold the mass."""
    taken, held = set(), 0.0
    for w in order:
        if taken and held >= mass:
            break
        taken.add(w)
        held += p[w]
    return taken


untimed = settings(deadline=None)  # the first call of an operation is slow
seeds = st.integers(0, 10_000)
masses = st.floats(0.01, 0.99)


@untimed
@given(seeds, st.integers(1, V + 2))
def test_top_k_keeps_the_k_likeliest(seed, k):
    log_probs = distributions(seed)
    kept = [set(sorted(range(V), key=lambda w: -row[w])[:k]) for row in log_probs.tolist()]
    torch.testing.assert_close(top_k(log_probs, k).exp(), renormalised(log_probs, kept))


def test_top_k_keeps_exactly_k_of_words_equally_likely():
    assert len(kept_words(top_k(torch.zeros(1, V).log_softmax(-1), 3))[0]) == 3


@untimed
@given(seeds, masses)
def test_nucleus_keeps_the_fewest_likeliest_words_of_a_mass(seed, p):
    log_probs = distributions(seed)
    kept = [
        fewest(row, sorted(range(V), key=lambda w, row=row: -row[w]), p)
        for row in log_probs.exp().tolist()
    ]
    torch.testing.assert_close(nucleus(log_probs, p).exp(), renormalised(log_probs, kept))


@untimed
@given(seeds, masses)
def test_typical_keeps_the_words_nearest_the_entropy(seed, p):
    log_probs = distributions(seed)
    kept = []
    for row in log_probs.exp().tolist():
        entropy = -sum(q * math.log(q) for q in row)
        far = [abs(-math.log(q) - entropy) for q in row]
        kept.append(fewest(row, sorted(range(V), key=far.__getitem__), p))
    torch.testing.assert_close(typical(log_probs, p).exp(), renormalised(log_probs, kept))


@untimed
@given(seeds, st.floats(0.001, 1))
def test_eta_keeps_the_words_above_its_threshold(seed, epsilon):
    log_probs = distributions(seed)
    kept = []
    for row in log_probs.exp().tolist():
        entropy = -sum(q * math.log(q) for q in row)
        threshold = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy))
        above = {w for w in range(V) if row[w] > threshold}
        kept.append(above or {max(range(V), key=row.__getitem__)})
    torch.testing.assert_close(eta(log_probs, epsilon).exp(), renormalised(log_probs, kept))


@untimed
@given(seeds, st.floats(0.05, 10))
def test_temperature_is_a_power_of_the_probability(seed, value):
    log_probs = distributions(seed)
    power = log_probs.exp() ** (1 / value)
    expected = power / power.sum(-1, keepdim=True)
    torch.testing.assert_close(temperature(log_probs, value).exp(), expected)


def test_greedy_keeps_the_likeliest_word():
    log_probs = distributions(0)
    assert kept_words(greedy(log_probs)) == [{w} for w in log_probs.argmax(-1).tolist()]


@pytest.mark.parametrize("value", [1e-3, 1e-30])
def test_temperature_towards_zero_is_greedy(value):
    log_probs = distributions(0, dtype=torch.float32)
    torch.testing.assert_close(temperature(log_probs, value).exp(), greedy(log_probs).exp())


@pytest.mark.parametrize(
    "chosen",
    [
        SamplingSettings(),
        SamplingSettings(temperature=1.0, top_k=V, top_p=1.0, typical=1.0),
        SamplingSettings(eta=1e-12),
    ],
)
def test_nothing_is_ruled_out_at_the_limits(chosen):
    log_probs = distributions(1)
    log_probs[0] = torch.tensor([0.0, *[-60.0] * (V - 1)]).log_softmax(-1)
    log_probs = log_probs[1:] if chosen.eta else log_probs
    torch.testing.assert_close(chosen(log_probs), log_probs)


@untimed
@given(seeds)
def test_every_filter_keeps_a_word_and_a_distribution(seed):
    log_probs = distributions(seed, dtype=torch.float32)
    log_probs[0] = -math.log(V)  # all alike: none is more probable than exp(-H)
    filters = [
        lambda x: top_k(x, 1),
        lambda x: nucleus(x, 1e-12),
        lambda x: typical(x, 1e-12),
        lambda x: eta(x, 1.0),
        greedy,
    ]
    for each in filters:
        total = each(log_probs).exp().sum(-1)
        torch.testing.assert_close(total, torch.ones(len(total)))


def test_filters_follow_each_other_on_what_is_left():
    log_probs = distributions(2)
    chosen = SamplingSettings(temperature=0.7, top_k=5, top_p=0.8, forbid=(1,))
    expected = log_probs.clone()
    expected[:, 1] = -math.inf
    expected = nucleus(top_k(temperature(expected.log_softmax(-1), 0.7), 5), 0.8)
    torch.testing.assert_close(chosen(log_probs), expected)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 600), st.integers(0, 10**6), st.floats(0, 30), st.floats(0, 0.95))
def test_draw_inverts_the_distribution_function(words, seed, spread, zeros):
    """Against the running sum over all words, which it is but for rounding."""
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((8, words))
    logits[rng.random((8, words)) < zeros] = -np.inf
    logits[np.arange(8), rng.integers(words, size=8)] = 0.0
    log_probs = torch.from_numpy(logits).float().log_softmax(-1)
    uniform = torch.from_numpy(rng.random(8))
    uniform[:2] = torch.tensor([0.0, 1 - 2**-53])
    found = draw(log_probs, uniform)
    p = log_probs.exp().double()
    assert (p.gather(1, found[:, None]) > 0).all()
    cumulated = p.cumsum(1) / p.sum(1, keepdim=True)
    at = cumulated.gather(1, found[:, None])[:, 0]
    own = p.gather(1, found[:, None])[:, 0] / p.sum(1)
    assert (at > uniform - 1e-6).all()
    assert (at - own <= uniform + 1e-6).all()


def test_draw_never_takes_a_word_of_probability_zero():
    log_probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).log().expand(4, -1)
    uniform = torch.tensor([0.0, 0.5 - 2**-53, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw(log_probs, uniform).tolist() == [1, 1, 3, 3]


class Output(NamedTuple):
    hidden: Tensor
    state: tuple[list[Tensor], Tensor]


class Chain:
    """A Markov chain as a model: its hidden vector is the one-hot word; its state counts words."""

    def __init__(self, log_chain):
        self.log_chain = log_chain

    def initial_state(self, batch):
        return [torch.zeros(1, batch, 2)], torch.zeros(2, batch)

    def __call__(self, tokens, state):
        (nested,), count = state
        assert nested.shape[1] == count.shape[1] == tokens.shape[1]
        hidden = torch.nn.functional.one_hot(tokens, V).to(self.log_chain.dtype)
        return Output(hidden, ([nested + len(tokens)], count + len(tokens)))

    def selected(self, state, columns):
        (nested,), count = state
        return [nested[:, columns]], count[:, columns]

    def log_probs(self, hidden):
        return hidden @ self.log_chain


@pytest.fixture
def chain():
    return Chain(distributions(3, rows=V))


PLAIN = SamplingSettings()


def sample(model, chosen=PLAIN, *, seed=0, tokens=20, num=3, cache=None):
    generator = torch.Generator().manual_seed(seed)
    return generate(model, torch.tensor([5, 2]), tokens, num, chosen, generator, cache)


def check_frequencies(text, chain):
    """Each transition's frequency is within four standard errors of its probability."""
    before = torch.cat([torch.full((len(text), 1), 2), text[:, :-1]], 1)
    pairs = torch.bincount((before * V + text).reshape(-1), minlength=V * V).reshape(V, V).double()
    reached = pairs.sum(1) > 0
    pairs, chain = pairs[reached], chain[reached]
    seen = pairs.sum(1, keepdim=True)
    error = (chain * (1 - chain) / seen).sqrt()
    assert ((pairs / seen - chain).abs() <= 4 * error + 1e-12).all()


def test_frequencies_match_the_chain(chain):
    text = sample(chain, tokens=100, num=400)
    assert text.shape == (400, 100)
    check_frequencies(text, chain.log_chain.exp())


def test_frequencies_match_the_filtered_chain(chain):
    chosen = SamplingSettings(temperature=1.5, top_k=4, forbid=(0,))
    text = sample(chain, chosen, tokens=100, num=400)
    assert not (text == 0).any()
    check_frequencies(text, chosen(chain.log_chain).exp())


def test_the_seed_decides_the_text(chain):
    assert torch.equal(sample(chain, seed=4), sample(chain, seed=4))
    assert not torch.equal(sample(chain, seed=4), sample(chain, seed=5))
    first, second, _ = sample(chain, seed=4)
    assert not torch.equal(first, second)


def test_the_first_texts_are_the_same_for_any_number_and_length(chain):
    assert torch.equal(sample(chain, num=1), sample(chain, num=5)[:1])
    assert torch.equal(sample(chain, tokens=7), sample(chain, tokens=20)[:, :7])


def test_greedy_follows_the_likeliest_words(chain):
    text = sample(chain, SamplingSettings(greedy=True))
    word = 2
    for actual in text[0].tolist():
        word = int(chain.log_chain[word].argmax())
        assert actual == word
    assert (text == text[0]).all()


def test_each_text_has_a_cache_of_its_own_that_begins_with_the_prompt(chain):
    """A cache alone (weight 1): after 5 came 2, so whatever resembles 5 most is followed by 2."""
    only = CacheSettings(window=10, weight=1.0, flatness=50.0)
    generator = torch.Generator().manual_seed(0)
    text = generate(chain, torch.tensor([5, 2, 5]), 6, 2, SamplingSettings(), generator, only)
    assert text.tolist() == [[2, 5, 2, 5, 2, 5]] * 2


def test_a_cache_of_weight_zero_changes_nothing(chain):
    assert torch.equal(sample(chain, cache=CacheSettings(weight=0.0)), sample(chain))


def test_a_prompt_of_one_word_leaves_the_cache_empty_at_first(chain):
    generator = torch.Generator().manual_seed(0)
    text = generate(
        chain, torch.tensor([2]), 5, 2, SamplingSettings(), generator, CacheSettings(window=3)
    )
    assert text.shape == (2, 5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"typical": 0.0}, "typical"),
        ({"eta": -0.1}, "eta"),
        ({"eta": math.nan}, "eta"),
    ],
)
def test_bad_settings_are_refused(setting, message):
    with pytest.raises(InfolmError, match=message):
        SamplingSettings(**setting)


def test_forbidding_every_word_is_refused(chain):
    with pytest.raises(InfolmError, match="forbidden"):
        sample(chain, SamplingSettings(forbid=tuple(range(V))))


def p_value(counts, expected):
    """Of Pearson's chi-square test: below 0.001 once in a thousand true hypotheses."""
    likely = expected > 0
    assert not counts[~likely].any()
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    return chi2.sf(float(statistic), int(likely.sum()) - 1)


@pytest.mark.parametrize("experts", [1, 3])
def test_a_recurrent_model_writes_its_own_pairs_of_words(experts):
    """All pairs that may follow <eos>, enumerated: p(a | eos) p(b | eos, a)."""
    torch.manual_seed(0)
    config = RecurrentConfig(
        embedding=6, hidden=9, layers=2, softmax=ProjectedSoftmaxConfig(experts=experts)
    )
    model = RecurrentModel(config, V).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)  # so that the probabilities are not all alike
        firsts = torch.stack([torch.full((V,), 5), torch.arange(V)])
        output = model(firsts, model.initial_state(V))
        log_p = model.log_probs(output.hidden)
    joint = (log_p[0, 0, :, None] + log_p[1]).exp()
    num = 20_000
    generator = torch.Generator().manual_seed(1)
    text = generate(model, torch.tensor([5]), 2, num, PLAIN, generator)
    counts = torch.bincount(text[:, 0] * V + text[:, 1], minlength=V * V).reshape(V, V)
    assert p_value(counts.double(), num * joint) > 0.001


def test_a_long_text_has_the_frequencies_of_the_model(chain):
    chain.device = torch.device("cpu")
    text = torch.from_numpy(write_long(chain, 2, 30_000, seed=4))
    assert text.shape == (STREAMS, 300)
    before = torch.cat([torch.full((STREAMS, 1), 2), text[:, :-1]], 1)
    pairs = torch.bincount((before * V + text).reshape(-1), minlength=V * V).reshape(V, V).double()
    for counts, p in zip(pairs, chain.log_chain.exp(), strict=True):
        assert p_value(counts, counts.sum() * p) > 0.001 / V


def test_a_long_text_is_rounded_up_and_decided_by_its_seed(chain):
    chain.device = torch.device("cpu")
    told = []
    text = write_long(chain, 2, 2 * STREAMS + 1, 4, lambda *progress: told.append(progress))
    assert text.shape == (STREAMS, 3)
    assert told == [(STREAMS, text.size), (2 * STREAMS, text.size), (text.size, text.size)]
    assert (write_long(chain, 2, 2 * STREAMS, 4) == text[:, :2]).all()
    assert (write_long(chain, 2, 2 * STREAMS, 5) != text[:, :2]).any()
