"""From the documents of many files to a text for each split, in bounded memory.

    gathered(files, Gathering(field="text", deduplicate=True, shuffle=7), folder, report)

Documents are read once, in the order of the files' names, and written as text of some 64 MB to a
file, each ended by a newline. The requested steps happen on the way:

- **Splits.** Files named train, valid and test keep their split. Otherwise a document's hash
  decides: it stays in its split whatever files are added or removed, and so do its copies.
- **Deduplication** leaves out a document whose normalised text (NFC, lower case, white space as one
  blank) came before; one that is in test or valid is left out of train, wherever it comes.
- **Shuffling** gives each document a random key, sorts blocks of text by it and merges the sorted
ones: all orders of the documents are equally likely, unlike with a shuffle buffer, and the result
does not depend on the memory budget.

Each block is committed with the start of the next. If the process is killed, the next call
continues from there, and ends with the same bytes.
"""

import hashlib
import json
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from infolm.data import documents, store
from infolm.data.documents import Unit
from infolm.data.store import DamagedError
from infolm.errors import InfolmError
from infolm.files import matching

T = TypeVar("T")
VERSION = 1
"""Version; raised when the same files would give another text."""
SPLITS = ("train", "valid", "test")
STRETCH = 64 * 2**20
"""Bytes of text that are held, and written, together."""
OVERHEAD = 128
"""Bytes that a document takes in memory besides its text."""
HASHES = 2**20
"""Documents whose hashes are held, and written, together."""
SORTED = 2**23
"""Hashes that are compared at a time: 17 bytes each, and as much again to sort them."""

_HASH = np.dtype([("high", "<u8"), ("low", "<u8"), ("place", "u1")])
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Gathering:
    """field: of JSON lines and Parquet. unit: the document unit of a text file. shuffle: a seed;
    None keeps the order. held_out: the share of documents in each of valid and test, if file names
    do not decide."""

    field: str = "text"
    unit: Unit = "file"
    deduplicate: bool = False
    shuffle: int | None = None
    held_out: float = 0.01


@dataclass(frozen=True)
class File:
    """split: None if the hash of each document decides."""

    path: Path
    split: str | None = None


@dataclass(frozen=True)
class Place:
    """The next document to read: `number` in file `file`; `ordinal` among all."""

    file: int = 0
    number: int = 0
    ordinal: int = 0


@dataclass(frozen=True)
class Gathered:
    """The result: the files of each split in order, the number of documents in each, and the number
    left out."""

    texts: dict[str, list[str]]
    documents: dict[str, int]
    files: int
    duplicates: int = 0
    empty: int = 0

    def described(self) -> str:
        kept = ", ".join(f"{n:,} {split}" for split, n in self.documents.items())
        left = [
            f"{n:,} {what}{'s'[: n != 1]}"
            for n, what in ((self.duplicates, "duplicate"), (self.empty, "empty one"))
            if n
        ]
        tail = f", {' and '.join(left)} left out" if left else ""
        return f"documents of {self.files:,} file{'s'[: self.files != 1]} ({kept}{tail})"


def normalised(text: str) -> str:
    """The normal form by which documents are compared: NFC, lower case, single blanks."""
    plain = text if text.isascii() else unicodedata.normalize("NFC", text)
    return " ".join(plain.lower().split())


def hash_of(text: str) -> bytes:
    """16 bytes of the normalised text's SHA-256: among a billion documents two collide with
    probability 1e-21."""
    return hashlib.sha256(normalised(text).encode()).digest()[:16]


def split_of(digest: bytes, held_out: float) -> str:
    """test below `held_out`, valid below twice that, else train, of the hash as a share of 1."""
    share = int.from_bytes(digest[8:], "big") / 2**64
    return "test" if share < held_out else "valid" if share < 2 * held_out else "train"


def random_key(seed: int, ordinal: int) -> int:
    """64 random bits of a document: the order of these is the shuffled order."""
    drawn = hashlib.blake2b(f"{seed} {ordinal}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big")


