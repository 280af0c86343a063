"""Predictions as the official programs take them: GLUE's server, and SQuAD's evaluate-v1.1.

GLUE wants a file for each task, `RTE.tsv` and the like (two for MNLI), tab-separated, with the
header `index prediction` and a line for each example of the test file: the class in the words of
the task's files, a score of STS-B as a number from 0 to 5. SQuAD wants JSON, {id: text}.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm.finetuning.tasks import Example, Task

SQUAD_FILE = "predictions.json"
PARTS = {"matched": "-m", "mismatched": "-mm"}
"""What the names of MNLI's two files have behind the task's."""
LEAST, MOST = 0.0, 5.0
"""Scores of STS-B."""


def glue_name(task: Task, part: str) -> str:
    return f"{task.title}{PARTS.get(part, '')}.tsv"


def glue_file(task: Task, examples: Sequence[Example], predicted: npt.NDArray[Any]) -> str:
    """predicted (N,): the number of each example's class, or its score. The index is the file's
    own, and the place in the file, from 0 on, where it has none."""
    lines = ["index\tprediction"]
    for place, (example, answer) in enumerate(zip(examples, predicted.tolist(), strict=True)):
        said = task.labels[int(answer)] if task.labels else f"{np.clip(answer, LEAST, MOST):.3f}"
        lines.append(f"{example.index or place}\t{said}")
    return "\n".join(lines) + "\n"


def squad_file(answers: Mapping[str, str]) -> str:
    """answers: by the questions' ids."""
    return json.dumps(answers, ensure_ascii=False, indent=1) + "\n"
