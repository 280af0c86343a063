"""The lengths of Two-Tailed Averaging's long mean while a model was trained."""

from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from pydantic import Field

from infolm.errors import InfolmError
from infolm.studies.tables.measures.base import MEASURES, FigureConfig, MeasureConfig, Report
from infolm.training.run import RunFolder, read_metrics


class TailConfig(FigureConfig):
    """Something of the lengths, or of the losses beside them."""

    of: Literal["switches", "peaks", "valleys", "falls", "raw-falls"]


@MEASURES.register
class TailsConfig(MeasureConfig):
    """At a switch the short mean becomes the long one, so the long mean's length drops from a peak
    to a valley (Melis 2023, figure 3.4).

    switches: their number
    peaks, valleys: of all pairs, the share of which the later is the higher; an equal one is half.
        1: each is higher than all before; 0.5: in no order
    falls, raw-falls: of all validations but the first, the share at which the loss is lower than at
        the one before; that of the kept weights, and that of the iterate
    """

    kind: Literal["tails"] = "tails"
    figures: dict[str, TailConfig] = Field(min_length=1)

    @property
    def columns(self) -> dict[str, FigureConfig]:
        return dict(self.figures)

    def measure(self, runs: Sequence[Path], report: Report) -> dict[str, float]:
        (run,) = runs
        records = read_metrics(RunFolder(run).metrics)
        found = _found(records)
        if found["switches"] < 2:
            raise InfolmError(
                f"{run}: Two-Tailed Averaging switched less than twice: train longer, or validate "
                "more often (train.validate_every)"
            )
        return {name: found[each.of] for name, each in self.figures.items()}


def _found(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    switched = {
        each["step"] for each in records if each["kind"] == "event" and each["name"] == "switched"
    }
    validations = [each for each in records if each["kind"] == "validation"]
    turns = [each for each in validations if each["step"] in switched]
    return {
        "switches": len(turns),
        "peaks": _rising([each["long_length"] for each in turns]),
        "valleys": _rising([each["short_length"] for each in turns]),
        "falls": _falls([each["loss"] for each in validations]),
        "raw-falls": _falls([each["raw"] for each in validations]),
    }


def _rising(heights: Sequence[float]) -> float:
    pairs = list(combinations(heights, 2))
    return mean((a < b) + (a == b) / 2 for a, b in pairs) if pairs else 0.5


def _falls(losses: Sequence[float]) -> float:
    return mean(b < a for a, b in pairwise(losses)) if len(losses) > 1 else 0.0
