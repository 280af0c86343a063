"""Languages whose entropy is known: sources of tokens 0 ... V-1 with exact probabilities.

A model trained on a sample of one can be compared with the truth itself. Three kinds, from the
plainest to the one that looks like English:

| language | memory | entropy rate |
| --- | --- | --- |
| `MarkovChain` | the last token | closed form |
| `HiddenMarkov` | unbounded | closed form where unifilar, else between bounds that narrow |
| `Grammar` | unbounded, within a sentence | closed form where unambiguous |

A chain of order m is a `HiddenMarkov` whose states are the blocks of m tokens, each emitting its
last one: that is unifilar, and so exact.
"""

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from infolm.errors import InfolmError
from infolm.information.exact import Array, entropy, mutual_information, probabilities

Tokens = npt.NDArray[np.int64]

TOLERANCE = 1e-9
"""The precision within which an entropy rate counts as known."""
MOST_CELLS = 2**24
"""Entries of the largest table that is enumerated: 128 MB."""
MOST_FILTERS = 100_000
"""Filters times tokens that the bounds of an entropy rate may come to."""
BLOCKS = 100
"""Blocks of the batch-means standard error."""


class Language(Protocol):
    """A source of tokens 0 ... types - 1 whose entropy rate in nats per token is known."""

    @property
    def types(self) -> int: ...

    @property
    def entropy_rate(self) -> float: ...

    def log_prob(self, tokens: npt.ArrayLike) -> float:
        """ln p of the whole sequence (N,); -inf where it cannot occur."""

    def conditional_log_probs(self, tokens: npt.ArrayLike) -> Array:
        """ln p(token | all before it) of every token but the first, (N - 1,)."""

    def sample(self, n: int, rng: np.random.Generator) -> Tokens:
        """The first n tokens of a text."""


def stationary(transition: Array) -> Array:
    """The distribution pi (V,) with pi P = pi, of an irreducible chain P (V, V).

    By the elimination of Grassmann, Taksar and Heyman (1985): states are censored one by one, and
    since nothing is ever subtracted, every entry is exact to rounding.
    """
    p = transition.copy()
    for k in range(len(p) - 1, 0, -1):
        leaving = p[k, :k].sum()
        if leaving == 0:
            raise InfolmError(_REDUCIBLE)
        p[:k, k] /= leaving
        p[:k, :k] += np.outer(p[:k, k], p[k, :k])
    pi = np.ones(len(p))
    for k in range(1, len(p)):
        pi[k] = pi[:k] @ p[:k, k]
    if not pi.all():
        raise InfolmError(_REDUCIBLE)
    return pi / pi.sum()


_REDUCIBLE = (
    "the chain is reducible: some state cannot be reached from some other, so there is no one "
    "stationary distribution; give every state a way to every other"
)


def _square(transition: npt.ArrayLike) -> Array:
    p = probabilities(transition, "the transition matrix", axis=1)
    if p.ndim != 2 or p.shape[0] != p.shape[1]:
        raise InfolmError(f"the transition matrix has the shape {p.shape}: it must be square")
    return p


def _log(p: Array) -> Array:
    return np.log(p, where=p > 0, out=np.full_like(p, -np.inf))


def _cumulative(rows: Array) -> Array:
    """Running sums of each row, the last exactly 1: no u in [0, 1) falls on a zero."""
    sums = rows.cumsum(-1)
    return sums / sums[..., -1:]


def _walk(pi: Array, transition: Array, n: int, rng: np.random.Generator) -> Tokens:
    """n states of the stationary chain, each drawn by bisection in the row of the one before."""
    rows: list[list[float]] = _cumulative(transition).tolist()
    row: list[float] = _cumulative(pi).tolist()
    states = []
    for u in rng.random(n).tolist():
        state = bisect(row, u)
        states.append(state)
        row = rows[state]
    return np.array(states, np.int64)


