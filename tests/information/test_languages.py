"""Entropies to nine digits: against the enumeration of every sequence, path and derivation."""

import math
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.errors import InfolmError
from infolm.information.exact import entropy, mutual_information
from infolm.information.languages import Grammar, HiddenMarkov, MarkovChain, stationary

RNG = np.random.default_rng
EXACT = {"abs": 1e-9, "rel": 0}


def rows(n, width, seed, zeros=0.0):
    """Random distributions; some entries may be zero, but not next to the diagonal."""
    rng = RNG(seed)
    weights = rng.dirichlet(np.ones(width), n) * (rng.random((n, width)) >= zeros)
    weights[np.arange(n), (np.arange(n) + 1) % width] += 0.1
    return weights / weights.sum(1, keepdims=True)


def sequences(types, n):
    return list(product(range(types), repeat=n))


def slow_segments(log_prob, types, m, gap, n):
    """I of two segments from the probability of every sequence over both and the gap."""
    joint = np.zeros((types,) * (m + gap + n))
    for block in sequences(types, m + gap + n):
        joint[block] = math.exp(log_prob(block))
    kept = joint.sum(tuple(range(m, m + gap)))
    return mutual_information(kept.reshape(types**m, types**n))


# Markov chains

CHAINS = {
    "dense": rows(3, 3, 0),
    "with zeros": rows(4, 4, 1, zeros=0.4),
    "periodic": np.array([[0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]]),
    "a single token": np.ones((1, 1)),
}


@pytest.fixture(params=CHAINS)
def chain(request):
    return MarkovChain(CHAINS[request.param])


@given(st.integers(1, 12), st.integers(0, 10**6))
def test_the_stationary_distribution_stays(types, seed):
    p = rows(types, types, seed, zeros=0.5)
    pi = stationary(p)
    assert pi.sum() == pytest.approx(1)
    assert (pi > 0).all()
    assert pi @ p == pytest.approx(pi, rel=1e-12)


def test_a_chain_that_hardly_moves_has_its_stationary_distribution_to_the_last_digit():
    p = np.array([[1 - 1e-14, 1e-14], [3e-14, 1 - 3e-14]])
    assert stationary(p) == pytest.approx([0.75, 0.25], rel=1e-15)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_block_entropies_of_a_chain(chain, n):
    log_p = np.array([chain.log_prob(block) for block in sequences(chain.types, n)])
    assert np.exp(log_p).sum() == pytest.approx(1, **EXACT)
    assert chain.block_entropy(n) == pytest.approx(entropy(np.exp(log_p)), **EXACT)
    assert chain.block_entropy(n + 1) - chain.block_entropy(n) == pytest.approx(
        chain.entropy_rate, **EXACT
    )


@pytest.mark.parametrize(("m", "gap", "n"), [(1, 0, 1), (2, 0, 3), (1, 3, 1), (2, 2, 1)])
def test_segments_of_a_chain(chain, m, gap, n):
    slow = slow_segments(chain.log_prob, chain.types, m, gap, n)
    assert chain.segment_information(m, gap, n) == pytest.approx(slow, **EXACT)


@given(st.integers(0, 10**6))
def test_information_fades_with_the_gap(seed):
    chain = MarkovChain(rows(5, 5, seed, zeros=0.3))
    values = [chain.segment_information(1, gap, 1) for gap in range(6)]
    assert all(later <= sooner + 1e-12 for sooner, later in pairwise(values))
    assert values[0] == pytest.approx(entropy(chain.stationary) - chain.entropy_rate, **EXACT)
    assert values[-1] > -1e-12


def test_a_periodic_chain_never_forgets():
    chain = MarkovChain(CHAINS["periodic"])
    assert chain.segment_information(1, 1000, 1) == pytest.approx(math.log(2), **EXACT)


def test_a_sample_of_a_chain_is_one_walk_of_it():
    chain = MarkovChain(CHAINS["with zeros"])
    n = 50_000
    tokens = chain.sample(n, RNG(0))
    counts = np.zeros_like(chain.transition)
    np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
    visits = counts.sum(1, keepdims=True)
    error = np.sqrt(chain.transition * (1 - chain.transition) / visits)
    assert (np.abs(counts / visits - chain.transition) <= 4 * error).all()
    assert visits.ravel() / n == pytest.approx(chain.stationary, abs=0.02)
    assert chain.log_prob(tokens) == pytest.approx(
        math.log(chain.stationary[tokens[0]]) + chain.conditional_log_probs(tokens).sum()
    )
    first = [chain.sample(1, RNG(seed))[0] for seed in range(2000)]
    share = np.bincount(first, minlength=4) / 2000
    assert share == pytest.approx(chain.stationary, abs=4 * 0.5 / math.sqrt(2000))


