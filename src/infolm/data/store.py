"""A split's tokens in one memory-mapped file with checksums.

The file is a header of 4096 bytes and the tokens, little-endian, one after the other:

| bytes | what |
| --- | --- |
| 0-7 | `infolm` and the format's version |
| 8-39 | SHA-256 of the rest of the header |
| 40-4095 | JSON padded with blanks: dtype, counts, SHA-256 of the tokens and the vocabulary |
| 4096- | the tokens, unsigned, 16 bits where the vocabulary allows, else 32 |

It is written under another name, flushed to disk and renamed: a reader sees a complete file or
none. Beside it, in a file that ends in `.blocks`, are the SHA-256 of each 4 MB of tokens, which all
cores check in parallel. If that file is missing or damaged, the checksum of all tokens decides, and
the file is recreated.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from infolm import files

VERSION = 1
HEADER = 4096

_MAGIC = b"infolm" + VERSION.to_bytes(2, "little")
_JSON = len(_MAGIC) + 32  # where the JSON starts
_DTYPES: dict[str, np.dtype[Any]] = {"<u2": np.dtype("<u2"), "<u4": np.dtype("<u4")}
BLOCK = 4 * 2**20
"""Bytes of tokens that have a SHA-256 of their own."""


class DamagedError(Exception):
    """The file differs from what was written."""


class _Digests:
    """The SHA-256 of all bytes and of each block of them."""

    def __init__(self) -> None:
        self.whole, self._block, self._size = hashlib.sha256(), hashlib.sha256(), 0
        self._done: list[str] = []

    def update(self, data: bytes | memoryview) -> None:
        self.whole.update(data)
        rest = memoryview(data)
        while len(rest):
            part = rest[: BLOCK - self._size]
            self._block.update(part)
            self._size += len(part)
            rest = rest[len(part) :]
            if self._size == BLOCK:
                self._done.append(self._block.hexdigest())
                self._block, self._size = hashlib.sha256(), 0

    def blocks(self) -> list[str]:
        return [*self._done, *([self._block.hexdigest()] if self._size else [])]


@dataclass(frozen=True)
class Counts:
    """Sizes of a split's raw text, including newlines, for perplexities per word, character, byte.

    lines: newlines. words: separated by white space. unknown: tokens that became `<unk>` because
    the vocabulary lacks them, not those written as `<unk>` in the text.
    """

    lines: int = 0
    words: int = 0
    characters: int = 0
    bytes: int = 0
    unknown: int = 0

    def __add__(self, other: Self) -> "Counts":
        return Counts(*(a + b for a, b in zip(values(self), values(other), strict=True)))


def values(counts: Counts) -> list[int]:
    return [counts.lines, counts.words, counts.characters, counts.bytes, counts.unknown]


@dataclass(frozen=True, kw_only=True, eq=False)
class Split(Counts):
    """The tokens of one split, [N] uint16 or uint32, memory-mapped, and the counts of its text."""

    tokens: NDArray[np.unsignedinteger[Any]]


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """Write a file to `path` atomically."""
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
    dtype = _DTYPES["<u2" if types <= 2**16 else "<u4"]
    digests = _Digests()
    counts = Counts()
    size = 0
    with atomic(path) as file:
        file.write(bytes(HEADER))
        for tokens, part in parts:
            data = tokens.astype(dtype, copy=False).tobytes()
            file.write(data)
            digests.update(data)
            size += len(tokens)
            counts += part
        fields = {
            "dtype": dtype.str,
            "count": size,
            "counts": asdict(counts),
            "tokens": digests.whole.hexdigest(),
            "vocabulary": vocabulary,
        }
        text = json.dumps(fields).encode().ljust(HEADER - _JSON)
        file.seek(0)
        file.write(_MAGIC + hashlib.sha256(text).digest() + text)
    _write_blocks(path, digests)
    return size


def blocks_of(path: Path) -> Path:
    """The file with the SHA-256 of the blocks of a split."""
    return path.with_suffix(".blocks")


def _write_blocks(path: Path, digests: _Digests) -> None:
    fields = {"tokens": digests.whole.hexdigest(), "block": BLOCK, "sha256": digests.blocks()}
    with atomic(blocks_of(path)) as file:
        file.write(json.dumps(fields).encode())


def _read_blocks(path: Path, whole: str, size: int) -> list[str] | None:
    """The checksums of these tokens, in blocks of the present size; None if there are none."""
    try:
        fields = json.loads(blocks_of(path).read_bytes())
        found: list[str] = fields["sha256"]
        fits = len(found) == -(-size // BLOCK)
        return found if fits and (fields["tokens"], fields["block"]) == (whole, BLOCK) else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _verify(path: Path, whole: str, size: int) -> None:
    """Check `size` bytes of tokens, reading a block for each core at a time."""
    known = _read_blocks(path, whole, size)
    if known is not None:
        check = partial(_block_is, path)
        if len(known) < 2:
            sound = all(map(check, range(len(known)), known))
        else:
            with ThreadPoolExecutor(min(len(known), os.cpu_count() or 1)) as pool:
                sound = all(pool.map(check, range(len(known)), known))
        if sound:
            return
    digests = _Digests()
    with path.open("rb") as file:
        file.seek(HEADER)
        while data := file.read(BLOCK):
            digests.update(data)
    if digests.whole.hexdigest() != whole:
        both = zip(known or [], digests.blocks(), strict=False)
        altered = [i for i, (a, b) in enumerate(both) if a != b]
        where = f" from byte {HEADER + altered[0] * BLOCK:,} on" if altered else ""
        raise DamagedError(f"{path} does not match its checksum{where}")
    with suppress(OSError):  # a cache that may only be read
        _write_blocks(path, digests)


def _block_is(path: Path, number: int, digest: str) -> bool:
    with path.open("rb", buffering=0) as file:
        file.seek(HEADER + number * BLOCK)
        data = file.read(BLOCK)
    return hashlib.sha256(data).hexdigest() == digest


def read(path: Path, vocabulary: str, verify: bool = True) -> Split:
    """Open a split written for this vocabulary; `DamagedError` if anything is wrong.

    verify: read all tokens and check them too, not only the header and the length.
    """
    with path.open("rb") as file:
        header = file.read(HEADER)
        size = os.fstat(file.fileno()).st_size - HEADER
    text = header[_JSON:]
    if header[:_JSON] != _MAGIC + hashlib.sha256(text).digest():
        raise DamagedError(f"{path} has a damaged header")
    try:
        fields = json.loads(text)
        dtype, count, counts = _DTYPES[fields["dtype"]], fields["count"], Counts(**fields["counts"])
        whole, made_for = str(fields["tokens"]), fields["vocabulary"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedError(f"{path} has a header of another format ({error!r})") from error
    if type(count) is not int or count < 1 or size != count * dtype.itemsize:
        raise DamagedError(f"{path} is {size} bytes of tokens, not {count} tokens")
    if made_for != vocabulary:
        raise DamagedError(f"{path} belongs to another vocabulary")
    if not all(type(each) is int and each >= 0 for each in values(counts)):
        raise DamagedError(f"{path} has counts that are not numbers")
    if verify:
        _verify(path, whole, size)
    return Split(tokens=np.memmap(path, dtype, "r", HEADER, (count,)), **asdict(counts))