class MarkovChain:
    """A stationary Markov chain with p(next = j | now = i) = transition[i, j], (V, V)."""

    def __init__(self, transition: npt.ArrayLike) -> None:
        self.transition = _square(transition)
        self.stationary = stationary(self.transition)

    @property
    def types(self) -> int:
        return len(self.transition)

    @cached_property
    def entropy_rate(self) -> float:
        """h = sum pi_i H(transition[i])."""
        return float(self.stationary @ entropy(self.transition, 1))

    def block_entropy(self, n: int) -> float:
        """H(X_1 ... X_n) = H(pi) + (n - 1) h."""
        return float(entropy(self.stationary)) + (n - 1) * self.entropy_rate

    def segment_information(self, m: int, gap: int, n: int) -> float:
        """I(X_1 ... X_m ; X_{m+gap+1} ... X_{m+gap+n}): neighbours have gap 0.

        The last token of the one and the first of the other carry it all, so this is
        I(X_0; X_{gap+1}) whatever the lengths m, n >= 1.
        """
        _check_segments(m, gap, n)
        later = np.linalg.matrix_power(self.transition, gap + 1)
        return mutual_information(self.stationary[:, None] * later)

    def log_prob(self, tokens: npt.ArrayLike) -> float:
        tokens = _checked(tokens, self.types)
        first = _log(self.stationary)[tokens[:1]].sum()
        return float(first + self.conditional_log_probs(tokens).sum())

    def conditional_log_probs(self, tokens: npt.ArrayLike) -> Array:
        tokens = _checked(tokens, self.types)
        return _log(self.transition)[tokens[:-1], tokens[1:]]

    def sample(self, n: int, rng: np.random.Generator) -> Tokens:
        return _walk(self.stationary, self.transition, n, rng)


def _checked(tokens: npt.ArrayLike, types: int) -> Tokens:
    tokens = np.asarray(tokens, np.int64)
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < types:
        raise InfolmError(f"a language of {types} tokens knows the numbers 0 to {types - 1} only")
    return tokens


def _check_segments(m: int, gap: int, n: int) -> None:
    if m < 1 or n < 1 or gap < 0:
        raise InfolmError("segments need at least one token, and a gap of 0 or more between them")