def test_what_cannot_happen_has_no_probability():
    chain = MarkovChain(CHAINS["periodic"])
    assert chain.log_prob([0, 2]) == -math.inf
    assert HiddenMarkov(chain.transition, np.eye(3)).log_prob([0, 2, 1]) == -math.inf
    assert chain.log_prob([]) == 0


@pytest.mark.parametrize(
    ("transition", "match"),
    [
        ([[0.5, 0.4], [0.5, 0.5]], "row 0 of the transition matrix sums to 0.9"),
        ([[1.5, -0.5], [0.5, 0.5]], "none below zero"),
        ([[0.5, 0.5]], "must be square"),
        (np.eye(2), "reducible"),
        ([[1, 0], [0.5, 0.5]], "reducible"),
        ([[0.5, 0.5], [0, 1]], "reducible"),
    ],
)
def test_what_is_no_chain_is_refused(transition, match):
    with pytest.raises(InfolmError, match=match):
        MarkovChain(np.array(transition))


def test_bad_requests_are_refused():
    chain = MarkovChain(CHAINS["dense"])
    with pytest.raises(InfolmError, match="at least one token"):
        chain.segment_information(0, 1, 1)
    with pytest.raises(InfolmError, match="0 to 2 only"):
        chain.log_prob([0, 3])
    with pytest.raises(InfolmError, match="0 to 2 only"):
        chain.conditional_log_probs([0, -1])


# Hidden Markov models

HIDDEN = {
    "dense": (rows(2, 2, 0), rows(2, 3, 1)),
    "with zeros": (rows(3, 3, 2, zeros=0.4), rows(3, 3, 3, zeros=0.4)),
    "more states than tokens": (rows(4, 4, 4), rows(4, 2, 5)),
}
EVEN = HiddenMarkov(  # an even number of ones between two zeros, whatever lies back
    [[0.5, 0.5, 0], [0, 0, 1], [0.5, 0.5, 0]], [[1, 0], [0, 1], [0, 1]]
)


@pytest.fixture(params=HIDDEN)
def hidden(request):
    return HiddenMarkov(*HIDDEN[request.param])


def paths_prob(model, block):
    """p(block) as a sum over every path of hidden states."""
    total = 0.0
    for path in product(range(len(model.stationary)), repeat=len(block)):
        p = model.stationary[path[0]]
        p *= math.prod(model.transition[a, b] for a, b in pairwise(path))
        total += p * math.prod(model.emission[s, x] for s, x in zip(path, block, strict=True))
    return total


def test_the_forward_algorithm_sums_over_all_paths(hidden):
    for block in sequences(hidden.types, 4):
        assert math.exp(hidden.log_prob(block)) == pytest.approx(paths_prob(hidden, block), **EXACT)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_block_entropies_of_a_hidden_model(hidden, n):
    p = [math.exp(hidden.log_prob(block)) for block in sequences(hidden.types, n)]
    assert sum(p) == pytest.approx(1, **EXACT)
    assert hidden.block_entropy(n) == pytest.approx(entropy(p), **EXACT)


@pytest.mark.parametrize(("m", "gap", "n"), [(1, 0, 1), (2, 0, 2), (2, 1, 1), (1, 2, 2)])
def test_segments_of_a_hidden_model(hidden, m, gap, n):
    slow = slow_segments(hidden.log_prob, hidden.types, m, gap, n)
    assert hidden.segment_information(m, gap, n) == pytest.approx(slow, **EXACT)


def test_a_state_for_each_token_is_a_markov_chain(chain):
    model = HiddenMarkov(chain.transition, np.eye(chain.types))
    assert model.unifilar
    assert model.entropy_rate == pytest.approx(chain.entropy_rate, **EXACT)
    assert model.block_entropy(3) == pytest.approx(chain.block_entropy(3), **EXACT)
    assert model.segment_information(2, 4, 1) == pytest.approx(
        chain.segment_information(2, 4, 1), **EXACT
    )
    tokens = chain.sample(200, RNG(0))
    assert model.conditional_log_probs(tokens) == pytest.approx(chain.conditional_log_probs(tokens))


