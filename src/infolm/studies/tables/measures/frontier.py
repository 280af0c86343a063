"""What a curve of models with a latent code reaches: data fit against latent usage."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from infolm.config import Recipe
from infolm.errors import InfolmError
from infolm.studies.reproduction.frontier import Position, nll_at
from infolm.studies.reproduction.measure import measure
from infolm.studies.tables.measures.base import MEASURES, FigureConfig, MeasureConfig, Report


class LevelConfig(FigureConfig):
    """A level of information."""

    nats: float = Field(description="information of text and code, in the unit of the curve")


@MEASURES.register
class FrontierConfig(MeasureConfig):
    """The lowest NLL of a curve at so much information or more, interpolated along its frontier
    (`studies.reproduction`); no figure where the curve does not reach so far."""

    of_curves: ClassVar[bool] = True
    kind: Literal["frontier"] = "frontier"
    split: Literal["train", "valid", "test"] = "train"
    per: Literal["sentence", "token"] = "sentence"
    samples: int = Field(100, ge=1, description="codes of a sentence")
    sentences: int | None = Field(None, ge=2, description="so many at most; none: all")
    figures: dict[str, LevelConfig] = Field(min_length=1)

    @property
    def columns(self) -> dict[str, FigureConfig]:
        return dict(self.figures)

    def check(self, recipe: Recipe) -> None:
        if recipe.model.capability != "latent":
            raise InfolmError(
                "measure.kind frontier is for models with a latent code: choose a recipe of one"
            )

    def measure(self, runs: Sequence[Path], report: Report) -> dict[str, float]:
        places = [self._place(run, report) for run in runs]
        found = {name: nll_at(places, each.nats) for name, each in self.figures.items()}
        return {name: nll for name, nll in found.items() if nll is not None}

    def _place(self, run: Path, report: Report) -> Position:
        measured = measure(
            run,
            [self.split],
            self.sentences,
            self.samples,
            lambda split, share: report(f"measuring on {split}"),
        )["splits"][self.split]
        per = f"per_{self.per}"
        return Position(measured["information"][per], measured["nll"][per])