class HiddenMarkov:
    """A stationary chain of hidden states; the state s emits the token x by emission[s, x].

    transition: (S, S), p(next state | state). emission: (S, V).

    What is known of the state before a token is its filter, p(state | all tokens before), (S,).
    A token multiplies it by its column of emissions, a step by the transition matrix: the forward
    algorithm, scaled at each step so that nothing underflows.
    """

    def __init__(self, transition: npt.ArrayLike, emission: npt.ArrayLike) -> None:
        self.transition = _square(transition)
        self.emission = probabilities(emission, "the emission matrix", axis=1)
        if self.emission.ndim != 2 or len(self.emission) != len(self.transition):
            raise InfolmError(
                f"the emission matrix has the shape {self.emission.shape}: it must have a row for "
                f"each of the {len(self.transition)} states"
            )
        self.stationary = stationary(self.transition)

    @property
    def types(self) -> int:
        return self.emission.shape[1]

    @property
    def unifilar(self) -> bool:
        """Whether a state and the next token tell the next state: no two successors share a token.

        Then the entropy rate has a closed form.
        """
        ways = (self.transition > 0).astype(int) @ (self.emission > 0).astype(int)
        return bool((ways <= 1).all())

    @cached_property
    def entropy_rate(self) -> float:
        """Known to `TOLERANCE`, or refused: then use `entropy_rate_bounds`."""
        low, high = self.entropy_rate_bounds()
        if high - low > TOLERANCE:
            raise InfolmError(
                f"the entropy rate of this hidden Markov model is only known to lie between "
                f"{low:.9g} and {high:.9g} nats: use entropy_rate_bounds or entropy_rate_estimate"
            )
        return (low + high) / 2

    def entropy_rate_bounds(
        self, tolerance: float = TOLERANCE, most: int = MOST_FILTERS
    ) -> tuple[float, float]:
        """H(X_n | X_1 ... X_{n-1}, S_1) <= h <= H(X_n | X_1 ... X_{n-1}), n as large as need be.

        (Cover and Thomas, theorem 4.5.1.) Both sides are means, over all pasts, of the entropy of
        the token that a filter predicts; pasts that end in the same filter, to twelve digits, go
        on as one. n grows until the bounds are `tolerance` apart, or until more than `most` filters
        and tokens would be needed: then the bounds stay apart.

        Where the model is unifilar, both are sum pi_s H(X_2 | S_1 = s) = h.
        """
        if self.unifilar:
            rate = float(self.stationary @ entropy(self.transition @ self.emission, 1))
            return rate, rate
        above = self.stationary[None], np.ones(1)
        below = np.eye(len(self.stationary)), self.stationary
        while True:
            low, high = (
                float(weights @ entropy(filters @ self.emission, 1))
                for filters, weights in (below, above)
            )
            followed = max(len(above[1]), len(below[1])) * self.types
            if high - low <= tolerance or followed > most:
                return low, high
            above, below = self._next_filters(*above), self._next_filters(*below)

    def _next_filters(self, filters: Array, weights: Array) -> tuple[Array, Array]:
        """Each filter (F, S) after each token that may follow, equal ones merged."""
        joint = filters[:, None, :] * self.emission.T  # (F, V, S)
        p = joint.sum(2)
        seen = p > 0
        after = joint[seen] / p[seen][:, None] @ self.transition
        _, first, group = np.unique(after.round(12), axis=0, return_index=True, return_inverse=True)
        merged: Array = np.zeros(len(first))
        np.add.at(merged, group.ravel(), (weights[:, None] * p)[seen])
        return after[first], merged

    def entropy_rate_estimate(self, n: int, rng: np.random.Generator) -> tuple[float, float]:
        """-1/n ln p of a sample of n tokens, and its standard error by batch means.

        It converges to h for almost every sample (Shannon, McMillan and Breiman). For filters
        without a closed form and with too much memory for the bounds.
        """
        if n < 10 * BLOCKS:
            raise InfolmError(f"an entropy rate from a sample needs {10 * BLOCKS} tokens at least")
        losses = -self.conditional_log_probs(self.sample(n + 1, rng))
        size = n // BLOCKS
        means = losses[: size * BLOCKS].reshape(BLOCKS, size).mean(1)
        return float(losses.mean()), float(means.std(ddof=1) / math.sqrt(BLOCKS))

    def block_entropy(self, n: int) -> float:
        """H(X_1 ... X_n), by enumeration of the V^n blocks."""
        self._check_size(n, n)
        return float(entropy(self._forward(n).sum(1)))

    def segment_information(self, m: int, gap: int, n: int) -> float:
        """I(X_1 ... X_m ; X_{m+gap+1} ... X_{m+gap+n}): neighbours have gap 0.

        Given the state between them the segments are independent, so the joint table is
        A T^gap B of sizes (V^m, S), (S, S) and (S, V^n).
        """
        _check_segments(m, gap, n)
        self._check_size(m + n, max(m, n))
        between = np.linalg.matrix_power(self.transition, gap)
        return mutual_information(self._forward(m) @ between @ self._backward(n).T)

    def _check_size(self, whole: int, part: int) -> None:
        """Refuse V^whole blocks, or V^part blocks for each state, where they are too many."""
        cells = max(self.types**whole, self.types**part * len(self.stationary))
        if cells > MOST_CELLS:
            raise InfolmError(
                f"{cells:,} probabilities are too many to enumerate, {MOST_CELLS:,} is the "
                "maximum: choose shorter blocks"
            )

    def _forward(self, n: int) -> Array:
        """p(x_1 ... x_n, s_{n+1}) of every block, (V^n, S)."""
        blocks = self.stationary[None]
        for _ in range(n):
            emitted = blocks[:, None, :] * self.emission.T
            blocks = emitted.reshape(-1, len(self.stationary)) @ self.transition
        return blocks

    def _backward(self, n: int) -> Array:
        """p(x_1 ... x_n | s_1) of every block, (V^n, S)."""
        blocks = np.ones((1, len(self.stationary)))
        for _ in range(n):
            rest = blocks @ self.transition.T
            blocks = (self.emission.T[:, None, :] * rest).reshape(-1, len(self.stationary))
        return blocks

    def log_prob(self, tokens: npt.ArrayLike) -> float:
        return float(self._forward_log_probs(tokens).sum())

    def conditional_log_probs(self, tokens: npt.ArrayLike) -> Array:
        return self._forward_log_probs(tokens)[1:]

    def _forward_log_probs(self, tokens: npt.ArrayLike) -> Array:
        """ln p(x_t | x_1 ... x_{t-1}) of every token, (N,); -inf from an impossible one on."""
        checked = _checked(tokens, self.types)
        updates = self.emission.T[:, :, None] * self.transition  # (V, S, S): emit, then step
        p = np.zeros(len(checked))
        state = self.stationary
        for t, token in enumerate(checked.tolist()):
            state = state @ updates[token]
            p[t] = state.sum()
            if p[t] == 0:
                break
            state /= p[t]
        return _log(p)

    def sample(self, n: int, rng: np.random.Generator) -> Tokens:
        states = _walk(self.stationary, self.transition, n, rng)
        uniform, tokens = rng.random(n), np.empty(n, np.int64)
        for state, row in enumerate(_cumulative(self.emission)):
            here = states == state
            tokens[here] = np.searchsorted(row, uniform[here], side="right")
        return tokens


