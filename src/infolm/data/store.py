"""A split's tokens in one memory-mapped file that knows whether it is whole.

The file is a header of 4096 bytes and the tokens, little-endian, one after the other:

| bytes | what |
| --- | --- |
| 0-7 | `infolm` and the format's version |
| 8-39 | SHA-256 of the rest of the header |
| 40-4095 | JSON padded with blanks: dtype, counts, SHA-256 of the tokens and the vocabulary |
| 4096- | the tokens, unsigned, 16 bits where the vocabulary allows, else 32 |

It is written under another name, flushed to disk and renamed: a reader sees it whole or not at all.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from infolm import files

VERSION = 1
HEADER = 4096

_MAGIC = b"infolm" + VERSION.to_bytes(2, "little")
_JSON = len(_MAGIC) + 32  # where the JSON starts
_ALWAYS_VERIFY = 16 * 2**20  # bytes of tokens; a larger file's checksum is read on request


class DamagedError(Exception):
    """The file is not what was written."""


@dataclass(frozen=True)
class Counts:
    """Sizes of a split's raw text, newlines and all, for perplexities per word, character, byte.

    lines: newlines. words: what stands between white space. unknown: tokens that became `<unk>`
    because the vocabulary lacks them, not those the text itself writes so.
    """

    lines: int = 0
    words: int = 0
    characters: int = 0
    bytes: int = 0
    unknown: int = 0

    def __add__(self, other: Self) -> "Counts":
        return Counts(*(a + b for a, b in zip(_values(self), _values(other), strict=True)))


def _values(counts: Counts) -> list[int]:
    return [counts.lines, counts.words, counts.characters, counts.bytes, counts.unknown]


@dataclass(frozen=True, kw_only=True, eq=False)
class Split(Counts):
    """The tokens of one split, [N] uint16 or uint32, memory-mapped, and the counts of its text."""

    tokens: NDArray[np.unsignedinteger[Any]]


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears at `path` whole and on disk, or not at all."""
    with files.scratch_file(path.parent, path.name) as temporary:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def write(
    path: Path, types: int, vocabulary: str, parts: Iterable[tuple[NDArray[Any], Counts]]
) -> int:
    """Write the parts, in their order, as one split; give the number of tokens.

    types: size of the vocabulary. vocabulary: its SHA-256, kept in the header.
    """
    dtype = np.dtype("<u2" if types <= 2**16 else "<u4")
    digest = hashlib.sha256()
    counts = Counts()
    size = 0
    with atomic(path) as file:
        file.write(bytes(HEADER))
        for tokens, part in parts:
            data = tokens.astype(dtype, copy=False).tobytes()
            file.write(data)
            digest.update(data)
            size += len(tokens)
            counts += part
        fields = {
            "dtype": dtype.str,
            "count": size,
            "counts": asdict(counts),
            "tokens": digest.hexdigest(),
            "vocabulary": vocabulary,
        }
        text = json.dumps(fields).encode().ljust(HEADER - _JSON)
        file.seek(0)
        file.write(_MAGIC + hashlib.sha256(text).digest() + text)
    return size


def read(path: Path, vocabulary: str, verify: bool = False) -> Split:
    """Open a split written for this vocabulary; `DamagedError` if anything is amiss.

    Header and length are always checked, the tokens' checksum up to 16 MB or if `verify`.
    """
    with path.open("rb") as file:
        header = file.read(HEADER)
        size = os.fstat(file.fileno()).st_size - HEADER
    text = header[_JSON:]
    if header[:_JSON] != _MAGIC + hashlib.sha256(text).digest():
        raise DamagedError(f"{path} has a damaged header")
    fields = json.loads(text)
    dtype = np.dtype(fields["dtype"])
    if size != fields["count"] * dtype.itemsize:
        raise DamagedError(f"{path} is {size} bytes of tokens, not {fields['count']} tokens")
    if fields["vocabulary"] != vocabulary:
        raise DamagedError(f"{path} belongs to another vocabulary")
    tokens = np.memmap(path, dtype, "r", HEADER, (fields["count"],))
    verify = verify or size <= _ALWAYS_VERIFY
    if verify and hashlib.sha256(tokens.data).hexdigest() != fields["tokens"]:
        raise DamagedError(f"{path} does not match its checksum")
    return Split(tokens=tokens, **fields["counts"])