def gathered(
    files: Sequence[File],
    wanted: Gathering,
    prepare: Callable[[str], Iterable[str]] | None,
    folder: Path,
    report: Report,
) -> Gathered:
    """Create the texts in `folder`, or find them; see the module. One process at a time.

    prepare: gives the lines to write of a document; None: it is written unchanged.
    """
    try:
        return _gathered(files, wanted, prepare, folder, report)
    except DamagedError as error:
        print(f"{error}: the documents are gathered again", file=sys.stderr)
        shutil.rmtree(folder)
        return _gathered(files, wanted, prepare, folder, report)


def _gathered(
    files: Sequence[File],
    wanted: Gathering,
    prepare: Callable[[str], Iterable[str]] | None,
    folder: Path,
    report: Report,
) -> Gathered:
    if (found := finished(folder)) is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    if _record(folder).exists():  # and what it was made from is still there
        return _end(folder)
    reading = _Reading(files, wanted, report)
    copies = _copies(reading, folder / "hashes") if wanted.deduplicate else None
    writer = _Sorted if wanted.shuffle is not None else _Plain
    result = writer(reading, copies, prepare, folder).write()
    for split in SPLITS:
        if not result.documents[split]:
            raise InfolmError(
                f"the {split} split has no document: raise data.held_out, name files train, valid "
                "and test, or give more documents"
            )
    _commit(_record(folder), asdict(result))
    return _end(folder)


_SCRATCH = ("hashes", "runs", "stretches")


def _record(folder: Path) -> Path:
    return folder / "gathered.json"


def finished(folder: Path) -> Gathered | None:
    """The result in `folder`, if it is complete and undamaged."""
    if not _record(folder).exists() or any((folder / made).exists() for made in _SCRATCH):
        return None
    try:
        return _committed(Gathered, _record(folder))
    except DamagedError:
        return None


def _end(folder: Path) -> Gathered:
    for made in _SCRATCH:
        shutil.rmtree(folder / made, ignore_errors=True)
    return _committed(Gathered, _record(folder))


@dataclass(frozen=True)
class _Hashed:
    """A file of hashes was written. next: the first document that is not in it."""

    next: Place | None


@dataclass(frozen=True)
class _Stretched:
    """Likewise a block of documents; totals: of all blocks so far."""

    totals: Gathered
    next: Place | None


def _committed(kind: type[T], record: Path) -> T:
    try:
        return TypeAdapter(kind).validate_json(record.read_bytes())
    except ValidationError as error:
        raise DamagedError(f"{record} is damaged") from error


def _mapped(path: Path) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r")
        return found
    except (ValueError, EOFError) as error:
        raise DamagedError(f"{path} is damaged") from error


def _commit(path: Path, fields: dict[str, Any]) -> None:
    with store.atomic(path) as file:
        file.write(json.dumps(fields).encode())


class _Reading:
    """The documents of all files from any position, with progress in bytes."""

    def __init__(self, files: Sequence[File], wanted: Gathering, report: Report) -> None:
        self.files, self.wanted, self._report = files, wanted, report
        sizes = [file.path.stat().st_size for file in files]
        self._before = np.concatenate([[0], np.cumsum(sizes)]).tolist()

    def documents(self, stage: str, start: Place) -> Iterator[tuple[Place, str | None, str, Place]]:
        """(where it is, its file's split, its text, where the next is)."""
        at = start
        for number in range(start.file, len(self.files)):
            file = self.files[number]
            texts = documents.read(file.path, self.wanted.field, self.wanted.unit, at.number)
            for text in texts:
                following = Place(number, at.number + 1, at.ordinal + 1)
                yield at, file.split, text, following
                at = following
            at = Place(number + 1, 0, at.ordinal)
            self._report(stage, self._before[number + 1], self._before[-1])


def _copies(reading: _Reading, folder: Path) -> NDArray[np.bool_]:
    """Which documents are duplicates, a byte for each, memory-mapped."""
    found = folder / "copies.npy"
    if not found.exists():
        folder.mkdir(exist_ok=True)
        hashes = _hashes(reading, folder)
        total = sum(map(len, hashes))
        with store.atomic(found) as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "|b1", "fortran_order": False, "shape": (total,)}
            )
            head = file.tell()
            file.truncate(head + total)
            file.flush()
            marks = np.memmap(file, np.bool_, "r+", head, (total,)) if total else None
            if marks is not None:
                _mark(hashes, marks)
                marks.flush()
                del marks
    return _mapped(found)