def test_states_that_all_speak_alike_leave_no_memory():
    spoken = rows(1, 4, 7)[0]
    model = HiddenMarkov(rows(3, 3, 6), np.tile(spoken, (3, 1)))
    assert not model.unifilar
    assert model.entropy_rate == pytest.approx(entropy(spoken), **EXACT)
    assert model.segment_information(2, 0, 2) == pytest.approx(0, **EXACT)


def test_a_chain_of_the_second_order_is_a_hidden_model():
    p = rows(4, 2, 8).reshape(2, 2, 2)  # p[a, b, c] = p(c | a b)
    transition = np.zeros((2, 2, 2, 2))
    for a, b, c in product(range(2), repeat=3):
        transition[a, b, b, c] = p[a, b, c]
    model = HiddenMarkov(transition.reshape(4, 4), [[1, 0], [0, 1], [1, 0], [0, 1]])
    pairs = model.stationary.reshape(2, 2)
    assert model.entropy_rate == pytest.approx((pairs * entropy(p, 2)).sum(), **EXACT)
    assert model.block_entropy(5) - model.block_entropy(4) == pytest.approx(
        model.entropy_rate, **EXACT
    )
    tokens = model.sample(200, RNG(0))
    a, b, c = tokens[:-2], tokens[1:-1], tokens[2:]
    assert model.conditional_log_probs(tokens)[1:] == pytest.approx(np.log(p[a, b, c]))


def test_the_even_process_has_the_known_rate():
    """Two thirds of a fair coin; no finite past tells all that the whole past does."""
    assert EVEN.unifilar
    assert EVEN.entropy_rate == pytest.approx(2 / 3 * math.log(2), **EXACT)
    lasting = [EVEN.block_entropy(n + 1) - EVEN.block_entropy(n) for n in range(1, 12)]
    assert all(a > b + 1e-6 for a, b in zip(lasting[:-1:2], lasting[2::2], strict=True))
    assert lasting[-1] > EVEN.entropy_rate


def test_the_bounds_need_no_closed_form_to_meet(monkeypatch):
    truth = EVEN.entropy_rate
    monkeypatch.setattr(HiddenMarkov, "unifilar", False)
    low, high = EVEN.entropy_rate_bounds()
    assert 0 <= high - low <= 1e-9
    assert low - 1e-12 <= truth <= high + 1e-12


def test_the_bounds_are_the_conditional_entropies_they_claim_to_be(hidden):
    """H(X_n | past, S_1) and H(X_n | past), for the n that so many filters allow."""

    def last(model, n):
        return model.block_entropy(n) - model.block_entropy(n - 1)

    begun = [HiddenMarkov(hidden.transition, hidden.emission) for _ in hidden.stationary]
    for state, model in enumerate(begun):
        model.stationary = np.eye(len(begun))[state]
    slow = [
        (
            sum(w * last(m, n) for w, m in zip(hidden.stationary, begun, strict=True)),
            last(hidden, n),
        )
        for n in range(1, 7)
    ]
    depths = []
    for most in (0, 12, 40):
        bounds = hidden.entropy_rate_bounds(0, most)
        depths += [n for n, pair in enumerate(slow, 1) if pair == pytest.approx(bounds, **EXACT)]
    assert len(depths) == 3
    assert depths[0] == 1 < depths[-1]


def test_the_bounds_close_in_on_the_rate(hidden):
    bounds = [hidden.entropy_rate_bounds(0, most) for most in (1, 10, 100, 1000)]
    lows, highs = zip(*bounds, strict=True)
    assert list(lows) == sorted(lows)
    assert list(highs) == sorted(highs, reverse=True)
    value, error = hidden.entropy_rate_estimate(20_000, RNG(0))
    assert lows[-1] - 4 * error <= value <= highs[-1] + 4 * error


def test_a_model_that_forgets_fast_is_known_to_nine_digits():
    model = HiddenMarkov([[0.55, 0.45], [0.5, 0.5]], [[0.6, 0.4], [0.3, 0.7]])
    low, high = model.entropy_rate_bounds()
    assert high - low <= 1e-9
    assert low <= model.entropy_rate <= high
    value, error = model.entropy_rate_estimate(20_000, RNG(1))
    assert model.entropy_rate == pytest.approx(value, abs=4 * error)


def test_a_rate_that_is_not_known_is_not_given():
    model = HiddenMarkov([[0.99, 0.01], [0.02, 0.98]], rows(2, 5, 0))
    with pytest.raises(InfolmError, match=r"between \S+ and \S+ nats: use entropy_rate_bounds"):
        _ = model.entropy_rate
    low, high = model.entropy_rate_bounds()
    assert 1e-9 < high - low < 0.1


