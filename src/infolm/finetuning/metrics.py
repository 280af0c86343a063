"""GLUE's five metrics, and their values for a constant answer.

Each is a function of what was predicted (N,) and of what is true (N,), class numbers or scores.
With two classes, TP, FP, FN and TN count the examples by (predicted, true) in (1, 1), (1, 0),
(0, 1) and (0, 0).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm.finetuning.tasks import Example, Task

Array = npt.NDArray[Any]


def accuracy(predicted: Array, truth: Array) -> float:
    """The share of examples whose class is right."""
    return float(np.mean(predicted == truth))


def f1(predicted: Array, truth: Array) -> float:
    """F1 of class 1: the harmonic mean of its precision and its recall,

        2 TP / (2 TP + FP + FN),

    and 0 where class 1 is neither predicted nor true.
    """
    both = int(((predicted == 1) & (truth == 1)).sum())
    either = int((predicted == 1).sum()) + int((truth == 1).sum())
    return 2 * both / either if either else 0.0


def matthews(predicted: Array, truth: Array) -> float:
    """Matthews' correlation of two classes, which is Pearson's of their numbers:

        (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN)),

    and 0 where one class alone is predicted, or true: then it is 0 / 0.
    """
    # Python's integers: these products are too long for 64 bits from some 50,000 examples on.
    tp, fp, fn, tn = (
        int(((predicted == p) & (truth == t)).sum()) for p, t in ((1, 1), (1, 0), (0, 1), (0, 0))
    )
    square = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / math.sqrt(square) if square else 0.0


def pearson(predicted: Array, truth: Array) -> float:
    """Pearson's correlation, sum_i x_i y_i / sqrt(sum_i x_i^2  sum_i y_i^2) of x and y without
    their means; 0 where one of them is constant."""
    if np.ptp(predicted) == 0 or np.ptp(truth) == 0:
        return 0.0
    return float(np.clip(_unit(predicted) @ _unit(truth), -1, 1))


def _unit(values: Array) -> Array:
    """Without the mean, and of length 1."""
    centred = values - values.mean(dtype=float)
    return centred / np.linalg.norm(centred)


def spearman(predicted: Array, truth: Array) -> float:
    """Spearman's correlation: Pearson's of the ranks. Equal values share the mean of theirs."""
    return pearson(_ranks(predicted), _ranks(truth))


def _ranks(values: Array) -> Array:
    """The ranks from 1 on, (N,): c values that are equal, below n others, have n + (c + 1) / 2."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


METRICS: dict[str, Callable[[Array, Array], float]] = {
    "matthews": matthews,
    "accuracy": accuracy,
    "f1": f1,
    "pearson": pearson,
    "spearman": spearman,
}


def scores(task: Task, predicted: Array, truth: Array) -> dict[str, float]:
    """The metrics of a task, the one that models are chosen by first."""
    return {name: METRICS[name](predicted, truth) for name in task.metrics}


def majority(task: Task, train: Sequence[Example], examples: Sequence[Example]) -> dict[str, float]:
    """The metrics of the same answer to all `examples`: the most frequent class of `train`, the
    lowest number of those that are equally frequent; of scores the mean.

    Matthews' correlation of it is 0, and so is that of scores, where it is 0 / 0 as well.
    """
    learnt = np.array([example.label for example in train])
    truth = np.array([example.label for example in examples])
    answer = np.bincount(learnt.astype(int)).argmax() if task.labels else learnt.mean()
    return scores(task, np.full(len(truth), float(answer)), truth)


def best_constant(task: Task, examples: Sequence[Example]) -> tuple[str, dict[str, float]]:
    """The class whose constant answer has the highest first metric on `examples`, the first of
    equals, and its metrics. It is chosen on what it is measured on: a model that is not above it
    may have learnt nothing, where one above `majority` may only have the other class.
    """
    truth = np.array([example.label for example in examples])
    found = [scores(task, np.full(len(truth), n), truth) for n in range(len(task.labels))]
    best = max(range(len(found)), key=lambda n: found[n][task.metrics[0]])
    return task.labels[best], found[best]
