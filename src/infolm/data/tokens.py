"""Tokenizers: from text to token ids, and back.

Five kinds, each saved as a Hugging Face `tokenizer.json`:

| kind | a token is | `<eos>` | what the vocabulary lacks |
| --- | --- | --- | --- |
| word | a word, or a punctuation mark unless pretokenised | its own token | `<unk>` |
| char | a Unicode character | the newline | `<unk>` |
| byte | a byte of the UTF-8 text, 256 types | the newline | cannot happen |
| bpe | a byte-level byte pair, never across a newline | the newline | cannot happen |
| wordpiece | a word or a piece of one, as BERT has it | `[SEP]` | `[UNK]` |

Every newline gives exactly one `<eos>`, and nothing else does, except a word `<eos>` in the text.
If the newline itself is the token, decoding gives back exactly the text.

The file is complete, so any program with `tokenizers` gets the same tokens (for word pieces those
of a line, between a `[CLS]` and a `[SEP]`, as encoders need). Words and characters are looked up
here without that library, several times as fast.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, lru_cache
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from infolm.data.prose import character_class, join, prose_pattern
from infolm.errors import InfolmError

if TYPE_CHECKING:
    import tokenizers

Kind = Literal["word", "char", "byte", "bpe", "wordpiece"]

EOS = "<eos>"
UNK = "<unk>"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUES = "##"
"""The prefix of a piece that continues a word."""
BLANKS = " \t\n\r\v\f"
"""White space that separates words."""
NO_TOKEN = -1  # what `Tokenizer.lookup` gives for a word or character it does not know

_CLASS = re.compile(r"\[(?:\\.|[^\]\\])*\]", re.DOTALL)  # of characters
_CODE_POINTS = 0x110000
_MEMORY = 200_000  # whitespace-separated words whose pieces are remembered while encoding


class Special(NamedTuple):
    """The ids of the special tokens in a vocabulary of word pieces."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


def lower(text: str) -> str:
    """Lower case, character by character, as `tokenizers` does: no sigma is final."""
    return text.replace("Σ", "σ").lower()


@lru_cache(maxsize=3)
def word_pattern(pretokenised: bool, contractions: bool = False) -> str:
    """The regular expression whose matches are the words of a text.

    Pretokenised text is split on white space alone. In other text each punctuation mark or symbol
    is a token of its own, but for the low line and for an apostrophe inside a word; with
    `contractions` as `prose.prose_pattern` has it. The classes
    are written out, because `\\w` and `\\s` mean different things to different libraries (and
    `\\w` would cut a Devanagari word at each vowel sign).
    """
    every = list(map(chr, range(_CODE_POINTS)))
    space = character_class(filter(str.isspace, every))
    if pretokenised:
        return f"[^{space}]+"
    marks = character_class(c for c in every if c != "_" and unicodedata.category(c)[0] in "PS")
    if contractions:
        return prose_pattern(f"{EOS}|{UNK}", space, marks)
    run = f"[^{space}{marks}]+"
    return f"{EOS}|{UNK}|{run}(?:['’]{run})*|[{marks}]"


def _is_word_pattern(pattern: str) -> bool:
    """Whether it is a `word_pattern`, whatever its character classes hold: those of another Unicode
    release may differ. A foreign pattern could take exponential time."""
    marks = f"{EOS}|{UNK}|[]+(?:[][]+)*|[]"
    return _CLASS.sub("[]", pattern) in ("[]+", marks, _prose_without_classes())


@cache
def _prose_without_classes() -> str:
    return _CLASS.sub("[]", prose_pattern(f"{EOS}|{UNK}", " ", "!"))


def splitter(pattern: str) -> Callable[[str], list[str]]:
    """The matches of a `word_pattern` between two blanks."""
    findall = re.compile(pattern).findall
    # Most words need no regular expression, and it takes ten times as long. Scripts without
    # blanks may need it.
    return lambda text: [text] if text.isascii() and text.isalnum() else findall(text)


