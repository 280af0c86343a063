import os
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infolm.data import ingest
from infolm.data.ingest import Text, encode, in_order, make_tokenizer, pieces, shards
from infolm.data.store import Counts
from infolm.data.tokens import EOS, Kind, Tokenizer, vocabulary
from infolm.errors import InfolmError, RunError

TEXTS = st.lists(
    st.sampled_from([*"abé中🙂,'", " ", "  ", "\n", "\xa0", "\r\n", " word ", " <unk> ", EOS]),
    min_size=1,
    max_size=80,
).map("".join)
KINDS: list[Kind] = ["word", "char", "byte", "bpe"]


def write(folder: Path, text: str) -> Text:
    (folder / "text").write_bytes(text.encode())
    return Text.whole(folder / "text")


def ingested(
    text: Text,
    kind: Kind,
    limit: int | None,
    scratch: Path,
    *,
    workers: int | None = 1,
    pretokenised: bool = True,
    lowercase: bool = False,
) -> tuple[Tokenizer, list[int], Counts]:
    """Vocabulary, tokens and counts of a text by way of the two passes."""
    for path in scratch.glob("*.*"):
        path.unlink()
    made = make_tokenizer(
        [text],
        kind,
        limit,
        lowercase=lowercase,
        pretokenised=pretokenised,
        scratch=scratch,
        workers=workers,
        report=lambda *_: None,
    )
    ingest._tokenizer.cache_clear()
    made.save(scratch / "tokenizer.json")
    chunks = list(chain.from_iterable(shards([text], kind)))
    parts = list(encode(chunks, scratch / "tokenizer.json", "encoding", workers, lambda *_: None))
    counts = sum((part for _, part in parts), Counts())
    return made, np.concatenate([ids for ids, _ in parts]).tolist(), counts


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, size=st.integers(1, 30))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_make_up_the_text_and_cut_no_token(
    tmp_path: Path, kind: Kind, text: str, size: int
) -> None:
    source = write(tmp_path, text)
    cut = pieces(source, size, kind)
    assert b"".join(piece.read() for piece in cut) == text.encode()
    assert all(len(piece) for piece in cut)
    if kind == "byte":
        return
    whole = {
        "word": Tokenizer.from_words([EOS, "<unk>", "word", "a", "b"], pretokenised=False),
        "char": Tokenizer.from_characters(["\n", "<unk>", "a", "é", "中"]),
        "bpe": BPE,
    }[kind]
    parts = [whole.encode(ingest.decode(piece, piece.read())) for piece in cut]
    assert np.concatenate(parts).tolist() == whole.encode(text).tolist()


BPE = Tokenizer.from_bpe(["word a b  word\xa0 a\n"] * 5, 270)


@given(
    text=TEXTS,
    limit=st.none() | st.integers(3, 6),
    lowercase=st.booleans(),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 10)),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_size_of_pieces_and_of_counts_in_memory_changes_nothing(
    tmp_path: Path, text: str, limit: int | None, lowercase: bool, sizes: tuple[int, int, int]
) -> None:
    normal = text.lower() if lowercase else text
    expected = Counter(normal.replace("\n", f" {EOS} ").split())
    words = vocabulary(expected, EOS, expected.total(), limit)
    reference = Tokenizer.from_words(words, lowercase=lowercase)
    source = write(tmp_path, text)
    with pytest.MonkeyPatch.context() as patch:
        chunk, ranges, types = sizes
        patch.setattr(ingest, "_CHUNK", dict.fromkeys(KINDS, chunk))
        patch.setattr(ingest, "_RANGE", ranges)
        patch.setattr(ingest, "_TYPES", types)
        made, ids, counts = ingested(source, "word", limit, tmp_path, lowercase=lowercase)
    assert made.to_json() == reference.to_json()
    assert ids == reference.encode(text).tolist()
    assert counts == Counts(
        lines=text.count("\n"),
        words=len(text.split()),
        characters=len(text),
        bytes=len(text.encode()),
        unknown=sum(w not in words for w in normal.replace("\n", " ").split()),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_workers_changes_nothing(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_ALONE", 0)
    words = np.random.default_rng(0).zipf(1.3, 40_000) % 5_000
    text = write(tmp_path, " ".join(f"w{w}," + "\n" * (w % 7 == 0) for w in words.tolist()))
    limit = {"word": 1000, "bpe": 300}.get(kind)
    one = ingested(text, kind, limit, tmp_path, workers=1, pretokenised=False)
    two = ingested(text, kind, limit, tmp_path, workers=2, pretokenised=False)
    assert one[0].to_json() == two[0].to_json()
    assert one[1:] == two[1:]
    content = text.read().decode()
    assert one[1] == one[0].encode(content).tolist()
    assert one[2].words == len(content.split())


def test_characters_and_the_limit_of_their_vocabulary(tmp_path: Path) -> None:
    text = write(tmp_path, "aaaa\nbbb\ncc\nd é\n")
    made, ids, counts = ingested(text, "char", 5, tmp_path)
    assert [made.token(i) for i in range(len(made))] == [EOS, "a", "<unk>", "b", "c"]
    assert counts.unknown == 3
    assert ids.count(made.unk or 0) == 3
    assert counts == Counts(lines=4, words=5, characters=16, bytes=17, unknown=3)


def test_bytes_need_not_be_utf8(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(range(256)))
    _, ids, counts = ingested(Text.whole(tmp_path / "text"), "byte", None, tmp_path)
    assert ids == list(range(256))
    assert counts.bytes == 256


@pytest.mark.parametrize("workers", [1, 2])
def test_text_that_is_not_utf8_is_refused_with_the_place(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_ALONE", 0)
    (tmp_path / "text").write_bytes(b"caf\xc3\xa9 caf\xe9\n")
    with pytest.raises(InfolmError, match=r"text is not UTF-8 text: byte 9 "):
        ingested(Text.whole(tmp_path / "text"), "word", None, tmp_path, workers=workers)


def test_too_many_words_are_refused_unless_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "MOST_WORDS", 4)
    text = write(tmp_path, "a a b b c d e\n")
    with pytest.raises(InfolmError, match=r"has 6 different words.*data\.vocabulary"):
        ingested(text, "word", None, tmp_path)
    made, _, _ = ingested(text, "word", 4, tmp_path)
    assert len(made) == 4


def test_progress_reaches_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_CHUNK", dict.fromkeys(KINDS, 10))
    text = write(tmp_path, "some words\n" * 20)
    Tokenizer.from_bytes().save(tmp_path / "tokenizer.json")
    ingest._tokenizer.cache_clear()
    calls: list[tuple[str, int, int]] = []
    chunks = pieces(text, ingest._CHUNK["byte"], "byte")
    list(
        encode(chunks, tmp_path / "tokenizer.json", "encoding", 1, lambda *call: calls.append(call))
    )
    assert len(calls) > 10
    assert calls == sorted(calls)
    assert calls[-1] == ("encoding", 220, 220)


def test_a_worker_that_dies_is_one_sentence() -> None:
    with pytest.raises(RunError, match="died"):
        list(in_order(os._exit, [1, 1, 1], workers=2))
