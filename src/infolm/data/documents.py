"""Documents of many files: plain text, JSON lines and Parquet, compressed or not.

| name ends in | a document is |
| --- | --- |
| `.jsonl`, `.ndjson`, `.json` | the field of a line |
| `.parquet` | the column of a row |
| any other | the file, a paragraph (up to a blank line) or a line |

All but Parquet may be compressed: `.gz`, `.bz2`, `.xz`, `.zst`. Files are read as streams: no more
than a document, or a few rows of Parquet, is in memory. An unreadable document is reported with its
file and line or row.
"""

import bz2
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from infolm.errors import InfolmError

Unit = Literal["file", "paragraph", "line"]

LARGEST = 64 * 2**20
"""Maximum bytes of a document: one is held in memory."""
ROWS = 64
"""Rows of Parquet that are read together."""

_JSON = (".jsonl", ".ndjson", ".json")
_PARQUET = ".parquet"
_TEXT = ("", ".txt", ".text", ".md", ".rst", ".tokens", ".raw")
_EXTRA = "{path} needs another package: pip install 'infolm[parquet]'"


def _open_zstd(path: Path) -> io.BufferedIOBase:
    try:
        import pyarrow
    except ImportError:
        raise InfolmError(_EXTRA.format(path=path)) from None
    stream = pyarrow.input_stream(str(path), compression="zstd", buffer_size=2**16)
    return io.BufferedReader(stream, 2**16)


_COMPRESSED: Mapping[str, Callable[[Path], io.BufferedIOBase]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _open_zstd,
}
_DAMAGES = (OSError, EOFError, zlib.error, lzma.LZMAError)  # pyarrow's are OSError or ValueError


def is_compressed(path: Path) -> bool:
    return path.suffix.lower() in _COMPRESSED


def kind_of(path: Path) -> str:
    """The suffix of a file's name without the compression: '.jsonl' of 'a.jsonl.gz'."""
    plain = path.with_suffix("") if is_compressed(path) else path
    return plain.suffix.lower()


def is_text(path: Path) -> bool:
    """Whether the file is plain text after decompression."""
    return kind_of(path) not in (*_JSON, _PARQUET)


def is_plain(path: Path) -> bool:
    """Whether the file is plain, uncompressed text."""
    return is_text(path) and not is_compressed(path)


def is_known(path: Path) -> bool:
    """Whether a file of this name is read in a folder with files of all kinds."""
    return kind_of(path) in (*_TEXT, *_JSON, _PARQUET)


def opened(path: Path) -> io.BufferedIOBase:
    """The decompressed bytes of a file."""
    return _COMPRESSED.get(path.suffix.lower(), lambda path: path.open("rb"))(path)


class Row(NamedTuple):
    """A document as a file holds it: the number of its first line, or of its row of Parquet, from 1
    on, and its bytes, or the value of the row."""

    number: int
    value: Any


@dataclass(frozen=True)
class Reader:
    """How the documents of a file are found. unit: the unit in messages."""

    unit: Literal["line", "row"]
    rows: Callable[[Path], Iterator[Row]]
    text: Callable[[Any], str]
    """The text of a row's value; a `ValueError` completes 'FILE, line N, '."""


def read(path: Path, field: str, unit: Unit, skip: int = 0) -> Iterator[str]:
    """The documents of a file after the first `skip`, including empty ones."""
    reader = _reader(path, field, unit)
    for number, value in islice(_whole_rows(reader, path), skip, None):
        try:
            text = reader.text(value)
        except UnicodeDecodeError as error:
            line = number + value.count(b"\n", 0, error.start)
            raise InfolmError(
                f"{path}, line {line}, is not UTF-8 text ({error.reason}): convert the file, for "
                "instance with iconv -f LATIN1 -t UTF-8"
            ) from error
        except ValueError as error:
            raise InfolmError(f"{path}, {reader.unit} {number}, {error}") from error
        yield text


