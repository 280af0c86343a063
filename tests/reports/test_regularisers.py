"""What a person is told of a regulariser, and when."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infolm.metrics import described
from infolm.reports.history import ENDING, History, Series
from infolm.reports.regularisers import (
    ENOUGH,
    at_chance,
    beyond_the_batch,
    by_heart,
    never_begun,
    one_decides,
    warnings,
)

EMPTY = Series(np.array([], np.int64), np.array([]))
HEALTHY = {"jensen_shannon": -1.0, "mine": 0.5, "accuracy": 0.7, "raml": 4.0, "effective": 0.6}
SETTINGS = {"weight": 0.1, "phase_two": True, "batch": 20}


def constant(value: float, length: int = 50) -> Series:
    return Series(np.arange(length), np.full(length, value))


def noisy(mean: float, deviation: float, length: int = 200, seed: int = 1) -> Series:
    noise = np.random.default_rng(seed).normal(0, deviation, length)
    return Series(np.arange(length), mean + noise)


def history(values: dict[str, float]) -> History:
    quantities = {f"bmi/{name}": value for name, value in values.items()}
    records: list[dict[str, Any]] = [
        {"kind": "step", "step": step, "epoch": 0, "likelihood/nll": 4.0, **quantities}
        for step in range(1, 31)
    ]
    return History.of(records)


def test_a_critic_that_knows_its_training_pairs_alone_is_told() -> None:
    def unseen(mean: float, error: float) -> dict[str, Series]:
        return {"accuracy": constant(mean, 2), "accuracy_stderr": constant(error, 2)}

    known = constant(0.8)
    told = by_heart("bmi", known, unseen(0.51, 0.01))
    assert (
        "it classifies 0.800 of them correctly, and 0.510 ± 0.010 of those of the validation"
        in told
    )
    assert "regularisers.bmi.critic.dropout" in told
    assert by_heart("bmi", known, unseen(0.55, 0.01)) == ""
    assert by_heart("bmi", constant(0.5), unseen(0.5, 0.01)) == ""  # another rule's
    assert by_heart("bmi", known, {}) == ""
    assert by_heart("bmi", known, {"accuracy": constant(0.5, 2)}) == ""  # with no error
    record = {"kind": "validation", "step": 30, "epoch": 1, "loss": 4.0, "bmi/accuracy": 0.5}
    steps = [
        {"kind": "step", "step": step, "epoch": 0, "likelihood/nll": 4.0, "bmi/accuracy": 0.8}
        for step in range(1, 30)
    ]
    found = History.of([*steps, record | {"bmi/accuracy_stderr": 0.01}])
    assert found.held_out["bmi"]["accuracy"].values.tolist() == [0.5]
    (sentence,) = warnings("bmi", {}, found, finished=False)
    assert sentence.startswith("The critic overfits its training pairs")


def test_a_sound_run_has_nothing_to_tell() -> None:
    assert warnings("bmi", SETTINGS, history(HEALTHY), finished=True) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"accuracy": 0.5}, "The critic is at chance"),
        ({"mine": 3.1}, "ln 20 = 3.00"),
        ({"effective": 0.1}, "regularisers.bmi.temperature"),
    ],
)
def test_each_trouble_is_told_once(change: dict[str, float], told: str) -> None:
    found = warnings("bmi", SETTINGS, history(HEALTHY | change), finished=True)
    assert len(found) == 1
    assert told in found[0]


def test_troubles_add_up() -> None:
    bad = history({"accuracy": 0.5, "mine": 4.0, "effective": 0.05})
    assert len(warnings("bmi", SETTINGS, bad, finished=True)) == 4


def test_a_regulariser_of_other_quantities_is_let_be() -> None:
    assert warnings("bmi", {}, history({"of_another_kind": 9.0}), finished=True) == []


@pytest.mark.parametrize("accuracy", [constant(0.5), constant(0.4), noisy(0.5, 0.05)])
def test_an_accuracy_within_its_error_of_one_half_is_chance(accuracy: Series) -> None:
    assert "at chance" in at_chance(accuracy)


def test_the_error_is_named() -> None:
    values = np.tile([0.48, 0.53], ENDING // 2)
    error = values.std(ddof=1) / math.sqrt(ENDING)
    assert f"0.505 ± {error:.3f} of the pairs" in at_chance(Series(np.arange(ENDING), values))


def test_chance_is_told_from_a_little_knowledge_by_the_number_of_records() -> None:
    """Each record is off by 0.02; 0.51 is within two errors of the mean of 10 but not of 100."""
    values = 0.51 + 0.02 * np.tile([-1.0, 1.0], 500)
    assert at_chance(Series(np.arange(10), values[:10]))
    assert not at_chance(Series(np.arange(1000), values))


def test_only_the_end_counts() -> None:
    learnt = np.repeat([0.5, 0.8], [100, ENDING])
    steps = np.arange(len(learnt))
    assert not at_chance(Series(steps, learnt))
    assert at_chance(Series(steps, learnt[::-1] - 0.3))


@pytest.mark.parametrize("length", range(ENOUGH))
def test_few_records_tell_nothing(length: int) -> None:
    assert at_chance(constant(0.5, length)) == ""
    assert at_chance(constant(0.5, ENOUGH))


def test_false_alarms_are_as_rare_as_two_errors_make_them() -> None:
    """A critic four errors above chance (of records of deviation 0.05) is called ignorant where
    the mean comes out two errors low: once in 44, with Student's tails once in 33."""
    mean = 0.5 + 4 * 0.05 / math.sqrt(ENDING)
    alarms = sum(bool(at_chance(noisy(mean, 0.05, seed=seed))) for seed in range(400))
    expected = 400 / 33
    assert abs(alarms - expected) < 4 * math.sqrt(expected)


