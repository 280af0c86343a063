"""Pairs of words that stand near each other: which, how often, thinned out, resumed, refused."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.data.windows import WindowFeed, WindowsConfig, keep_probabilities, neighbours
from infolm.errors import InfolmError

EOS, TYPES = 0, 50


def text(lines: int = 60, words: int = 9) -> np.ndarray:
    """Lines of words, no word twice in a line."""
    rng = np.random.default_rng(0)
    rows = [[*(1 + rng.permutation(TYPES - 1)[:words]), EOS] for _ in range(lines)]
    return np.concatenate(rows).astype(np.uint16)


def counted(tokens: np.ndarray) -> np.ndarray:
    counts = np.bincount(tokens, minlength=TYPES)
    counts[EOS] = 0
    return counts


def feed_of(tokens: np.ndarray, seed: int = 1, **config) -> WindowFeed:
    settings = WindowsConfig(**{"batch": 4, "length": 32, "subsample": None, **config})
    return WindowFeed(tokens, settings, seed, EOS, counted(tokens))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=25))
def test_neighbours_are_all_that_is_within_reach_in_the_line(places):
    lines = np.cumsum([new for new, _ in places], dtype=np.int64)
    reach = np.array([r for _, r in places], np.int64)
    found = sorted(zip(*(x.tolist() for x in neighbours(lines, reach)), strict=True))
    n = range(len(places))
    wanted = [
        (i, j) for i in n for j in n if i != j and lines[i] == lines[j] and abs(i - j) <= reach[i]
    ]
    assert found == wanted


def test_a_pass_gives_each_pair_as_often_as_its_stretch_says():
    """Window 1: all that stand side by side in a line and a stretch, once in either order."""
    tokens = text()
    feed = feed_of(tokens, window=1)
    starts = feed._batches.ravel().copy()
    wanted: Counter[tuple[int, int]] = Counter()
    for start in starts:
        cut = tokens[start : start + 32].tolist()
        for a, b in pairwise(cut):
            if EOS not in (a, b):
                wanted.update([(a, b), (b, a)])
    found: Counter[tuple[int, int]] = Counter()
    while feed.epoch == 0:
        batch = feed.next()
        found.update(zip(batch.centres.tolist(), batch.contexts.tolist(), strict=True))
    assert found == wanted
    assert len(set(starts % 32)) == 1
    assert len(starts) == (len(tokens) - starts.min()) // 32 // 4 * 4


def test_the_farther_the_rarer():
    """A word reaches d words far with probability (window - d + 1) / window."""
    line = np.arange(1, TYPES)
    tokens = np.concatenate([[*line, EOS]] * 400).astype(np.uint16)
    feed = feed_of(tokens, window=4, length=200, batch=100)
    batch = feed.next()
    distance = np.abs(batch.centres - batch.contexts)
    counts = np.bincount(distance, minlength=6)
    assert counts[0] == counts[5:].sum() == 0
    for d in range(1, 5):
        p = (5 - d) / 4
        # Both directions, in lines that the stretch may have cut.
        cuts = tokens[feed._batches[0][:, None] + np.arange(200)]
        ends = [np.flatnonzero(cut == EOS) for cut in cuts]
        lengths = np.concatenate([np.diff(end, prepend=-1, append=200) - 1 for end in ends])
        pairs = 2 * (lengths - d).clip(0).sum()
        assert abs(counts[d] - p * pairs) <= 5 * np.sqrt(pairs * p * (1 - p)) + 1e-9


def test_frequent_words_are_kept_as_word2vec_keeps_them():
    counts = np.array([0, 900_000, 90_000, 9_999, 1])
    keep = keep_probabilities(counts, 1e-3)
    share = counts / counts.sum()
    by_hand = [(np.sqrt(f / 1e-3) + 1) * 1e-3 / f for f in share[1:3]]
    np.testing.assert_allclose(keep[1:3], by_hand)
    assert keep[[0, 4]].tolist() == [1, 1]
    assert (keep_probabilities(counts, None) == 1).all()


def test_a_thinned_text_brings_others_nearer():
    """Of "a x b" with x left out, a and b are neighbours."""
    tokens = np.array([1, 2, 3, EOS] * 2000, np.uint16)
    counts = np.array([0, 1, 10**9, 1] + [0] * (TYPES - 4))
    feed = WindowFeed(
        tokens, WindowsConfig(batch=50, length=100, window=1, subsample=1e-6), 1, EOS, counts
    )
    batch = feed.next()
    pairs = Counter(zip(batch.centres.tolist(), batch.contexts.tolist(), strict=True))
    assert pairs[1, 3] > 1000
    assert pairs[1, 2] < 20


def test_a_resumed_feed_gives_the_same_batches():
    tokens = text()
    feed = feed_of(tokens, subsample=1e-2)
    for _ in range(7):
        feed.next()
    state = json.loads(json.dumps(feed.state_dict()))
    resumed = feed_of(tokens, subsample=1e-2)
    resumed.load_state_dict(state)
    assert resumed.epoch == feed.epoch == 1
    assert resumed.fraction() == feed.fraction() > 0
    for _ in range(6):
        for ours, theirs in zip(feed.next(), resumed.next(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_passes_differ_and_seeds_differ():
    first, other = feed_of(text()), feed_of(text(), seed=2)
    assert not np.array_equal(first._batches, other._batches)
    before = first._batches.copy()
    while first.epoch == 0:
        first.next()
    assert not np.array_equal(before, first._batches)


def test_a_batch_without_pairs_is_passed_over():
    """Stretches of single words among others with two."""
    tokens = np.array(([1, EOS] * 20 + [2, 3, EOS]) * 20, np.uint16)
    feed = feed_of(tokens, batch=1, length=8)
    for _ in range(50):
        assert set(feed.next().centres.tolist()) <= {2, 3}


def test_a_short_text_gives_a_short_batch_and_a_shorter_one_is_refused():
    assert len(feed_of(text(7), batch=1000).next().centres)
    with pytest.raises(InfolmError, match=r"60 tokens, and two segments have 64: lower feed"):
        feed_of(text(6))
    with pytest.raises(InfolmError, match="no line of the text has two words"):
        feed_of(np.array([1, EOS] * 100, np.uint16))