def _whole_rows(reader: Reader, path: Path) -> Iterator[Row]:
    """The rows of a file; an error sentence if it breaks off."""
    last = 0
    try:
        for row in reader.rows(path):
            last = row.number
            yield row
    except _TooLong as error:
        raise InfolmError(
            f"{path}, after line {last}, has a document of more than {LARGEST // 2**20} MB: cut "
            "it, or set data.documents=line or paragraph"
        ) from error
    except FileNotFoundError as error:
        raise InfolmError(f"{path} no longer exists: put it back") from error
    except _DAMAGES as error:
        where = f", after {reader.unit} {last}," if last else ""
        raise InfolmError(
            f"{path}{where} cannot be read ({error}): the file is damaged or cut off; "
            "fetch it again"
        ) from error


def _reader(path: Path, field: str, unit: Unit) -> Reader:
    kind = kind_of(path)
    if kind == _PARQUET:
        return Reader("row", lambda path: _parquet_rows(path, field), _text_or_none(field))
    if kind in _JSON:
        return Reader("line", _lines, lambda line: _field_of(line, field))
    return Reader("line", _TEXTS[unit], bytes.decode)


class _TooLong(Exception):
    """A document is too large for memory."""


def _bounded_lines(file: io.BufferedIOBase) -> Iterator[bytes]:
    while line := file.readline(LARGEST + 1):
        if len(line) > LARGEST:
            raise _TooLong
        yield line


def _lines(path: Path) -> Iterator[Row]:
    with opened(path) as file:
        for number, line in enumerate(_bounded_lines(file), 1):
            yield Row(number, line)


def _paragraphs(path: Path) -> Iterator[Row]:
    """Lines up to a blank one."""
    first, held, size = 0, list[bytes](), 0
    for number, line in _lines(path):
        if line.strip():
            first = first if held else number
            held.append(line)
            size += len(line)
            if size > LARGEST:
                raise _TooLong
        elif held:
            yield Row(first, b"".join(held))
            held, size = [], 0
    if held:
        yield Row(first, b"".join(held))


def _whole(path: Path) -> Iterator[Row]:
    with opened(path) as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise _TooLong
    yield Row(1, data)


_TEXTS: Mapping[Unit, Callable[[Path], Iterator[Row]]] = {
    "file": _whole,
    "paragraph": _paragraphs,
    "line": _lines,
}


def _field_of(line: bytes, field: str) -> str:
    text = line.decode()
    if not text.strip():
        return ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error}): write one object {{...}} per line") from error
    if type(value) is not dict:
        raise ValueError(
            f"is not a JSON object but a {_named(value)}: write one object {{...}} per line"
        )
    if field not in value:
        raise ValueError(
            f"has no field '{field}' (it has {', '.join(map(str, value)) or 'none'}): set "
            "data.field, or --field, to the one with the text"
        )
    return _text_or_none(field)(value[field])


def _named(value: Any) -> str:
    names = {list: "list", str: "string", int: "number", float: "number", bool: "truth value"}
    return names.get(type(value), type(value).__name__)


def _text_or_none(field: str) -> Callable[[Any], str]:
    def text(value: Any) -> str:
        if value is None:
            return ""
        if type(value) is not str:
            raise ValueError(f"has a {_named(value)} as its '{field}', not a text: set data.field")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:  # JSON can write half a character
                raise ValueError(
                    f"has half a character in its '{field}' ({error.reason}): correct it"
                ) from error
        return value

    return text


def _parquet_rows(path: Path, field: str) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InfolmError(_EXTRA.format(path=path)) from None
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise InfolmError(
                    f"{path} has no column '{field}' (it has {', '.join(names) or 'none'}): set "
                    "data.field, or --field, to the one with the text"
                )
            number = 0
            for batch in file.iter_batches(ROWS, columns=[field]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    yield Row(number, value)
    except pyarrow.ArrowException as error:
        said = str(error).strip().splitlines()
        raise OSError(said[0] if said else type(error).__name__) from error


def in_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files under a folder, at any depth, in the order of their names: those that are read, and
    those of other kinds. Hidden files are ignored."""

    def visible(path: Path) -> bool:
        return not any(part.startswith(".") for part in path.relative_to(folder).parts)

    found = sorted(path for path in folder.rglob("*") if path.is_file() and visible(path))
    return [p for p in found if is_known(p)], [p for p in found if not is_known(p)]
