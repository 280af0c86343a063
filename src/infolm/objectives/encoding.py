"""What the sections of objectives of an encoder have in common."""

from abc import abstractmethod
from typing import Any, ClassVar

from infolm.objectives.base import ObjectiveConfig

PIECES = {"model.capability": ("encoder",), "data.tokens": ("wordpiece",)}
SEQUENCES = {**PIECES, "feed.kind": ("sequences",), "model.head": ("words",)}
"""Needs of objectives that read word pieces, and those of them that read sequences."""

ALL_WORDS = "among all words"


class EncoderObjectiveConfig(ObjectiveConfig):
    """An objective of an encoder.

    item: what its loss is a mean over. Where it is `of_all_words`, e^loss is the perplexity of
    hidden words.
    """

    item: ClassVar[str] = "hidden token"
    of_all_words: ClassVar[bool] = False

    @abstractmethod
    def rivals(self, feed: Any) -> str:
        """What the true one is told from, in words."""

    def fault(self, recipe: Any) -> str | None:
        model, feed = recipe.model, recipe.feed
        # Of a checkpoint the length is known when that is read. Windows are no sequences.
        if model.checkpoint or feed.gives == "windows" or feed.length <= model.length:
            return None
        return (
            f"objective.kind {self.kind} needs other settings: set feed.length to {model.length} "
            f"at most, model.length (it is {feed.length})"
        )
