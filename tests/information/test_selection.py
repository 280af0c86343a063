"""Columns selected by information, as scikit-learn does it."""

import numpy as np
import pytest
from sklearn.feature_selection import SelectKBest
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from infolm.information.panel import Panel
from infolm.information.selection import InformationSelector, information_scores


@pytest.mark.filterwarnings("ignore")  # columns of noise: none is selected, which scikit-learn says
def test_it_is_a_scikit_learn_transformer():
    results = check_estimator(InformationSelector(permutations=3), on_fail=None)
    failed = {each["check_name"]: each["exception"] for each in results if each["exception"]}
    assert not {name for name in failed if name != "check_array_api_input"}, failed
    assert len(results) > 30


@pytest.fixture(scope="module")
def table():
    """A column that tells of y by its square, one by its sign, three that tell nothing."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((300, 5))
    x[:, 4] = 7
    return x, x[:, 0] ** 2 + (x[:, 1] > 0) + 0.3 * rng.standard_normal(300)


def test_columns_that_tell_of_y_are_kept(table):
    x, y = table
    selector = InformationSelector().fit(x, y)
    assert selector.get_support().tolist() == [True, True, False, False, False]
    assert selector.scores_[4] == 0
    assert selector.pvalues_[4] == 1
    assert (selector.corrected_ >= selector.pvalues_).all()
    np.testing.assert_array_equal(selector.transform(x), x[:, :2])


def test_scores_are_those_of_the_panel(table):
    x, y = table
    scores, p_values = information_scores(x, y, permutations=19, seed=3)
    answer = Panel(fast=True, permutations=19, seed=3).estimate(x[:, 1], y)
    assert (scores[1], p_values[1]) == (answer.value, answer.p_value)


def test_words_are_classes_and_scikit_learn_can_ask_for_the_best(table):
    x, y = table
    words = np.where(y > np.median(y), "high", "low")
    pipeline = make_pipeline(SelectKBest(information_scores, k=2))
    assert pipeline.fit_transform(x, words).shape == (300, 2)