def test_a_sample_of_a_hidden_model_has_its_blocks():
    model = HiddenMarkov(*HIDDEN["with zeros"])
    n = 60_000
    tokens = model.sample(n, RNG(3))
    for block in sequences(3, 2):
        share = ((tokens[:-1] == block[0]) & (tokens[1:] == block[1])).mean()
        # Tokens depend on each other: twice the error of independent ones is a safe one.
        p = math.exp(model.log_prob(block))
        assert share == pytest.approx(p, abs=8 * math.sqrt(p * (1 - p) / n) + 1e-12)


def test_long_texts_do_not_underflow():
    model = HiddenMarkov(*HIDDEN["dense"])
    tokens = model.sample(20_000, RNG(4))
    assert model.log_prob(tokens) < -10_000
    assert np.isfinite(model.conditional_log_probs(tokens)).all()
    assert len(model.conditional_log_probs(tokens)) == 19_999


def test_what_is_no_hidden_model_is_refused():
    good, spoken = HIDDEN["dense"]
    with pytest.raises(InfolmError, match="a row for each of the 2 states"):
        HiddenMarkov(good, rows(3, 3, 0))
    with pytest.raises(InfolmError, match="row 1 of the emission matrix sums to"):
        HiddenMarkov(good, spoken * [[1], [0.5]])
    with pytest.raises(InfolmError, match="reducible"):
        HiddenMarkov(np.eye(2), spoken)
    model = HiddenMarkov(good, spoken)
    with pytest.raises(InfolmError, match=r"3,486,784,401 probabilities are too many"):
        model.segment_information(10, 0, 10)
    with pytest.raises(InfolmError, match=r"too many"):
        model.block_entropy(40)
    with pytest.raises(InfolmError, match="1000 tokens at least"):
        model.entropy_rate_estimate(10, RNG(0))


# Grammars

FINITE = {
    "S": {"NP VP": 0.7, "VP": 0.2, "hush": 0.1},
    "NP": {"cats": 0.6, "old NP2": 0.4},
    "NP2": {"cats": 0.5, "dogs": 0.5},
    "VP": {"sleep": 0.3, "see NP": 0.7},
}
AMBIGUOUS = {"S": {"A A": 0.5, "A": 0.3, "A A A": 0.2}, "A": {"a": 0.6, "a a": 0.3, "b": 0.1}}
NESTED = {
    "S": {"a T b": 0.4, "T2 c": 0.6},
    "T": {"d S": 0.5, "e": 0.5},
    "T2": {"d": 0.7, "e d": 0.3},
}


def derivations(rules, start, least):
    """Every sentence with each of its derivations' probabilities, down to `least`."""
    found = []
    waiting = [((start,), (), 1.0)]
    while waiting:
        stack, words, p = waiting.pop()
        if not stack:
            found.append((words, p))
        elif stack[0] not in rules:
            waiting.append((stack[1:], (*words, stack[0]), p))
        else:
            for side, q in rules[stack[0]].items():
                if p * q > least:
                    waiting.append(((*side.split(), *stack[1:]), words, p * q))
    return found


def inside(rules, start, words, count=False):
    """p(start -> words) by the inside algorithm: every symbol over every span; or how many ways."""
    words = tuple(words)

    @cache
    def symbol(name, i, j):
        if name not in rules:
            return float(j == i + 1 and words[i] == name)
        return sum(
            (1 if count else p) * spread(tuple(side.split()), i, j)
            for side, p in rules[name].items()
        )

    @cache
    def spread(names, i, j):
        if len(names) == 1:
            return symbol(names[0], i, j)
        return sum(
            symbol(names[0], i, k) * spread(names[1:], k, j)
            for k in range(i + 1, j - len(names) + 2)
        )

    return symbol(start, 0, len(words))


def numbers(grammar, words, end=True):
    return [*map(grammar.words.index, words), *([grammar.eos] if end else [])]


def test_a_finite_grammar_is_known_by_all_its_sentences():
    grammar = Grammar(FINITE)
    sentences = derivations(FINITE, "S", 0)
    assert len({words for words, _ in sentences}) == len(sentences)
    p = np.array([p for _, p in sentences])
    assert p.sum() == pytest.approx(1, **EXACT)
    assert grammar.sentence_entropy == pytest.approx(entropy(p), **EXACT)
    length = sum(p * len(words) for words, p in sentences)
    assert grammar.expected_length == pytest.approx(length, **EXACT)
    assert grammar.entropy_rate == pytest.approx(entropy(p) / (length + 1), **EXACT)
    for words, p in sentences:
        assert math.exp(grammar.log_prob(numbers(grammar, words))) == pytest.approx(p, **EXACT)


