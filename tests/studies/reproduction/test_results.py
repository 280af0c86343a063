"""What the curves of a sweep are compared by, and its figures."""

import math

import pytest

from infolm.studies.reproduction.frontier import Position
from infolm.studies.reproduction.picture import Frontier, draw, draw_figures
from infolm.studies.reproduction.plan import load_plan
from infolm.studies.reproduction.results import full_label, optimum, positions, summary

from .conftest import TINY, written

ENTROPY = math.log(8)


def record(information, nll):
    return {
        "splits": {
            "train": {
                "information": {"per_sentence": information, "per_token": information / 2},
                "nll": {"per_sentence": nll, "per_token": nll / 2},
            }
        }
    }


RECORDS = {
    "dreg-1-lambda-0.2": record(0.0, 2.1),
    "dreg-1-lambda-0.8": record(ENTROPY, 4.1),
    "dreg-4-kl-lambda-0.2": record(ENTROPY / 2, 2.5),
    "dreg-4-renyi-lambda-0.2-alpha-1.5": {"failure": "it diverged"},
}


@pytest.fixture
def plan(tiny_file):
    return load_plan(str(tiny_file), TINY)


def test_where_points_lie(plan, tmp_path):
    assert positions(plan, RECORDS, "dreg-4-kl", "train") == {
        "dreg-4-kl-lambda-0.2": Position(ENTROPY / 2, 2.5)
    }
    assert positions(plan, RECORDS, "dreg-4-kl", "valid") == {}
    assert positions(plan, RECORDS, "dreg-4-renyi", "train") == {}
    per_token = load_plan(str(written(tmp_path, per="token")), TINY)
    (found,) = positions(per_token, RECORDS, "dreg-4-kl", "train").values()
    assert found == Position(ENTROPY / 4, 1.25)


def test_curves_are_compared_at_shares_of_the_entropy(plan):
    found = summary(plan, RECORDS)
    assert found["optimum"] == found["splits"]["train"]["greatest"] == ENTROPY
    curves = found["splits"]["train"]["curves"]
    assert list(curves) == ["dreg-1", "dreg-4-kl", "same"]  # the other one has no points
    assert curves["dreg-1"]["nll"] == pytest.approx(
        {"25%": 2.6, "50%": 3.1, "75%": 3.6, "90%": 3.9}
    )
    assert curves["dreg-4-kl"]["nll"] == {"25%": 2.5, "50%": 2.5, "75%": None, "90%": None}
    assert curves["dreg-1"]["frontier"] == ["dreg-1-lambda-0.2", "dreg-1-lambda-0.8"]


def test_where_the_entropy_is_not_known_shares_are_of_what_was_reached(small_text, tmp_path):
    text = [f"data.path={small_text}", "data.corpus=null", "data.uniform=null"]
    plan = load_plan(str(written(tmp_path)), text)
    assert optimum(plan) is None
    found = summary(plan, {**RECORDS, "dreg-1-lambda-0.8": record(4.0, 5.0)})
    assert found["optimum"] is None
    assert found["splits"]["train"]["greatest"] == 4.0
    nothing = summary(plan, {})
    assert nothing["splits"]["train"] == {"greatest": None, "curves": {}}


def test_labels_name_the_objective_where_they_must(plan):
    curves = ["dreg-1", "dreg-4-kl", "dreg-4-renyi"]
    assert [full_label(plan, curve) for curve in curves] == [
        "DReG 1",
        "DReG 4, KL",
        "DReG 4, Rényi",
    ]


def test_figures_show_what_there_is(plan, tmp_path):
    paths = draw_figures(plan, RECORDS, tmp_path)
    assert [path.name for path in paths] == ["figure-1.png", "figure-2.png"]
    svg = (tmp_path / "figure-1.svg").read_text()
    assert all(words in svg for words in ("optimum", "DReG 1", "DReG 4, KL", "nats per sentence"))
    assert "Rényi" not in svg
    first = paths[0].read_bytes()
    assert draw_figures(plan, RECORDS, tmp_path)[0].read_bytes() == first
    assert draw_figures(plan, {}, tmp_path) == []


def test_dominated_points_are_not_drawn(tmp_path):
    def drawn(*places):
        path = tmp_path / "figure.png"
        draw(
            [Frontier("a", "a", True, [Position(*p) for p in places])],
            "",
            "train",
            "nats",
            None,
            path,
        )
        return path.with_suffix(".svg").read_text()

    edge = drawn((0, 1), (1, 2))
    assert drawn((0, 1), (1, 2), (0.5, 5)) == edge
    assert drawn((0, 1), (1, 2), (0.5, 1.1)) != edge
