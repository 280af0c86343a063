"""Sentences and what follows them, as BERT reads two: shapes, documents, cuts, resuming."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.data.pairs import documents
from infolm.data.sentence_pairs import SentencePairFeed, SentencePairsConfig, shortened
from infolm.data.tokens import Special
from infolm.errors import InfolmError

SPECIAL = Special(0, 1, 2, 3, 4)
PAD, CLS, SEP, STOP = 0, 2, 3, 5


def corpus(count: int = 30, per_document: int | None = None, words: int = 4):
    """Sentence i is i + 10, once to `words` times, and a stop; two to a line, one empty."""
    tokens = []
    for i in range(count):
        tokens += [10 + i] * (1 + i % words) + [STOP] + [SEP] * (2 * (i % 2))
    text = documents(np.array(tokens, np.uint16), SEP, [STOP])
    assert len(text.document) == count
    if per_document:
        text.document[:] = np.arange(count) // per_document
    return text


def feed_of(text, seed=1, **config) -> SentencePairFeed:
    settings = SentencePairsConfig(**{"batch": 4, "length": 40, **config})
    return SentencePairFeed(text, settings, seed, SPECIAL)


def spelt(number: int, words: int = 4) -> list[int]:
    return [10 + number] * (1 + number % words) + [STOP]


def test_each_pair_is_read_as_bert_reads_two_sentences_once_a_pass():
    feed = feed_of(corpus(24, per_document=6), candidates=3)
    firsts, seconds = [], []
    while feed.epoch == 0:
        tokens, mask, segments, *_ = feed.next()
        assert tokens.shape == mask.shape == segments.shape == (4, 3, mask.sum(2).max())
        for row, seen, segment in zip(tokens, mask, segments, strict=True):
            for k in range(3):
                words = row[k][seen[k] == 1].tolist()
                a, b = words[1] - 10, words[words.index(SEP) + 1] - 10
                assert words == [CLS, *spelt(a), SEP, *spelt(b), SEP]
                assert (row[k][seen[k] == 0] == PAD).all()
                second = 2 + len(spelt(a))
                assert segment[k].tolist() == [0] * second + [1] * (len(words) - second) + [0] * (
                    row.shape[1] - len(words)
                )
                if k == 0:
                    assert b == a + 1
                    firsts.append(a)
                else:
                    seconds.append(b)
    assert sorted(firsts) == [i for i in range(24) if i % 6 != 5]
    assert all(b % 6 for b in seconds)  # none that begins a document follows another
    assert len(set(seconds)) > 10


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(5, 50))
def test_the_longer_is_cut_one_token_at_a_time(a, b, budget):
    left, right = shortened(np.array([a]), np.array([b]), budget)
    while a + b > budget:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    assert (left[0], right[0]) == (a, b)


def test_long_pairs_keep_their_beginnings():
    tokens = np.array([*range(10, 40), SEP, *range(50, 53), SEP, *range(60, 100), SEP], np.uint16)
    feed = feed_of(documents(tokens, SEP), batch=2, length=16)
    batch = feed.next()
    true = {row[0][1]: row[0].tolist() for row in batch.tokens}
    assert true[10] == [CLS, *range(10, 20), SEP, 50, 51, 52, SEP]
    assert true[50] == [CLS, 50, 51, 52, SEP, *range(60, 70), SEP]


def test_a_resumed_feed_gives_the_same_batches():
    feed, resumed = feed_of(corpus()), feed_of(corpus())
    for _ in range(9):
        feed.next()
    resumed.load_state_dict(json.loads(json.dumps(feed.state_dict())))
    assert resumed.epoch == feed.epoch == 1
    assert resumed.fraction() == feed.fraction() > 0
    for _ in range(7):
        for ours, theirs in zip(feed.next(), resumed.next(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_few_sentences_give_small_batches_and_two_are_refused():
    assert len(feed_of(corpus(3)).next().tokens) == 2
    with pytest.raises(InfolmError, match="2 sentences, and training needs"):
        feed_of(corpus(2))
