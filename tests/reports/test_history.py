"""What a report reads in a run's metrics."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infolm.reports.history import History, Series

RECORDS = [
    {"kind": "step", "step": 2, "epoch": 0, "likelihood/nll": 5.0, "tokens_per_second": 10.0},
    {"kind": "step", "step": 4, "epoch": 1, "likelihood/nll": 4.0, "tokens_per_second": 30.0},
    {"kind": "validation", "step": 4, "epoch": 1, "loss": 4.5, "answer": "raw", "raw": 4.5},
    {"kind": "step", "step": 6, "epoch": 1, "likelihood/nll": 3.5, "tokens_per_second": 20.0},
    {"kind": "validation", "step": 8, "epoch": 3, "loss": 4.25, "answer": "raw", "raw": 4.25},
    {"kind": "event", "step": 8, "name": "triggered"},
]


def test_the_records_become_curves() -> None:
    history = History.of(RECORDS)
    assert history.training.steps.tolist() == [2, 4, 6]
    assert history.training.values.tolist() == [5.0, 4.0, 3.5]
    assert history.validation.steps.tolist() == [4, 8]
    assert history.speed.values.tolist() == [10.0, 30.0, 20.0]
    assert history.events == [(8, "triggered")]
    assert history.epochs == [(4, 1), (8, 3)]
    assert (history.step, history.epoch, history.best) == (8, 3, (8, 4.25))


def test_no_record_is_an_empty_history() -> None:
    history = History.of([])
    assert len(history.training) == len(history.validation) == len(history.speed) == 0
    assert (history.step, history.epoch, history.best) == (0, 0, None)


def test_a_loss_that_is_no_finite_number_is_left_out() -> None:
    spoilt = [dict(record) for record in RECORDS]
    spoilt[1]["likelihood/nll"] = math.nan
    spoilt[4]["loss"] = math.inf
    history = History.of(spoilt)
    assert history.training.steps.tolist() == [2, 6]
    assert history.speed.steps.tolist() == [2, 4, 6]
    assert history.best == (4, 4.5)


def test_neighbours_are_averaged_at_their_last_step() -> None:
    series = Series(np.array([1, 3, 5, 7, 9]), np.array([1.0, 2.0, 4.0, 6.0, 9.0]))
    thin = series.thinned(3)
    assert thin.steps.tolist() == [3, 7, 9]
    assert thin.values.tolist() == [1.5, 5.0, 9.0]


@given(st.lists(st.floats(-10, 10), max_size=200), st.integers(1, 60))
def test_thinning_keeps_within_bounds(values: list[float], most: int) -> None:
    series = Series(np.arange(1, len(values) + 1), np.array(values))
    thin = series.thinned(most)
    assert len(thin) <= most
    if len(series) <= most:
        assert thin.values.tolist() == values
    if values:
        assert thin.steps[-1] == len(values)
        # Each point stands for the steps since the one before: the total does not change.
        weights = np.diff(thin.steps, prepend=0)
        assert math.isclose(weights @ thin.values, sum(values), abs_tol=1e-9)


def test_the_two_means_have_their_losses_and_the_long_one_its_length() -> None:
    def validated(step: int, answer: str, lengths: tuple[int, int], **losses: float) -> Any:
        short, long = lengths
        return {
            **{"kind": "validation", "step": step, "epoch": 0, "loss": losses[answer]},
            **{"answer": answer, **losses, "short_length": short, "long_length": long},
        }

    history = History.of(
        [
            validated(10, "raw", (10, 10), raw=5.0, long=5.5),
            {"kind": "event", "step": 10, "name": "restarted"},
            validated(20, "long", (10, 10), raw=4.5, long=4.0),
            validated(30, "long", (10, 20), raw=4.5, short=4.2, long=3.9),
            validated(40, "short", (20, 30), raw=4.5, short=3.8, long=3.9),
            {"kind": "event", "step": 40, "name": "switched"},
            validated(50, "long", (10, 30), raw=4.5, short=4.0, long=3.7),
        ]
    )
    assert {name: series.steps.tolist() for name, series in history.candidates.items()} == {
        "raw": [10, 20, 30, 40, 50],
        "short": [30, 40, 50],
        "long": [10, 20, 30, 40, 50],
    }
    assert history.validation.values.tolist() == [5.0, 4.0, 3.9, 3.8, 3.7]
    assert history.length.values.tolist() == [0, 10, 20, 20, 30]  # figure 3.4
    assert history.averaged


def test_one_candidate_at_a_time_is_the_validation_curve() -> None:
    history = History.of(RECORDS)
    assert history.candidates == {}
    assert not history.averaged
    assert len(history.length) == 0
    mean = {"kind": "validation", "step": 9, "epoch": 3, "loss": 4.0, "answer": "mean", "mean": 4.0}
    assert History.of([*RECORDS, mean]).averaged


def test_any_further_term_is_read_with_all_its_quantities() -> None:
    def step(number: int, **values: float) -> dict[str, Any]:
        nll = {"likelihood/nll": 5.0 - number / 10, "likelihood/ar": 0.1}
        named = {name.replace("__", "/"): value for name, value in values.items()}
        return {"kind": "step", "step": number, "epoch": 0, **nll, **named}

    history = History.of(
        [
            step(1, bmi__mine=0.1, other__nll=9.0),
            step(2, bmi__mine=math.nan, other__nll=8.0),
            step(3, bmi__mine=0.3, other__nll=7.0, bmi__raml=4.0, bmi__reward=math.nan),
        ]
    )
    assert history.training.values.tolist() == [4.9, 4.8, 4.7]  # the main term comes first
    assert {
        term: {name: (s.steps.tolist(), s.values.tolist()) for name, s in found.items()}
        for term, found in history.regularisers.items()
    } == {
        "bmi": {"mine": ([1, 3], [0.1, 0.3]), "raml": ([3], [4.0])},
        "other": {"nll": ([1, 2, 3], [9.0, 8.0, 7.0])},
    }


def test_one_term_is_no_regulariser() -> None:
    assert History.of(RECORDS).regularisers == {}
    assert History.of([]).regularisers == {}


def test_the_switch_is_that_of_phase_two_or_else_of_averaging() -> None:
    def events(*names: str) -> History:
        return History.of(
            [{"kind": "event", "step": i, "name": name} for i, name in enumerate(names)]
        )

    assert events().switch is None
    assert events("rate reduced", "stopped").switch is None
    assert events("diverged", "triggered", "triggered").switch == 1
    assert events("triggered", "diverged", "phase two").switch == 2
    assert events("phase two").switch == 0  # a run that starts from another may begin with it


def test_what_is_since_a_step() -> None:
    series = Series(np.array([1, 3, 5, 7]), np.array([1.0, 2.0, 4.0, 6.0]))
    assert series.since(0).steps.tolist() == [1, 3, 5, 7]
    assert series.since(3).values.tolist() == [2.0, 4.0, 6.0]
    assert len(series.since(8)) == 0


@pytest.mark.parametrize(("length", "last"), [(3, 3), (20, 20), (150, 20), (1000, 100)])
def test_the_end_is_the_last_tenth_and_its_error_that_of_a_mean(length: int, last: int) -> None:
    values = np.random.default_rng(length).normal(1, 2, length)
    mean, error, records = Series(np.arange(length), values).ending()
    assert records == last
    assert mean == pytest.approx(sum(values[-last:]) / last)
    squares = sum((value - mean) ** 2 for value in values[-last:])
    assert error == pytest.approx(math.sqrt(squares / (last - 1) / last))


def test_a_single_record_has_no_error_to_speak_of() -> None:
    assert Series(np.array([1]), np.array([2.0])).ending() == (2.0, math.inf, 1)
