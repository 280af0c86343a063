"""GLUE's metrics: by hand, against scikit-learn and SciPy, and of a constant answer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from infolm.finetuning.metrics import (
    METRICS,
    accuracy,
    best_constant,
    f1,
    majority,
    matthews,
    pearson,
    scores,
    spearman,
)
from infolm.finetuning.tasks import TASKS, Example

# By hand: TP 3, FP 1, FN 2, TN 4
PREDICTED = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
TRUTH = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])


def test_two_classes_by_hand() -> None:
    assert accuracy(PREDICTED, TRUTH) == 7 / 10
    assert f1(PREDICTED, TRUTH) == pytest.approx(2 / (1 / (3 / 4) + 1 / (3 / 5)))
    assert matthews(PREDICTED, TRUTH) == pytest.approx((3 * 4 - 1 * 2) / np.sqrt(4 * 5 * 5 * 6))


def test_f1_and_the_correlations_by_hand() -> None:
    other = 1 - TRUTH
    assert matthews(TRUTH, TRUTH) == f1(TRUTH, TRUTH) == accuracy(TRUTH, TRUTH) == 1
    assert matthews(other, TRUTH) == -1
    assert f1(other, TRUTH) == accuracy(other, TRUTH) == 0
    # 1, 2, 4 about 7/3 and 1, 3, 2 about 2: sum xy = 1, sum x^2 = 14/3, sum y^2 = 2.
    assert pearson(np.array([1, 2, 4]), np.array([1, 3, 2])) == pytest.approx(1 / np.sqrt(28 / 3))
    # Ranks 1, 2, 3 and 1, 3, 2: 1 - 6 sum d^2 / (n (n^2 - 1)).
    assert spearman(np.array([1, 2, 4]), np.array([1, 3, 2])) == pytest.approx(1 - 6 * 2 / 24)
    # A tie: ranks 1.5, 1.5, 3 and 1, 2, 3.
    assert spearman(np.array([0, 0, 9]), np.array([1, 2, 4])) == pytest.approx(np.sqrt(3) / 2)


@pytest.mark.parametrize("value", [0, 1])
def test_one_class_alone_has_no_correlation(value: int) -> None:
    constant = np.full_like(TRUTH, value)
    assert matthews(constant, TRUTH) == matthews(TRUTH, constant) == 0
    assert matthews(constant, constant) == 0


def test_f1_without_class_1_is_0() -> None:
    nothing = np.zeros(4)
    assert f1(nothing, nothing) == 0


def test_the_product_of_many_examples_does_not_overflow() -> None:
    truth = np.repeat([0, 1], 400_000)
    predicted = truth.copy()
    predicted[::10] = 1 - predicted[::10]
    assert matthews(predicted, truth) == pytest.approx(0.8)


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_a_constant_has_correlation_0(name: str) -> None:
    correlation, values = METRICS[name], np.array([0.1, 2.5, 5.0])
    for constant in (np.full(3, 2.7), np.full(3, 0.1, dtype=np.float32)):
        assert correlation(constant, values) == correlation(values, constant) == 0


classes = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)
halves = st.integers(-10, 10).map(lambda n: n / 2)  # many ties
numbers = st.lists(
    st.tuples(halves | st.floats(-100, 100).map(lambda x: round(x, 3)), halves),
    min_size=2,
    max_size=40,
)


@settings(deadline=None)
@given(classes)
def test_two_classes_as_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predicted, truth = np.array(pairs).T
    assert accuracy(predicted, truth) == pytest.approx(metrics.accuracy_score(truth, predicted))
    expected = metrics.f1_score(truth, predicted, zero_division=0)
    assert f1(predicted, truth) == pytest.approx(expected)
    if len(set(predicted)) == len(set(truth)) == 2:
        expected = metrics.matthews_corrcoef(truth, predicted)
        assert matthews(predicted, truth) == pytest.approx(expected)
        assert matthews(predicted, truth) == pytest.approx(pearson(predicted, truth))


@settings(deadline=None)
@given(numbers)
def test_scores_as_scipy(pairs: list[tuple[float, float]]) -> None:
    predicted, truth = np.array(pairs).T
    for ours, theirs in ((pearson, stats.pearsonr), (spearman, stats.spearmanr)):
        if np.ptp(predicted) and np.ptp(truth):
            assert ours(predicted, truth) == pytest.approx(theirs(predicted, truth)[0], abs=1e-9)
            assert -1 <= ours(predicted, truth) <= 1
        else:
            assert ours(predicted, truth) == 0


@settings(deadline=None)
@given(numbers)
def test_ranks_alone_count_for_spearman(pairs: list[tuple[float, float]]) -> None:
    predicted, truth = np.array(pairs).T
    assert spearman(predicted**3, truth) == pytest.approx(spearman(predicted, truth))
    assert spearman(-predicted, truth) == pytest.approx(-spearman(predicted, truth))


def test_the_metrics_of_a_task_are_known_and_in_its_order() -> None:
    for task in TASKS.values():
        assert list(scores(task, TRUTH, TRUTH)) == list(task.metrics)
        assert set(task.metrics) <= METRICS.keys()


# The same answer to everything


def labelled(*labels: float) -> list[Example]:
    return [Example("text", None, label) for label in labels]


def test_the_most_frequent_class_of_training_is_the_answer() -> None:
    train, dev = labelled(1, 1, 0), labelled(0, 0, 0, 1)
    assert majority(TASKS["sst2"], train, dev) == {"accuracy": 1 / 4}
    assert majority(TASKS["cola"], train, dev) == {"matthews": 0}
    assert majority(TASKS["mrpc"], train, dev) == {"f1": 2 / 5, "accuracy": 1 / 4}
    assert majority(TASKS["mrpc"], labelled(0), dev) == {"f1": 0, "accuracy": 3 / 4}
    assert majority(TASKS["mnli"], labelled(2, 1, 2, 0), labelled(2, 0, 1)) == {"accuracy": 1 / 3}


def test_of_equally_frequent_classes_the_first_is_the_answer() -> None:
    assert majority(TASKS["rte"], labelled(1, 0, 1, 0), labelled(0, 0, 1)) == {"accuracy": 2 / 3}


def test_the_mean_score_has_no_correlation() -> None:
    found = majority(TASKS["stsb"], labelled(0.1, 0.2, 3.3), labelled(1, 2, 5))
    assert found == {"pearson": 0, "spearman": 0}


def test_the_best_constant_is_chosen_where_it_is_measured():
    """RTE's dev has 146 entailments of 277; a share of train may have more of the other class."""
    task = TASKS["rte"]
    dev = [Example("a", "b", float(i >= 146)) for i in range(277)]
    train = [Example("a", "b", float(i % 3 > 0)) for i in range(30)]
    assert majority(task, train, dev)["accuracy"] == pytest.approx(131 / 277)
    answer, scores = best_constant(task, dev)
    assert answer == "entailment"
    assert scores == {"accuracy": pytest.approx(146 / 277)}


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30))
def test_no_constant_is_above_the_best_one(labels):
    examples = [Example("a", None, float(label)) for label in labels]
    truth = np.array(labels)
    for name in ("mnli", "mrpc", "cola"):
        task = TASKS[name]
        if max(labels) >= len(task.labels):
            continue
        answer, found = best_constant(task, examples)
        every = [METRICS[task.metrics[0]](np.full(len(truth), n), truth) for n in range(3)]
        assert found[task.metrics[0]] == max(every[: len(task.labels)])
        assert every.index(found[task.metrics[0]]) == task.labels.index(answer)
