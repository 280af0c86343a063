"""Pareto frontiers, against their definition."""

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infolm.studies.reproduction.frontier import Position, frontier, nll_at

coordinates = st.one_of(
    st.integers(-3, 3).map(float), st.floats(-10, 10), st.sampled_from([math.nan, math.inf])
)
clouds = st.lists(st.builds(Position, coordinates, coordinates), max_size=12)


def dominates(a, b):
    return a != b and a.information >= b.information and a.nll <= b.nll


@given(clouds)
def test_it_is_what_nothing_dominates(points):
    found = frontier(points)
    finite = [p for p in points if all(map(math.isfinite, p))]
    wanted = {p for p in finite if not any(dominates(q, p) for q in finite)}
    assert {points[i] for i in found} == wanted
    assert len(found) == len(wanted)  # of equal ones, one
    assert all(points.index(points[i]) == i for i in found)  # the first


@given(clouds)
def test_both_rise_along_it(points):
    edge = [points[i] for i in frontier(points)]
    for a, b in pairwise(edge):
        assert a.information < b.information
        assert a.nll < b.nll


def test_nothing_and_one():
    assert frontier([]) == []
    assert frontier([Position(1, 2)]) == [0]
    assert frontier([Position(math.nan, 1), Position(0, 5)]) == [1]


def test_ties():
    assert frontier([Position(1, 2), Position(1, 3)]) == [0]
    assert frontier([Position(1, 2), Position(2, 2)]) == [1]
    assert frontier([Position(1, 2), Position(1, 2)]) == [0]


def test_nll_at_a_level():
    points = [Position(3, 9), Position(1, 5), Position(2, 8.9)]
    assert nll_at(points, 0) == 5
    assert nll_at(points, 1) == 5
    assert nll_at(points, 1.5) == pytest.approx(6.95)
    assert nll_at(points, 2.5) == pytest.approx(8.95)
    assert nll_at(points, 3) == 9
    assert nll_at(points, 3.01) is None
    assert nll_at([], 0) is None


# -1 + (-0.1 - -1) is above -0.1 by a rounding.
@example([Position(0, -1.0), Position(1, -0.1)], 1.0)
@given(clouds, st.floats(-10, 10))
def test_nll_at_a_level_lies_between_what_was_measured(points, level):
    finite = [p for p in points if all(map(math.isfinite, p))]
    beyond = [p.nll for p in finite if p.information >= level]
    found = nll_at(points, level)
    if not beyond:
        assert found is None
    else:
        assert min(p.nll for p in finite) <= found <= min(beyond)
