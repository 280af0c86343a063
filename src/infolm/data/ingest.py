"""Tokenisation of texts of any size, in bounded memory and on every core.

Two passes over the text: one counts its words to make the vocabulary, one encodes it. Each works on
pieces of a few megabytes, cut between tokens, in a pool of processes; a small text is read in this
process. The result depends only on the text, not on the pieces or the workers.

Counting is exact with any number of types: a worker's counts go to disk once they hold half a
million words, distributed by a hash over a few files, each of which is summed separately.

A text is a sequence of files, or of parts of files. Both passes can be killed at any moment: counts
of 64 MB are on disk, and are not made again; so are shards of tokens (`data.shards`).
"""

import mmap
import multiprocessing
import os
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from infolm.data import store
from infolm.data.store import Counts
from infolm.data.tokens import (
    EOS,
    NO_TOKEN,
    UNK,
    Kind,
    Tokenizer,
    lower,
    ranked,
    splitter,
    vocabulary,
    word_pattern,
)
from infolm.errors import InfolmError, RunError
from infolm.files import matching

Report = Callable[[str, int, int], None]  # stage, bytes done, bytes in all

MOST_WORDS = 1_000_000  # types of an unlimited vocabulary; more are useless in a model

# Bytes a worker holds at a time; `tokenizers` needs some hundred bytes of memory for each.
_CHUNK: dict[Kind, int] = {
    "word": 4 * 2**20,
    "char": 2**22,
    "byte": 2**22,
    "bpe": 2**19,
    "wordpiece": 2**19,
}
_RANGE = 64 * 2**20  # bytes counted by one task
SHARD = 64 * 2**20
"""Bytes of text per file of tokens."""
SHARDS = 512
"""The most such files of a split: each is open while it is read, and systems allow 1024."""
_ALONE = 32 * 2**20  # bytes below which a pool costs more than it saves
_TYPES = 500_000  # words a worker counts before it writes them out
_BUCKETS = 16
_SAMPLE = 64 * 2**20  # bytes that byte pairs and word pieces are learnt from

# No token of any kind spans these places: the end of a line, and the start of a blank that
# follows a visible character.
_CUT = re.compile(rb"\n|[!-~](?= )")

Task = TypeVar("Task")
Result = TypeVar("Result")
Sized = TypeVar("Sized", "Text", "_Range")


@dataclass(frozen=True)
class Text:
    """The bytes [start, stop) of a UTF-8 file."""

    path: Path
    start: int
    stop: int

    @classmethod
    def whole(cls, path: Path) -> "Text":
        return cls(path, 0, path.stat().st_size)

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(len(self))


