"""Tokens in several files as one array, of which only the part being read is in memory.

A split above `ingest.SHARD` bytes of text is stored as a file of tokens for each such block, and an
index:

| file | what |
| --- | --- |
| `train-00000.tokens` ... | as `store` writes them, each with its header and checksums |
| `train.shards` | JSON: their names in order; it is written last |
"""

import json
import mmap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from infolm.data import store
from infolm.data.store import Counts, DamagedError, Split

VERSION = 1
RESIDENT = 64 * 2**20
"""Bytes of the files in memory before they are released."""
FAULT = 2**16
"""Bytes that the system maps around a place that is read."""


class Shards:
    """N tokens in several consecutive arrays, with the array interface that feeds use.

    A slice, an index and an array of indices give what they give of the whole array, as arrays of
    their own. `np.asarray` gives all N, in memory. Pages that were read are released every
    `RESIDENT` bytes: until then the system counts them as the process's memory.
    """

    ndim = 1

    def __init__(self, parts: Sequence[NDArray[Any]], maps: Sequence[mmap.mmap] = ()) -> None:
        self._parts, self._maps = list(parts), list(maps)
        self._starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        self.dtype = parts[0].dtype
        self._read = 0

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def size(self) -> int:
        return len(self)

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    @property
    def nbytes(self) -> int:
        return len(self) * self.dtype.itemsize

    def __getitem__(self, key: Any) -> Any:
        if type(key) is slice:
            start, stop, step = key.indices(len(self))
            if step != 1:
                return self._at(np.arange(start, stop, step))
            return self._between(start, max(start, stop))
        if np.ndim(key) == 0:
            place = int(key)
            if not -len(self) <= place < len(self):
                raise IndexError(f"index {place} is out of bounds for {len(self)} tokens")
            return self._at(np.array([place]))[0]
        found = np.asarray(key)
        if found.dtype == np.bool_:
            if found.shape != self.shape:
                raise IndexError(f"{found.shape} truth values do not choose of {len(self)} tokens")
            found = np.flatnonzero(found)
        return self._at(found)

    def _between(self, start: int, stop: int) -> NDArray[Any]:
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        taken = []
        while start < stop:
            before, after = int(self._starts[first]), int(self._starts[first + 1])
            taken.append(self._parts[first][start - before : min(stop, after) - before])
            start, first = min(stop, after), first + 1
        copy = np.concatenate([np.empty(0, self.dtype), *taken])
        self._let_go(copy.nbytes + FAULT)
        return copy

    def _at(self, places: NDArray[Any]) -> NDArray[Any]:
        """The tokens at these places, which may count from the end; of whatever shape."""
        flat = places.astype(np.int64).ravel()
        if len(flat) and not (-len(self) <= flat.min() and flat.max() < len(self)):
            raise IndexError(f"an index is out of bounds for {len(self)} tokens")
        flat = np.where(flat < 0, flat + len(self), flat)
        shard = np.searchsorted(self._starts, flat, side="right") - 1
        found = np.empty(len(flat), self.dtype)
        for number in np.unique(shard):
            here = np.flatnonzero(shard == number)
            found[here] = self._parts[number][flat[here] - self._starts[number]]
        # Places that follow each other lie on one page.
        apart = np.count_nonzero(np.diff(flat, prepend=-FAULT) != 1)
        self._let_go(found.nbytes + int(apart) * FAULT)
        return found.reshape(places.shape)

    def _let_go(self, read: int) -> None:
        self._read += read
        if self._read < RESIDENT or not hasattr(mmap, "MADV_DONTNEED"):
            return
        self._read = 0
        for mapped in self._maps:  # of a file that is only read nothing is lost
            mapped.madvise(mmap.MADV_DONTNEED)

    def astype(self, dtype: Any) -> NDArray[Any]:
        return np.asarray(self).astype(dtype, copy=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("tokens in several files are no array: they must be copied")
        whole = self._between(0, len(self))
        return whole if dtype is None else whole.astype(dtype, copy=False)


def joined(splits: Sequence[Split], paths: Sequence[Path]) -> Split:
    """The splits in these files as one."""
    parts, maps = [], []
    for split, path in zip(splits, paths, strict=True):
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        parts.append(np.frombuffer(mapped, split.tokens.dtype, len(split.tokens), store.HEADER))
        maps.append(mapped)
    counts = sum((Counts(*store.values(split)) for split in splits), Counts())
    tokens = cast(NDArray[Any], Shards(parts, maps))
    return Split(**asdict(counts), tokens=tokens)


def index_of(folder: Path, split: str) -> Path:
    return folder / f"{split}.shards"


def write_index(path: Path, names: Sequence[str]) -> None:
    with store.atomic(path) as file:
        file.write(json.dumps({"version": VERSION, "shards": list(names)}).encode())


def read(folder: Path, split: str, vocabulary: str, verify: bool) -> Split:
    """Open a split in one file or several; `DamagedError` if anything is wrong."""
    single = folder / f"{split}.tokens"
    if single.exists() or not index_of(folder, split).exists():
        found = store.read(single, vocabulary, verify)
        return found if found.tokens.nbytes <= RESIDENT else joined([found], [single])
    index = index_of(folder, split)
    try:
        fields = json.loads(index.read_bytes())
        if fields["version"] != VERSION:
            raise ValueError("version")
        names = [f"{split}-{number:05d}.tokens" for number in range(len(fields["shards"]))]
        if fields["shards"] != names or not names:
            raise ValueError("names")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedError(f"{index} is not an index of shards") from error
    paths = [folder / name for name in names]
    try:
        return joined([store.read(path, vocabulary, verify) for path in paths], paths)
    except FileNotFoundError as error:
        raise DamagedError(f"{error.filename} is missing") from error
