"""The carried stream: every token a target once, lengths as the paper draws them, resumable."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.data.stream import Stream, StreamConfig, draw_length
from infolm.errors import InfolmError


def one_epoch(feed):
    batches = [feed.next()]
    while feed.epoch == 0:
        batches.append(feed.next())
    return batches


@settings(deadline=None)
@given(
    count=st.integers(2, 400),
    batch=st.integers(1, 7),
    bptt=st.integers(1, 60),
    variable=st.booleans(),
    seed=st.integers(0, 5),
)
def test_each_pass_predicts_every_token_of_each_column_but_the_first_once(
    count, batch, bptt, variable, seed
):
    tokens = np.arange(count, dtype=np.uint16)
    config = StreamConfig(batch=batch, bptt=bptt, variable=variable)
    if count // batch < 2:
        with pytest.raises(InfolmError, match=r"feed\.batch"):
            Stream(tokens, config, seed)
        return
    batches = one_epoch(Stream(tokens, config, seed))
    height = count // batch
    columns = tokens[: height * batch].reshape(batch, height)
    assert np.array_equal(np.concatenate([b.tokens for b in batches]), columns[:, :-1].T)
    assert np.array_equal(np.concatenate([b.targets for b in batches]), columns[:, 1:].T)
    assert [b.fresh for b in batches] == [True] + [False] * (len(batches) - 1)


def test_the_lengths_have_the_papers_distribution():
    """0.95 N(70, 5) + 0.05 N(35, 5): mean, share of short cuts and spread, to four errors."""
    rng = np.random.default_rng(0)
    lengths = np.array([draw_length(70, rng) for _ in range(40_000)])
    n = len(lengths)
    short = lengths < 52.5
    assert abs(short.mean() - 0.05) < 4 * math.sqrt(0.05 * 0.95 / n)
    for part, mean in ((lengths[~short], 70), (lengths[short], 35)):
        # Cutting to whole numbers lowers the mean by a half and adds 1/12 to the variance.
        assert abs(part.mean() - (mean - 0.5)) < 4 * 5 / math.sqrt(len(part))
        spread = math.sqrt(25 + 1 / 12)
        assert abs(part.std() - spread) < 4 * spread / math.sqrt(2 * len(part))


def test_lengths_are_never_below_five():
    rng = np.random.default_rng(0)
    assert min(draw_length(5, rng) for _ in range(2000)) == 5


def test_the_rate_of_a_step_is_scaled_by_its_length():
    feed = Stream(np.zeros(100_000, np.uint16), StreamConfig(batch=10, bptt=70), 0)
    batches = one_epoch(feed)[:-1]
    assert len({len(b.tokens) for b in batches}) > 5
    assert all(b.rate_scale == len(b.tokens) / 70 for b in batches)
    fixed = Stream(np.zeros(1000, np.uint16), StreamConfig(batch=2, bptt=7, variable=False), 0)
    assert {b.rate_scale for b in one_epoch(fixed)} == {1.0}


def test_a_feed_put_back_by_way_of_json_goes_on_alike():
    tokens = np.arange(5000, dtype=np.uint16)
    config = StreamConfig(batch=3, bptt=20)
    feed = Stream(tokens, config, 1)
    for _ in range(25):
        feed.next()
    state = json.loads(json.dumps(feed.state_dict()))
    other = Stream(tokens, config, 99)
    other.load_state_dict(state)
    for _ in range(150):  # past the end of a pass
        a, b = feed.next(), other.next()
        assert np.array_equal(a.targets, b.targets)
        assert (a.fresh, a.rate_scale) == (b.fresh, b.rate_scale)
    assert feed.epoch == other.epoch > 0


@settings(deadline=None)
@given(
    count=st.integers(8, 300),
    batch=st.integers(1, 4),
    bptt=st.integers(1, 40),
    seed=st.integers(0, 5),
)
def test_rotated_columns_are_rings_entered_anew_in_each_pass(count, batch, bptt, seed):
    tokens = np.arange(count, dtype=np.uint16)
    feed = Stream(tokens, StreamConfig(batch=batch, bptt=bptt, rotated=True), seed)
    height = count // batch
    columns = tokens[: height * batch].reshape(batch, height)
    for number in range(3):
        batches = [feed.next()]
        while feed.epoch == number:
            batches.append(feed.next())
        read = np.concatenate([batches[0].tokens[:1], *(b.targets for b in batches)]).T
        for column, ring in zip(columns, read, strict=True):
            assert np.array_equal(np.roll(column, -int(ring[0] - column[0])), ring)
        assert [b.fresh for b in batches] == [True] + [False] * (len(batches) - 1)


def test_rotated_passes_enter_at_places_of_equal_probability():
    """Mean of 4,000 uniform places in a column of 101: 50, to four errors; no two passes alike."""
    feed = Stream(np.arange(101 * 4), StreamConfig(batch=4, bptt=101, rotated=True), 0)
    entered = np.array([feed.next().tokens[0] % 101 for _ in range(1000)])
    assert abs(entered.mean() - 50) < 4 * math.sqrt((101**2 - 1) / 12 / entered.size)
    assert len(np.unique(entered, axis=0)) > 990


def test_a_rotated_stream_resumes():
    config = StreamConfig(batch=3, bptt=7, rotated=True)
    feed, again = (Stream(np.arange(200), config, 3) for _ in range(2))
    for _ in range(25):
        feed.next()
    again.load_state_dict(json.loads(json.dumps(feed.state_dict())))
    for _ in range(25):
        assert np.array_equal(feed.next().tokens, again.next().tokens)