def _hashes(reading: _Reading, folder: Path) -> list[NDArray[Any]]:
    """The hash of each document and how its split ranks, in files of `HASHES`, memory-mapped."""
    made: list[NDArray[Any]] = []
    start = Place()
    for number in count():
        record = folder / f"{number:05d}.json"
        if not record.exists():
            break
        following = _committed(_Hashed, record).next
        made.append(_mapped(folder / f"{number:05d}.npy"))
        if following is None:
            return made
        start = following
    held: list[tuple[int, int, int]] = []

    def write(following: Place | None) -> None:
        name = f"{len(made):05d}"
        with store.atomic(folder / f"{name}.npy") as file:
            np.save(file, np.array(held, _HASH))
        _commit(folder / f"{name}.json", {"next": following and asdict(following)})
        made.append(_mapped(folder / f"{name}.npy"))
        held.clear()

    for _, split, text, following in reading.documents("looking for duplicates", start):
        digest = hash_of(text)
        # A document in test or valid stays there, and is left out of train.
        place = SPLITS[::-1].index(split or "train")
        held.append((int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big"), place))
        if len(held) == HASHES:
            write(following)
    write(None)
    return made


def _mark(hashes: list[NDArray[Any]], marks: NDArray[np.bool_]) -> None:
    """Mark every document but the first of each hash, ordered by rank of its split and position.

    Hashes are compared a class at a time, classes by their remainder, as many as the budget needs.
    """
    classes = np.uint64(-(-len(marks) // SORTED))
    for remainder in range(int(classes)):
        parts, ordinals, before = [], [], 0
        for part in hashes:
            chosen = np.flatnonzero(part["high"] % classes == remainder)
            parts.append(part[chosen])
            ordinals.append(chosen + before)
            before += len(part)
        found, ordinal = np.concatenate(parts), np.concatenate(ordinals)
        order = np.lexsort((ordinal, found["place"], found["low"], found["high"]))
        found, ordinal = found[order], ordinal[order]
        same = np.zeros(len(found), np.bool_)
        same[1:] = (found["high"][1:] == found["high"][:-1]) & (
            found["low"][1:] == found["low"][:-1]
        )
        marks[ordinal[same]] = True


@dataclass
class _Stretch:
    """Documents of one split that are held: their bytes and, to be shuffled, their keys."""

    texts: list[bytes] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)


class _Plain:
    """Writes the documents in their order: a file for each split and stretch."""

    folder_name = "stretches"
    stage = "gathering documents"

    def __init__(
        self,
        reading: _Reading,
        copies: NDArray[np.bool_] | None,
        prepare: Callable[[str], Iterable[str]] | None,
        folder: Path,
    ) -> None:
        self._reading, self._wanted = reading, reading.wanted
        self._copies, self._prepare, self._folder = copies, prepare, folder
        self._records = folder / self.folder_name
        self._records.mkdir(exist_ok=True)

    def write(self) -> Gathered:
        totals, start = self._so_far()
        found = self._reading.documents(self.stage, start) if start else iter(())
        while start is not None:
            totals, start = self._stretch(totals, found)
        return totals

    def _so_far(self) -> tuple[Gathered, Place | None]:
        """The committed blocks, and where to continue; None: nothing is left."""
        nothing = dict.fromkeys(SPLITS, 0)
        totals = Gathered({split: [] for split in SPLITS}, nothing, len(self._reading.files))
        start: Place | None = Place()
        self._number = 0
        for record in matching(self._records, "*.json"):
            block = _committed(_Stretched, record)
            totals, start = block.totals, block.next
            self._number += 1
        return totals, start

    def _stretch(
        self, totals: Gathered, found: Iterator[tuple[Place, str | None, str, Place]]
    ) -> tuple[Gathered, Place | None]:
        """Hold, write and commit the next block of documents; returns the start of the following
        one."""
        held = {split: _Stretch() for split in SPLITS}
        size = duplicates = empty = 0
        following: Place | None = None
        for at, named, text, after in found:
            data = self._written(text)
            if not data:
                empty += 1
                continue
            if self._copies is not None and self._copies[at.ordinal]:
                duplicates += 1
                continue
            split = named or split_of(hash_of(text), self._wanted.held_out)
            held[split].texts.append(data)
            if self._wanted.shuffle is not None:
                held[split].keys.append(random_key(self._wanted.shuffle, at.ordinal))
            size += len(data) + OVERHEAD
            if size >= STRETCH:
                following = after
                break
        texts = dict(totals.texts)
        for split, stretch in held.items():
            if stretch.texts:
                texts[split] = [*texts[split], self._put(split, stretch)]
        totals = replace(
            totals,
            texts=texts,
            documents={s: totals.documents[s] + len(held[s].texts) for s in SPLITS},
            duplicates=totals.duplicates + duplicates,
            empty=totals.empty + empty,
        )
        fields = {"totals": asdict(totals), "next": following and asdict(following)}
        _commit(self._records / f"{self._number:05d}.json", fields)
        self._number += 1
        return totals, following

    def _written(self, text: str) -> bytes:
        """The document as written, ended by a newline; empty for a blank one."""
        if not text.strip():
            return b""
        if self._prepare is not None:
            return "".join(f"{line}\n" for line in self._prepare(text)).encode()
        return f"{text}\n".encode() if not text.endswith("\n") else text.encode()

    def _put(self, split: str, stretch: _Stretch) -> str:
        name = f"{split}-{self._number:05d}.txt"
        with store.atomic(self._folder / name) as file:
            file.writelines(stretch.texts)
        return name


class _Sorted(_Plain):
    """Writes each stretch sorted by key, then merges: file p of a split has the p-th share of all
    keys, which lie together in each sorted stretch."""

    folder_name = "runs"
    stage = "shuffling documents"

    def write(self) -> Gathered:
        runs = super().write()
        return replace(runs, texts={s: self._merged(s, names) for s, names in runs.texts.items()})

    def _put(self, split: str, stretch: _Stretch) -> str:
        name = f"{split}-{self._number:05d}"
        keys = np.array(stretch.keys, np.uint64)
        order = np.argsort(keys, kind="stable")
        ends = np.cumsum([len(stretch.texts[i]) for i in order])
        with store.atomic(self._records / f"{name}.text") as file:
            file.writelines(stretch.texts[i] for i in order)
        with store.atomic(self._records / f"{name}.keys.npy") as file:
            np.save(file, np.stack([keys[order], ends.astype(np.uint64)]))
        return name

    def _merged(self, split: str, runs: list[str]) -> list[str]:
        paths = [self._records / f"{name}.text" for name in runs]
        keys = (_mapped(path.with_suffix(".keys.npy")) for path in paths)
        size = sum(int(ends[-1]) + OVERHEAD * len(ends) for _, ends in keys)
        shares = -(-size // STRETCH)
        made = [f"{split}-{share:05d}.txt" for share in range(shares)]
        bounds = [share * 2**64 // shares for share in range(shares)]
        for name, low, high in zip(made, bounds, [*bounds[1:], 2**64], strict=True):
            if (self._folder / name).exists():
                continue
            found = [part for path in paths for part in self._between(path, low, high)]
            found.sort(key=lambda part: part[0])
            with store.atomic(self._folder / name) as file:
                file.writelines(text for _, text in found)
        return made

    def _between(self, path: Path, low: int, high: int) -> Iterator[tuple[int, bytes]]:
        """The documents of a sorted stretch whose keys are in [low, high)."""
        keys, ends = _mapped(path.with_suffix(".keys.npy"))
        first = int(np.searchsorted(keys, np.uint64(low)))
        last = len(keys) if high == 2**64 else int(np.searchsorted(keys, np.uint64(high)))
        start = int(ends[first - 1]) if first else 0
        with path.open("rb") as file:
            file.seek(start)
            for i in range(first, last):
                yield int(keys[i]), file.read(int(ends[i]) - start)
                start = int(ends[i])