@given(st.integers(2, 500), st.floats(-2, 2))
def test_mine_is_doubted_above_the_log_of_the_pairs(pairs: int, above: float) -> None:
    told = beyond_the_batch(constant(math.log(pairs) + above), pairs)
    if abs(above) > 1e-9:
        assert bool(told) == (above > 0)


def test_mine_is_not_doubted_where_the_pairs_are_not_known() -> None:
    assert beyond_the_batch(constant(99.0), None) == ""
    assert beyond_the_batch(EMPTY, 20) == ""


def test_a_phase_that_was_asked_for_must_begin() -> None:
    waiting, begun = {"mine": constant(0.5)}, {"mine": constant(0.5), "raml": constant(4, 1)}
    assert "regularisers.bmi.switch" in never_begun("bmi", {"phase_two": True}, waiting)
    assert never_begun("bmi", {"phase_two": True}, begun) == ""
    assert never_begun("bmi", {"phase_two": False}, waiting) == ""
    assert never_begun("bmi", {}, waiting) == ""


def test_before_the_end_it_may_begin_yet() -> None:
    waiting = history({"mine": 0.5, "accuracy": 0.7})
    assert warnings("bmi", SETTINGS, waiting, finished=False) == []
    assert len(warnings("bmi", SETTINGS, waiting, finished=True)) == 1


@pytest.mark.parametrize(("share", "few"), [(0.05, True), (0.19, True), (0.21, False), (1, False)])
def test_uneven_weights_are_told(share: float, few: bool) -> None:
    assert bool(one_decides("bmi", constant(share))) == few
    assert one_decides("bmi", EMPTY) == ""


def test_the_levels_of_ignorance_are_those_of_a_critic_that_says_nothing() -> None:
    """D = 0 for every pair: eq. 6 is -ln 2 - ln 2, eq. 4 is 0 - ln 1."""
    softplus = math.log1p(math.exp(0))
    assert described("bmi/jensen_shannon").ignorance == pytest.approx(-softplus - softplus)
    assert described("bmi/mine").ignorance == 0 - math.log(math.exp(0))
    assert described("bmi/accuracy").ignorance == 0.5


def test_an_unknown_quantity_goes_by_its_name() -> None:
    assert described("bmi/surprise").axis == described("bmi/surprise").label == "surprise"
