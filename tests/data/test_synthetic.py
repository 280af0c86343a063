"""The corpora of known entropy: the text is the process, token by token, and the truth is true."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from infolm.data import synthetic
from infolm.data.corpora import Corpus, DataConfig, load, registry, truth
from infolm.data.synthetic import NAMES, SIZES, language, spelt, symbols, true_entropy
from infolm.data.tokens import EOS, UNK
from infolm.evaluation.measurement import standard_error
from infolm.information.exact import entropy
from infolm.information.languages import Grammar, HiddenMarkov, MarkovChain

SOURCES = {
    "markov": "348d9e2c1d9eb881b86c1f0236cd805a285403db7f9e72b96a38499ca136e2ca",
    "hmm": "f3027ef2afbd1cc1e61ce17f340e67791c265f3b8fa3531ebdc3ca7e66862b06",
    "grammar": "9eb427aaeec6ef5b79188c68c722639fc58c6035888ee38a5f8b6fe611739fac",
}
"""What identifies the text of all splits: the same bytes for everyone."""


@pytest.fixture(scope="module", params=NAMES)
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load(DataConfig(corpus=request.param))


def test_tokens_are_the_languages_own_one_by_one(corpus: Corpus) -> None:
    known = truth(DataConfig(corpus=corpus.name), corpus.tokenizer)
    assert known is not None
    assert known.entropy == true_entropy(corpus.name) == language(corpus.name).entropy_rate
    words = [corpus.tokenizer.token(number) for number in range(len(corpus.tokenizer))]
    assert set(words) == {*symbols(corpus.name), UNK}
    assert len(words) == registry()[corpus.name].types == language(corpus.name).types + 1
    for split, size in SIZES.items():
        tokens = corpus.splits[split].tokens
        assert len(tokens) == size
        assert corpus.splits[split].unknown == 0
        seen = np.bincount(tokens, minlength=len(words)) > 0
        assert [word for word, there in zip(words, seen, strict=True) if not there] == [UNK]
        numbers = known.numbers[tokens[:1000]]
        assert [symbols(corpus.name)[number] for number in numbers] == [
            words[token] for token in tokens[:1000]
        ]


def test_the_text_has_the_entropy_it_is_said_to_have(corpus: Corpus) -> None:
    known = truth(DataConfig(corpus=corpus.name), corpus.tokenizer)
    assert known is not None
    log_p = known.log_probs(corpus.splits["valid"].tokens)
    assert len(log_p) == SIZES["valid"] - 1
    error = standard_error(log_p)
    assert error is not None
    assert -log_p.mean() == pytest.approx(known.entropy, abs=4 * error)
    assert f"entropy {known.entropy:.4f} nats per token" in registry()[corpus.name].title


def test_splits_are_samples_of_their_own_and_the_same_for_everyone(corpus: Corpus) -> None:
    tokens = {name: split.tokens[:1000].tolist() for name, split in corpus.splits.items()}
    assert tokens["train"] != tokens["valid"] != tokens["test"] != tokens["train"]
    assert corpus.source == SOURCES[corpus.name]


def test_text_is_spelt_so_that_it_can_be_read_back(tmp_path: Path) -> None:
    words = ("a", "b", EOS)
    tokens = np.array([2, 0, 1, 2, 2, 1, 2, 0])
    assert spelt(tokens, words) == "\na b\n\nb\na"
    for split in SIZES:
        (tmp_path / f"{split}.txt").write_text(spelt(tokens, words))
    read = load(DataConfig(path=tmp_path, pretokenised=True))
    assert [
        words.index(read.tokenizer.token(token)) for token in read.splits["test"].tokens
    ] == tokens.tolist()


def test_other_tokens_have_no_known_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "SIZES", {"train": 3000, "valid": 100, "test": 100})
    texts = load(DataConfig(corpus="hmm"))
    assert truth(DataConfig(corpus="hmm"), texts.tokenizer)
    assert truth(DataConfig(corpus="hmm", path=tmp_path), texts.tokenizer) is None
    assert truth(DataConfig(corpus="markov"), texts.tokenizer) is None
    assert truth(DataConfig(corpus="ptb"), texts.tokenizer) is None
    harmless = DataConfig(corpus="hmm", vocabulary=5000, lowercase=True)
    assert truth(harmless, load(harmless).tokenizer)
    for config in (
        DataConfig(corpus="hmm", vocabulary=10),
        DataConfig(corpus="hmm", tokens="char"),
        DataConfig(corpus="hmm", tokens="byte"),
    ):
        assert truth(config, load(config).tokenizer) is None


def test_neighbours_of_the_chain_share_about_a_nat() -> None:
    chain = language("markov")
    assert isinstance(chain, MarkovChain)
    assert 0.9 < chain.segment_information(1, 0, 1) < 1.1
    assert chain.transition[-1, -1] == 0  # no empty lines
    assert chain.stationary.min() > 0.01


def test_the_hidden_mood_is_exact_and_out_of_the_reach_of_n_grams() -> None:
    model = language("hmm")
    assert isinstance(model, HiddenMarkov)
    assert model.unifilar
    low, high = model.entropy_rate_bounds()
    assert high - low <= 1e-9
    by_mood = model.stationary @ entropy(model.transition @ model.emission, 1)
    assert model.entropy_rate == pytest.approx(by_mood, abs=1e-12)
    told = model.block_entropy(4) - model.block_entropy(3)
    assert told > model.entropy_rate + 0.1  # what is left open by three words before
    assert model.segment_information(2, 10, 2) > 0.05


def shortest(rules: dict[str, list[tuple[float, tuple[str, ...]]]]) -> dict[str, int]:
    """The least number of words each nonterminal comes to."""
    least = dict.fromkeys(rules, 10**6)
    for _ in rules:
        for name, sides in rules.items():
            least[name] = min(sum(least.get(s, 1) for s in side) for _, side in sides)
    return least


def sentences(grammar: Grammar, most: int) -> Iterator[tuple[str, ...]]:
    """A sentence for each derivation of at most so many words; of each word class, one word."""
    lexicon = {
        name: sides[:1] if all(s[0] not in grammar.rules for _, s in sides) else sides
        for name, sides in grammar.rules.items()
    }
    lexicon["place"] = grammar.rules["place"][:1]
    least = shortest(lexicon)
    waiting: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((grammar.start,), ())]
    while waiting:
        stack, words = waiting.pop()
        if not stack:
            yield words
        elif len(words) + sum(least.get(symbol, 1) for symbol in stack) > most:
            continue
        elif stack[-1] not in lexicon:
            waiting.append((stack[:-1], (*words, stack[-1])))
        else:
            waiting += [((*stack[:-1], *side), words) for _, side in lexicon[stack[-1]]]


def test_no_sentence_of_the_grammar_has_two_derivations() -> None:
    """Every derivation up to eleven words, with one word of each class."""
    grammar = language("grammar")
    assert isinstance(grammar, Grammar)
    found = list(sentences(grammar, 11))
    assert len(found) > 5000
    assert len(set(found)) == len(found)


def test_a_word_of_the_grammar_has_one_part_of_speech() -> None:
    grammar = language("grammar")
    assert isinstance(grammar, Grammar)
    classes = {
        name: {side[0] for _, side in sides}
        for name, sides in grammar.rules.items()
        if all(len(side) == 1 and side[0] not in grammar.rules for _, side in sides)
    }
    shared = {
        (a, b, word)
        for a, b in product(classes, repeat=2)
        if a < b
        for word in classes[a] & classes[b]
    }
    assert shared == {("det1", "det2", "the")}  # of either number: the noun tells which


def test_verbs_agree_with_their_subjects_over_any_distance() -> None:
    grammar = language("grammar")

    def can_be(text: str) -> bool:
        words = {word: number for number, word in enumerate(symbols("grammar"))}
        return grammar.log_prob([words[word] for word in [*text.split(), EOS]]) > -100

    assert can_be("the dogs that anna sees sleep")
    assert not can_be("the dogs that anna sees sleeps")
    assert can_be("the man that the dogs that the child follows like says that all birds sing")
    assert not can_be("the man that the dogs that the child follow like says that all birds sing")
    assert not can_be("a dogs sleep")
