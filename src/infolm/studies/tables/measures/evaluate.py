"""The measurements of `infolm evaluate`, as figures of a table."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from infolm.config import Recipe
from infolm.errors import InfolmError
from infolm.evaluation.measurement import Measurement
from infolm.families.base import open_run
from infolm.families.options import EVALUATING, chosen
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
    options: dict[str, Any] = Field(
        {"split": "test"}, description="those of the command: {split: test, streams: 20}"
    )
    figures: dict[str, EvaluatedConfig] = Field(min_length=1)

    @property
    def columns(self) -> dict[str, FigureConfig]:
        return dict(self.figures)

    def check(self, recipe: Recipe) -> None:
        chosen(EVALUATING, recipe.model.capability, "the arm", self.options)

    def measure(self, runs: Sequence[Path], report: Report) -> dict[str, float]:
        (run,) = runs
        evaluation = open_run(run).evaluate(
            lambda stage, done, total: report(stage), **self.options
        )
        found = evaluation.measurements
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
