"""The base of the objectives of encoders."""

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from infolm.metrics import Described, describe
from infolm.objectives.base import TIES, ObjectiveConfig, Setup

PIECES = {"model.capability": ("encoder",), "data.tokens": ("wordpiece",)}
SEQUENCES = {**PIECES, "feed.kind": ("sequences",), "model.head": ("words",)}
"""Needs of objectives that read word pieces, and those of them that read sequences."""

ALL_WORDS = "among all words"

describe(
    "encoder",
    Described(
        "nll",
        "cross entropy",
        "nats",
        better="down",
        meaning="cross entropy of distinguishing the true from the other candidates",
    ),
    Described(
        "information",
        "information, at least",
        "nats",
        better="up",
        meaning="InfoNCE, a lower bound on the mutual information",
    ),
    Described(
        "accuracy", unit="share", better="up", meaning="share classified correctly among all"
    ),
    Described(TIES, unit="share", meaning="share tied with others"),
    Described("loss", "the objective's loss", "nats", better="down"),
)


class EncoderObjectiveConfig(ObjectiveConfig):
    """An objective of an encoder.

    item: the unit that its loss is averaged over. If it is `of_all_words`, e^loss is the perplexity
    of hidden words. weighted: whether its loss is a weighted sum instead of a cross entropy.
    """

    item: ClassVar[str] = "hidden token"
    of_all_words: ClassVar[bool] = False
    weighted: ClassVar[bool] = False

    @property
    def ngrams(self) -> str:
        """Which n-grams are to be found by their sequences, in words; empty where none are."""
        return ""

    def log_noise(self, setup: Setup) -> Tensor | None:
        """ln q (V,), the log-probability of each word as a negative; None if the likelihood among
        all words does not follow from it."""
        return None

    @abstractmethod
    def rivals(self, feed: Any) -> str:
        """The negatives, in words."""

    def unmet(self, recipe: Any) -> list[str]:
        length, most = getattr(recipe.feed, "length", 0), getattr(recipe.model, "length", None)
        # Of a checkpoint the length is known when that is read. Windows are no sequences.
        free = getattr(recipe.model, "checkpoint", None) or recipe.feed.gives == "windows"
        if most is None or free or length <= most:
            return []
        return [f"set feed.length to at most {most}, model.length (it is {length})"]
