"""Tokens in several files behave as one array."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infolm.data import shards, store
from infolm.data.feed import FEEDS
from infolm.data.shards import Shards
from infolm.data.store import Counts, DamagedError
from infolm.data.stream import Stream, StreamConfig

N = 40
WHOLE = np.random.default_rng(0).integers(0, 9, N).astype(np.uint16)
CUTS = st.lists(st.integers(1, N - 1), unique=True, max_size=5).map(sorted)
BOUNDS = st.none() | st.integers(-N - 3, N + 3)


def cut(cuts: list[int]) -> Shards:
    return Shards(np.split(WHOLE, cuts))


@given(CUTS, BOUNDS, BOUNDS, st.none() | st.sampled_from([1, 2, 5, -1, -3]))
def test_slices(cuts: list[int], start: int | None, stop: int | None, step: int | None) -> None:
    key = slice(start, stop, step)
    found = cut(cuts)[key]
    assert found.tolist() == WHOLE[key].tolist()
    assert found.dtype == WHOLE.dtype


@given(CUTS, st.lists(st.integers(-N, N - 1), min_size=1, max_size=12))
def test_indices(cuts: list[int], places: list[int]) -> None:
    sharded, at = cut(cuts), np.array(places)
    assert sharded[at].tolist() == WHOLE[at].tolist()
    assert sharded[at[:, None] * 0 + at].tolist() == WHOLE[at[:, None] * 0 + at].tolist()
    assert sharded[places[0]] == WHOLE[places[0]]
    assert sharded[WHOLE == 3].tolist() == [3] * int((WHOLE == 3).sum())


def test_as_an_array() -> None:
    sharded = cut([7, 20])
    assert len(sharded) == sharded.size == N
    assert sharded.shape == (N,)
    assert np.asarray(sharded).tolist() == sharded.astype(np.int64).tolist() == WHOLE.tolist()
    assert np.unique(sharded).tolist() == np.unique(WHOLE).tolist()
    assert [int(token) for token in sharded] == WHOLE.tolist()


@pytest.mark.parametrize("key", [N, -N - 1, np.array([0, N]), np.array([-N - 1]), np.ones(3, bool)])
def test_what_is_beyond_the_end_is_refused(key: object) -> None:
    with pytest.raises(IndexError):
        cut([7])[key]


def test_a_stream_of_shards_is_that_of_the_array() -> None:
    config = StreamConfig(batch=3, bptt=4, variable=False)
    for cuts in ([], [1], [7, 8, 20, 39]):
        whole, sharded = Stream(WHOLE, config, 0), Stream(cut(cuts), config, 0)
        for _ in range(9):
            a, b = whole.next(), sharded.next()
            assert a.tokens.tolist() == b.tokens.tolist()
            assert a.targets.tolist() == b.targets.tolist()
    assert "stream" in FEEDS


def written(folder: Path, cuts: list[int]) -> None:
    parts = np.split(WHOLE, cuts)
    names = [f"train-{number:05d}.tokens" for number in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        store.write(folder / name, 9, "v", [(part, Counts(lines=1, bytes=len(part)))])
    shards.write_index(shards.index_of(folder, "train"), names)


def test_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "RESIDENT", 50)  # what was read is let go all the time
    written(tmp_path, [10, 11, 30])
    split = shards.read(tmp_path, "train", "v", verify=True)
    assert (split.lines, split.bytes) == (4, N)
    for _ in range(3):
        assert np.asarray(split.tokens).tolist() == WHOLE.tolist()
        assert split.tokens[np.arange(N)].tolist() == WHOLE.tolist()


def test_damage_is_found(tmp_path: Path) -> None:
    written(tmp_path, [10, 11])
    second = tmp_path / "train-00001.tokens"
    sound = second.read_bytes()
    second.write_bytes(sound[:-1] + b"\x55")
    with pytest.raises(DamagedError, match=r"train-00001.tokens does not match its checksum"):
        shards.read(tmp_path, "train", "v", verify=True)
    second.unlink()
    with pytest.raises(DamagedError, match=r"train-00001.tokens is missing"):
        shards.read(tmp_path, "train", "v", verify=False)
    second.write_bytes(sound)
    index = shards.index_of(tmp_path, "train")
    for bad in (
        "",
        "[]",
        "{}",
        '{"version": 1, "shards": []}',
        '{"version": 1, "shards": ["../a"]}',
    ):
        index.write_text(bad)
        with pytest.raises(DamagedError, match="not an index"):
            shards.read(tmp_path, "train", "v", verify=False)
