import json
from pathlib import Path

import numpy as np
import pytest

from infolm.data import store
from infolm.data.store import Counts, DamagedError

PARTS = [
    (np.array([1, 2, 3]), Counts(1, 2, 3, 4, 0)),
    (np.array([65535, 0]), Counts(1, 1, 1, 1, 1)),
]


def write(path: Path, types: int = 2**16) -> Path:
    assert store.write(path, types, "vocabulary", PARTS) == 5
    return path


@pytest.mark.parametrize(("types", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_what_was_written_is_read(tmp_path: Path, types: int, dtype: type) -> None:
    split = store.read(write(tmp_path / "train", types), "vocabulary")
    assert isinstance(split.tokens, np.memmap)
    assert split.tokens.dtype == dtype
    assert split.tokens.tolist() == [1, 2, 3, 65535, 0]
    assert (split.lines, split.words, split.characters, split.bytes) == (2, 3, 4, 5)
    assert split.unknown == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train", "train.blocks"]


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "train")
    whole = path.read_bytes()
    for at in [*range(0, store.HEADER, 97), 0, 6, 8, 40, *range(store.HEADER, len(whole))]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DamagedError, match="train"):
            store.read(path, "vocabulary")


@pytest.mark.parametrize("size", [0, 7, store.HEADER, store.HEADER + 9])
def test_a_truncated_file_is_noticed(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "train")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DamagedError):
        store.read(path, "vocabulary")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BLOCK", 4)


@pytest.mark.usefixtures("small_blocks")
def test_every_changed_byte_of_every_block_is_noticed_and_its_place_told(tmp_path: Path) -> None:
    path = write(tmp_path / "train")
    assert len(json.loads(store.blocks_of(path).read_bytes())["sha256"]) == 3
    whole = path.read_bytes()
    for at in range(store.HEADER, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        store.read(path, "vocabulary", verify=False)
        begins = at - at % 4
        with pytest.raises(DamagedError, match=f"from byte {begins:,} on"):
            store.read(path, "vocabulary")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "damage",
    [
        lambda blocks: blocks.unlink(),  # an earlier release
        lambda blocks: blocks.write_bytes(b"{"),
        lambda blocks: blocks.write_text("1"),
        lambda blocks: blocks.write_text(blocks.read_text().replace('["', '["0')),
        lambda blocks: blocks.write_text(blocks.read_text().replace('"tokens": "', '"tokens": "0')),
        lambda blocks: blocks.write_text('{"sha256": [], "block": 4, "tokens": ""}'),
    ],
)
def test_damaged_blocks_condemn_no_sound_tokens_and_are_made_anew(tmp_path: Path, damage) -> None:
    path = write(tmp_path / "train")
    right = store.blocks_of(path).read_bytes()
    damage(store.blocks_of(path))
    assert len(store.read(path, "vocabulary").tokens) == 5
    assert store.blocks_of(path).read_bytes() == right
    damage(store.blocks_of(path))
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    with pytest.raises(DamagedError, match="checksum"):
        store.read(path, "vocabulary")


def test_the_digest_of_blocks_does_not_depend_on_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BLOCK", 6)
    tokens = np.arange(50)
    for name, cuts in {"a": [], "b": [1, 2, 30], "c": [3, 49]}.items():
        parts = [(part, Counts()) for part in np.split(tokens, cuts)]
        store.write(tmp_path / name, 9, "v", parts)
        store.read(tmp_path / name, "v")
    assert len({store.blocks_of(tmp_path / name).read_bytes() for name in "abc"}) == 1


def test_tokens_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="another vocabulary"):
        store.read(write(tmp_path / "train"), "other")


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = write(tmp_path / "train")

    def failing():
        yield PARTS[0]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.write(path, 9, "vocabulary", failing())
    assert len(store.read(path, "vocabulary").tokens) == 5
    assert set(tmp_path.iterdir()) == {path, store.blocks_of(path)}
