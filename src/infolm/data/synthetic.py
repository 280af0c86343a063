"""Corpora drawn from languages whose entropy is known: `markov`, `hmm` and `grammar`.

    language("hmm").entropy_rate       # nats per token that no model can beat
    truth("hmm", corpus.tokenizer)     # the same, for the tokens of a vocabulary

Each split is an independent sample, the same on every machine. The newline is one of the language's
own tokens, so its text consists exactly of its tokens, including `<eos>`.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm.data.tokens import EOS, NO_TOKEN, UNK, Tokenizer
from infolm.information.exact import Array
from infolm.information.languages import Grammar, HiddenMarkov, Language, MarkovChain

VERSION = 1  # raise it when other text comes out

SIZES = {"train": 1_000_000, "valid": 50_000, "test": 50_000}

SYLLABLES = tuple(consonant + vowel for consonant in "bdgklm" for vowel in "aeiou")
TURN = "so"


def zipf(ranks: npt.ArrayLike, exponent: float) -> Array:
    """p proportional to rank^-exponent, along the last axis; ranks count from 1."""
    weights = np.asarray(ranks, np.float64) ** -exponent
    return weights / weights.sum(-1, keepdims=True)


def markov() -> MarkovChain:
    """Thirty syllables and the newline, each with its own ranking of what comes next.

    Row i ranks its successors j by a i + b j modulo the prime 31, with a b of its own, and draws
    them by Zipf's law; neighbours share about one nat. No line is empty.
    """
    types = len(SYLLABLES) + 1
    now, following = np.arange(types)[:, None], np.arange(types)
    ranks = 1 + (11 * now + (1 + 7 * now % (types - 1)) * following) % types
    weights = zipf(ranks, 1.4)
    weights[:, -1] *= 3  # lines of some fifteen syllables
    weights[-1, -1] = 0
    return MarkovChain(weights / weights.sum(1, keepdims=True))


MOODS, WORDS = 4, 20


def hmm() -> HiddenMarkov:
    """Twenty syllables whose frequencies follow a mood that only the word `so` changes.

    Each mood ranks the syllables from another start, so a single one says little about the mood; it
    lasts about twenty tokens, across line ends, and a model must remember it that long. A state is
    a mood and one of three kinds of token: a syllable, `so`, the newline. Neither `so` nor the
    newline comes twice in a row.
    """
    syllable, turn, newline = range(3)
    kinds = np.array([[0.87, 0.05, 0.08], [0.92, 0, 0.08], [0.95, 0.05, 0]])  # after each kind
    transition = np.zeros((MOODS, 3, MOODS, 3))
    emission = np.zeros((MOODS, 3, WORDS + 2))
    for mood in range(MOODS):
        for kind in range(3):
            transition[mood, kind, (mood + (kind == turn)) % MOODS] = kinds[kind]
        ranks = 1 + (np.arange(WORDS) - mood * WORDS // MOODS) % WORDS
        emission[mood, syllable, :WORDS] = zipf(ranks, 1)
        emission[mood, turn, WORDS] = 1
        emission[mood, newline, WORDS + 1] = 1
    return HiddenMarkov(transition.reshape(MOODS * 3, -1), emission.reshape(MOODS * 3, -1))


def _lexicon(words: str) -> dict[str, float]:
    listed = words.split()
    return dict(zip(listed, zipf(range(1, len(listed) + 1), 0.7).tolist(), strict=True))


def grammar() -> Grammar:
    """English sentences in which verbs agree with their subjects, however far away these are.

    Relative clauses and what somebody says nest to any depth. The grammar is unambiguous: a word
    has one part of speech, a place belongs to the verb just before it, `and` joins whole
    sentences only.
    """
    rules = {
        "text": {"sentence": 0.85, "sentence and text": 0.15},
        "sentence": {"one does": 0.6, "many do": 0.4},
        "one": {"name": 0.2, "det1 single": 0.6, "det1 single who1": 0.2},
        "many": {"det2 several": 0.75, "det2 several who2": 0.25},
        "single": {"noun1": 0.75, "adjective single": 0.25},
        "several": {"noun2": 0.75, "adjective several": 0.25},
        "who1": {"that does": 0.6, "that one verb1": 0.25, "that many verb2": 0.15},
        "who2": {"that do": 0.6, "that one verb1": 0.25, "that many verb2": 0.15},
        "does": {"act1": 0.3, "act1 place": 0.2, "verb1 object": 0.4, "say1 that sentence": 0.1},
        "do": {"act2": 0.3, "act2 place": 0.2, "verb2 object": 0.4, "say2 that sentence": 0.1},
        "object": {"one": 0.6, "many": 0.4},
        "place": {"near object": 0.5, "behind object": 0.3, "with object": 0.2},
        "name": _lexicon("anna peter maria john"),
        "det1": _lexicon("the a every this"),
        "det2": _lexicon("the some all these"),
        "adjective": _lexicon("old small good young clever"),
        "noun1": _lexicon("child dog woman man cat teacher bird farmer"),
        "noun2": _lexicon("children dogs women men cats teachers birds farmers"),
        "verb1": _lexicon("sees knows likes follows hears"),
        "verb2": _lexicon("see know like follow hear"),
        "act1": _lexicon("sleeps waits sings runs"),
        "act2": _lexicon("sleep wait sing run"),
        "say1": _lexicon("says thinks hopes"),
        "say2": _lexicon("say think hope"),
    }
    return Grammar(rules, start="text")


_LANGUAGES: dict[str, Callable[[], Language]] = {"markov": markov, "hmm": hmm, "grammar": grammar}
NAMES = tuple(_LANGUAGES)


@cache
def language(name: str) -> Language:
    """The language of a corpus in `NAMES`."""
    return _LANGUAGES[name]()


@cache
def symbols(name: str) -> tuple[str, ...]:
    """The words of a language in the order of their numbers; the newline, `<eos>`, is the last."""
    words = {"markov": lambda: SYLLABLES, "hmm": lambda: (*SYLLABLES[:WORDS], TURN)}
    return (*words.get(name, lambda: grammar().words)(), EOS)


def true_entropy(name: str) -> float:
    """Nats per token, `<eos>` included: the loss of a perfect model."""
    return language(name).entropy_rate


def splits(name: str) -> dict[str, str]:
    """The text of each split: an independent sample with its own seed."""
    texts = {}
    for split, size in SIZES.items():
        rng = np.random.Generator(np.random.PCG64(zlib.crc32(f"{name} {split}".encode())))
        texts[split] = spelt(language(name).sample(size, rng), symbols(name))
    return texts


def spelt(tokens: npt.NDArray[np.int64], words: tuple[str, ...]) -> str:
    """Tokens as text: a blank after each word but the last of a line."""
    text = " ".join("\n" if words[token] == EOS else words[token] for token in tokens.tolist())
    return text.replace(" \n", "\n").replace("\n ", "\n")


@dataclass(frozen=True, eq=False)
class Truth:
    """A language, for a vocabulary whose tokens are its symbols, one by one."""

    language: Language
    numbers: npt.NDArray[np.int64]  # (V,), the language's number of each token

    @property
    def entropy(self) -> float:
        """In nats per token."""
        return self.language.entropy_rate

    def log_probs(self, tokens: npt.NDArray[np.integer[Any]]) -> Array:
        """ln p of every token but the first given all before it, (N - 1,)."""
        return self.language.conditional_log_probs(self.numbers[tokens])


def truth(name: str | None, tokenizer: Tokenizer) -> Truth | None:
    """The language of a corpus, if the tokens are its symbols.

    None for other corpora, and where tokens are not whole words or the vocabulary leaves some out.
    """
    if name not in NAMES or tokenizer.kind != "word":
        return None
    tokens = [tokenizer.token(number) for number in range(len(tokenizer))]
    places = {word: number for number, word in enumerate(symbols(name))}
    if set(tokens) != {*places, UNK}:
        return None
    return Truth(language(name), np.array([places.get(token, NO_TOKEN) for token in tokens]))