def ranked(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """By descending count, ties in the order of their code points."""
    return sorted(sorted(counts), key=itemgetter(1), reverse=True)


def vocabulary(counts: dict[str, int], eos: str, total: int, limit: int | None) -> list[str]:
    """The tokens in the order of their ids: by descending frequency in the training text.

    `counts` holds at least the `limit` most frequent of the text's `total` tokens. `eos` and
    `<unk>` are always included, within the limit; tokens beyond the limit count as `<unk>`.
    """
    ordinary = ranked((token, n) for token, n in counts.items() if token not in (eos, UNK))
    kept = dict(ordinary if limit is None else ordinary[: limit - 2])
    kept[eos] = counts.get(eos, 0)
    kept[UNK] = total - sum(kept.values())
    return [token for token, _ in ranked(kept.items())]


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level `tokenizer.json`.

    Printable Latin-1 stands for itself; the others take the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


class _Ids(dict[str, int]):
    """Token to number; `NO_TOKEN` for any other string."""

    def __missing__(self, token: str) -> int:
        return NO_TOKEN


class _Pieces(dict[str, tuple[int, ...]]):
    """The text between two blanks -> the ids of its words, cached."""

    def __init__(self, pattern: str, ids: _Ids) -> None:
        super().__init__()
        self._words = splitter(pattern)
        self._ids = ids

    def __missing__(self, text: str) -> tuple[int, ...]:
        if len(self) >= _MEMORY:
            self.clear()
        pieces = self[text] = tuple([self._ids[word] for word in self._words(text)])
        return pieces


class Tokenizer:
    """A vocabulary and the rule that cuts a text into its tokens.

    Made by `from_words`, `from_characters`, `from_bytes`, `from_bpe`, `from_wordpiece`,
    `from_bert` or `load`.
    `eos` is the id of `<eos>`; `unk` that of `<unk>`, or None if every text can be encoded.
    """

    kind: Kind
    eos: int
    unk: int | None

    def __init__(self, description: dict[str, Any]) -> None:
        """`description` is the parsed `tokenizer.json`; the class methods make it."""
        ids = _Ids(description["model"]["vocab"])
        for added in description.get("added_tokens") or []:
            ids.setdefault(
                added["content"], added["id"]
            )  # a BERT's own may stand behind its pieces
        description["model"]["vocab"] = ids
        self._description = description
        self._ids = ids
        self._tokens = sorted(ids, key=ids.__getitem__)
        self.kind = _kind(description)
        newline = {"word": EOS, "char": "\n", "wordpiece": "[SEP]"}
        self.eos = ids[newline.get(self.kind, byte_characters()[ord("\n")])]
        unknown = {"word": UNK, "char": UNK, "wordpiece": "[UNK]"}.get(self.kind)
        self.unk = None if unknown is None else ids[unknown]

    @classmethod
    def from_words(
        cls,
        words: Sequence[str],
        *,
        pretokenised: bool = True,
        lowercase: bool = False,
        contractions: bool = False,
    ) -> Self:
        """Words, numbered as listed; `<eos>` and `<unk>` must be among them."""
        from tokenizers import Regex, models, normalizers, pre_tokenizers

        backend = _backend(
            models.WordLevel(_numbered(words), unk_token=UNK),
            lowercase,
            normalizers.Replace("\n", f" {EOS} "),
        )
        backend.pre_tokenizer = pre_tokenizers.Split(
            Regex(word_pattern(pretokenised, contractions)), behavior="removed", invert=True
        )
        return cls(json.loads(backend.to_str()))

    @classmethod
    def from_characters(cls, characters: Sequence[str], *, lowercase: bool = False) -> Self:
        """Characters, numbered as listed; the newline and `<unk>` must be among them."""
        from tokenizers import Regex, decoders, models, pre_tokenizers

        backend = _backend(models.WordLevel(_numbered(characters), unk_token=UNK), lowercase)
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        backend.decoder = decoders.Fuse()
        return cls(json.loads(backend.to_str()))

    @classmethod
    def from_bytes(cls) -> Self:
        """The 256 bytes, each numbered by its value."""
        from tokenizers import decoders, models, pre_tokenizers

        backend = _backend(models.BPE(_numbered(byte_characters()), []), lowercase=False)
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        return cls(json.loads(backend.to_str()))

    @classmethod
    def from_bpe(cls, texts: Iterable[str], size: int, *, lowercase: bool = False) -> Self:
        """At most `size` byte pairs, learnt from `texts`; the 256 bytes are among them."""
        from tokenizers import decoders, models, pre_tokenizers, trainers

        backend = _backend(models.BPE(), lowercase)
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split("\n", behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=byte_characters(),
        )
        backend.train_from_iterator(texts, trainer)
        return cls(json.loads(backend.to_str()))

    @classmethod
    def from_wordpiece(cls, texts: Iterable[str], size: int, *, lowercase: bool = False) -> Self:
        """At most `size` word pieces, learnt from `texts`, with `SPECIAL` as the first of them."""
        from tokenizers import models, trainers

        backend = _bert_backend(models.WordPiece(unk_token="[UNK]"), lowercase)
        # If the corpus marks rare words itself, the mark is not learnt as a piece.
        plain = [backend.normalizer.normalize_str(text.replace(UNK, " ")) for text in texts]
        counts = Counter(chain.from_iterable(plain))
        letters = sorted(c for c, _ in ranked(counts.items())[: size // 8] if not c.isspace())
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=2,
            show_progress=False,
            # Without this `tokenizers` numbers single letters and breaks ties differently each
            # time.
            special_tokens=[*SPECIAL, *(CONTINUES + letter for letter in letters)],
            initial_alphabet=letters,
            limit_alphabet=len(letters),
            continuing_subword_prefix=CONTINUES,
        )
        backend.train_from_iterator(plain, trainer)
        learnt = backend.get_vocab()
        return cls._of_pieces(sorted(learnt, key=learnt.__getitem__), lowercase)

    @classmethod
    def from_bert(cls, folder: Path) -> Self:
        """The vocabulary in the folder of a BERT checkpoint: `tokenizer.json` or `vocab.txt`."""
        if (folder / "tokenizer.json").exists():
            found = cls.load(folder / "tokenizer.json")
            if found.kind != "wordpiece":
                raise InfolmError(
                    f"{folder} has no vocabulary of word pieces: give a BERT's folder"
                )
            # That of a model for short texts may cut every text, or fill it up.
            found._description |= {"truncation": None, "padding": None}
            return found
        path, settings = folder / "vocab.txt", folder / "tokenizer_config.json"
        try:
            # A piece may be one of the rarer line breaks.
            pieces = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
            lowercase = not settings.exists() or bool(
                json.loads(settings.read_bytes()).get("do_lower_case", True)
            )
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise InfolmError(
                f"{folder} has no vocabulary that can be read ({error}): it needs tokenizer.json "
                "or vocab.txt, as transformers saves them"
            ) from error
        if missing := [token for token in SPECIAL if token not in pieces]:
            raise InfolmError(f"{path} lacks {', '.join(missing)}: give the vocabulary of a BERT")
        return cls._of_pieces(pieces, lowercase)

    @classmethod
    def _of_pieces(cls, pieces: Sequence[str], lowercase: bool) -> Self:
        from tokenizers import models, processors

        backend = _bert_backend(models.WordPiece(_numbered(pieces), unk_token="[UNK]"), lowercase)
        backend.add_special_tokens(list(SPECIAL))
        ends = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
        )
        return cls(json.loads(backend.to_str()))

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            found = cls(json.loads(path.read_bytes()))
            found._check()
        except OSError as error:
            raise InfolmError(f"{path} cannot be read: {error.strerror}.") from error
        except Exception as error:  # `tokenizers` raises nothing more special
            raise InfolmError(
                f"{path} is not a vocabulary that infolm saved: restore it from a copy."
            ) from error
        return found

    def _check(self) -> None:
        """Refuse a description that would fail later, or whose pattern could take forever."""
        numbers = self._ids.values()
        if not all(type(n) is int for n in numbers) or {*numbers} != {*range(len(self))}:
            raise ValueError("tokens are not numbered from 0 on")
        for added in self._description.get("added_tokens") or []:
            if self._ids[added["content"]] != added["id"]:
                raise ValueError("an added token has two numbers")
        needed = {*SPECIAL} if self.kind == "wordpiece" else {*byte_characters()}
        if self.kind in ("word", "char"):
            needed = {self._tokens[self.eos], UNK} if self.eos != NO_TOKEN else {EOS}
        if not needed <= self._ids.keys():
            raise ValueError("it lacks tokens that every vocabulary has")
        if self.kind == "byte" and self._tokens != byte_characters():
            raise ValueError("its bytes are out of order")
        if self.kind == "word" and not _is_word_pattern(self._pattern):
            raise ValueError("it cuts words by another pattern")
        self.decode(self.encode(f"a {'x' * 1000}\n"))  # a word that no vocabulary has
        self.to_json().encode()  # half a surrogate pair cannot be written

    def save(self, path: Path) -> None:
        path.write_text(self.to_json(), encoding="utf-8")

    def to_json(self) -> str:
        return json.dumps(self._description, ensure_ascii=False)

    def __len__(self) -> int:
        return len(self._tokens)

    @cached_property
    def lowercase(self) -> bool:
        normaliser = self._description["normalizer"]
        if self.kind == "wordpiece":
            return bool(normaliser["lowercase"])
        return "Lowercase" in json.dumps(normaliser)

    @cached_property
    def special(self) -> Special:
        """The special tokens, for word pieces only."""
        if self.kind != "wordpiece":
            raise InfolmError(
                f"tokens are of kind {self.kind}, which has no [CLS] or [MASK]: set "
                "data.tokens=wordpiece and data.vocabulary"
            )
        return Special(*(self._ids[token] for token in SPECIAL))

    @cached_property
    def continues(self) -> NDArray[np.bool_]:
        """For word pieces: which continue a word, (V,)."""
        return np.array([token.startswith(CONTINUES) for token in self._tokens])

    def pieces(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The word pieces of a text, (n,), and where each begins and ends in it, (n, 2)."""
        found = self._backend.encode(text, add_special_tokens=False)
        return np.array(found.ids, np.int64), np.array(found.offsets, np.int64).reshape(-1, 2)

    def encode(self, text: str) -> NDArray[np.int64]:
        """The numbers of the text's tokens; a text without a last newline gets no last `<eos>`."""
        ids = self.lookup(text).astype(np.int64)
        if self.unk is not None:
            ids[ids == NO_TOKEN] = self.unk
        return ids

    @cached_property
    def begins(self) -> NDArray[np.bool_]:
        """Which tokens imply that the word before them has ended, (V,).

        Characters, bytes and byte pairs: those that begin with white space, and `<eos>`. Word
        pieces: those that do not continue a word. Words: every token.
        """
        if self.kind == "word":
            return np.ones(len(self), bool)
        if self.kind == "wordpiece":
            return ~self.continues
        if self.kind == "char":
            return np.array([token in BLANKS for token in self._tokens])
        blanks = BLANKS.encode()
        return np.array([token[:1] in blanks for token in self._bytes])

    def located(self, line: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tokens of a line, (n,), and their character spans in it, (n, 2).

        A line holds no newline. As `encode` of `adapted`, with spans in the original line. Tokens
        with overlapping spans share a character, or its lower-case expansion.
        """
        if self.kind == "word":
            return self._located_words(line)
        if self.kind in ("bpe", "wordpiece"):
            return self.pieces(line.replace(UNK, "[UNK]") if self.kind == "wordpiece" else line)
        if self.kind == "char":
            normal = [self._normal(c) for c in line] if self.lowercase else line
            lengths = np.fromiter(map(len, normal), np.int64)
        else:
            lengths = np.array([len(c.encode("utf-8", "surrogateescape")) for c in line])
        starts = np.repeat(np.arange(len(line)), lengths.astype(np.int64))
        return self.encode(line), np.stack([starts, starts + 1], 1)

    def _located_words(self, line: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        parts = [
            (self._normal(part), begin + match.start())
            for match in re.finditer(self._pattern, line)
            for part, begin in (self._known(match[0]) if self._pieces is None else [(match[0], 0)])
        ]
        ids = np.array([self._ids[part] for part, _ in parts], np.int64)
        ids[ids == NO_TOKEN] = self._ids[UNK]
        spans = [(begin, begin + len(part)) for part, begin in parts]
        return ids, np.array(spans, np.int64).reshape(-1, 2)

    def number(self, token: str, key: str) -> int:
        """The number of a token that a recipe names under `key`."""
        found = self.lookup(token).tolist()
        if len(found) != 1 or NO_TOKEN in found:
            raise InfolmError(f"{key}: '{token}' is not one token of this vocabulary: name another")
        return found[0]

    def lookup(self, text: str) -> NDArray[np.int32]:
        """As `encode`, with `NO_TOKEN` in place of `<unk>` for what the vocabulary lacks."""
        return {
            "word": self._of_words,
            "char": self._of_characters,
            "byte": self._of_bytes,
            "bpe": self._of_byte_pairs,
            "wordpiece": self._of_word_pieces,
        }[self.kind](text)

    def _of_words(self, text: str) -> NDArray[np.int32]:
        words = self._normal(text).replace("\n", f" {EOS} ").split()
        if self._pieces is None:
            found: Iterable[int] = map(self._ids.__getitem__, words)
            return np.fromiter(found, np.int32, len(words))
        found = chain.from_iterable(map(self._pieces.__getitem__, words))
        return np.fromiter(found, np.int32)

    def _of_characters(self, text: str) -> NDArray[np.int32]:
        codes = self._normal(text).encode("utf-32-le", "surrogatepass")
        return self._table[np.frombuffer(codes, np.uint32)]

    def _of_bytes(self, text: str) -> NDArray[np.int32]:
        data = text.encode("utf-8", "surrogateescape")
        return np.frombuffer(data, np.uint8).astype(np.int32)

    def _of_byte_pairs(self, text: str) -> NDArray[np.int32]:
        lines = re.findall(r"[^\n]*\n|[^\n]+", text)  # one long string takes twice as long
        encoded = self._backend.encode_batch_fast(lines)
        return np.fromiter(chain.from_iterable(line.ids for line in encoded), np.int32)

    def _of_word_pieces(self, text: str) -> NDArray[np.int32]:
        *lines, rest = text.replace(UNK, "[UNK]").split("\n")
        encoded = self._backend.encode_batch_fast([*lines, rest], add_special_tokens=False)
        parts = [[*line.ids, self.eos] for line in encoded[:-1]]
        return np.fromiter(chain(*parts, encoded[-1].ids), np.int32)

    def decode(self, ids: ArrayLike) -> str:
        """The text of these tokens; words are joined by blanks, other kinds give the exact text."""
        numbers: list[int] = np.asarray(ids, np.int64).ravel().tolist()
        if self.kind in ("byte", "bpe"):
            return b"".join(map(self._bytes.__getitem__, numbers)).decode("utf-8", "replace")
        tokens = map(self._tokens.__getitem__, numbers)
        if self.kind == "char":
            return "".join(tokens)
        newline = self._tokens[self.eos]
        words = " ".join("\n" if token == newline else token for token in tokens)
        if self.kind == "wordpiece":
            words = words.replace(f" {CONTINUES}", "")
        return re.sub(" ?\n ?", "\n", words)

    def following(self, token: int, before: int) -> str:
        """The text that `token` adds after the token `before`: the end of `decode` of both."""
        if token == self.eos:
            return "\n"
        word = self._tokens[token]
        if self.kind == "wordpiece" and word.startswith(CONTINUES):
            return word.removeprefix(CONTINUES)
        return word if before == self.eos else f" {word}"

    def prose(self, ids: ArrayLike) -> str:
        """As `decode`, with words joined as in ordinary prose."""
        text = self.decode(ids)
        if self.kind not in ("word", "wordpiece"):
            return text
        return "\n".join(join(line.split()) for line in text.split("\n"))

    def token(self, id: int) -> str:
        """One token as readable text."""
        if id == self.eos and self.kind != "wordpiece":
            return EOS
        if self.kind in ("byte", "bpe"):
            text = self._bytes[id].decode("utf-8", "backslashreplace")
            return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
        return self._tokens[id]

    def written(self, id: int) -> str:
        """One token as `tokenizer.json` writes it."""
        return self._tokens[id]

    def unknown(self, text: str) -> list[str]:
        """The words or characters of the text that the vocabulary lacks, in order, once each."""
        if self.unk is None or self.kind == "wordpiece":
            return []
        text = self._normal(text)
        parts: Iterable[str] = text
        if self.kind == "word":
            parts = re.findall(self._pattern, text)
        return [part for part in dict.fromkeys(parts) if part not in self._ids]

    def adapted(self, text: str) -> str:
        """Raw text adapted to a vocabulary of pretokenised text, as far as possible.

        Words known only in lower case are lowered, and marks are split off unknown words: "Fell."
        becomes "fell .", or "fell." if that is a word. For other vocabularies the text is
        unchanged.
        """
        if self.kind != "word" or self._pieces is not None:
            return text
        known = self._known
        return re.sub(word_pattern(True), lambda w: " ".join(p for p, _ in known(w[0])), text)

    def _known(self, word: str) -> list[tuple[str, int]]:
        """A word split into known ones, if possible, and where each begins in it."""

        def found(part: str) -> str | None:
            if self._normal(part) in self._ids:
                return part
            return lower(part) if lower(part) in self._ids else None

        if (whole := found(word)) is not None:
            return [(whole, 0)]
        parts = re.finditer(word_pattern(False), word)
        return [(found(part[0]) or part[0], part.start()) for part in parts]

    def _normal(self, text: str) -> str:
        return lower(text) if self.lowercase else text

    @cached_property
    def _backend(self) -> "tokenizers.Tokenizer":
        from tokenizers import Tokenizer as Backend

        return Backend.from_str(self.to_json())

    @property
    def _pattern(self) -> str:
        return self._description["pre_tokenizer"]["pattern"]["Regex"]

    @cached_property
    def _pieces(self) -> _Pieces | None:
        """None for pretokenised text, where a word is all that stands between two blanks."""
        cuts_marks = self._pattern.startswith(EOS)
        return _Pieces(self._pattern, self._ids) if cuts_marks else None

    @cached_property
    def _table(self) -> NDArray[np.int32]:
        """Code point -> number, [0x110000]."""
        table = np.full(_CODE_POINTS, NO_TOKEN, np.int32)
        for token, number in self._ids.items():
            if len(token) == 1:
                table[ord(token)] = number
        return table

    @cached_property
    def _bytes(self) -> list[bytes]:
        """Number -> the bytes of its token."""
        value = {character: byte for byte, character in enumerate(byte_characters())}
        return [bytes(value[c] for c in token) for token in self._tokens]


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _backend(model: Any, lowercase: bool, *normalise: Any) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer as Backend
    from tokenizers import normalizers

    backend = Backend(model)
    steps = [normalizers.Lowercase(), *normalise] if lowercase else list(normalise)
    backend.normalizer = normalizers.Sequence(steps)
    return backend


def _bert_backend(model: Any, lowercase: bool) -> "tokenizers.Tokenizer":
    """BERT's rules around a model of word pieces: marks are words, and no accents in lower case."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, normalizers, pre_tokenizers

    backend = Backend(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUES)
    return backend


def _kind(description: dict[str, Any]) -> Kind:
    """The class method that made this `tokenizer.json`, which has no field for it."""
    if description["model"]["type"] == "WordPiece":
        return "wordpiece"
    cutter = description["pre_tokenizer"]
    if description["model"]["type"] == "WordLevel":
        return "char" if cutter["behavior"] == "Isolated" else "word"
    return "byte" if cutter["type"] == "ByteLevel" else "bpe"