def decode(text: Text, data: bytes) -> str:
    """The characters of `data`, read from `text`; an error sentence says where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InfolmError(
            f"{text.path} is not UTF-8 text: byte {text.start + error.start} cannot be read "
            f"({error.reason}). Convert it, for instance with iconv -f LATIN1 -t UTF-8, "
            "or use data.tokens=byte."
        ) from error


def pieces(text: Text, size: int, kind: Kind) -> list[Text]:
    """Cut a text into pieces of about `size` bytes, each at the next newline or blank.

    Words and byte pairs wait for it however far it is; bytes and characters, which may be cut
    anywhere but inside a character, only so far that no real word is counted twice.
    """
    if not len(text):
        return []
    cuts = [text.start]
    with text.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        while (at := cuts[-1] + size) < text.stop:
            uncut = kind in ("word", "bpe", "wordpiece")
            found = _CUT.search(data, at - 1, text.stop if uncut else min(at + size, text.stop))
            if found or uncut:
                at = found.end() if found else text.stop
            while kind != "byte" and at < text.stop and data[at] & 0xC0 == 0x80:
                at += 1
            cuts.append(at)
    if cuts[-1] < text.stop:
        cuts.append(text.stop)
    return [Text(text.path, a, b) for a, b in pairwise(cuts)]


def in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Iterator[Result]:
    """`map(function, tasks)` in that many processes, with few results waiting at any time.

    The processes are spawned, never forked: a fork beside running threads can hang.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context)
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(function, task))
            if len(waiting) > workers + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise RunError(
            "A process that was reading the text died, probably for lack of memory: "
            "close other programs and try again."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def length(texts: Sequence[Text]) -> int:
    """Bytes of them all."""
    return sum(map(len, texts))


def all_pieces(texts: Sequence[Text], size: int, kind: Kind) -> list[Text]:
    return [piece for text in texts for piece in pieces(text, size, kind)]


def workers_for(texts: Sequence[Text], most: int | None) -> int:
    """One for a small text, else as many as allowed, by default one per core we may use."""
    if length(texts) < _ALONE:
        return 1
    if most is not None:
        return most
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _each(
    function: Callable[[Sized], Result],
    chunks: Sequence[Sized],
    stage: str,
    workers: int,
    report: Report,
) -> Iterator[Result]:
    """`in_order` over pieces of text, telling how many bytes are done."""
    total, done = sum(map(len, chunks)), 0
    for chunk, result in zip(chunks, in_order(function, chunks, workers), strict=True):
        done += len(chunk)
        report(stage, done, total)
        yield result


def make_tokenizer(
    texts: Sequence[Text],
    kind: Kind,
    limit: int | None,
    *,
    lowercase: bool,
    pretokenised: bool,
    contractions: bool = False,
    scratch: Path,
    workers: int | None,
    report: Report,
) -> Tokenizer:
    """The vocabulary of a training text, of at most `limit` types.

    scratch: a folder for counts. Counts left there by an earlier process are used.
    """
    workers = workers_for(texts, workers)
    match kind:
        case "word":
            pattern = None if pretokenised else word_pattern(pretokenised, contractions)
            count = partial(_count_words, scratch, lowercase, pattern)
            _count_all(count, texts, kind, scratch, "counting words", workers, report)
            words = _frequent_words(texts, scratch, limit, workers)
            return Tokenizer.from_words(
                words, pretokenised=pretokenised, lowercase=lowercase, contractions=contractions
            )
        case "char":
            tally = partial(_count_characters, scratch, lowercase)
            _count_all(tally, texts, kind, scratch, "counting characters", workers, report)
            counts = Counter[str]()
            for path in matching(scratch, "characters.*.npy"):
                for code, n in np.load(path).tolist():
                    counts[chr(code)] += n
            characters = vocabulary(counts, "\n", sum(counts.values()), limit)
            return Tokenizer.from_characters(characters, lowercase=lowercase)
        case "byte":
            return Tokenizer.from_bytes()
        case "bpe" | "wordpiece":
            assert limit is not None  # the settings were checked
            chunks = all_pieces(texts, _CHUNK[kind], kind)
            sample = chunks[:: -(-length(texts) // _SAMPLE)]
            learnt = "byte pairs" if kind == "bpe" else "word pieces"
            decoded = _each(_decoded, sample, f"learning {learnt}", 1, report)
            learn = Tokenizer.from_bpe if kind == "bpe" else Tokenizer.from_wordpiece
            return learn(decoded, limit, lowercase=lowercase)


def shards(texts: Sequence[Text], kind: Kind) -> list[list[Text]]:
    """The pieces that are encoded, those of a shard together: `SHARD` bytes of text or more.

    They depend only on the text, so a process can continue with another's shards.
    """
    size = max(SHARD, -(-length(texts) // SHARDS))
    found: list[list[Text]] = []
    room = 0
    for piece in all_pieces(texts, _CHUNK[kind], kind):
        if room <= 0:
            found.append([])
            room = size
        found[-1].append(piece)
        room -= len(piece)
    return found


def encode(
    chunks: Sequence[Text], tokenizer: Path, stage: str, workers: int | None, report: Report
) -> Iterator[tuple[NDArray[Any], Counts]]:
    """The tokens of each of some `shards`' pieces, with its counts.

    tokenizer: where it was saved, for each process to read once.
    """
    each = partial(_encode, tokenizer)
    return _each(each, chunks, stage, workers_for(chunks, workers), report)


@dataclass(frozen=True)
class _Range:
    """The `number`-th part of a text, counted by one task."""

    number: int
    text: Text

    def __len__(self) -> int:
        return len(self.text)


def _count_all(
    count: Callable[[_Range], None],
    texts: Sequence[Text],
    kind: Kind,
    scratch: Path,
    stage: str,
    workers: int,
    report: Report,
) -> None:
    """Call `count` on each part of the text that was not counted before, and mark it as counted."""
    ranges = [_Range(*item) for item in enumerate(all_pieces(texts, _RANGE, kind))]
    left = [each for each in ranges if not _mark_of(scratch, each).exists()]
    for each, _ in zip(left, _each(count, left, stage, workers, report), strict=True):
        with store.atomic(_mark_of(scratch, each)):
            pass


def _mark_of(scratch: Path, part: _Range) -> Path:
    return scratch / f"counted.{part.number}"


def _decoded(text: Text) -> str:
    return decode(text, text.read())


def _count_words(scratch: Path, lowercase: bool, pattern: str | None, part: _Range) -> None:
    """Count the words of a range of text into files in `scratch`, one per bucket and spill."""
    counts: Counter[str] = Counter()
    spilt = 0
    for chunk in pieces(part.text, _CHUNK["word"], "word"):
        content = _decoded(chunk)
        counts.update((lower(content) if lowercase else content).split())
        counts[EOS] += content.count("\n")
        if len(counts) >= _TYPES:
            _spill(counts, pattern, scratch, f"{part.number}-{spilt}")
            counts.clear()
            spilt += 1
    _spill(counts, pattern, scratch, f"{part.number}-rest")


def _spill(counts: Counter[str], pattern: str | None, scratch: Path, name: str) -> None:
    """Write `word count` lines, each to the file of the bucket that the word's hash names."""
    if pattern:
        parts: Counter[str] = Counter()
        words = splitter(pattern)
        for word, n in counts.items():
            for part in words(word):
                parts[part] += n
        counts = parts
    buckets: list[list[str]] = [[] for _ in range(_BUCKETS)]
    for word, n in counts.items():
        buckets[crc32(word.encode()) % _BUCKETS].append(f"{word} {n}\n")
    for bucket, lines in enumerate(buckets):
        with store.atomic(scratch / f"{bucket}.{name}") as file:
            file.write("".join(lines).encode())


def _frequent_words(
    texts: Sequence[Text], scratch: Path, limit: int | None, workers: int
) -> list[str]:
    """Sum the counts of `_count_words`: the vocabulary."""
    most = MOST_WORDS if limit is None else limit
    counts: dict[str, int] = {}
    types = total = 0
    for frequent, bucket_types, bucket_total in in_order(
        partial(_add_up, scratch, most), range(_BUCKETS), workers
    ):
        counts |= frequent
        if len(counts) > 2 * most:
            counts = _most_frequent(counts, most)
        types += bucket_types
        total += bucket_total
    if limit is None and types > MOST_WORDS:
        raise InfolmError(
            f"{texts[0].path} has {types:,} different words, too many to model: limit them, for "
            "instance with data.vocabulary=100000, or use data.tokens=bpe."
        )
    return vocabulary(counts, EOS, total, limit)


def _add_up(scratch: Path, most: int, bucket: int) -> tuple[dict[str, int], int, int]:
    """The most frequent words of a bucket; how many types and how many tokens it has."""
    counts: dict[str, int] = {}
    for path in matching(scratch, f"{bucket}.*"):
        with path.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                word, n = line.split(" ")
                counts[word] = counts.get(word, 0) + int(n)
    return _most_frequent(counts, most), len(counts), sum(counts.values())


def _most_frequent(counts: dict[str, int], most: int) -> dict[str, int]:
    """The `most` frequent words, and `<eos>` and `<unk>` however rare."""
    if len(counts) <= most:
        return counts
    special = {token: counts[token] for token in (EOS, UNK) if token in counts}
    return dict(ranked(counts.items())[:most]) | special


def _count_characters(scratch: Path, lowercase: bool, part: _Range) -> None:
    """Write the code points of a range of text and how often each occurs, (types, 2)."""
    counts = np.zeros(sys.maxunicode + 1, np.int64)
    for chunk in pieces(part.text, _CHUNK["char"], "char"):
        content = _decoded(chunk)
        codes = (lower(content) if lowercase else content).encode("utf-32-le")
        counts += np.bincount(np.frombuffer(codes, np.uint32), minlength=len(counts))
    with store.atomic(scratch / f"characters.{part.number}.npy") as file:
        found = np.flatnonzero(counts)
        np.save(file, np.stack([found, counts[found]], axis=1))


@lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(path)


def _encode(path: Path, text: Text) -> tuple[NDArray[Any], Counts]:
    """The tokens of a piece of text, as narrow as the vocabulary allows, and its counts."""
    tokenizer = _tokenizer(path)
    data = text.read()
    if tokenizer.kind == "byte":  # need not be UTF-8
        tokens: NDArray[Any] = np.frombuffer(data, np.uint8)
        characters = len(data) - int(np.count_nonzero(tokens & 0xC0 == 0x80))
        words, unknown = len(data.split()), 0
    else:
        content = decode(text, data)
        tokens = tokenizer.lookup(content)
        characters, words = len(content), len(content.split())
        missing = tokens == NO_TOKEN
        unknown = int(np.count_nonzero(missing))
        if tokenizer.unk is not None:
            tokens[missing] = tokenizer.unk
    lines = data.count(b"\n")
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    return tokens.astype(dtype), Counts(lines, words, characters, len(data), unknown)
