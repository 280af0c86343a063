"""Neighbouring and nearby sentences of a corpus, for BMI."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infolm.data.episodes import places, sentence_ends, side_by_side
from infolm.data.parts import Numbers, Whole
from infolm.data.passes import Passes
from infolm.data.stream import PADDING
from infolm.errors import InfolmError

MOST_HELD_OUT = 5000
"""Pairs of a validation: enough to know the accuracy to within 0.01."""


class PairBatch(NamedTuple):
    """M sentences, their successors, and sentences drawn from nearby.

    x, y, drawn: (T, M) tokens each, a sentence in a column, `PADDING` after its end, T the longest
    of its own array. log_proposal: (M,), ln G of what was drawn.
    """

    x: Any
    y: Any
    drawn: Any
    log_proposal: Any
    whole: Whole | None = None

    @property
    def columns(self) -> int:
        return int(self.x.shape[1])

    def chosen(self, columns: Numbers) -> "PairBatch":
        x, y, drawn = (_trimmed(group[:, columns]) for group in (self.x, self.y, self.drawn))
        return PairBatch(x, y, drawn, self.log_proposal[columns])


def _trimmed(sentences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Without rows of padding only."""
    return sentences[: int((sentences != PADDING).sum(0).max())]


@dataclass(frozen=True, eq=False)
class Documents:
    """A text (N,) as documents of S sentences: sentence i is tokens[bounds[i] : bounds[i + 1]].

    document: (S,), the number of the document each belongs to, rising.
    """

    tokens: npt.NDArray[Any]
    bounds: npt.NDArray[np.int64]
    document: npt.NDArray[np.int64]

    def read(self, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sentences with these numbers (M,), in columns: (T, M)."""
        starts, ends = self.bounds[chosen], self.bounds[chosen + 1]
        found, inside = side_by_side(self.tokens, starts, ends - starts)
        return np.where(inside, found, PADDING)


def documents(
    tokens: npt.NDArray[Any], eos: int, ends: Sequence[int] = (), heading: int | None = None
) -> Documents:
    """Cut `tokens` (N,) at the end of each line, and after each of the tokens `ends`.

    An <eos> belongs to the sentence before it, so an empty line is not a sentence, and a stop at
    the end of a line does not make a sentence of the <eos> alone; empty lines at the very beginning
    are left out. With `heading`, a new document begins at each of the `titles`; without, all is
    one.
    """
    line_ends, cuts = places(tokens, eos) + 1, sentence_ends(tokens, eos, ends)
    inner = cuts[cuts < len(tokens)]
    inner = inner[tokens[inner] != eos]
    bounds = np.concatenate([[0], inner, [len(tokens)]]).astype(np.int64)
    if tokens[0] == eos:
        bounds = bounds[1:]
    starts = bounds[:-1]
    document = np.zeros(len(starts), np.int64)
    if heading is not None:
        document = np.cumsum(np.isin(starts, titles(tokens, line_ends, heading)))
    return Documents(tokens, bounds, document)


def titles(
    tokens: npt.NDArray[Any], line_ends: npt.NDArray[np.int64], heading: int
) -> npt.NDArray[np.int64]:
    """Where the lines like "= Title =" begin that stand between empty lines.

    line_ends: (L,), one after the <eos> of each line. Tables, too, have lines such as "= Played ,
    W =", but not between empty ones: WikiText-2 has 600 articles by this rule, as its authors say.
    """
    starts = np.append(0, line_ends)[:-1]
    empty = line_ends - starts == 1
    alone = np.append(True, empty)[:-1] & np.append(empty, False)[1:]
    alone &= line_ends - starts > 3
    first, end = starts[alone], line_ends[alone]
    titled = (tokens[first] == heading) & (tokens[first + 1] != heading)
    return first[titled & (tokens[end - 2] == heading)]


def segments(tokens: npt.NDArray[Any], length: int) -> Documents:
    """Cut `tokens` (N,) into segments of `length` tokens; the remainder is not used."""
    count = len(tokens) // length
    return Documents(tokens, np.arange(count + 1) * length, np.zeros(count, np.int64))


def firsts(text: Documents) -> npt.NDArray[np.int64]:
    """The numbers of the sentences with a successor in their document."""
    return np.flatnonzero(text.document[:-1] == text.document[1:])


@dataclass(frozen=True, eq=False)
class HeldOutPairs:
    """Neighbours of a held-out text, in G groups of M pairs, drawn once.

    first: (G, M), the numbers of the first sentences. In a group every first sentence is compared
    with its own next one and with those of the M - 1 others.
    """

    text: Documents
    first: npt.NDArray[np.int64]

    @classmethod
    def draw(cls, text: Documents, batch: int, longest: int) -> "HeldOutPairs | None":
        """Groups of `batch` pairs, `MOST_HELD_OUT` pairs at most, no sentence above `longest`
        tokens; None where there are fewer than two pairs."""
        first, sizes = firsts(text), np.diff(text.bounds)
        first = first[np.maximum(sizes[first], sizes[first + 1]) <= longest]
        if len(first) < 2:
            return None
        chosen = np.random.default_rng(0).permutation(first)[:MOST_HELD_OUT]
        batch = min(batch, len(chosen))
        return cls(text, chosen[: len(chosen) // batch * batch].reshape(-1, batch))

    @property
    def pairs(self) -> int:
        return self.first.size

    @property
    def sentences(self) -> npt.NDArray[np.int64]:
        """The numbers of all sentences read, ascending."""
        return np.union1d(self.first, self.first + 1)

    @property
    def tokens(self) -> int:
        """How many they have together."""
        return int(np.diff(self.text.bounds)[self.sentences].sum())


def draw_near(
    rest: npt.NDArray[np.int64], geometric: float, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """k with G(k) = (1 - lambda)^k lambda, drawn again while k >= `rest`, and ln G(k), (M,) each.

    That is the geometric distribution given k < rest, so G(k) = (1 - lambda)^k lambda / (1 - (1 -
    lambda)^rest), found by inverting its distribution function. lambda = `geometric` in (0, 1).
    """
    log_stay = np.log1p(-geometric)
    total = -np.expm1(rest * log_stay)
    uniform = rng.random(len(rest))
    k = np.floor(np.log1p(-uniform * total) / log_stay).astype(np.int64)
    k = np.minimum(k, rest - 1)  # against rounding
    return k, k * log_stay + np.log(geometric) - np.log(total)


class NeighbourPairs(Passes):
    """Batches of M pairs (S_l, S_{l+1}) of one document, pass after pass in a new order.

    With m = l + 1, the sentence drawn from near by is S_{m+k}, k as in `draw_near`, within the
    document. An incomplete batch at the end of a pass is not used. Everything is a function of the
    seed, the pass and the position in it.
    """

    def __init__(self, text: Documents, batch: int, geometric: float, seed: int) -> None:
        self.text, self.geometric, self.seed = text, geometric, seed
        document = text.document
        self._first = firsts(text)
        if len(self._first) < 2:
            raise InfolmError(
                f"the training split has {len(document)} sentence{'s'[: len(document) != 1]}, and "
                "training needs at least two pairs of neighbours: give more text, name tokens "
                "that end a sentence in regularisers.bmi.ends, or set regularisers.bmi.segment"
            )
        self.pairs = len(self._first)
        self.batch = min(batch, self.pairs)
        last = np.searchsorted(document, document[self._first], side="right") - 1
        self._rest = last - self._first  # sentences from m on
        self._draw()

    def _draw(self) -> None:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.pairs)
        whole = self.pairs // self.batch
        self._batches = order[: whole * self.batch].reshape(whole, -1)

    def next(self) -> PairBatch:
        chosen = self._batches[self._position]
        rng = np.random.default_rng([self.seed, self.epoch, self._position])
        first = self._first[chosen]
        k, log_proposal = draw_near(self._rest[chosen], self.geometric, rng)
        self._advance()
        read = self.text.read
        return PairBatch(
            read(first), read(first + 1), read(first + 1 + k), log_proposal.astype(np.float32)
        )
