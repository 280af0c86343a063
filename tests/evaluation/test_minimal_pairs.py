"""Accuracy of minimal pairs: what counts, and how sure one may be."""

import math

import numpy as np
import pytest

from infolm.evaluation.minimal_pairs import Pair, judge
from infolm.evaluation.scoring import ScoredSentence

CREDITS = [1.0, 1.0, 0.0, 0.5, 1.0]


def sentence(log_prob):
    return ScoredSentence("a", log_prob, -log_prob, "nats", "by hand", (), ())


def result():
    pairs = [
        Pair("a", "b", f"line {i}", "odd" if i % 2 else "even", "all") for i in range(len(CREDITS))
    ]
    scored = [sentence(x) for c in CREDITS for x in (-3.0, {1.0: -4.0, 0.0: -2.0, 0.5: -3.0}[c])]
    return judge(pairs, scored)


def test_a_tie_counts_a_half_and_the_error_is_that_of_the_mean():
    overall = result().overall
    assert (overall.pairs, overall.ties) == (5, 1)
    assert overall.accuracy == pytest.approx(np.mean(CREDITS))
    assert overall.stderr == pytest.approx(np.std(CREDITS, ddof=1) / math.sqrt(5))


def test_files_and_phenomena_are_counted_by_themselves():
    found = result()
    assert found.files["even"].accuracy == pytest.approx(2 / 3)
    assert found.files["odd"].accuracy == pytest.approx(3 / 4)
    assert found.phenomena == {"all": found.overall}


def test_the_result_has_the_keys_of_the_evaluation_harness():
    tree = result().to_dict("runs/a")
    assert tree["results"]["odd"] == {
        "alias": "odd", "acc,none": 0.75, "acc_stderr,none": 0.25,
    }  # fmt: skip
    assert tree["results"]["pairs"]["acc,none"] == tree["accuracy"]
    assert tree["n-samples"]["even"] == {"original": 3, "effective": 3}
    assert tree["group_subtasks"] == {"pairs": ["even", "odd"]}
    assert set(tree["versions"]) == {"pairs", "even", "odd"}
