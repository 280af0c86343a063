"""The validation loss while a model was trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from infolm.errors import InfolmError
from infolm.studies.tables.measures.base import MEASURES, FigureConfig, MeasureConfig, Report
from infolm.training.run import RunFolder, read_metrics


class MomentConfig(FigureConfig):
    """A moment of training."""

    share: float | None = Field(
        1.0, gt=0, le=1, description="of all steps; none: the best of all validations"
    )


@MEASURES.register
class HistoryConfig(MeasureConfig):
    """The validation loss, in nats per token, at some moments: that of the last validation at or
    before each."""

    kind: Literal["history"] = "history"
    figures: dict[str, MomentConfig] = Field(min_length=1)

    @property
    def columns(self) -> dict[str, FigureConfig]:
        return dict(self.figures)

    def measure(self, runs: Sequence[Path], report: Report) -> dict[str, float]:
        (run,) = runs
        records = read_metrics(RunFolder(run).metrics)
        validations = [each for each in records if each["kind"] == "validation"]
        if not validations:
            raise InfolmError(f"{run} was never validated: lower train.validate_every")
        return {name: _at(validations, each.share, run) for name, each in self.figures.items()}


def _at(validations: list[dict[str, Any]], share: float | None, run: Path) -> float:
    if share is None:
        return float(min(each["loss"] for each in validations))
    step = share * validations[-1]["step"]
    until = [each for each in validations if each["step"] <= step]
    if not until:
        raise InfolmError(
            f"{run} was not validated up to step {step:.0f}: lower train.validate_every"
        )
    return float(until[-1]["loss"])
