"""A corpus as episodes: independent sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from infolm.data.feed import FEEDS, FeedConfig
from infolm.data.passes import Passes
from infolm.data.stream import PADDING, Batch
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.data.corpora import Corpus

BLOCK = 2**22
"""Tokens searched together for sentence ends; no more of the text is in memory at a time."""


@FEEDS.register
class EpisodesConfig(FeedConfig):
    """The corpus as sentences, shuffled each pass; the state is zero at each start."""

    gives = "text"
    episodic = True
    kind: Literal["episodes"] = "episodes"
    batch: int = Field(64, ge=1, description="mean number of sentences per batch")
    longest: int = Field(
        1000, ge=1, description="maximum tokens of a sentence; longer ones are cut into pieces"
    )
    after: str | None = Field(
        None,
        description="count only tokens after this one in a sentence; sentences are then never cut",
    )

    def build(self, corpus: "Corpus", split: str, seed: int) -> "Episodes":
        tokenizer = corpus.tokenizer
        tokens, after = corpus.splits[split].tokens, self.marker(tokenizer)
        return Episodes(tokens, self, seed, tokenizer.eos, after)

    def marker(self, tokenizer: Tokenizer) -> int | None:
        """The id of the token `after`, if there is one."""
        return None if self.after is None else tokenizer.number(self.after, "feed.after")


def places(tokens: npt.NDArray[Any], token: int) -> npt.NDArray[np.int64]:
    """The positions of `token` in `tokens` (N,)."""
    blocks = [
        start + np.flatnonzero(tokens[start : start + BLOCK] == token)
        for start in range(0, len(tokens), BLOCK)
    ]
    return np.concatenate(blocks)


def sentence_bounds(tokens: npt.NDArray[Any], eos: int) -> npt.NDArray[np.int64]:
    """The start of each sentence and the end of the last, (S + 1,).

    Sentence i is tokens[bounds[i] : bounds[i + 1]], its <eos> with it; the last may lack one.
    """
    ends = places(tokens, eos) + 1
    rest = [] if len(ends) and ends[-1] == len(tokens) else [len(tokens)]
    return np.concatenate([[0], ends, rest]).astype(np.int64)


def sentence_ends(
    tokens: npt.NDArray[Any], eos: int, ends: Sequence[int] = ()
) -> npt.NDArray[np.int64]:
    """The positions after each line end and after each of the tokens `ends`, sorted and unique."""
    return np.unique(np.concatenate([places(tokens, token) + 1 for token in (eos, *ends)]))


def cut_long(bounds: npt.NDArray[np.int64], longest: int) -> npt.NDArray[np.int64]:
    """The bounds of pieces of at most `longest` tokens; pieces of a sentence are nearly equal."""
    lengths = np.diff(bounds)
    pieces = -(-lengths // longest)
    sentence = np.repeat(np.arange(len(lengths)), pieces)
    nth = np.arange(len(sentence)) - (np.cumsum(pieces) - pieces)[sentence]
    starts = bounds[sentence] + nth * lengths[sentence] // pieces[sentence]
    return np.append(starts, bounds[-1])


def side_by_side(
    tokens: npt.NDArray[Any], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Segments of `tokens` (N,) in columns, (T, B), and a mask of the places within them.

    Beyond a segment's end is whatever follows in the text (at the very end, the last token).
    """
    steps = np.arange(lengths.max())[:, None]
    found = tokens[np.minimum(starts + steps, len(tokens) - 1)].astype(np.int64)
    return found, steps < lengths


def group(lengths: npt.NDArray[np.int64], area: int) -> list[int]:
    """Cut sorted lengths (S,) into batches of at most `area` places each, padding included.

    Gives the batches' bounds in `lengths`. A sentence above `area` is a batch by itself.
    """
    cuts = [0]
    while cuts[-1] < len(lengths):
        start = cuts[-1]
        ahead = lengths[start : start + max(1, area // int(lengths[start]))]
        fit = int(np.searchsorted(ahead * np.arange(1, len(ahead) + 1), area, side="right"))
        cuts.append(start + max(1, fit))
    return cuts


@dataclass
class Episodes(Passes):
    """Batches of whole sentences of `tokens` (N,), pass after pass; see `EpisodesConfig`.

    A sentence w_1 ... w_n <eos> is read as <eos> w_1 ... w_n from a state of zeros, so every token
    of the text is a target once a pass, the very first too. If a long sentence is cut, a piece
    first reads the token before it, and also starts from zeros.

    Batches have sentences of similar length: a pass sorts them by length, shuffles those of equal
    length, and shuffles the batches. A batch has as many tokens as `batch` sentences of mean
    length, with many short ones or few long ones. The loss is a mean over a batch's tokens, so each
    token then weighs about the same, and the rate needs no scale. Padding is read as token 0 and is
    not a target. `after`: only tokens after it are targets.
    """

    tokens: npt.NDArray[Any]
    config: EpisodesConfig
    seed: int
    eos: int
    after: int | None = None

    def __post_init__(self) -> None:
        bounds = sentence_bounds(self.tokens, self.eos)
        if self.after is None:
            bounds = cut_long(bounds, self.config.longest)
        else:
            self._check_marked(bounds, self.after)
        self._starts, self._lengths = bounds[:-1], np.diff(bounds)
        area = self.config.batch * len(self.tokens) // len(self._starts)
        self._cuts = group(np.sort(self._lengths), area)
        self._draw()

    def _check_marked(self, bounds: npt.NDArray[np.int64], after: int) -> None:
        marks = places(self.tokens, after)
        before, by_end = (np.searchsorted(marks, ends) for ends in (bounds[:-1], bounds[1:] - 1))
        without = np.flatnonzero(before == by_end)
        if len(without):
            raise InfolmError(
                f"sentence {without[0] + 1} of the training split has nothing after a "
                f"{self.config.after}: correct the text, or set feed.after=null"
            )

    def _draw(self) -> None:
        """The order of this pass: a function of the seed and the number of the pass."""
        rng = np.random.default_rng([self.seed, self.epoch])
        order = rng.permutation(len(self._starts))
        self._sentences = order[np.argsort(self._lengths[order], kind="stable")]
        self._batches = rng.permutation(len(self._cuts) - 1)

    def next(self) -> Batch:
        number = self._batches[self._position]
        members = self._sentences[self._cuts[number] : self._cuts[number + 1]]
        self._advance()
        return self._read(self._starts[members], self._lengths[members])

    def _read(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Batch:
        found, inside = side_by_side(self.tokens, starts, lengths)
        first = np.where(starts == 0, self.eos, self.tokens[starts - 1]).astype(np.int64)
        read = np.where(inside, np.vstack([first, found[:-1]]), 0)
        if self.after is not None:
            inside &= np.logical_or.accumulate(read == self.after)
        return Batch(read, np.where(inside, found, PADDING), True, 1.0)
