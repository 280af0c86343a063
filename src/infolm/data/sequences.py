"""A corpus as masked sequences of one length, for encoders."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from infolm.data import masking as hiding
from infolm.data.feed import FEEDS, FeedConfig
from infolm.data.parts import Numbers, Whole
from infolm.data.passes import Passes
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.data.corpora import Corpus


@FEEDS.register
class SequencesConfig(FeedConfig):
    """The running text in sequences of one length, [CLS] and [SEP] around each.

    A line end gives a [SEP] inside. Each pass cuts at other places.
    """

    gives = "sequences"
    kind: Literal["sequences"] = "sequences"
    batch: int = Field(32, ge=2, description="sequences of a batch")
    length: int = Field(128, ge=8, description="tokens of a sequence, [CLS] and [SEP] included")
    masking: Literal["tokens", "spans", "order"] = Field(
        "tokens",
        description="what is hidden: single tokens, spans of words (whose n-grams are also encoded "
        "separately), or the last tokens of a drawn order",
    )
    share: float = Field(hiding.SHARE, gt=0, lt=1, description="share of the tokens that is hidden")

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def hidden(self) -> str:
        what = {"tokens": "single tokens", "spans": "spans", "order": "the last of an order"}
        return (
            f", sequences of {self.length} tokens, of which {self.share:.0%} are hidden "
            f"({what[self.masking]})"
        )

    def build(self, corpus: "Corpus", split: str, seed: int) -> "SequenceFeed":
        tokens, config = corpus.splits[split].tokens, self
        if split != "train":  # a short one is read in smaller batches
            most = len(tokens) // (self.length - 2)
            config = self.model_copy(update={"batch": max(2, min(self.batch, most))})
        return SequenceFeed(tokens, config, seed, corpus.tokenizer)


class SequenceBatch(NamedTuple):
    """B sequences of L tokens.

    tokens (B, L): as the encoder sees them. places (N,): the hidden ones, in b L + l, in order;
    words (N,): what stands there. ngrams (G, W): of masking by spans, each hidden span by itself
    between [CLS] and [SEP], then [PAD]; `sizes` (G,) its tokens, `owners` (G,) its sequence,
    `masked` (G,) whether `tokens` has [MASK] in all its places, so that none of it is visible.
    rank (B, L): of masking by order, the place of each token in that order.
    """

    tokens: Any
    places: Any
    words: Any
    ngrams: Any = None
    sizes: Any = None
    owners: Any = None
    masked: Any = None
    rank: Any = None
    rate_scale: float = 1.0
    whole: Whole | None = None

    @property
    def columns(self) -> int:
        return len(self.tokens)

    def chosen(self, columns: Numbers) -> "SequenceBatch":
        sequence, place = np.divmod(self.places, self.tokens.shape[1])
        here = np.isin(sequence, columns)
        new = np.searchsorted(columns, sequence[here])
        batch = self._replace(
            tokens=self.tokens[columns],
            places=new * self.tokens.shape[1] + place[here],
            words=self.words[here],
        )
        if self.rank is not None:
            batch = batch._replace(rank=self.rank[columns])
        if self.ngrams is None:
            return batch
        lost = np.isin(self.owners, columns)
        return batch._replace(
            ngrams=self.ngrams[lost],
            sizes=self.sizes[lost],
            owners=np.searchsorted(columns, self.owners[lost]),
            masked=self.masked[lost],
        )


MOST_BLANK = 1000
"""Maximum number of consecutive batches without words that are skipped."""


class SequenceFeed(Passes):
    """Batches of `config.batch` sequences of `tokens` (N,), pass after pass.

    A pass draws the start of the first sequence, and the order of the sequences; those that do not
    fill a batch are left out. Everything is a function of the seed, the pass and the position in
    it.
    """

    def __init__(
        self, tokens: npt.NDArray[Any], config: SequencesConfig, seed: int, tokenizer: Tokenizer
    ) -> None:
        self.tokens, self.config, self.seed = tokens, config, seed
        self.special = tokenizer.special
        self._inside = config.length - 2
        self._no_word = np.zeros(len(tokenizer), bool)
        self._no_word[list(self.special)] = True
        self._words = np.flatnonzero(~self._no_word)
        self._begins = ~tokenizer.continues
        least = config.batch * self._inside
        if len(tokens) < least:
            raise InfolmError(
                f"the text has {len(tokens):,} tokens, and a batch needs {least:,}: lower "
                "feed.batch or feed.length, or bring more text"
            )
        if not self._has_word(tokens):
            raise InfolmError(
                "the text has no word that could be hidden, only blank lines: give another text"
            )
        self._draw()

    def _has_word(self, tokens: npt.NDArray[Any]) -> bool:
        steps = range(0, len(tokens), 2**20)  # a large text is not copied
        return any(not self._no_word[tokens[at : at + 2**20]].all() for at in steps)

    def _draw(self) -> None:
        rng = np.random.default_rng([self.seed, self.epoch])
        spare = len(self.tokens) - self.config.batch * self._inside
        first = int(rng.integers(min(self._inside, spare + 1)))
        count = (len(self.tokens) - first) // self._inside
        starts = first + self._inside * rng.permutation(count)
        whole = count // self.config.batch
        self._batches = starts[: whole * self.config.batch].reshape(whole, -1)

    def next(self) -> SequenceBatch:
        for _ in range(MOST_BLANK):
            batch = self._next()
            if len(batch.places):
                return batch
        raise InfolmError(
            f"{MOST_BLANK:,} batches in a row had no word that could be hidden: bring another text"
        )

    def _next(self) -> SequenceBatch:
        starts = self._batches[self._position]
        rng = np.random.default_rng([self.seed, self.epoch, self._position, 1])
        inside = self.tokens[starts[:, None] + np.arange(self._inside)].astype(np.int64)
        ends = np.full((len(starts), 1), 0)
        whole = np.hstack([ends + self.special.cls, inside, ends + self.special.sep])
        self._advance()
        return (
            self._ordered(whole, rng)
            if self.config.masking == "order"
            else self._masked(whole, rng)
        )

    def _masked(self, whole: npt.NDArray[np.int64], rng: np.random.Generator) -> SequenceBatch:
        seen, places, ngrams, owners, masked = whole.copy(), [], [], [], []
        length, share = self.config.length, self.config.share
        for number, sequence in enumerate(whole):
            free = ~self._no_word[sequence]
            spans = self.config.masking == "spans"
            if spans:
                hidden = hiding.spans(free, self._begins[sequence], share, rng)
            else:
                hidden = hiding.tokens(free, share, rng)
            seen[number] = hiding.corrupted(sequence, hidden, self.special.mask, self._words, rng)
            if spans:
                ngrams += [sequence[first:end] for first, end in hidden]
                owners += [number] * len(hidden)
                masked += [(seen[number, a:b] == self.special.mask).all() for a, b in hidden]
            places += [number * length + place for a, b in hidden for place in range(a, b)]
        at = np.array(places, np.int64)
        batch = SequenceBatch(seen, at, whole.ravel()[at])
        if not ngrams:
            return batch
        sizes = np.array([len(ngram) + 2 for ngram in ngrams])
        rows = np.full((len(ngrams), sizes.max()), self.special.pad)
        for row, ngram in zip(rows, ngrams, strict=True):
            row[: len(ngram) + 2] = [self.special.cls, *ngram, self.special.sep]
        return batch._replace(
            ngrams=rows, sizes=sizes, owners=np.array(owners), masked=np.array(masked)
        )

    def _ordered(self, whole: npt.NDArray[np.int64], rng: np.random.Generator) -> SequenceBatch:
        free = ~self._no_word[whole]
        drawn = [hiding.order(row, self.config.share, rng) for row in free]
        places = [n * self.config.length + place for n, (_, place) in enumerate(drawn)]
        at, rank = np.concatenate(places), np.stack([rank for rank, _ in drawn])
        return SequenceBatch(whole, at, whole.ravel()[at], rank=rank)
