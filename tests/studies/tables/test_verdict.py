"""Verdicts against numbers worked out by hand, and sides of a comparison."""

import pytest
from scipy import stats

from infolm.studies.tables.sides import Side, Term, common_seeds, parse
from infolm.studies.tables.verdict import judge, of_table

ARMS, FIGURES = ["lstm", "mogrifier-2"], ["perplexity", "cache"]


def test_a_difference_by_hand():
    """Differences 2, 3, 4: mean 3, standard deviation 1, standard error 1 / sqrt(3) = 0.577."""
    found = judge([10, 20, 30], [12, 23, 34])
    assert found.word == "shown"
    assert (found.lower, found.higher, found.difference) == (20, 23, 3)
    assert found.stderr == pytest.approx(0.57735, abs=1e-5)
    assert found.p == pytest.approx(stats.ttest_rel([12, 23, 34], [10, 20, 30]).pvalue)


@pytest.mark.parametrize(
    ("differences", "options", "word"),
    [
        ([2, 3, 4], {}, "shown"),
        ([-2, -3, -4], {}, "opposite"),
        ([1, 2, -2], {}, "not shown"),  # 0.33 +- 1.2
        ([2, 3, 4], {"by": 1.8}, "shown"),  # 3 - 1.8 = 1.2 > 1.155
        ([2, 3, 4], {"by": 1.9}, "not shown"),
        ([2, 3, 4], {"by": 4.2}, "opposite"),
        ([-0.1, 0.0, 0.1], {"by": -0.5}, "shown"),  # no worse than by 0.5
        ([-0.1, 0.0, 0.1], {"within": 0.12}, "shown"),  # 2 x 0.0577 = 0.115
        ([-0.1, 0.0, 0.1], {"within": 0.11}, "not shown"),
        ([2, 3, 4], {"within": 1.8}, "opposite"),
        ([1, 1, 1], {}, "shown"),  # no spread at all
        ([0, 0, 0], {}, "not shown"),
        ([5, 6], {}, "not tried"),
        ([], {}, "not tried"),
    ],
)
def test_words(differences, options, word):
    lower = [100.0 + i for i in range(len(differences))]
    higher = [a + d for a, d in zip(lower, differences, strict=True)]
    assert judge(lower, higher, **options).word == word


def test_a_table_in_words():
    assert of_table(["shown", "shown"]) == "shown"
    assert of_table(["shown", "opposite", "shown"]) == "shown 2, opposite 1"
    assert of_table(["not tried", "not tried"]) == "not tried"
    assert of_table(["shown", "not tried"]) == "shown 1, not tried 1"


def test_sides():
    figures = {
        "lstm": {1: {"perplexity": 120.0, "cache": 90.0}, 2: {"perplexity": 122.0}},
        "mogrifier-2": {1: {"perplexity": 110.0}, 3: {"perplexity": 111.0}},
    }
    assert parse("lstm", ARMS, FIGURES) == Side(Term("lstm", "perplexity"))
    ratio = parse("lstm:cache / lstm:perplexity", ARMS, FIGURES)
    assert ratio.value(figures, 1) == 0.75
    assert parse("lstm - mogrifier-2", ARMS, FIGURES).value(figures, 1) == 10
    number = parse("2.5", ARMS, FIGURES)
    assert number.value(figures, 7) == 2.5
    assert common_seeds([ratio, number], figures) == [1]
    assert common_seeds([parse(arm, ARMS, FIGURES) for arm in ARMS], figures) == [1]
    assert common_seeds([number], figures) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mogrifer-2", "did you mean 'mogrifier-2'"),
        ("lstm:cach", "did you mean 'cache'"),
        ("lstm - lstm - lstm", "is not a side"),
    ],
)
def test_sides_that_name_nothing(text, words):
    with pytest.raises(ValueError, match=words):
        parse(text, ARMS, FIGURES)
