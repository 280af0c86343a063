"""Corpora: named texts with splits, tokenised once.

    corpus = load(DataConfig(corpus="ptb"))
    corpus.splits["train"].tokens        # [929589] uint16, memory-mapped
    corpus.tokenizer.decode(corpus.splits["valid"].tokens[:20])

Tokens are kept in `$INFOLM_CACHE`, or the user's cache folder, under the SHA-256 of the text
and the settings. `infolm.data.sources` finds the text.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from infolm import files
from infolm.data import (
    documents,
    ingest,
    reverse_copy,
    shards,
    sources,
    store,
    synthetic,
    uniform,
)
from infolm.data.documents import Unit
from infolm.data.gather import Gathered, Gathering
from infolm.data.ingest import Report, Text
from infolm.data.registry import CorpusInfo, Download, registry
from infolm.data.reverse_copy import ReverseCopyConfig
from infolm.data.sources import Lines
from infolm.data.store import Split
from infolm.data.synthetic import Truth
from infolm.data.tokens import NO_TOKEN, Kind, Tokenizer
from infolm.data.uniform import UniformConfig
from infolm.errors import InfolmError, RunError
from infolm.section import Section

__all__ = [
    "Corpus",
    "CorpusInfo",
    "DataConfig",
    "Download",
    "Split",
    "Truth",
    "load",
    "registry",
    "sealed",
    "texts",
    "truth",
    "types",
]

_SEALED: set[str] = set()
"""Splits that this process may not open now."""


@contextmanager
def sealed(split: str) -> Iterator[None]:
    """Inside, the split cannot be opened in this process: its text is neither tokenised nor read,
    and no corpus has it, not even one opened before. Only its SHA-256 is known."""
    _SEALED.add(split)
    try:
        yield
    finally:
        _SEALED.discard(split)


def _open_splits() -> list[str]:
    return [split for split in sources.SPLITS if split not in _SEALED]


BLOCK = 2**22
"""Tokens counted together; no more of the text is in memory at a time."""


class DataConfig(Section):
    """The training text and its tokenisation."""

    former_defaults = MappingProxyType({"contractions": False, "field": None})

    corpus: str | None = Field(None, description="name of a registered corpus")
    path: Path | None = Field(
        None,
        description="your own UTF-8 text instead: a file, split 90:5:5 for you, a folder with "
        "files named train, valid and test, or a folder of documents (text, JSON lines or Parquet, "
        "compressed or not)",
    )
    field: str | None = Field(
        "text",
        description="the field of JSON lines, or the column of Parquet, with the text; none: "
        "every file is "
        "read as plain text",
    )
    documents: Unit | None = Field(
        None,
        description="the unit of a document in a text file; by default the file in a folder, and "
        "a line in a "
        "single file",
    )
    deduplicate: bool = Field(
        False,
        description="leave out duplicate documents, ignoring case and white space",
    )
    shuffle: int | None = Field(
        None, ge=0, description="seed to shuffle the documents; none: keep their order"
    )
    held_out: float = Field(
        0.01,
        gt=0,
        lt=0.5,
        description="the share of documents in each of valid and test, if no files have these "
        "names; a "
        "document's hash decides",
    )
    train_lines: int | None = Field(
        None, ge=1, description="train only on this many first lines of the training split"
    )
    tokens: Kind = Field("word", description="the kind of token")
    vocabulary: int | None = Field(
        None,
        ge=3,
        description="maximum size of the vocabulary, <unk> and <eos> included; bpe and wordpiece "
        "need it",
    )
    lowercase: bool = Field(False, description="turn the text to lower case")
    pretokenised: bool | None = Field(
        None,
        description="words only: true splits only at white space, false also splits off "
        "punctuation; by "
        "default as the corpus needs it, and false for your own text",
    )
    contractions: bool | None = Field(
        None,
        description="words only: cut prose as the Penn Treebank does (wo n't, Prince 's) and "
        "scripts without blanks into characters; by default only for your own text",
    )
    lines: Lines = Field(
        "sentences",
        description="what a line of your own text is: a sentence; a paragraph, to be split into "
        "sentences; or "
        "wrapped, to be joined into paragraphs first",
    )
    reverse_copy: ReverseCopyConfig | None = Field(
        None, description="sizes of the corpus reverse-copy only"
    )
    uniform: UniformConfig | None = Field(None, description="the size of the corpus uniform only")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tokens == "bpe" and (self.vocabulary is None or self.vocabulary < 256):
            raise ValueError("tokens: bpe needs a vocabulary of at least 256, for instance 10000")
        if self.tokens == "wordpiece" and (self.vocabulary is None or self.vocabulary < 100):
            raise ValueError(
                "tokens: wordpiece needs a vocabulary of at least 100, for instance 30000"
            )
        if self.tokens == "byte" and (self.vocabulary is not None or self.lowercase):
            raise ValueError(
                "tokens: byte always has 256 types: leave out vocabulary and lowercase"
            )
        if self.lines != "sentences" and self.path is None:
            raise ValueError(f"lines: {self.lines} is for your own text: set data.path")
        if self.field is None and (self.path is None or documents.is_plain(self.path)):
            # From an older run: it has no effect, and the run may be resumed by its recipe's name.
            object.__setattr__(self, "field", "text")
        asked = [
            key
            for key, value in (
                ("documents", self.documents),
                ("deduplicate", self.deduplicate),
                ("shuffle", self.shuffle is not None),
            )
            if value
        ]
        if asked and self.path is None:
            raise ValueError(f"{asked[0]}: is for your own documents: set data.path")
        if asked and self.field is None:
            raise ValueError(f"{asked[0]}: needs data.field, which may be 'text'")
        if self.reverse_copy and self.corpus != reverse_copy.NAME:
            raise ValueError(f"reverse_copy: is only for the corpus {reverse_copy.NAME}")
        if self.uniform and self.corpus != uniform.NAME:
            raise ValueError(f"uniform: is only for the corpus {uniform.NAME}")
        return self


class Splits(Mapping[str, Split]):
    """The splits of a corpus. A split's tokens are checked when it is first accessed."""

    def __init__(self, open_split: Callable[[str], Split]) -> None:
        self._open, self._opened = open_split, dict[str, Split]()

    def __getitem__(self, name: str) -> Split:
        if name in _SEALED:
            raise InfolmError(
                f"the {name} split is sealed until training and tuning have ended: measure on "
                "another one"
            )
        if name not in self._opened:
            if name not in sources.SPLITS:
                raise KeyError(name)
            self._opened[name] = self._open(name)
        return self._opened[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_open_splits())

    def __contains__(self, name: object) -> bool:
        return name in _open_splits()

    def __len__(self) -> int:
        return len(_open_splits())


