"""What a report says of a run that only its family knows."""

import math
import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from html import escape
from typing import NamedTuple

from infolm.families.findings import Findings
from infolm.reports.page import code, number, paragraph, strong

SAMPLES, SAMPLE_TOKENS, SAMPLE_SEED = 3, 60, 1
SPLITS = {"valid": "Validation split", "test": "Test split"}

Parts = list[str]
"""HTML, element by element."""


class Titled(NamedTuple):
    """A section of the page."""

    title: str
    parts: Parts


class Sections(ABC):
    """A family's part of a report. What is not abstract may be left out."""

    def __init__(self, found: Findings) -> None:
        self.found, self.recipe = found, found.recipe

    @abstractmethod
    def verdict(self, loss: float) -> str:
        """Whether the model is any good, and what to do if not: a sentence or two, in HTML.

        loss: of the best validation.
        """

    @abstractmethod
    def best(self, loss: float) -> str:
        """The best validation loss as what it is: 'perplexity is 62.1'."""

    def beyond(self, loss: float) -> str:
        """What there is to add to it."""
        return ""

    def opening(self) -> Sequence[Titled]:
        """What stands before the measurements."""
        return ()

    @abstractmethod
    def measured(self) -> Parts:
        """What was measured of the model, or how it is."""

    def results(self) -> Sequence[Titled]:
        """What stands between the measurements and the curves."""
        return ()

    @abstractmethod
    def panels(self) -> str:
        """What the panels of the learning curve show, and how validation reads."""

    def regulariser(self, name: str) -> Parts:
        """What was measured of a regulariser."""
        return []

    def samples(self) -> Parts | None:
        """What the model writes, or why nothing; None where it never does."""
        return None

    @abstractmethod
    def commands(self) -> list[tuple[str, str]]:
        """What else one can do with the run, and what to type."""

    @property
    def longer(self) -> str:
        """How to train longer."""
        if not self.found.finished:
            return f"train on ({code(f'infolm train {self.path} --resume')})"
        train = self.recipe.train
        key, limit = "max_steps", train.max_steps
        if limit is None or train.epochs <= self.found.history.epoch:
            key, limit = "epochs", train.epochs
        return f"train longer ({code(f'train.{key}={2 * limit}')})"

    def not_measured(self) -> Parts:
        """How to measure a model that is not."""
        when = (
            "" if self.found.history.best else ", once training has come to its first validation,"
        )
        command = code(f"infolm evaluate {self.path}")
        return [
            paragraph(f"The model has not been measured yet; this measures it{when}: {command}")
        ]

    @cached_property
    def path(self) -> str:
        """The run's folder as one types it in a shell."""
        return shlex.quote(str(self.found.folder.path))


def drawn(note: str, texts: Sequence[str]) -> Parts:
    """Samples, and what they are drawn from."""
    return [
        paragraph(note, "note"),
        *(f'<div class="sample">{escape(text.strip())}</div>' for text in texts),
    ]


def perplexity(loss: float) -> float:
    """exp(loss), capped where it would overflow."""
    return math.exp(min(loss, 700))


def perplexity_shown(loss: float) -> str:
    return strong(number(perplexity(loss), 2))
