"""What a table measures of each of its trainings: figures, by name."""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from infolm.config import Recipe
from infolm.registry import Registry
from infolm.section import Section

Report = Callable[[str], None]
"""Called with what is being done."""


class FigureConfig(Section):
    """A number of a training, and how it is printed."""

    label: str = Field(description="the column's title, with the unit")
    decimals: int = Field(2, ge=0)


class MeasureConfig(Section):
    """The section of a table that says what is measured. Every kind is registered."""

    if TYPE_CHECKING:
        kind: str

    @property
    @abstractmethod
    def columns(self) -> dict[str, FigureConfig]:
        """The figures by name, in the order of the columns."""

    def check(self, recipe: Recipe) -> None:
        """Refuse what cannot be measured of an arm, before it is trained."""
        return

    @abstractmethod
    def measure(self, run: Path, report: Report) -> dict[str, float]:
        """The figures of the run in a folder, whose training has ended."""


MEASURES: Registry[MeasureConfig] = Registry("infolm.studies.tables.measures")