@dataclass(frozen=True)
class Corpus:
    """A tokenised text.

    source: the SHA-256 of the raw text of its splits. fingerprint: the SHA-256 of everything the
    tokens depend on: the text, and the settings or the given vocabulary.
    """

    name: str
    tokenizer: Tokenizer
    splits: Mapping[str, Split] = field(repr=False)
    source: str
    fingerprint: str

    def counts(self) -> npt.NDArray[np.int64]:
        """The count of each type in the training split, (V,)."""
        return unigram_counts(self.splits["train"].tokens, len(self.tokenizer))

    def word_counts(self) -> npt.NDArray[np.int64]:
        """The same for words only, without <eos>."""
        counts = self.counts()
        counts[self.tokenizer.eos] = 0
        return counts

    @property
    def heading(self) -> int | None:
        """The token on either side of a heading, if the corpus marks them."""
        info, tokenizer = registry().get(self.name), self.tokenizer
        if not info or not info.heading or tokenizer.kind not in ("word", "wordpiece"):
            return None
        return tokenizer.number(info.heading, f"the headings of {self.name}")

    def ends(self, tokens: Sequence[str]) -> list[int]:
        """The numbers of tokens that end a sentence; those that the text lacks are left out."""
        tokenizer = self.tokenizer
        lacking = {NO_TOKEN, tokenizer.unk if tokenizer.kind == "wordpiece" else NO_TOKEN}
        return [
            tokenizer.number(token, "feed.ends")
            for token in tokens
            if lacking.isdisjoint(tokenizer.lookup(token).tolist())
        ]


