"""Pairs of sentences, true and drawn, for next sentence prediction."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from infolm.data.episodes import places
from infolm.data.feed import FEEDS, FeedConfig
from infolm.data.pairs import Documents, documents
from infolm.data.parts import Whole
from infolm.data.passes import Passes
from infolm.data.tokens import Special
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.data.corpora import Corpus

Numbers = npt.NDArray[np.int64]


@FEEDS.register
class SentencePairsConfig(FeedConfig):
    """Pairs of neighbouring sentences and of random ones, in BERT's format."""

    gives = "sentence pairs"
    kind: Literal["sentence-pairs"] = "sentence-pairs"
    batch: int = Field(32, ge=1, description="first sentences of a batch")
    candidates: int = Field(
        2, ge=2, description="second sentences of each first: the true one, the others drawn"
    )
    length: int = Field(
        128,
        ge=8,
        description="maximum tokens of a pair, [CLS] and both [SEP] included; the longer "
        "sentence is cut",
    )
    ends: list[str] = Field(
        [".", "!", "?"], description="tokens that end a sentence besides the end of its line"
    )

    def build(self, corpus: "Corpus", split: str, seed: int) -> "SentencePairFeed":
        tokens, tokenizer = corpus.splits[split].tokens, corpus.tokenizer
        cut = documents(tokens, tokenizer.eos, corpus.ends(self.ends), corpus.heading)
        return SentencePairFeed(cut, self, seed, tokenizer.special)


class SentencePairBatch(NamedTuple):
    """B first sentences with K second ones each, the true one at place 0.

    tokens (B, K, L): [CLS] a [SEP] b [SEP], then [PAD], L the longest of the batch. mask (B, K, L):
    1 for tokens, 0 for padding. segments (B, K, L): 1 for b and the [SEP] behind it, else 0.
    """

    tokens: Any
    mask: Any
    segments: Any
    rate_scale: float = 1.0
    whole: Whole | None = None

    @property
    def columns(self) -> int:
        return len(self.tokens)

    def chosen(self, columns: Numbers) -> "SentencePairBatch":
        tokens, mask, segments = (x[columns] for x in (self.tokens, self.mask, self.segments))
        return SentencePairBatch(tokens, mask, segments, self.rate_scale)


def shortened(first: npt.ArrayLike, second: npt.ArrayLike, budget: int) -> tuple[Numbers, Numbers]:
    """Lengths that together are at most `budget`: tokens are taken from the longer, one by one, of
    two as long from the second, until the pair fits (Devlin et al. 2018)."""
    half = budget - budget // 2
    left = np.minimum(first, np.maximum(half, np.subtract(budget, second)))
    return left, np.minimum(second, budget - left)


class SentencePairFeed(Passes):
    """Batches of pairs (S_l, S_{l+1}) of one document, pass after pass in a new order.

    The drawn candidates are second sentences of any pair, the true one among them, so that they
    are a sample of p(b). An incomplete batch at the end of a pass is not used. Everything is a
    function of the seed, the pass and the position in it.
    """

    def __init__(
        self, text: Documents, config: SentencePairsConfig, seed: int, special: Special
    ) -> None:
        self.text, self.config, self.seed, self.special = text, config, seed, special
        self._first = np.flatnonzero(text.document[:-1] == text.document[1:])
        if len(self._first) < 2:
            count = len(text.document)
            raise InfolmError(
                f"the text has {count} sentence{'s'[: count != 1]}, and training needs at "
                "least two pairs of neighbours: give more text, or name tokens that end a "
                "sentence in "
                "feed.ends"
            )
        # A line's end belongs to the sentence before it, and is not part of the pair.
        line_ends = places(text.tokens, special.sep)
        self._lengths = np.diff(text.bounds) - np.diff(np.searchsorted(line_ends, text.bounds))
        self._batch = min(config.batch, len(self._first))
        self._draw()

    def _draw(self) -> None:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self._first)
        whole = len(order) // self._batch
        self._batches = order[: whole * self._batch].reshape(whole, -1)

    def next(self) -> SentencePairBatch:
        first = self._batches[self._position]
        rng = np.random.default_rng([self.seed, self.epoch, self._position, 1])
        drawn = rng.choice(self._first, (len(first), self.config.candidates - 1)) + 1
        self._advance()
        return self._read(first[:, None], np.hstack([first[:, None] + 1, drawn]))

    def _read(self, first: Numbers, second: Numbers) -> SentencePairBatch:
        """The pairs of sentences with these numbers, (B, 1) and (B, K)."""
        text, special = self.text, self.special
        left, right = (
            lengths[..., None]
            for lengths in shortened(
                self._lengths[first], self._lengths[second], self.config.length - 3
            )
        )
        step = np.arange((left + right).max() + 3)
        behind = step - left - 2  # the place in b
        tokens = np.select(
            [step == 0, step <= left, behind == -1, behind < right, behind == right],
            [
                special.cls,
                self._at(text.bounds[first][..., None] + step - 1),
                special.sep,
                self._at(text.bounds[second][..., None] + behind),
                special.sep,
            ],
            special.pad,
        )
        mask, segments = behind <= right, (behind >= 0) & (behind <= right)
        return SentencePairBatch(tokens, mask.astype(np.int64), segments.astype(np.int64))

    def _at(self, place: Numbers) -> Numbers:
        """The tokens at these places; beside the text, where none is asked for, any."""
        return self.text.tokens[np.clip(place, 0, len(self.text.tokens) - 1)].astype(np.int64)
