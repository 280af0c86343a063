"""Sentences, documents, neighbours, and what is drawn from near them."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.data import pairs as pairs_module
from infolm.data.corpora import DataConfig, load
from infolm.data.pairs import HeldOutPairs, NeighbourPairs, documents, draw_near, segments
from infolm.data.stream import PADDING
from infolm.errors import InfolmError

WORDS = ["<eos>", ".", "=", "a", "b", "c", "d"]
EOS, STOP, EQUALS = 0, 1, 2


def encoded(text: str) -> np.ndarray:
    words = [word for line in text.splitlines() for word in [*line.split(), "<eos>"]]
    return np.array([WORDS.index(word) for word in words], np.uint16)


def spelt(text, number: int) -> str:
    column = text.read(np.array([number]))[:, 0]
    return " ".join(WORDS[i] for i in column[column != PADDING])


def all_spelt(text) -> list[str]:
    return [spelt(text, i) for i in range(len(text.document))]


def test_a_line_is_a_sentence():
    assert all_spelt(documents(encoded("a b\nc\nd d"), EOS)) == [
        "a b <eos>",
        "c <eos>",
        "d d <eos>",
    ]


def test_a_stop_ends_a_sentence_and_takes_the_end_of_its_line_along():
    text = documents(encoded("a . b c .\nd\n"), EOS, [STOP])
    assert all_spelt(text) == ["a .", "b c . <eos>", "d <eos>"]


def test_empty_lines_belong_to_the_sentence_before_and_at_the_start_to_none():
    text = documents(encoded("\n\na\n\n\nb ."), EOS, [STOP])
    assert all_spelt(text) == ["a <eos> <eos> <eos>", "b . <eos>"]


def test_a_last_line_may_lack_its_end():
    assert all_spelt(documents(encoded("a\nb c")[:-1], EOS)) == ["a <eos>", "b c"]


def test_articles_begin_at_titles_between_empty_lines():
    text = "\n= a =\n\nb . c .\n\n= = d = =\n\na a\n= b =\nc\n\n= b c =\n\nd"
    found = documents(encoded(text), EOS, [STOP], EQUALS)
    assert list(zip(all_spelt(found), found.document.tolist(), strict=True)) == [
        ("= a = <eos> <eos>", 1),
        ("b .", 1),
        ("c . <eos> <eos>", 1),
        ("= = d = = <eos> <eos>", 1),  # a section
        ("a a <eos>", 1),
        ("= b = <eos>", 1),  # in the middle of a text
        ("c <eos> <eos>", 1),
        ("= b c = <eos> <eos>", 2),
        ("d <eos>", 2),
    ]


def test_wikitext_has_its_six_hundred_articles(real):
    real("wikitext-2")
    corpus = load(DataConfig(corpus="wikitext-2"))
    stops = [int(corpus.tokenizer.lookup(mark)[0]) for mark in ".!?"]
    equals = int(corpus.tokenizer.lookup("=")[0])
    counts = {
        name: documents(split.tokens, corpus.tokenizer.eos, stops, equals).document.max()
        for name, split in corpus.splits.items()
    }
    assert counts == {"train": 600, "valid": 60, "test": 60}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.booleans())
def test_every_token_is_in_one_sentence_which_ends_where_it_should(tokens, with_stops):
    text = documents(np.array(tokens, np.uint16), EOS, [STOP] if with_stops else [], EQUALS)
    ends = {EOS, STOP} if with_stops else {EOS}
    found = [
        column[column != PADDING]
        for i in range(len(text.document))
        for column in [text.read(np.array([i]))[:, 0]]
    ]
    whole = [token for sentence in found for token in sentence]
    leading = next((i for i, token in enumerate(tokens) if token != EOS), len(tokens))
    assert whole == tokens[leading:]
    for i, sentence in enumerate(found):
        inner = [n for n, token in enumerate(sentence[:-1]) if token in ends]
        assert all(sentence[n + 1] == EOS for n in inner)  # nothing is cut too late ...
        assert i + 1 == len(found) or (sentence[-1] in ends and found[i + 1][0] != EOS)
    assert (np.diff(text.document) >= 0).all()


def test_segments_are_equal_stretches():
    text = segments(np.arange(11), 3)
    assert [text.read(np.array([i]))[:, 0].tolist() for i in range(3)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
    ]
    assert len(text.document) == 3


@pytest.mark.parametrize("rest", [1, 2, 5, 1000])
@pytest.mark.parametrize("geometric", [0.05, 0.3, 0.9])
def test_what_is_drawn_follows_the_distribution_it_names(rest, geometric):
    draws = 20_000
    k, log_g = draw_near(np.full(draws, rest), geometric, np.random.default_rng(1))
    assert k.min() >= 0
    assert k.max() < rest
    # Drawing again while k >= rest is the geometric distribution given k < rest.
    every = np.arange(min(rest, 400))
    p = geometric * (1 - geometric) ** every
    p = p / (1 - (1 - geometric) ** rest)
    np.testing.assert_allclose(np.exp(log_g), p[np.minimum(k, len(p) - 1)], rtol=1e-9)
    counts = np.bincount(k, minlength=len(p))[: len(p)]
    # Each count within five standard errors: a false alarm in a million each.
    assert (np.abs(counts - draws * p) <= 5 * np.sqrt(draws * p * (1 - p)) + 1e-6).all()


def numbered(lines: int, per_document: int | None = None):
    """Sentence i is the single word 10 + i; documents of so many sentences, if they have an end."""
    tokens = np.stack([10 + np.arange(lines), np.full(lines, EOS)], 1).ravel().astype(np.uint16)
    text = documents(tokens, EOS)
    if per_document:
        text.document[:] = np.arange(lines) // per_document
    return text


def test_pairs_are_neighbours_of_one_document_each_once_a_pass():
    text = numbered(24, per_document=6)
    feed = NeighbourPairs(text, 4, 0.3, seed=3)
    seen = []
    while feed.epoch == 0:
        batch = feed.next()
        x, y, drawn = (group[0] - 10 for group in (batch.x, batch.y, batch.drawn))
        assert (y == x + 1).all()
        assert (x // 6 == y // 6).all()
        assert (drawn >= y).all()
        assert (drawn // 6 == y // 6).all()
        k, rest = drawn - y, 6 - y % 6
        expected = k * math.log(0.7) + math.log(0.3) - np.log(1 - 0.7**rest)
        np.testing.assert_allclose(batch.log_proposal, expected, rtol=1e-5, atol=1e-6)
        seen += x.tolist()
    assert sorted(seen) == [i for i in range(24) if i % 6 != 5]


def test_padding_stands_after_the_end_alone():
    feed = NeighbourPairs(documents(encoded("a b c\nd\nb\nc c c c\na"), EOS), 4, 0.3, 1)
    for group in feed.next()[:3]:
        ended = group == PADDING
        assert (np.diff(ended.astype(int), axis=0) >= 0).all()
        assert not ended.all(1).any()


def test_a_resumed_feed_gives_the_same_batches():
    text = numbered(20)
    feed = NeighbourPairs(text, 3, 0.3, seed=5)
    for _ in range(8):  # into the second pass
        feed.next()
    state = json.loads(json.dumps(feed.state_dict()))
    resumed = NeighbourPairs(text, 3, 0.3, seed=5)
    resumed.load_state_dict(state)
    assert resumed.fraction() == feed.fraction()
    assert resumed.epoch == feed.epoch == 1
    for _ in range(5):
        for ours, theirs in zip(feed.next(), resumed.next(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_small_corpus_gives_small_batches():
    assert NeighbourPairs(numbered(4), 12, 0.3, 1).next().x.shape[1] == 3


@pytest.mark.parametrize("lines", [1, 2])
def test_too_few_sentences_are_refused(lines):
    with pytest.raises(InfolmError, match="at least two pairs"):
        NeighbourPairs(numbered(lines), 12, 0.3, 1)


def test_held_out_pairs_are_neighbours_in_groups_drawn_once(monkeypatch):
    text = "\n= a =\n\n" + "b . c c . d . a b c d .\n" * 6 + "\n= d =\n\n" + "a . b .\n" * 8
    found = documents(encoded(text), EOS, [STOP], EQUALS)
    sizes = np.diff(found.bounds)
    pairs = HeldOutPairs.draw(found, 4, longest=5)
    first = pairs.first.flatten()
    assert pairs.first.shape[1] == 4
    assert len(set(first)) == len(first) == pairs.pairs
    assert (found.document[first] == found.document[first + 1]).all()
    there = np.flatnonzero(found.document[:-1] == found.document[1:])
    short = there[(sizes[there] <= 5) & (sizes[there + 1] <= 5)]
    assert len(short) < len(there)  # the titles, which are long, are in no pair
    assert set(first) <= set(short)
    assert len(short) - len(first) < 4  # what fills no group
    assert pairs.tokens == sum(sizes[i] for i in set(first) | set(first + 1))
    again = HeldOutPairs.draw(found, 4, longest=5)
    assert (again.first == pairs.first).all()
    monkeypatch.setattr(pairs_module, "MOST_HELD_OUT", 9)
    assert HeldOutPairs.draw(found, 4, longest=5).first.shape == (2, 4)
    assert HeldOutPairs.draw(found, 99, longest=5).first.shape == (1, 9)
    assert HeldOutPairs.draw(segments(np.arange(10), 4), 4, 5) is None