def unigram_counts(tokens: npt.NDArray[Any], vocabulary: int) -> npt.NDArray[np.int64]:
    """How often each type occurs in `tokens` (N,), (V,)."""
    counts = np.zeros(vocabulary, np.int64)
    for start in range(0, len(tokens), BLOCK):
        counts += np.bincount(tokens[start : start + BLOCK], minlength=vocabulary)
    return counts


def load(
    config: DataConfig,
    report: Report | None = None,
    workers: int | None = None,
    tokenizer: Tokenizer | None = None,
) -> Corpus:
    """Find or download the text, tokenise it unless already done, and open the result.

    report: called with a stage, the bytes done and the total bytes.
    workers: the maximum number of processes for a large text; by default one per core.
    tokenizer: a vocabulary to use, for instance a trained model's, instead of the one from the
    settings and the text.
    """
    report = report or _silent
    with _writable(sources.cache_folder()):
        files.sweep(sources.cache_folder())
        name, texts, pretokenised = _find(config, report)
        source = _sha256(
            [
                (split, sources.digest(text.path), text.start, text.stop)
                for split, parts in texts.items()
                for text in parts
            ]
        )
        given = config.model_dump(include={"tokens", "vocabulary", "lowercase", "pretokenised"})
        settings = given | {"pretokenised": pretokenised}
        if splits_contractions(config):
            settings["contractions"] = True
        tokens = tokenizer.to_json() if tokenizer else settings
        fingerprint = _sha256({"format": store.VERSION, "source": source, "tokens": tokens})
        folder = sources.cache_folder() / fingerprint

        def make(again: bool) -> None:
            with files.alone(folder):
                if again or not _complete(folder):
                    _tokenise(config, pretokenised, texts, tokenizer, folder, workers, report)

        _mended(make, folder, _open_splits(), verify=False)
        if _working(folder).exists():
            with files.alone(folder):  # left by a process that was killed
                _remove(_working(folder))

        def open_split(split: str) -> Split:
            with _writable(folder):
                return _mended(make, folder, [split], verify=True)[0]

        kept = Tokenizer.load(folder / "tokenizer.json")
        return Corpus(name, kept, Splits(open_split), source, fingerprint)


def _mended(
    make: Callable[[bool], None], folder: Path, splits: Sequence[str], verify: bool
) -> list[Split]:
    """The splits in a folder; `make` creates them if they are missing or damaged.

    make: called with whether existing ones are to be replaced.
    """
    try:
        return _open(folder, splits, verify)
    except FileNotFoundError:
        again = False
    except store.DamagedError as damage:
        print(f"{damage}: tokenising the text again.", file=sys.stderr)
        again = True
    make(again)
    return _open(folder, splits, verify)


def texts(config: DataConfig, report: Report | None = None) -> dict[str, list[Text]]:
    """The raw text of each split, found or downloaded, in its parts."""
    with _writable(sources.cache_folder()):
        return _find(config, report or _silent)[1]


def _complete(folder: Path) -> bool:
    """Whether another process has created the splits in the meantime."""
    try:
        return bool(_open(folder, _open_splits(), verify=False))
    except (FileNotFoundError, store.DamagedError):
        return False


def read_text(path: Path, tokenizer: Tokenizer, field: str = "text") -> Split:
    """A text in a given vocabulary, adapted by `Tokenizer.adapted`; the last line is ended.

    field: of JSON lines and Parquet, whose documents follow each other.
    """
    try:
        if documents.is_plain(path):
            data = path.read_bytes()
        else:
            found = documents.read(path, field, "line")
            data = "".join(t if t.endswith("\n") else f"{t}\n" for t in found).encode()
    except OSError as error:
        raise InfolmError(f"{path} cannot be read: {error.strerror}") from error
    if not data.strip():
        raise InfolmError(f"{path} is empty: give a text with lines")
    if not data.endswith(b"\n"):
        data += b"\n"
    if tokenizer.kind == "byte":  # need not be UTF-8
        text = data.decode("utf-8", "surrogateescape")
    else:
        text = ingest.decode(Text.whole(path), data)
    tokens = tokenizer.encode(tokenizer.adapted(text))
    unknown = 0 if tokenizer.unk is None else int(np.count_nonzero(tokens == tokenizer.unk))
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    return Split(
        lines=data.count(b"\n"),
        words=len(data.split()),
        characters=len(text),
        bytes=len(data),
        unknown=unknown,
        tokens=tokens.astype(dtype),
    )


