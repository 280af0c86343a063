"""Ranges: what they draw, where a value lies in them, and which are refused."""

import math

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from training_tiny import tiny_tree

from infolm.config import Recipe, explain
from infolm.errors import InfolmError
from infolm.space import Between, Choices
from infolm.studies.tuning.study import check_space, with_values
from infolm.trees import leaves

positive = st.floats(1e-6, 1e6)


def test_the_ends_of_a_range_are_0_and_1_and_the_geometric_mean_of_a_log_range_is_a_half():
    plain, log = Between(low=-20, high=100), Between(low=1e-3, high=4e-3, log=True)
    assert [plain.unit(x) for x in (-20, 40, 100)] == [0, 0.5, 1]
    assert [log.unit(x) for x in (1e-3, 2e-3, 4e-3)] == pytest.approx([0, 0.5, 1])


@given(positive, positive, st.floats(0, 1), st.booleans())
def test_unit_undoes_interpolation(a, b, share, log):
    low, high = min(a, b), max(a, b) * 1.1
    drawn = low * (high / low) ** share if log else low + (high - low) * share
    assert Between(low=low, high=high, log=log).unit(drawn) == pytest.approx(share, abs=1e-6)


def test_choices_lie_evenly():
    assert [Choices(choices=["a", None, 3]).unit(x) for x in ("a", None, 3)] == [0, 0.5, 1]
    assert Choices(choices=["only"]).unit("only") == 0.5


def test_a_rank_of_0_or_less_is_full_rank():
    rank = Between(low=-20, high=100, integer=True, clamp=0)
    assert [rank.value(drawn) for drawn in (-20, -1, 0, 1, 100)] == [0, 0, 0, 1, 100]
    assert isinstance(rank.value(-3), int)


def test_what_is_drawn_lies_in_the_range_and_is_spread_as_asked():
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    ranges = {
        "log": Between(low=1e-4, high=1, log=True),
        "whole": Between(low=0, high=6, integer=True),
        "choice": Choices(choices=[True, "b"]),
    }
    drawn = []
    for _ in range(400):
        trial = study.ask()
        drawn.append({key: each.suggest(trial, key) for key, each in ranges.items()})
    logs = [ranges["log"].unit(each["log"]) for each in drawn]
    assert min(logs) >= 0
    assert max(logs) <= 1
    # The mean of 400 uniform numbers has the standard error 1 / sqrt(12 * 400); four of them.
    assert sum(logs) / 400 == pytest.approx(0.5, abs=4 / math.sqrt(12 * 400))
    assert {each["whole"] for each in drawn} == set(range(7))
    assert {each["choice"] for each in drawn} == {True, "b"}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"low": 2, "high": 1}, "low (2) must be below high (1)"),
        ({"low": 0, "high": 1, "log": True}, "a log range needs a low above 0"),
        ({"low": 0.5, "high": 2, "integer": True}, "whole numbers"),
        ({"low": 0, "hihg": 1}, "did you mean 'high'?"),
        ({"low": 0}, "high: is missing"),
        ({"choices": []}, "choices"),
        ({"choices": [1], "low": 0}, "there is no key 'low'"),
    ],
)
def test_ranges_that_make_no_sense(small_text, section, words):
    tree = {**tiny_tree(small_text), "tuning": {"optimiser.learning_rate": section}}
    with pytest.raises(ValidationError) as refused:
        Recipe.model_validate(tree)
    told = explain(refused.value, tree)
    assert told.startswith("tuning.optimiser.learning_rate")
    assert words in told


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({}, "no ranges to search"),
        ({"optimiser.lerning_rate": {"low": 1, "high": 2}}, "'optimiser.learning_rate'"),
        ({"model.dropout": {"low": 0, "high": 1}}, "no key 'model.dropout'"),
        ({"model.dropout.input": {"low": 0, "high": 1.5}}, "model.dropout.input"),
        ({"data.tokens": {"choices": ["word", "wrod"]}}, "did you mean 'word'?"),
    ],
)
def test_ranges_that_the_recipe_would_not_take(small_text, ranges, words):
    recipe = Recipe.model_validate({**tiny_tree(small_text), "tuning": ranges})
    with pytest.raises(InfolmError, match=words.replace("?", r"\?")):
        check_space(recipe)


def test_a_recipe_with_other_values(small_text):
    ranges = {"model.dropout.input": {"low": 0, "high": 0.8}}
    recipe = Recipe.model_validate({**tiny_tree(small_text), "tuning": ranges})
    check_space(recipe)
    new = with_values(recipe, {"model.dropout.input": 0.7, "seed": 5})
    assert new.model.dropout.input == 0.7
    assert new.seed == 5
    assert not new.tuning
    assert new.model.dropout.output == recipe.model.dropout.output


def test_leaves_are_dotted_paths():
    assert leaves({"a": {"b": {"c": 1}, "d": {}}, "e": [2]}) == {"a.b.c": 1, "a.d": {}, "e": [2]}
