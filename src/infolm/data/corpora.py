"""Corpora: named texts with splits, tokenised once.

    corpus = load(DataConfig(corpus="ptb"))
    corpus.splits["train"].tokens        # [929589] uint16, memory-mapped
    corpus.tokenizer.decode(corpus.splits["valid"].tokens[:20])

Tokens are kept in `$INFOLM_CACHE`, or the user's cache folder, under the SHA-256 of the text
and the settings. `infolm.data.sources` says where the text is looked for.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from infolm import files
from infolm.data import ingest, reverse_copy, sources, store, synthetic, uniform
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
    "truth",
    "types",
]

BLOCK = 2**22
"""Tokens counted together: of the text no more is in memory at a time."""


class DataConfig(Section):
    """The text to learn from and what its tokens are."""

    former_defaults = MappingProxyType({"contractions": False})

    corpus: str | None = Field(None, description="name of a registered corpus")
    path: Path | None = Field(
        None,
        description="your own UTF-8 text instead: a file, split 90:5:5 for you, or a folder with "
        "files, or folders of files, named train, valid and test",
    )
    train_lines: int | None = Field(
        None, ge=1, description="learn from the first so many lines of the training split alone"
    )
    tokens: Kind = Field("word", description="what a token is")
    vocabulary: int | None = Field(
        None,
        ge=3,
        description="most types in the vocabulary, <unk> and <eos> included; bpe and wordpiece "
        "need it",
    )
    lowercase: bool = Field(False, description="turn the text to lower case")
    pretokenised: bool | None = Field(
        None,
        description="words only: true splits at white space alone, false splits punctuation off "
        "too; by default as the corpus needs it, and false for your own text",
    )
    contractions: bool | None = Field(
        None,
        description="words only: cut prose as the Penn Treebank does (wo n't, Prince 's) and "
        "scripts without blanks into characters; by default for your own text alone",
    )
    lines: Lines = Field(
        "sentences",
        description="of your own text, what a line is: a sentence, as it stands; a paragraph, cut "
        "into its sentences; or wrapped, joined into paragraphs first",
    )
    reverse_copy: ReverseCopyConfig | None = Field(
        None, description="sizes of the corpus reverse-copy; of no other"
    )
    uniform: UniformConfig | None = Field(
        None, description="the size of the corpus uniform; of no other"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tokens == "bpe" and (self.vocabulary is None or self.vocabulary < 256):
            raise ValueError("tokens: bpe needs a vocabulary of at least 256, for instance 10000")
        if self.tokens == "wordpiece" and (self.vocabulary is None or self.vocabulary < 100):
            raise ValueError(
                "tokens: wordpiece needs a vocabulary of at least 100, for instance 30000"
            )
        if self.tokens == "byte" and (self.vocabulary is not None or self.lowercase):
            raise ValueError("tokens: byte has 256 types as they are: no vocabulary, no lowercase")
        if self.lines != "sentences" and self.path is None:
            raise ValueError(f"lines: {self.lines} is for your own text: set data.path")
        if self.reverse_copy and self.corpus != reverse_copy.NAME:
            raise ValueError(f"reverse_copy: is for the corpus {reverse_copy.NAME} alone")
        if self.uniform and self.corpus != uniform.NAME:
            raise ValueError(f"uniform: is for the corpus {uniform.NAME} alone")
        return self


class Splits(Mapping[str, Split]):
    """The splits of a corpus. The tokens of one are checked when it is first asked for."""

    def __init__(self, open_split: Callable[[str], Split]) -> None:
        self._open, self._opened = open_split, dict[str, Split]()

    def __getitem__(self, name: str) -> Split:
        if name not in self._opened:
            if name not in sources.SPLITS:
                raise KeyError(name)
            self._opened[name] = self._open(name)
        return self._opened[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sources.SPLITS)

    def __contains__(self, name: object) -> bool:
        return name in sources.SPLITS

    def __len__(self) -> int:
        return len(sources.SPLITS)


@dataclass(frozen=True)
class Corpus:
    """A tokenised text.

    source: the SHA-256 of the raw text of its splits. fingerprint: that of all the tokens depend
    on, the text and the settings or the vocabulary given.
    """

    name: str
    tokenizer: Tokenizer
    splits: Mapping[str, Split] = field(repr=False)
    source: str
    fingerprint: str

    def counts(self) -> npt.NDArray[np.int64]:
        """How often each type is in the training split, (V,)."""
        return unigram_counts(self.splits["train"].tokens, len(self.tokenizer))

    def word_counts(self) -> npt.NDArray[np.int64]:
        """The same of words, which the end of a line is not."""
        counts = self.counts()
        counts[self.tokenizer.eos] = 0
        return counts

    @property
    def heading(self) -> int | None:
        """The token on either side of a heading, where the corpus marks them."""
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
    """Find or download the text, tokenise it unless that was done before, and open the result.

    report: called with a stage, the bytes done and the bytes in all.
    workers: at most so many processes read a large text; by default one per core.
    tokenizer: a vocabulary to encode with, for instance a trained model's, in place of the one
    that the settings and the text would give.
    """
    report = report or _silent
    with _writable(sources.cache_folder()):
        files.sweep(sources.cache_folder())
        name, texts, pretokenised = _find(config, report)
        source = _sha256([(s, sources.digest(t.path), t.start, t.stop) for s, t in texts.items()])
        given = config.model_dump(include={"tokens", "vocabulary", "lowercase", "pretokenised"})
        settings = given | {"pretokenised": pretokenised}
        if splits_contractions(config):
            settings["contractions"] = True
        tokens = tokenizer.to_json() if tokenizer else settings
        fingerprint = _sha256({"format": store.VERSION, "source": source, "tokens": tokens})
        folder = sources.cache_folder() / fingerprint

        def make() -> None:
            _tokenise(config, pretokenised, texts, tokenizer, folder, workers, report)

        _mended(make, folder, sources.SPLITS, verify=False)

        def open_split(split: str) -> Split:
            with _writable(folder):
                return _mended(make, folder, [split], verify=True)[0]

        kept = Tokenizer.load(folder / "tokenizer.json")
        return Corpus(name, kept, Splits(open_split), source, fingerprint)


def _mended(
    make: Callable[[], None], folder: Path, splits: Sequence[str], verify: bool
) -> list[Split]:
    """The splits in a folder, which `make` makes where they are missing or damaged."""
    try:
        return _open(folder, splits, verify)
    except FileNotFoundError:
        pass
    except store.DamagedError as damage:
        print(f"{damage}: tokenising the text again.", file=sys.stderr)
    make()
    return _open(folder, splits, verify)


def read_text(path: Path, tokenizer: Tokenizer) -> Split:
    """A text in a given vocabulary, as `Tokenizer.adapted` has it; a last line is ended."""
    try:
        data = path.read_bytes()
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
    """The language that the text was drawn from, where one is known and its symbols are the tokens.

    None for all real text.
    """
    return None if config.path is not None else synthetic.truth(config.corpus, tokenizer)


def splits_contractions(config: DataConfig) -> bool:
    """Whether words are cut as in `prose`; of no text that is cut already."""
    if config.contractions is None:
        return config.path is not None and not config.pretokenised and config.tokens == "word"
    return config.contractions


def types(config: DataConfig) -> int:
    """How many types the vocabulary has at most, as far as that is known before the text is."""
    if config.vocabulary is not None:
        return config.vocabulary
    if config.corpus == reverse_copy.NAME:
        return (config.reverse_copy or ReverseCopyConfig()).vocabulary
    if config.corpus == uniform.NAME:
        return (config.uniform or UniformConfig()).vocabulary
    return sources.find(config.corpus).types


def _find(config: DataConfig, report: Report) -> tuple[str, dict[str, Text], bool]:
    """The corpus's name, the text of each split, and whether its words are split already."""
    if config.path is not None:
        name, texts, pretokenised = (
            config.path.stem,
            sources.own_texts(config.path, config.lines),
            False,
        )
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
    if config.train_lines is not None:
        texts = texts | {"train": sources.first_lines(texts["train"], config.train_lines)}
    if config.pretokenised is not None:
        pretokenised = config.pretokenised
    return name, texts, pretokenised


