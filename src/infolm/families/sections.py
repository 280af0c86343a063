"""The family-specific part of a report."""

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
    """A family's part of a report. Methods that are not abstract are optional."""

    def __init__(self, found: Findings) -> None:
        self.found, self.recipe = found, found.recipe

    @abstractmethod
    def verdict(self, loss: float) -> str:
        """Whether the model is any good, and what to do if not: a sentence or two, in HTML.

        loss: of the best validation.
        """

    @abstractmethod
    def best(self, loss: float) -> str:
        """The best validation loss in the family's words: 'perplexity is 62.1'."""

    def beyond(self, loss: float) -> str:
        """A suffix to it."""
        return ""

    def opening(self) -> Sequence[Titled]:
        """Sections before the measurements."""
        return ()

    @abstractmethod
    def measured(self) -> Parts:
        """The measurements, or how to make them."""

    def results(self) -> Sequence[Titled]:
        """Sections between the measurements and the curves."""
        return ()

    @abstractmethod
    def panels(self) -> str:
        """The caption of the learning curve: its panels, and how validation reads."""

    def regulariser(self, name: str) -> Parts:
        """The measurements of a regulariser."""
        return []

    def samples(self) -> Parts | None:
        """Samples, or why there are none; None if the family generates no text."""
        return None

    @abstractmethod
    def commands(self) -> list[tuple[str, str]]:
        """Further commands on the run, with titles."""

    @property
    def longer(self) -> str:
        """How to train longer."""
        if not self.found.finished:
            return f"resume training ({code(f'infolm train {self.path} --resume')})"
        train = self.recipe.train
        key, limit = "max_steps", train.max_steps
        if limit is None or train.epochs <= self.found.history.epoch:
            key, limit = "epochs", train.epochs
        return f"train longer ({code(f'train.{key}={2 * limit}')})"

    def not_measured(self) -> Parts:
        """How to measure a model without measurements."""
        when = "" if self.found.history.best else ", after the first validation,"
        command = code(f"infolm evaluate {self.path}")
        return [
            paragraph(f"The model has not been measured yet; this measures it{when}: {command}")
        ]

    @cached_property
    def path(self) -> str:
        """The run's folder, quoted for a shell."""
        return shlex.quote(str(self.found.folder.path))


def drawn(note: str, texts: Sequence[str]) -> Parts:
    """Samples, with a note on their distribution."""
    return [
        paragraph(note, "note"),
        *(f'<div class="sample">{escape(text.strip())}</div>' for text in texts),
    ]


def perplexity(loss: float) -> float:
    """exp(loss), capped where it would overflow."""
    return math.exp(min(loss, 700))


def perplexity_shown(loss: float) -> str:
    return strong(number(perplexity(loss), 2))
