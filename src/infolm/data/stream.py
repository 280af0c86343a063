"""A corpus as a carried stream: truncated back-propagation through time."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from infolm.data.feed import FEEDS, FeedConfig
from infolm.data.parts import Numbers, Whole
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.data.corpora import Corpus

PADDING = -1
"""The target of a place that does not count."""


class Batch(NamedTuple):
    """A chunk of the stream, or sentences in columns.

    tokens, targets: (T, B), the targets one place ahead; arrays as the feed gives them, tensors
    on the model's device when they reach an objective. A target of `PADDING` is not counted; after
    the end of a sentence token 0 is read. `fresh`: the state starts from zeros here. `rate_scale`
    multiplies the learning rate of this step.
    """

    tokens: Any
    targets: Any
    fresh: bool
    rate_scale: float
    whole: Whole | None = None

    @property
    def columns(self) -> int:
        return int(self.tokens.shape[1])

    def chosen(self, columns: Numbers) -> "Batch":
        return self._replace(tokens=self.tokens[:, columns], targets=self.targets[:, columns])


@FEEDS.register
class StreamConfig(FeedConfig):
    """The corpus as one stream, folded into parallel columns, the state carried from chunk to
    chunk."""

    gives = "text"
    kind: Literal["stream"] = "stream"
    batch: int = Field(40, ge=1, description="parallel columns of the stream")
    bptt: int = Field(70, ge=1, description="time steps of a chunk (the base length)")
    variable: bool = Field(True, description="draw the length of each chunk (section 4.1)")
    rotated: bool = Field(
        False, description="each pass begins each column at another place, drawn anew"
    )

    @property
    def tokens(self) -> int:
        return self.batch * self.bptt

    def build(self, corpus: "Corpus", split: str, seed: int) -> "Stream":
        return Stream(corpus.splits[split].tokens, self, seed)


def draw_length(base: int, rng: np.random.Generator) -> int:
    """The length of a chunk (Merity et al. 2017, sections 4.1 and 5).

    `base` with probability 0.95, else base / 2; then N(that, 5), at least 5.
    """
    mean = base if rng.random() < 0.95 else base / 2
    return max(5, int(rng.normal(mean, 5)))


@dataclass
class Stream:
    """Cuts the stream of `tokens` (N,) into batches, pass after pass.

    The N tokens are folded into B columns of N // B tokens each; the remainder at the end is not
    used. Chunks follow each other without gap or overlap, so every token of a column but the first
    is a target once per pass, whatever the lengths.

    `rotated` columns are rings (partial shuffling, Press 2019, "Partially Shuffling the Training
    Data to Improve Language Models"): a pass enters each at a place of its own, so that chunks are
    cut elsewhere and other columns stand beside each other. Where a ring closes, the first token
    of the column follows its last one.
    """

    tokens: npt.NDArray[Any]
    config: StreamConfig
    seed: int

    def __post_init__(self) -> None:
        height = len(self.tokens) // self.config.batch
        if height < 2:
            raise InfolmError(
                f"the training split has {len(self.tokens)} tokens, too few for "
                f"{self.config.batch} columns of at least 2: lower feed.batch or give more text"
            )
        self._columns = height * np.arange(self.config.batch)[:, None]
        self._height = height
        self._position = 0
        self._rng = np.random.default_rng(self.seed)
        self.epoch = 0

    def next(self) -> Batch:
        bptt = self.config.bptt
        length = draw_length(bptt, self._rng) if self.config.variable else bptt
        start = self._position
        end = min(start + length, self._height - 1)
        # The memory map is copied only here: no more than a chunk is ever in memory.
        rows = (self._entries() + np.arange(start, end + 1)) % self._height
        cut = self.tokens[self._columns + rows].T.astype(np.int64)
        self._position = end
        if end == self._height - 1:
            self._position, self.epoch = 0, self.epoch + 1
        # The scale is that of the drawn length, also where the pass ends before it: one
        # short cut at the end of a pass is then not followed by a tiny step.
        return Batch(cut[:-1], cut[1:], start == 0, length / bptt)

    def _entries(self) -> npt.NDArray[np.int64]:
        """Where this pass enters each column, (B, 1): known from the seed and the pass's number."""
        if not self.config.rotated:
            return np.zeros_like(self._columns)
        rng = np.random.default_rng((self.seed, self.epoch))
        return rng.integers(self._height, size=self._columns.shape)

    def fraction(self) -> float:
        return self._position / (self._height - 1)

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "position": self._position,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self._position = state["position"]
        self._rng.bit_generator.state = state["rng"]
