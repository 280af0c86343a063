"""Documents of text files, JSON lines and Parquet, and what is said where they are damaged."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from infolm.data import documents
from infolm.data.documents import Unit, in_folder, read
from infolm.errors import InfolmError

TEXTS = ["one\ntwo", "", "drei – vier", "five \U0001f642"]


def zstd(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def json_lines(texts: list[str]) -> bytes:
    return "".join(
        json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)
    ).encode()


def parquet(path: Path, **columns: object) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("suffix", PACKERS)
def test_compression_changes_nothing(tmp_path: Path, suffix: str) -> None:
    pack = PACKERS[suffix]
    lines = tmp_path / f"a.jsonl{suffix}"
    lines.write_bytes(pack(json_lines(TEXTS)))
    assert list(read(lines, "text", "file")) == TEXTS
    text = tmp_path / f"a.txt{suffix}"
    text.write_bytes(pack("a\nb\n\n\nç d\n".encode()))
    assert list(read(text, "text", "file")) == ["a\nb\n\n\nç d\n"]
    assert list(read(text, "text", "line")) == ["a\n", "b\n", "\n", "\n", "ç d\n"]
    assert list(read(text, "text", "paragraph")) == ["a\nb\n", "ç d\n"]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_files_that_were_joined_are_read_to_the_end(tmp_path: Path, suffix: str) -> None:
    pack = PACKERS[suffix]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(pack(b"one\n" * 1000) + pack(b"two\n"))
    assert list(read(path, "text", "line")) == ["one\n"] * 1000 + ["two\n"]


def test_rows_of_parquet_and_nulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "ROWS", 2)
    path = parquet(tmp_path / "a.parquet", body=[*TEXTS, None], n=list(range(5)))
    assert list(read(path, "body", "file")) == [*TEXTS, ""]


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.parquet"])
@pytest.mark.parametrize("skip", [0, 1, 3, 9])
def test_reading_goes_on_from_any_document(tmp_path: Path, name: str, skip: int) -> None:
    path = tmp_path / name
    if name == "a.parquet":
        parquet(path, text=TEXTS)
    else:
        path.write_bytes(json_lines(TEXTS) if name == "a.jsonl" else b"a\nb\nc\n\n")
    whole = list(read(path, "text", "line"))
    assert list(read(path, "text", "line", skip)) == whole[skip:]


def refused(path: Path, match: str, field: str = "text", unit: Unit = "line") -> None:
    with pytest.raises(InfolmError, match=match) as caught:
        list(read(path, field, unit))
    said = str(caught.value)
    assert str(path) in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('{"body": "x"}', r"line 2, has no field 'text' \(it has body\): set data\.field"),
        ('{"text": 3}', r"line 2, has a number as its 'text', not a text"),
        ('{"text": "x"', r"line 2, is not JSON \("),
        ('["text"]', r"line 2, is not a JSON object but a list"),
        (r'{"text": "\ud800"}', r"line 2, has half a character in its 'text'"),
        (b'{"text": "\xff"}', r"line 2, is not UTF-8 text"),
        ("[" * 100_000, r"line 2, is not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str | bytes, match: str) -> None:
    data = line if isinstance(line, bytes) else line.encode()
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + data + b"\n")
    refused(path, match)


@pytest.mark.parametrize("unit", ["file", "paragraph", "line"])
def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path, unit: Unit) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"\na\n\nb\nc \xe9 d\n")
    refused(path, r"bad\.txt, line 5, is not UTF-8 text \(invalid continuation byte\)", unit=unit)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_file_that_was_cut_off_is_refused_with_the_last_line(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cut.txt{suffix}"
    lines = b"".join(b"line %d\n" % (i * i) for i in range(200_000))
    packed = PACKERS[suffix](lines)
    path.write_bytes(packed[: len(packed) * 9 // 10])
    refused(path, r"after line [1-9]\d*, cannot be read \(.+\): the file is damaged or cut off")
    path.write_bytes(b"no such format" * 9)
    refused(path, r"cannot be read \(.+\): the file is damaged")


def test_bad_parquet_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", body=["x"], n=[1])
    refused(path, r"has no column 'text' \(it has body, n\): set data\.field")
    refused(path, r"row 1, has a number as its 'n', not a text", field="n")
    path.write_bytes(path.read_bytes()[:-20])
    refused(path, r"cannot be read \(.+\): the file is damaged")


@pytest.mark.parametrize("unit", ["file", "paragraph", "line"])
def test_a_document_beyond_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: Unit
) -> None:
    monkeypatch.setattr(documents, "LARGEST", 1000)
    path = tmp_path / "a.txt"
    path.write_text("b\n\n" + "a" * 2000)
    refused(path, r"has a document of more than .* MB: cut it", unit=unit)


def test_files_of_a_folder_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ["b.txt", "a/z.jsonl.gz", "a/c", "x.pdf", ".git/config", "a/.hidden.txt"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    known, others = in_folder(tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in known] == ["a/c", "a/z.jsonl.gz", "b.txt"]
    assert [p.name for p in others] == ["x.pdf"]
