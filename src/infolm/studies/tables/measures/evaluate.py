"""What `infolm evaluate` measures."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from infolm.errors import InfolmError
from infolm.evaluation.measurement import Measurement
from infolm.families.base import open_run
from infolm.studies.tables.measures.base import MEASURES, FigureConfig, MeasureConfig, Report


class EvaluatedConfig(FigureConfig):
    """One of the measurements."""

    metric: str = Field("perplexity", description="its name, as in `infolm evaluate --json`")
    split: str = "test"
    method: str = Field("*", description="a pattern that its method matches, such as '*cache*'")
    optional: bool = Field(False, description="not every arm has it, as an auto-encoder no KL")


@MEASURES.register
class EvaluateConfig(MeasureConfig):
    """The measurements of `infolm evaluate` with some options, by the run's family."""

    kind: Literal["evaluate"] = "evaluate"
    splits: list[Literal["train", "valid", "test"]] = Field(["test"], min_length=1)
    options: dict[str, Any] = Field(
        default_factory=dict, description="as those of `infolm.evaluate` in Python"
    )
    figures: dict[str, EvaluatedConfig] = Field(min_length=1)

    @property
    def columns(self) -> dict[str, FigureConfig]:
        return dict(self.figures)

    def measure(self, run: Path, report: Report) -> dict[str, float]:
        opened = open_run(run)
        found = opened.measure(
            self.splits, self.options, lambda stage, done, total: report(stage)
        ).measurements
        picked = {name: pick(found, each, run) for name, each in self.figures.items()}
        return {name: value for name, value in picked.items() if value is not None}


def pick(measurements: Sequence[Measurement], figure: EvaluatedConfig, run: Path) -> float | None:
    """The first of the measurements that a figure names; None: not of this model."""
    for each in measurements:
        if (each.metric, each.split) == (figure.metric, figure.split) and fnmatchcase(
            each.method, figure.method
        ):
            return each.value
    if figure.optional:
        return None
    raise InfolmError(
        f"{run}: nothing measured is {figure.metric} on {figure.split} by '{figure.method}' (there "
        f"are {', '.join(sorted({f'{m.metric} by {m.method}' for m in measurements}))})"
    )