def test_prefixes_have_the_probability_of_all_that_goes_on_from_them():
    for rules in (FINITE, AMBIGUOUS):
        grammar = Grammar(rules)
        sentences = derivations(rules, "S", 0)
        for prefix in {words[:k] for words, _ in sentences for k in range(len(words) + 1)}:
            truth = sum(p for words, p in sentences if words[: len(prefix)] == prefix)
            found = math.exp(grammar.log_prob(numbers(grammar, prefix, end=False)))
            assert found == pytest.approx(truth, **EXACT)


def test_an_ambiguous_sentence_has_the_sum_of_its_derivations():
    grammar = Grammar(AMBIGUOUS)
    sentences = derivations(AMBIGUOUS, "S", 0)
    known = {words for words, _ in sentences}
    assert len(known) < len(sentences)
    for words in known:
        truth = sum(p for each, p in sentences if each == words)
        assert inside(AMBIGUOUS, "S", words) == pytest.approx(truth, **EXACT)
        assert math.exp(grammar.log_prob(numbers(grammar, words))) == pytest.approx(truth, **EXACT)
    of_sentences = entropy([inside(AMBIGUOUS, "S", words) for words in known])
    assert grammar.sentence_entropy > of_sentences + 0.1  # as its docstring warns


def test_a_grammar_that_nests_without_end():
    grammar = Grammar(NESTED)
    sentences = derivations(NESTED, "S", 1e-15)
    p = np.array([p for _, p in sentences])
    assert 1 - p.sum() < 1e-12
    assert grammar.sentence_entropy == pytest.approx(entropy(p), **EXACT)
    length = sum(p * len(words) for words, p in sentences)
    assert grammar.expected_length == pytest.approx(length, **EXACT)
    for words, p in sentences[:50]:
        assert grammar.log_prob(numbers(grammar, words)) == pytest.approx(math.log(p))


@settings(deadline=None)
@given(st.floats(0, 0.95))
def test_a_geometric_sentence_by_hand(again):
    grammar = Grammar({"S": {"a S": again, "a": 1 - again}})
    assert grammar.expected_length == pytest.approx(1 / (1 - again))
    assert grammar.sentence_entropy == pytest.approx(entropy([again, 1 - again]) / (1 - again))


def test_a_text_is_sentence_after_sentence():
    grammar = Grammar(NESTED)
    n = 30_000
    tokens = grammar.sample(n, RNG(0))
    assert len(tokens) == n
    log_p = grammar.conditional_log_probs(tokens)
    error = log_p.std() / math.sqrt(n)
    assert -log_p.mean() == pytest.approx(grammar.entropy_rate, abs=4 * error)
    ends = np.flatnonzero(tokens == grammar.eos)
    lengths = np.diff(ends) - 1
    error = lengths.std() / math.sqrt(len(lengths))
    assert lengths.mean() == pytest.approx(grammar.expected_length, abs=4 * error)
    first = tokens[: ends[0] + 1]
    whole = grammar.log_prob(tokens)
    assert whole == pytest.approx(grammar.log_prob(first) + grammar.log_prob(tokens[ends[0] + 1 :]))
    assert grammar.sample(5, RNG(1)).tolist() == grammar.sample(9, RNG(1))[:5].tolist()


def test_no_sentence_of_the_grammar_has_no_probability():
    grammar = Grammar(NESTED)
    for words in (("a", "d", "c"), ("e", "d", "c", "b"), ("b",), ()):
        assert grammar.log_prob(numbers(grammar, words)) == -math.inf


@pytest.mark.parametrize(
    ("rules", "match"),
    [
        ({"A": {"a": 1}}, "no rule for its start 'S'"),
        ({"S": {"a": 0.5, "b": 0.4}}, "the rules of S sums to 0.9"),
        ({"S": {"a": 0.5, "": 0.5}}, "S has an empty right-hand side"),
        ({"S": {"S a": 0.5, "a": 0.5}}, "'S' may begin with itself"),
        ({"S": {"A a": 0.5, "a": 0.5}, "A": {"S b": 1}}, "may begin with itself"),
        ({"S": {"a S": 1}}, "no finite expected length"),
        ({"S": {"a S S": 0.5, "a": 0.5}}, "no finite expected length"),
    ],
)
def test_what_is_no_grammar_is_refused(rules, match):
    with pytest.raises(InfolmError, match=match):
        Grammar(rules)
