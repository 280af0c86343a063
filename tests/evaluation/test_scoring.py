"""Sentences scored: exact where all can be enumerated, and the same in any company."""

import math
import re
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from table_model import Table

from infolm.data.tokens import SPECIAL, Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation import scoring
from infolm.evaluation.dynamic import DynamicSettings
from infolm.evaluation.kneser_ney import KneserNey
from infolm.evaluation.likelihood import log_probs
from infolm.evaluation.method import STATIC, Method, measure
from infolm.evaluation.monte_carlo import MonteCarloSettings
from infolm.evaluation.neural_cache import CacheSettings
from infolm.evaluation.scoring import Line, View, Wording, score_lines
from infolm.information.languages import MarkovChain
from infolm.models.base import MODELS

WORDS = ["<eos>", "<unk>", "the", "cat", "dog", "sat", "on", "mat", ".", "a"]
SENTENCES = ["the cat sat", "a dog", "the cat sat on a mat .", "dog", "the the the the the"]
SMALL = {"hidden": 16, "embedding": 12, "layers": 2, "heads": 2, "context": 9}
KINDS = [k for k, c in MODELS.items() if c.capability == "language" and c.reads_sentences]


def model_of(kind, vocabulary):
    sizes = {name: size for name, size in SMALL.items() if name in MODELS[kind].model_fields}
    torch.manual_seed(3)
    model = MODELS[kind].model_validate({"kind": kind, **sizes}).build(vocabulary).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.4)
    return model


@pytest.fixture(params=KINDS)
def model(request):
    return model_of(request.param, len(WORDS))


TOKENIZER = Tokenizer.from_words(WORDS, pretokenised=False)
EOS = TOKENIZER.eos


def scored(texts, read, tokenizer=TOKENIZER, **wording):
    lines = [Line.of(text, tokenizer, f"line {i}") for i, text in enumerate(texts, 1)]
    return score_lines(lines, read, Wording(tokenizer, **wording))


def surprisals(sentence):
    return [token.surprisal for token in sentence.tokens]


# -- tokens ----------------------------------------------------------------------------------


def test_each_token_has_the_probability_that_the_model_gives_it(model):
    read = scoring.fresh(model, EOS, View.of(TOKENIZER, top=3))
    for sentence, text in zip(scored(SENTENCES, read, unit="nats"), SENTENCES, strict=True):
        stream = np.array([EOS, *TOKENIZER.encode(text), EOS])
        whole = model.log_probs(
            model(torch.from_numpy(stream[:-1])[:, None], model.initial_state(1)).hidden[:, 0]
        ).detach()
        assert sentence.text == text
        for token, target, row in zip(sentence.tokens, stream[1:], whole, strict=True):
            assert token.id == target
            assert token.log_prob == pytest.approx(float(row[target]), abs=1e-9)
            assert token.surprisal == -token.log_prob
            order = row.argsort(descending=True).tolist()
            assert token.rank == order.index(target) + 1
            assert [a.token for a in token.top] == [TOKENIZER.token(i) for i in order[:3]]
            assert token.top[0].log_prob == pytest.approx(float(row.max()), abs=1e-9)
        assert sentence.log_prob == pytest.approx(log_probs(model, stream, 50).sum(), abs=1e-9)


@given(st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=8), st.integers(0, 1))
def test_neighbours_in_a_batch_and_their_order_change_nothing(texts, which):
    model = model_of(KINDS[which % len(KINDS)], len(WORDS))
    read = scoring.fresh(model, EOS, View.of(TOKENIZER))
    together = scored(texts, read)
    backwards = scored(texts[::-1], scoring.once_each(read, EOS))[::-1]
    for text, one, other in zip(texts, together, backwards, strict=True):
        (alone,) = scored([text], read)
        np.testing.assert_allclose(surprisals(one), surprisals(alone), atol=1e-9)
        np.testing.assert_allclose(surprisals(other), surprisals(alone), atol=1e-9)


def test_the_same_sentence_has_the_same_score_to_the_last_bit():
    model = model_of("recurrent", len(WORDS)).float()
    read = scoring.once_each(scoring.fresh(model, EOS, View.of(TOKENIZER)), EOS)
    texts = ["the cat sat", *SENTENCES, "the cat sat", "the mat sat on a dog", "the cat sat"]
    found = [s.log_prob for s in scored(texts, read) if s.text == "the cat sat"]
    assert len(found) == 4
    assert len(set(found)) == 1