def truth(config: DataConfig, tokenizer: Tokenizer) -> Truth | None:
    """The language that the text was drawn from, if known and its symbols are the tokens.

    None for all real text.
    """
    return None if config.path is not None else synthetic.truth(config.corpus, tokenizer)


def splits_contractions(config: DataConfig) -> bool:
    """Whether words are cut as in `prose`; never for pretokenised text."""
    if config.contractions is None:
        return config.path is not None and not config.pretokenised and config.tokens == "word"
    return config.contractions


def types(config: DataConfig) -> int:
    """The maximum size of the vocabulary, as far as known without reading the text."""
    if config.vocabulary is not None:
        return config.vocabulary
    if config.corpus == reverse_copy.NAME:
        return (config.reverse_copy or ReverseCopyConfig()).vocabulary
    if config.corpus == uniform.NAME:
        return (config.uniform or UniformConfig()).vocabulary
    return sources.find(config.corpus).types


def _find(config: DataConfig, report: Report) -> tuple[str, dict[str, list[Text]], bool]:
    """The corpus's name, the text of each split, and whether its words are split already."""
    if config.path is not None:
        name, pretokenised = config.path.stem, False
        parts = _own(config, config.path, report)
    else:
        info = sources.find(config.corpus)
        name, pretokenised = info.name, info.pretokenised
        if name == reverse_copy.NAME:
            sizes = config.reverse_copy or ReverseCopyConfig()
            texts = sources.made(sizes.name, lambda: reverse_copy.splits(sizes))
        elif name == uniform.NAME:
            size = config.uniform or UniformConfig()
            texts = sources.made(size.name, lambda: uniform.splits(size))
        else:
            texts = sources.known_texts(info, config.tokens, report)
        parts = {split: [text] for split, text in texts.items()}
    if config.train_lines is not None:
        parts = parts | {"train": sources.first_lines(parts["train"], config.train_lines)}
    if config.pretokenised is not None:
        pretokenised = config.pretokenised
    return name, parts, pretokenised


def _own(config: DataConfig, path: Path, report: Report) -> dict[str, list[Text]]:
    """The splits of a person's own text: plain text, or gathered documents."""
    if (wanted := gathering(config)) is not None:
        return sources.gathered_texts(path, wanted, config.lines, report)[0]
    if config.field is not None and path.is_file() and documents.is_compressed(path):
        path = sources.unpacked(path)
    return {split: [text] for split, text in sources.own_texts(path, config.lines).items()}


def gathering(config: DataConfig) -> Gathering | None:
    """How documents are gathered; None for a plain text and for a named corpus."""
    path, field = config.path, config.field
    if path is None or field is None:
        return None
    asked = config.documents or config.deduplicate or config.shuffle is not None
    text = not path.is_dir() and documents.is_text(path)  # compressed, it is still one text
    if not asked and (text or not path.exists() or sources.is_plain(path)):
        return None
    unit = config.documents or ("file" if path.is_dir() else "line")
    return Gathering(field, unit, config.deduplicate, config.shuffle, config.held_out)


def own_file(config: DataConfig) -> Path:
    """The beginning of a person's own training text."""
    assert config.path is not None
    return _own(config, config.path, _silent)["train"][0].path


def gathered(config: DataConfig) -> Gathered | None:
    """The gathered documents; None if there are none."""
    wanted = gathering(config)
    if wanted is None or config.path is None:
        return None
    return sources.gathered_texts(config.path, wanted, config.lines, _silent)[1]


