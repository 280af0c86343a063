"""The figures that a table measures of each training, by name."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

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
    """The section of a table that describes its measurements. Every kind is registered."""

    of_curves: ClassVar[bool] = False
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
    def measure(self, runs: Sequence[Path], report: Report) -> dict[str, float]:
        """The figures of a training that has ended, from its run's folder; of all trainings of a
        curve, where the measure is `of_curves`."""


MEASURES: Registry[MeasureConfig] = Registry("infolm.studies.tables.measures")
