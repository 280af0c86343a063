"""From a text of any size to numbers, in bounded memory and on every core.

Two passes over the text: one counts its words to make the vocabulary, one encodes it. Each works on
pieces of a few megabytes, cut where no token can be, in a pool of processes; a small text is read
in this process. What comes out depends on the text alone, not on the pieces or the workers.

Counting is exact with any number of types: a worker's counts go to disk once they hold half a
million words, scattered by a hash over a few files, and each of these is added up on its own.
"""

import mmap
import multiprocessing
import os
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

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

Report = Callable[[str, int, int], None]  # stage, bytes done, bytes in all

MOST_WORDS = 1_000_000  # types of an unlimited vocabulary; a model of more is no use to anybody

# Bytes a worker holds at a time; `tokenizers` needs some hundred bytes of memory for each.
_CHUNK: dict[Kind, int] = {
    "word": 4 * 2**20,
    "char": 2**22,
    "byte": 2**22,
    "bpe": 2**19,
    "wordpiece": 2**19,
}
_RANGE = 64 * 2**20  # bytes counted by one task
_ALONE = 32 * 2**20  # bytes below which a pool costs more than it brings
_TYPES = 500_000  # words a worker counts before it writes them out
_BUCKETS = 16
_SAMPLE = 64 * 2**20  # bytes that byte pairs and word pieces are learnt from

# No token spans these places, whatever the kind: the end of a line, and the start of a blank that
# follows a visible character.
_CUT = re.compile(rb"\n|[!-~](?= )")

Task = TypeVar("Task")
Result = TypeVar("Result")


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
    """The characters of `data`, read from `text`; a sentence that says where it is not UTF-8."""
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
            "A process that was reading the text died, most likely for want of memory: "
            "close other programs and try again."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def workers_for(text: Text, most: int | None) -> int:
    """One for a small text, else as many as allowed, by default one per core we may use."""
    if len(text) < _ALONE:
        return 1
    if most is not None:
        return most
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _each(
    function: Callable[[Text], Result], chunks: list[Text], stage: str, workers: int, report: Report
) -> Iterator[Result]:
    """`in_order` over pieces of text, telling how many bytes are done."""
    total, done = sum(map(len, chunks)), 0
    for chunk, result in zip(chunks, in_order(function, chunks, workers), strict=True):
        done += len(chunk)
        report(stage, done, total)
        yield result


def make_tokenizer(
    text: Text,
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
    """The vocabulary of a training text, of at most `limit` types; `scratch` is for counts."""
    workers = workers_for(text, workers)
    match kind:
        case "word":
            pattern = None if pretokenised else word_pattern(pretokenised, contractions)
            count = partial(_count_words, scratch, lowercase, pattern)
            ranges = pieces(text, _RANGE, kind)
            deque(_each(count, ranges, "counting words", workers, report), maxlen=0)
            words = _frequent_words(text, scratch, limit, workers)
            return Tokenizer.from_words(
                words, pretokenised=pretokenised, lowercase=lowercase, contractions=contractions
            )
        case "char":
            tally = partial(_count_characters, lowercase)
            ranges = pieces(text, _RANGE, kind)
            tallies = _each(tally, ranges, "counting characters", workers, report)
            codes = reduce(np.add, tallies, np.zeros(sys.maxunicode + 1, np.int64))
            counts = {chr(code): int(codes[code]) for code in np.flatnonzero(codes)}
            characters = vocabulary(counts, "\n", sum(counts.values()), limit)
            return Tokenizer.from_characters(characters, lowercase=lowercase)
        case "byte":
            return Tokenizer.from_bytes()
        case "bpe" | "wordpiece":
            assert limit is not None  # the settings were checked
            chunks = pieces(text, _CHUNK[kind], kind)
            sample = chunks[:: -(-len(text) // _SAMPLE)]
            learnt = "byte pairs" if kind == "bpe" else "word pieces"
            texts = _each(_decoded, sample, f"learning {learnt}", 1, report)
            learn = Tokenizer.from_bpe if kind == "bpe" else Tokenizer.from_wordpiece
            return learn(texts, limit, lowercase=lowercase)


def encode(
    text: Text, tokenizer: Path, stage: str, workers: int | None, report: Report
) -> Iterator[tuple[NDArray[Any], Counts]]:
    """The text's tokens, piece by piece, with the counts of each piece.

    tokenizer: where it was saved, for each process to read once.
    """
    kind = _tokenizer(tokenizer).kind
    chunks = pieces(text, _CHUNK[kind], kind)
    return _each(partial(_encode, tokenizer), chunks, stage, workers_for(text, workers), report)


def _decoded(text: Text) -> str:
    return decode(text, text.read())


def _count_words(scratch: Path, lowercase: bool, pattern: str | None, text: Text) -> None:
    """Count the words of a range of text into files in `scratch`, one per bucket and spill."""
    counts: Counter[str] = Counter()
    for chunk in pieces(text, _CHUNK["word"], "word"):
        content = _decoded(chunk)
        counts.update((lower(content) if lowercase else content).split())
        counts[EOS] += content.count("\n")
        if len(counts) >= _TYPES:
            _spill(counts, pattern, scratch, str(chunk.start))
            counts.clear()
    _spill(counts, pattern, scratch, f"{text.start}-rest")


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
        (scratch / f"{bucket}.{name}").write_text("".join(lines), encoding="utf-8", newline="\n")


def _frequent_words(text: Text, scratch: Path, limit: int | None, workers: int) -> list[str]:
    """Add up what `_count_words` wrote: the vocabulary."""
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
            f"{text.path} has {types:,} different words, too many to model: limit them, for "
            "instance with data.vocabulary=100000, or use data.tokens=bpe."
        )
    return vocabulary(counts, EOS, total, limit)


def _add_up(scratch: Path, most: int, bucket: int) -> tuple[dict[str, int], int, int]:
    """The most frequent words of a bucket; how many types and how many tokens it has."""
    counts: dict[str, int] = {}
    for path in scratch.glob(f"{bucket}.*"):
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


def _count_characters(lowercase: bool, text: Text) -> NDArray[np.int64]:
    """How often each code point occurs, [0x110000]."""
    counts = np.zeros(sys.maxunicode + 1, np.int64)
    for chunk in pieces(text, _CHUNK["char"], "char"):
        content = _decoded(chunk)
        codes = (lower(content) if lowercase else content).encode("utf-32-le")
        counts += np.bincount(np.frombuffer(codes, np.uint32), minlength=len(counts))
    return counts


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