Stack = tuple[str, ...]
"""What is still to be written of a sentence, the next symbol last."""


class Grammar:
    """A probabilistic context-free grammar; a text is independent sentences, `<eos>` after each.

        Grammar({"S": {"NP VP": 1.0}, "NP": {"cats": 0.5, "cats that VP": 0.5}, "VP": {...}})

    rules: for each nonterminal its right-hand sides, symbols between blanks, with their
    probabilities. A symbol that is not a nonterminal is a word. Tokens number the words in the
    order of their first mention, then `<eos>`.

    A right-hand side may not be empty, nor a nonterminal begin with itself: so the words so far
    leave finitely many stacks of symbols to come, and the probability of each prefix is exact.
    """

    def __init__(self, rules: Mapping[str, Mapping[str, float]], start: str = "S") -> None:
        if start not in rules:
            raise InfolmError(f"the grammar has no rule for its start '{start}'")
        self.start = start
        self.rules: dict[str, list[tuple[float, Stack]]] = {}
        for name, sides in rules.items():
            weights = probabilities(list(sides.values()), f"the rules of {name}")
            split = [tuple(reversed(side.split())) for side in sides]
            if not all(split):
                raise InfolmError(f"{name} has an empty right-hand side: write it as two rules")
            self.rules[name] = list(zip(weights.tolist(), split, strict=True))
        mentioned = dict.fromkeys(s for sides in rules.values() for t in sides for s in t.split())
        self.words = tuple(symbol for symbol in mentioned if symbol not in rules)
        self._openings = {name: self._opening(name, ()) for name in (*rules, *self.words)}
        self._expectation = self._expected_symbols()

    @property
    def types(self) -> int:
        return len(self.words) + 1

    @property
    def eos(self) -> int:
        return len(self.words)

    @cached_property
    def sentence_entropy(self) -> float:
        """H of a sentence, in nats: exact where the grammar is unambiguous.

        H(A) = H(rules of A) + sum p(A -> B ...) (H(B) + ...), a linear equation for each
        nonterminal. It is the entropy of derivations, which is that of sentences where each
        sentence has one derivation, and above it otherwise.
        """
        return self._solve({a: float(entropy([p for p, _ in r])) for a, r in self.rules.items()})

    @cached_property
    def expected_length(self) -> float:
        """Words of a sentence, `<eos>` not counted: E(A) = sum p(A -> ...) (words + E(B) + ...)."""
        words = set(self.words)
        return self._solve(
            {a: sum(p * sum(s in words for s in t) for p, t in r) for a, r in self.rules.items()}
        )

    @property
    def entropy_rate(self) -> float:
        """Per token of the text, `<eos>` counted: H(sentence) / (E(length) + 1)."""
        return self.sentence_entropy / (self.expected_length + 1)

    def _solve(self, own: Mapping[str, float]) -> float:
        """v(start) for v(A) = own(A) + sum over B of E[number of B in A's rule] v(B)."""
        names = list(self.rules)
        system = np.eye(len(names)) - self._expectation
        values = np.linalg.solve(system, np.array([own[name] for name in names]))
        return float(values[names.index(self.start)])

    def _expected_symbols(self) -> Array:
        """E[number of B on A's right-hand side], (A, B); refused where sentences do not end."""
        names = list(self.rules)
        expected = np.array(
            [[sum(p * t.count(b) for p, t in self.rules[a]) for b in names] for a in names]
        )
        radius = np.abs(np.linalg.eigvals(expected)).max()
        if radius >= 1:
            raise InfolmError(
                f"the grammar's sentences have no finite expected length (spectral radius "
                f"{radius:.3g}): make the rules that repeat themselves less probable"
            )
        return expected

    def _opening(self, symbol: str, path: Stack) -> dict[str, list[tuple[float, Stack]]]:
        """The words a symbol may begin with: the probability, and what it leaves to be written."""
        if symbol in path:
            raise InfolmError(f"'{symbol}' may begin with itself: turn its rules round")
        if symbol not in self.rules:
            return {symbol: [(1.0, ())]}
        found: dict[str, list[tuple[float, Stack]]] = defaultdict(list)
        for p, (*rest, first) in self.rules[symbol]:
            for word, ways in self._opening(first, (*path, symbol)).items():
                found[word] += [(p * q, (*rest, *left)) for q, left in ways]
        return dict(found)

    def log_prob(self, tokens: npt.ArrayLike) -> float:
        """ln p that a text begins so; of the very sentence, where `<eos>` is the last token."""
        return float(self._prefix_log_probs(tokens).sum())

    def conditional_log_probs(self, tokens: npt.ArrayLike) -> Array:
        return self._prefix_log_probs(tokens)[1:]

    def _prefix_log_probs(self, tokens: npt.ArrayLike) -> Array:
        """ln p(x_t | x_1 ... x_{t-1}) of every token, (N,); -inf from an impossible one on.

        The stacks that the words so far allow are carried along with their probabilities; a word
        keeps those whose next symbol may begin with it.
        """
        checked = _checked(tokens, self.types)
        p = np.zeros(len(checked))
        fresh: dict[Stack, float] = {(self.start,): 1.0}
        stacks = fresh
        for t, token in enumerate(checked.tolist()):
            if token == self.eos:
                p[t] = stacks.get((), 0.0)
                stacks = fresh
            else:
                after = self._after(stacks, self.words[token])
                p[t] = sum(after.values())
                stacks = {stack: weight / p[t] for stack, weight in after.items()}
            if p[t] == 0:
                break
        return _log(p)

    def _after(self, stacks: Mapping[Stack, float], word: str) -> dict[Stack, float]:
        after: dict[Stack, float] = defaultdict(float)
        for stack, weight in stacks.items():
            if stack:
                for p, left in self._openings[stack[-1]].get(word, ()):
                    after[stack[:-1] + left] += weight * p
        return after

    def sample(self, n: int, rng: np.random.Generator) -> Tokens:
        """The first n tokens of sentence after sentence: the last may be cut short."""
        numbers = {word: number for number, word in enumerate(self.words)}
        choices = {
            name: (_cumulative(np.array([p for p, _ in rules])).tolist(), [t for _, t in rules])
            for name, rules in self.rules.items()
        }
        tokens: list[int] = []
        stack: list[str] = []
        uniform: list[float] = []
        while len(tokens) <= n:  # one more: an <eos> comes before the first sentence as well
            if not stack:
                tokens.append(self.eos)
                stack.append(self.start)
            symbol = stack.pop()
            if symbol in numbers:
                tokens.append(numbers[symbol])
                continue
            if not uniform:
                uniform = rng.random(2**12).tolist()
            sums, sides = choices[symbol]
            stack += sides[bisect(sums, uniform.pop())]
        return np.array(tokens[1 : n + 1], np.int64)