def test_a_markov_chain_gives_the_probabilities_of_the_language_itself():
    rng = np.random.default_rng(0)
    chain = MarkovChain(rng.dirichlet(np.ones(len(WORDS)), len(WORDS)))
    model = Table.of_chain(chain.transition, EOS)
    ids = np.array([EOS, *TOKENIZER.encode("the cat sat on the mat ."), EOS])
    (sentence,) = scored(
        ["the cat sat on the mat ."], scoring.fresh(model, EOS, View.of(TOKENIZER)), unit="nats"
    )
    found = [token.log_prob for token in sentence.tokens]
    np.testing.assert_allclose(found, chain.conditional_log_probs(ids), atol=1e-12)


METHODS = [
    STATIC,
    Method(temperature=1.3),
    Method(cache=CacheSettings(7, 0.2, 0.5)),
    Method(DynamicSettings(0.05, 0.01, segment=4, rule="sgd")),
    Method(DynamicSettings(0.05, 0.01, segment=4, rule="sgd"), cache=CacheSettings(7, 0.2, 0.5)),
    Method(None, MonteCarloSettings(3, span=5)),
    Method(None, MonteCarloSettings(3, span=5), 1.2, CacheSettings(7, 0.2, 0.5)),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_carried_text_comes_to_the_likelihood_of_evaluate(model, method):
    read = scoring.carried(model, EOS, View.of(TOKENIZER), method)
    found = scored(SENTENCES * 3, read)
    text = "".join(f"\n{sentence}" for sentence in SENTENCES * 3) + "\n"
    (reading,) = measure(model, TOKENIZER.encode(text), [method], chunk=11)
    total = sum(sentence.log_prob for sentence in found)
    assert total == pytest.approx(reading.log_probs.sum(), rel=1e-9)
    ranks = [token.rank for sentence in found for token in sentence.tokens]
    assert all((rank is None) == bool(method.monte_carlo) for rank in ranks)


def test_one_by_one_nothing_is_carried(model):
    view, method = View.of(TOKENIZER), Method(cache=CacheSettings(7, 0.2, 0.5))
    read = scoring.one_by_one(scoring.carried(model, EOS, view, method), EOS)
    twice = scored(["the cat sat on the cat"] * 2, read)
    assert surprisals(twice[0]) == surprisals(twice[1])
    plain = scored(SENTENCES, scoring.one_by_one(scoring.carried(model, EOS, view), EOS))
    for one, other in zip(plain, scored(SENTENCES, scoring.fresh(model, EOS, view)), strict=True):
        np.testing.assert_allclose(surprisals(one), surprisals(other), atol=1e-9)


def test_what_is_carried_matters(model):
    read = scoring.carried(model, EOS, View.of(TOKENIZER))
    first, second = scored(["the cat sat"] * 2, read)
    assert not np.allclose(surprisals(first), surprisals(second))


def test_eos_counts_or_not_and_the_unit_is_named(model):
    read = scoring.fresh(model, EOS, View.of(TOKENIZER))
    (bits,) = scored(["the cat"], read)
    (nats,) = scored(["the cat"], read, unit="nats", eos=False)
    assert [token.token for token in bits.tokens] == ["the", "cat", "<eos>"]
    assert [token.token for token in nats.tokens] == ["the", "cat"]
    assert [word.word for word in bits.words] == ["the", "cat", "<eos>"]
    assert bits.unit == "bits"
    assert bits.tokens[0].surprisal * math.log(2) == pytest.approx(nats.tokens[0].surprisal)
    assert bits.surprisal == pytest.approx(sum(surprisals(bits)))
    assert nats.log_prob == pytest.approx(-sum(surprisals(nats)))


def test_memory_is_a_block_of_logits(monkeypatch, model):
    shapes = []
    original = View.__call__
    monkeypatch.setattr(
        View, "__call__", lambda s, x, y: shapes.append(tuple(x.shape)) or original(s, x, y)
    )
    monkeypatch.setattr(scoring, "block_elements", lambda *_: 40)
    scored(SENTENCES * 4, scoring.fresh(model, EOS, View.of(TOKENIZER)))
    assert set(shapes) <= {(n, 10) for n in range(1, 5)}


# -- n-grams ---------------------------------------------------------------------------------


def test_ngrams_are_scored_as_they_are_measured():
    rng = np.random.default_rng(1)
    text = rng.integers(0, len(WORDS), 3000)
    ngrams = KneserNey.fit(text, len(WORDS), 3)
    found = scored(SENTENCES, scoring.ngrams(ngrams, EOS, View.of(TOKENIZER, 2), carry=True))
    stream = TOKENIZER.encode("".join(f"\n{sentence}" for sentence in SENTENCES) + "\n")
    logs = [token.log_prob for sentence in found for token in sentence.tokens]
    np.testing.assert_allclose(logs, ngrams.log_probs(stream), atol=1e-12)
    alone = scored(SENTENCES, scoring.ngrams(ngrams, EOS, View.of(TOKENIZER), carry=False))
    for sentence in alone:
        ids = np.array([EOS, *(token.id for token in sentence.tokens)])
        logs = [token.log_prob for token in sentence.tokens]
        np.testing.assert_allclose(logs, ngrams.log_probs(ids), atol=1e-12)
    whole = ngrams.distribution([EOS])
    assert found[0].tokens[0].top[0].log_prob == pytest.approx(math.log(whole.max()))


# -- words -----------------------------------------------------------------------------------

LETTERS = Tokenizer.from_characters(["\n", "<unk>", " ", "a", "b"])
NEWLINE, _, BLANK, A, B = range(5)


def letters_model():
    """Random probabilities, where a word has at most two letters and a gap at most two blanks."""
    table = np.random.default_rng(5).dirichlet(np.ones(5), (5, 5))
    table[:, :, 1] = 0
    letter, blank = [A, B], [BLANK]
    for first, second in product(letter, letter):
        table[first, second, letter] = 0
    table[BLANK, BLANK, blank] = 0
    return Table(table / table.sum(-1, keepdims=True), NEWLINE)


def texts_of(model, length):
    """Every text that the model can write, up to its newline or `length` characters."""
    table = model.logs.detach().exp()
    found, open_texts = {}, {"": (1.0, NEWLINE, NEWLINE)}
    for _ in range(length):
        following = {}
        for text, (p, before, last) in open_texts.items():
            for token, share in enumerate(table[before, last].tolist()):
                if share > 1e-100:
                    character = "\n -ab"[token] if token != BLANK else " "
                    entry = p * share, last, token
                    if token == NEWLINE:
                        found[text + "\n"] = entry[0]
                    else:
                        following[text + character] = entry
        open_texts = following
    return found | {text: p for text, (p, *_) in open_texts.items()}


GAPS, SPELLINGS = [" ", "  "], ["a", "b", "aa", "ab", "ba", "bb"]


def probability_of_word(model, text, number):
    read = scoring.fresh(model, NEWLINE, View.of(LETTERS))
    (sentence,) = scored([text], read, LETTERS)
    return 2 ** -sentence.words[number].surprisal


def test_words_of_characters_sum_to_one():
    model = letters_model()
    for context in ("a", "ab", " bb", "aa  b"):
        number = len(context.split())
        after = [
            probability_of_word(model, context + gap + word, number)
            for gap, word in product(GAPS, SPELLINGS)
        ]
        ends = [probability_of_word(model, context + gap, number) for gap in ("", *GAPS)]
        assert sum(after) + sum(ends) == pytest.approx(1, abs=1e-9)
    first = [
        probability_of_word(model, gap + word, 0) for gap, word in product(["", *GAPS], SPELLINGS)
    ]
    empty = sum(p for text, p in texts_of(model, 4).items() if not text.strip())
    assert sum(first) + empty == pytest.approx(1, abs=1e-9)


def test_words_of_characters_have_the_marginal_probability():
    """Of all texts whose first word is 'ab', the share in which a gap and 'b' come next."""
    model = letters_model()
    texts = texts_of(model, 9)
    assert sum(texts.values()) == pytest.approx(1)
    begun = {text: p for text, p in texts.items() if re.match(r"ab(?![ab])", text)}
    for gap, word in product(GAPS, SPELLINGS):
        with_word = sum(p for t, p in begun.items() if re.match(f"ab{gap}{word}(?![ab])", t))
        truth = with_word / sum(begun.values())
        found = probability_of_word(model, f"ab{gap}{word}", 1)
        assert found == pytest.approx(truth, rel=1e-9)


def test_without_the_correction_words_do_not_sum_to_one():
    model = letters_model()
    read = scoring.fresh(model, NEWLINE, View.of(LETTERS))
    found = scored([f"a{g}{w}" for g, w in product(GAPS, SPELLINGS)], read, LETTERS)
    assert abs(sum(2 ** -s.words[1].pieces for s in found) - 1) > 0.05
    for sentence in found:
        own = [token.surprisal for token in sentence.tokens if token.word == 1]
        assert sentence.words[1].pieces == pytest.approx(sum(own))


PIECES = Tokenizer._of_pieces([*SPECIAL, "a", "b", "##a", "##b"], lowercase=False)


def test_words_of_pieces_sum_to_one():
    """At most two pieces to a word; behind [SEP] the model believes in pieces that go on."""
    table = np.random.default_rng(6).dirichlet(np.ones(9), (9, 9))
    table[:, :, [0, 1, 2, 4]] = 0
    table[:, [7, 8], 7:] = 0
    model = Table(table / table.sum(-1, keepdims=True), PIECES.eos)
    read = scoring.fresh(model, PIECES.eos, View.of(PIECES))
    for context in ([], ["ab"], ["b", "aa"]):
        texts = [" ".join([*context, word]) for word in SPELLINGS]
        found = [2 ** -s.words[len(context)].surprisal for s in scored(texts, read, PIECES)]
        if context:
            (sentence,) = scored([" ".join(context)], read, PIECES)
            end = 2 ** -sentence.words[-1].surprisal
        else:
            row = model.logs.detach().exp()[PIECES.eos, PIECES.eos]
            end = float(row[PIECES.eos] / row[:7].sum())
        assert sum(found) + end == pytest.approx(1, abs=1e-9)
    (sentence,) = scored(["ab, a"], scoring.fresh(model, PIECES.eos, View.of(PIECES)), PIECES)
    assert [(word.word, word.tokens, word.unknown) for word in sentence.words] == [
        ("ab,", 3, True),
        ("a", 1, False),
        ("<eos>", 1, False),
    ]


TEXTS = ["Hello wörld, it's  a test", "  a b ", "naïve 😀x", "x"]
TOKENIZERS = {
    "char": Tokenizer.from_characters(["\n", "<unk>", *sorted(set("".join(TEXTS)) - {"x"})]),
    "byte": Tokenizer.from_bytes(),
    "bpe": Tokenizer.from_bpe([" ".join(TEXTS * 3)], 300),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_words_and_eos_come_to_what_the_tokens_come_to(kind):
    tokenizer = TOKENIZERS[kind]
    model = model_of("recurrent", len(tokenizer))
    read = scoring.fresh(model, tokenizer.eos, View.of(tokenizer))
    for sentence in scored(TEXTS, read, tokenizer):
        assert sum(word.surprisal for word in sentence.words) == pytest.approx(sentence.surprisal)
        assert sum(word.pieces for word in sentence.words) == pytest.approx(sentence.surprisal)
        assert sum(word.tokens for word in sentence.words) == len(sentence.tokens)
        written = [sentence.text[word.start : word.end] for word in sentence.words]
        assert written == [*sentence.text.split(), ""]
        for word in sentence.words[:-1]:
            assert sentence.text[word.start : word.end] == word.word


def test_tokens_that_are_words_need_no_correction(model):
    (sentence,) = scored(["the cat sat."], scoring.fresh(model, EOS, View.of(TOKENIZER)))
    assert [word.word for word in sentence.words] == ["the", "cat", "sat.", "<eos>"]
    for word in sentence.words:
        assert word.surprisal == word.pieces
    last = sentence.tokens[2].surprisal + sentence.tokens[3].surprisal
    assert sentence.words[2].surprisal == pytest.approx(last)


# -- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  ", "file.txt, line 3 is empty"),
        ("a\nb", "line break"),
        ("the <eos> cat", "<eos>"),
        ("the cat " * 5, "10 tokens, more than 9"),
    ],
)
def test_a_sentence_that_cannot_be_scored_is_named(text, words):
    with pytest.raises(InfolmError, match=words):
        Line.of(text, TOKENIZER, "file.txt, line 3", longest=9)