def _sha256(described: object) -> str:
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _silent(stage: str, done: int, total: int) -> None:
    pass


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Make the folder; say in a sentence what the system refuses."""
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
    texts: dict[str, Text],
    tokenizer: Tokenizer | None,
    folder: Path,
    workers: int | None,
    report: Report,
) -> None:
    """Make the files of `folder`, each by a rename: who makes the same at once does no harm."""
    with files.scratch_folder(folder.parent, "making-tokens") as scratch:
        tokenizer = tokenizer or ingest.make_tokenizer(
            texts["train"],
            config.tokens,
            config.vocabulary,
            lowercase=config.lowercase,
            pretokenised=pretokenised,
            contractions=splits_contractions(config),
            scratch=scratch,
            workers=workers,
            report=report,
        )
        saved = scratch / "tokenizer.json"
        tokenizer.save(saved)
        vocabulary = sources.sha256(saved)
        made = [saved]
        for split, text in texts.items():
            made.append(scratch / f"{split}.tokens")
            parts = ingest.encode(text, saved, f"encoding {split}", workers, report)
            if not store.write(made[-1], len(tokenizer), vocabulary, parts):
                raise InfolmError(
                    f"The {split} split of {text.path} has no token: give a text with more lines."
                )
        folder.mkdir(exist_ok=True)
        # The blocks last: those of other tokens are noticed, and made again.
        for path in [*made, *map(store.blocks_of, made[1:])]:
            os.replace(path, folder / path.name)


def _open(folder: Path, splits: Sequence[str], verify: bool) -> list[Split]:
    vocabulary = sources.sha256(folder / "tokenizer.json")
    return [store.read(folder / f"{split}.tokens", vocabulary, verify) for split in splits]
