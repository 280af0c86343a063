"""GLUE's average over the tasks that an encoder was fine-tuned on, by two conventions.

    leaderboard   a task's metrics are averaged, and MNLI's two parts; then the tasks
    paper         the columns of table 2 of Kong et al. 2020: MNLI's two parts are two columns, MRPC
                  and QQP count by F1, and STS-B is none of them

GLUE's leaderboard has WNLI as a ninth task, which is not one of ours, and its figures, like the
paper's, are of the test sets.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from infolm.errors import InfolmError
from infolm.finetuning.problems import Scores
from infolm.finetuning.search import RESULTS
from infolm.finetuning.tasks import TASKS
from infolm.trees import fits

NOT_IN_PAPER = ("stsb",)


def leaderboard(scores: Mapping[str, Scores]) -> float:
    """The mean over the tasks, each the mean over its parts and metrics; scores: of each task."""
    return fmean(
        fmean(fmean(part.values()) for part in parts.values()) for parts in scores.values()
    )


def paper(scores: Mapping[str, Scores]) -> float | None:
    """The mean over the columns of table 2, each task by its first metric; None where no task has
    one there."""
    columns = [
        part[TASKS[task].metrics[0]]
        for task, parts in scores.items()
        if task not in NOT_IN_PAPER
        for part in parts.values()
    ]
    return fmean(columns) if columns else None


@dataclass(frozen=True)
class Average:
    """The scores of an encoder's fine-tuned models together, on dev.

    fresh, share: as they were trained. scores: of each task's chosen model, in TASKS' order, as
    `results.json` reports them. chosen_on_dev: the tasks whose model was chosen on the examples
    that it is measured on.
    """

    fresh: bool
    share: float
    scores: dict[str, Scores]
    chosen_on_dev: list[str]

    @property
    def missing(self) -> list[str]:
        return [task for task in TASKS if task not in self.scores]

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "fresh": self.fresh,
            "share": self.share,
            "tasks": self.scores,
            "missing": self.missing,
            "chosen_on_dev": self.chosen_on_dev,
            "leaderboard": leaderboard(self.scores),
            "paper": paper(self.scores),
        }


def averages(folder: Path) -> list[Average]:
    """Of the results in the folders of `folder`, RUN/finetuned, those of one kind together: by
    whether weights were fresh, and by the share of the training examples."""
    found: dict[tuple[bool, float], dict[str, dict[str, Any]]] = {}
    for path in sorted(folder.glob(f"*/{RESULTS}")):
        if told := _results(path):
            found.setdefault((told["fresh"], told["share"]), {})[told["task"]] = told
    return [
        Average(
            *kind,
            {task: results[task]["chosen"]["dev"] for task in TASKS if task in results},
            [t for t in TASKS if t in results and results[t].get("choice", {}).get("on") != "half"],
        )
        for kind, results in sorted(found.items(), key=lambda each: (each[0][0], -each[0][1]))
    ]


def _results(path: Path) -> dict[str, Any] | None:
    """The results of a GLUE task; None for another task."""
    try:
        told: dict[str, Any] = json.loads(path.read_bytes())
        if told["task"] not in TASKS:
            return None
        first = TASKS[told["task"]].metrics[0]
        parts = [dict(part) for part in dict(told["chosen"]["dev"]).values()]
        scores = [score for part in parts for score in (part[first], *part.values())]
        told.get("choice", {}).get("on")
        numbers = (told["fresh"], told["share"], *scores)
        if not parts or not fits(tuple[float | bool, ...], numbers):
            raise TypeError("something else than numbers where the scores are")
        sum(map(float, scores))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise InfolmError(
            f"{path} holds no results of a fine-tuning ({e!r}): fine-tune for that task again, or "
            f"move {path.parent} away"
        ) from e
    return told
