"""A corpus as single sentences, for models with a latent code."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from infolm.data.episodes import group, sentence_bounds, sentence_ends
from infolm.data.feed import FEEDS, FeedConfig
from infolm.data.parts import Numbers, Whole
from infolm.data.passes import Passes
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.data.corpora import Corpus

POOL = 50
"""Batches of sentences that are drawn together and then sorted by length."""
AREA = 4096
"""Tokens of a batch outside training."""


@FEEDS.register
class SentencesConfig(FeedConfig):
    """The corpus as sentences, one per line, shuffled each pass."""

    gives = "sentences"
    kind: Literal["sentences"] = "sentences"
    batch: int = Field(20, ge=1, description="sentences of a batch")
    ends: list[str] = Field(
        [], description="tokens that end a sentence besides the end of its line, such as '.'"
    )
    longest: int = Field(100, ge=1, description="maximum tokens of a sentence, without <eos>")
    beyond: Literal["cut", "refuse"] = Field(
        "refuse", description="treatment of longer sentences: cut them, or stop with an error"
    )
    most: int | None = Field(
        None, ge=2, description="train on this many sentences, drawn once; none: on all"
    )
    encoder_unknown: float = Field(
        0.0, ge=0, lt=1, description="share of the encoder's tokens read as <unk>, in training"
    )
    decoder_unknown: float = Field(
        0.0, ge=0, lt=1, description="share of the decoder's tokens read as <unk>, in training"
    )

    def build(self, corpus: "Corpus", split: str, seed: int) -> "SentenceFeed":
        return SentenceFeed(self.lines(corpus, split), self, seed, corpus.tokenizer.unk)

    def lines(self, corpus: "Corpus", split: str) -> "Lines":
        """The sentences of a split for a sentence model: without empty lines and headings."""
        tokens, eos = corpus.splits[split].tokens, corpus.tokenizer.eos
        return fitting(lines(tokens, eos, corpus.ends(self.ends), corpus.heading), self, split)


class SentenceBatch(NamedTuple):
    """B sentences w_1 ... w_n, the longest first, as the rows of packed sequences.

    Each has n + 1 steps; step t is `sizes[t]` rows, of the first `sizes[t]` sentences.
    read (N,): what the encoder reads, <eos> w_n ... w_1. inputs (N,): what the decoder reads,
    <eos> w_1 ... w_n. targets (N,): what it predicts, w_1 ... w_n <eos>.
    """

    read: Any
    inputs: Any
    targets: Any
    sizes: list[int]
    rate_scale: float = 1.0
    whole: Whole | None = None

    @property
    def columns(self) -> int:
        return self.sizes[0]

    def chosen(self, columns: Numbers) -> "SentenceBatch":
        sentence = np.concatenate([np.arange(size) for size in self.sizes])  # of each row
        here = np.isin(sentence, columns)
        sizes = np.searchsorted(columns, self.sizes)  # how many of them are still being read
        read, inputs, targets = (rows[here] for rows in (self.read, self.inputs, self.targets))
        return SentenceBatch(read, inputs, targets, sizes[sizes > 0].tolist(), self.rate_scale)

    @property
    def sentences(self) -> int:
        return self.sizes[0]

    @property
    def tokens(self) -> int:
        """The number of tokens, with an <eos> for each sentence."""
        return sum(self.sizes)


@dataclass(frozen=True, eq=False)
class Lines:
    """S sentences in `tokens` (N,): sentence i is `lengths[i]` tokens from `starts[i]` on, without
    an <eos>. `eos` is that token's id."""

    tokens: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    eos: int

    @classmethod
    def of(cls, sentences: Sequence[npt.ArrayLike], eos: int) -> Self:
        """From arrays of tokens without <eos>, (n,) each; n may be 0."""
        arrays = [np.asarray(sentence, dtype=np.int64) for sentence in sentences]
        lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        tokens = np.concatenate([*arrays, [eos]])
        return cls(tokens, np.cumsum(lengths) - lengths, lengths, eos)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> npt.NDArray[np.int64]:
        start = self.starts[number]
        return self.tokens[start : start + self.lengths[number]].astype(np.int64)

    def __iter__(self) -> Iterator[npt.NDArray[np.int64]]:
        return (self[number] for number in range(len(self)))

    def chosen(self, numbers: npt.NDArray[np.integer]) -> "Lines":
        """The sentences with these numbers, in this order."""
        return Lines(self.tokens, self.starts[numbers], self.lengths[numbers], self.eos)

    def cut(self, longest: int) -> "Lines":
        """The sentences cut to at most `longest` tokens."""
        return Lines(self.tokens, self.starts, np.minimum(self.lengths, longest), self.eos)

    def packed(self, numbers: npt.NDArray[np.integer]) -> SentenceBatch:
        """The sentences with these numbers, the longest first, as a batch."""
        starts, lengths = self.starts[numbers], self.lengths[numbers]
        steps = np.arange(lengths[0] + 1)[:, None]  # (T, B) below
        inside = steps <= lengths
        # After the words of a sentence comes its <eos>; the text beyond is not read.
        ahead = np.minimum(starts + steps, len(self.tokens) - 1)
        targets = np.where(steps < lengths, self.tokens[ahead], self.eos).astype(np.int64)
        back = np.clip(starts + lengths - steps, 0, len(self.tokens) - 1)
        read = np.where(steps > 0, self.tokens[back], self.eos).astype(np.int64)
        inputs = np.vstack([np.full_like(targets[:1], self.eos), targets[:-1]])
        sizes = inside.sum(1).tolist()
        return SentenceBatch(read[inside], inputs[inside], targets[inside], sizes)

    def batches(self) -> Iterator[tuple[npt.NDArray[np.int64], SentenceBatch]]:
        """All sentences once, batched by length, with their numbers (B,)."""
        order = np.argsort(self.lengths, kind="stable")
        cuts = group(self.lengths[order] + 1, AREA)
        for first, end in pairwise(cuts):
            numbers = order[first:end][::-1].copy()  # PyTorch takes no negative strides
            yield numbers, self.packed(numbers)