def _sha256(described: object) -> str:
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _silent(stage: str, done: int, total: int) -> None:
    pass


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Create the folder; report system errors in a sentence."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        where = error.filename or folder
        raise RunError(
            f"{where} cannot be read or written ({error.strerror or error}): free some space, "
            "or set INFOLM_CACHE to a folder with room."
        ) from error


def _tokenise(
    config: DataConfig,
    pretokenised: bool,
    texts: dict[str, list[Text]],
    tokenizer: Tokenizer | None,
    folder: Path,
    workers: int | None,
    report: Report,
) -> None:
    """Create the files of `folder`, each by a rename.

    The work is done in a separate folder. If the process is killed, the next one continues from its
    counts and shards.
    """
    work = _working(folder)
    work.mkdir(parents=True, exist_ok=True)
    files.sweep(work)
    try:
        made = _encode_all(config, pretokenised, texts, tokenizer, work, workers, report)
    except RunError:  # a fault of the machine, not of the text
        raise
    except InfolmError:
        _remove(work)
        raise
    for split, names in made.items():
        if len(names) > 1:
            shards.write_index(shards.index_of(work, split), names)
    if folder.exists():  # of damaged files, or those of another split
        shutil.rmtree(folder)
    os.replace(work, folder)
    _remove(work)


def _working(folder: Path) -> Path:
    return folder.parent / "making" / folder.name


def _remove(work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    with suppress(OSError):  # others may be at work in it
        work.parent.rmdir()


def _encode_all(
    config: DataConfig,
    pretokenised: bool,
    texts: dict[str, list[Text]],
    tokenizer: Tokenizer | None,
    work: Path,
    workers: int | None,
    report: Report,
) -> dict[str, list[str]]:
    """Write the vocabulary and the token files in `work`; returns the names of each split's
    files."""
    kind = tokenizer.kind if tokenizer else config.tokens
    pieces = {split: ingest.shards(texts[split], kind) for split in _open_splits()}
    _keep_if(
        _sha256({s: [[len(p) for p in g] for g in found] for s, found in pieces.items()}), work
    )
    saved = work / "tokenizer.json"
    if not saved.exists():
        (work / "counts").mkdir(exist_ok=True)
        made = tokenizer or ingest.make_tokenizer(
            texts["train"],
            config.tokens,
            config.vocabulary,
            lowercase=config.lowercase,
            pretokenised=pretokenised,
            contractions=splits_contractions(config),
            scratch=work / "counts",
            workers=workers,
            report=report,
        )
        files.replace(saved, made.save)
    shutil.rmtree(work / "counts", ignore_errors=True)
    types, vocabulary = len(Tokenizer.load(saved)), sources.sha256(saved)
    names: dict[str, list[str]] = {}
    for split, groups in pieces.items():
        several = len(groups) > 1
        found = [
            f"{split}-{n:05d}.tokens" if several else f"{split}.tokens" for n in range(len(groups))
        ]
        left = [
            (work / name, group)
            for name, group in zip(found, groups, strict=True)
            if not store.blocks_of(work / name).exists()
        ]
        chunks = [piece for _, group in left for piece in group]
        parts = ingest.encode(chunks, saved, f"encoding {split}", workers, report)
        for path, group in left:
            if not store.write(path, types, vocabulary, islice(parts, len(group))):
                raise InfolmError(
                    f"The {split} split of {group[0].path} has no token: give a text with more "
                    "lines."
                )
        if not groups:
            raise InfolmError(f"The {split} split has no token: give a text with more lines.")
        names[split] = found
    return names


def _keep_if(layout: str, work: Path) -> None:
    """Remove files made with another shard size."""
    known = work / "layout"
    if known.exists() and known.read_text() == layout:
        return
    shutil.rmtree(work)
    work.mkdir()
    with store.atomic(known) as file:
        file.write(layout.encode())


def _open(folder: Path, splits: Sequence[str], verify: bool) -> list[Split]:
    vocabulary = sources.sha256(folder / "tokenizer.json")
    return [shards.read(folder, split, vocabulary, verify) for split in splits]
