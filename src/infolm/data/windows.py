"""Pairs of nearby words, for skip-gram."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from infolm.data.episodes import sentence_bounds
from infolm.data.feed import FEEDS, FeedConfig
from infolm.data.parts import Whole
from infolm.data.passes import Passes
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.data.corpora import Corpus

Numbers = npt.NDArray[np.int64]


@FEEDS.register
class WindowsConfig(FeedConfig):
    """Pairs of nearby words in a line (Mikolov et al. 2013).

    The text is cut into segments, at other places each pass and in a drawn order. A batch is the
    pairs of some segments, so the number of pairs varies a little between batches.
    """

    gives = "windows"
    kind: Literal["windows"] = "windows"
    batch: int = Field(32, ge=1, description="text segments whose pairs form a batch")
    length: int = Field(256, ge=8, description="tokens of a segment")
    window: int = Field(
        5,
        ge=1,
        description="greatest distance of a neighbour; each word draws its reach from 1 "
        "to `window`",
    )
    subsample: float | None = Field(
        1e-3, ge=1e-6, description="words more frequent than this are subsampled; none: no word"
    )

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    def build(self, corpus: "Corpus", split: str, seed: int) -> "WindowFeed":
        tokens, eos = corpus.splits[split].tokens, corpus.tokenizer.eos
        return WindowFeed(tokens, self, seed, eos, corpus.word_counts())


class WindowBatch(NamedTuple):
    """N pairs of nearby words: centres (N,) and contexts (N,)."""

    centres: Any
    contexts: Any
    rate_scale: float = 1.0
    whole: Whole | None = None

    @property
    def columns(self) -> int:
        return len(self.centres)

    def chosen(self, columns: Numbers) -> "WindowBatch":
        return WindowBatch(self.centres[columns], self.contexts[columns], self.rate_scale)


def keep_probabilities(counts: Numbers, subsample: float | None) -> npt.NDArray[np.float64]:
    """The probability that an occurrence of a word is kept, (V,): min(1, sqrt(t / f) + t / f).

    f: the word's share of the text, of which `counts` are (V,); t: `subsample`, None: all are kept.
    This is what word2vec computes; its paper prints sqrt(t / f) (Mikolov et al. 2013, eq. 5).
    """
    if subsample is None:
        return np.ones(len(counts))
    share = np.maximum(counts, 1) / counts.sum()
    return np.minimum(1, np.sqrt(subsample / share) + subsample / share)


def neighbours(lines: Numbers, reach: Numbers) -> tuple[Numbers, Numbers]:
    """The places (i, j), i != j, of one line with |i - j| <= reach[i], (N,) each.

    lines: (n,), the line of each place, rising; reach: (n,).
    """
    centres, contexts = [], []
    for distance in range(1, int(reach.max(initial=0)) + 1):
        left = np.flatnonzero(lines[:-distance] == lines[distance:])
        right = left + distance
        ahead, back = reach[left] >= distance, reach[right] >= distance
        centres += [left[ahead], right[back]]
        contexts += [right[ahead], left[back]]
    nothing = np.empty(0, np.int64)
    return np.concatenate([nothing, *centres]), np.concatenate([nothing, *contexts])


class WindowFeed(Passes):
    """Batches of the pairs of `tokens` (N,), pass after pass; see `WindowsConfig`.

    An `eos` ends a line and is not a word; no pair crosses a line or a segment. First frequent
    words are left out, each occurrence independently, so others come nearer to each other; then
    each remaining word draws its reach, uniformly from 1 to `window`. So nearer neighbours count
    more, as in word2vec.

    counts: (V,), of the words in the training text, an `eos` being none. Everything is a function
    of the seed, the pass and the position in it.
    """

    def __init__(
        self, tokens: npt.NDArray[Any], config: WindowsConfig, seed: int, eos: int, counts: Numbers
    ) -> None:
        if len(tokens) < 2 * config.length:
            raise InfolmError(
                f"the text has {len(tokens):,} tokens, and two segments have "
                f"{2 * config.length:,}: lower feed.length, or bring more text"
            )
        if np.diff(sentence_bounds(tokens, eos)).max() < 3:
            raise InfolmError(
                "no line of the text has two words, and skip-gram needs pairs of words in "
                "one line: give a text with longer lines"
            )
        self.tokens, self.config, self.seed, self.eos = tokens, config, seed, eos
        self._kept = keep_probabilities(counts, config.subsample)
        self._draw()

    def _draw(self) -> None:
        rng = np.random.default_rng([self.seed, self.epoch])
        length = self.config.length
        first = int(rng.integers(length))
        count = (len(self.tokens) - first) // length
        starts = first + length * rng.permutation(count)
        batch = min(self.config.batch, count)
        self._batches = starts[: count // batch * batch].reshape(-1, batch)

    def next(self) -> WindowBatch:
        batch = self._pairs()
        while not len(batch.centres):  # of short lines nothing may be left
            batch = self._pairs()
        return batch

    def _pairs(self) -> WindowBatch:
        starts = self._batches[self._position]
        rng = np.random.default_rng([self.seed, self.epoch, self._position])
        self._advance()
        stretches = self.tokens[starts[:, None] + np.arange(self.config.length)].astype(np.int64)
        ends = stretches == self.eos
        begins = ends.copy()
        begins[:, 0] = True
        lines = begins.cumsum()  # a stretch begins a line too
        words = stretches.ravel()
        kept = (rng.random(len(words)) < self._kept[words]) & ~ends.ravel()
        words, lines = words[kept], lines[kept]
        reach = rng.integers(1, self.config.window, len(words), endpoint=True)
        centres, contexts = neighbours(lines, reach)
        return WindowBatch(words[centres], words[contexts])