def lines(
    tokens: npt.NDArray[Any], eos: int, ends: Sequence[int] = (), heading: int | None = None
) -> Lines:
    """The lines of `tokens` (N,) that have a word, without their <eos>.

    ends: tokens; after each of them a new sentence begins. heading: a token; lines that begin with
    it, such as "= Title =", are left out.
    """
    line_bounds = sentence_bounds(tokens, eos)
    cuts = sentence_ends(tokens, eos, ends)
    bounds = np.unique(np.concatenate([line_bounds, cuts]))
    starts, stops = bounds[:-1], bounds[1:]
    lengths = stops - starts - (tokens[stops - 1] == eos)
    kept = lengths > 0
    if heading is not None:
        line = np.searchsorted(line_bounds, starts, side="right") - 1
        kept &= tokens[line_bounds[line]] != heading
    return Lines(tokens, starts[kept], lengths[kept], eos)


def fitting(found: Lines, config: SentencesConfig, split: str) -> Lines:
    """The sentences, with those beyond the recipe's limit cut or refused."""
    longest = int(found.lengths.max(initial=0))
    if config.beyond == "refuse" and longest > config.longest:
        number = int(found.lengths.argmax()) + 1
        raise InfolmError(
            f"sentence {number:,} of the {split} split has {longest:,} tokens, more than "
            f"feed.longest, {config.longest:,}: raise that, or set feed.beyond=cut to keep the "
            "beginning of such sentences"
        )
    return found.cut(config.longest)


class SentenceFeed(Passes):
    """Batches of `config.batch` sentences, pass after pass; see `SentencesConfig`.

    A pass draws an order, and sorts each `POOL` batches' worth of it by length: a batch has
    sentences of nearly equal length, different ones each pass. The order of the batches is drawn
    too. Some batches have one more sentence, so that none is left over. Everything is a function of
    the seed, the pass and the position in it.
    """

    def __init__(self, text: Lines, config: SentencesConfig, seed: int, unk: int | None) -> None:
        if len(text) < 2:
            raise InfolmError(
                f"the training split has {len(text)} sentence{'s'[: len(text) != 1]} with a word, "
                "and training needs two: give more text, one sentence per line"
            )
        if unk is None and (config.encoder_unknown or config.decoder_unknown):
            raise InfolmError(
                "feed.encoder_unknown and feed.decoder_unknown read <unk>, and this vocabulary "
                "has none: set them to 0, or set data.tokens=word"
            )
        if config.most is not None and config.most < len(text):
            drawn = np.random.default_rng([seed]).permutation(len(text))[: config.most]
            text = text.chosen(np.sort(drawn))
        self.text, self.config, self.seed, self.unk = text, config, seed, unk
        self._draw()

    def _draw(self) -> None:
        rng = np.random.default_rng([self.seed, self.epoch])
        order, size = rng.permutation(len(self.text)), self.config.batch
        batches = []
        for pool in np.array_split(order, max(1, len(order) // (POOL * size))):
            ordered = pool[np.argsort(-self.text.lengths[pool], kind="stable")]
            batches += np.array_split(ordered, max(1, len(pool) // size))
        self._batches = [batches[number] for number in rng.permutation(len(batches))]

    def next(self) -> SentenceBatch:
        batch = self.text.packed(self._batches[self._position])
        rng = np.random.default_rng([self.seed, self.epoch, self._position, 1])
        read = self._masked(batch.read, self.config.encoder_unknown, rng)
        inputs = self._masked(batch.inputs, self.config.decoder_unknown, rng)
        self._advance()
        return batch._replace(read=read, inputs=inputs)

    def _masked(
        self, rows: npt.NDArray[np.int64], share: float, rng: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        """Words read as <unk>, each with probability `share`; never an <eos>."""
        if not share or self.unk is None:
            return rows
        hidden = (rng.random(len(rows)) < share) & (rows != self.text.eos)
        return np.where(hidden, self.unk, rows)
