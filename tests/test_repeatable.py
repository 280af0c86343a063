"""`make test` gives the same answer every time."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[float]:
    """The examples that a property is tried on."""
    seen = []

    @settings(settings.get_profile("repeatable"))
    @given(st.floats())
    def look(number: float) -> None:
        seen.append(number)

    look()
    return seen


def test_a_property_is_tried_on_the_same_examples_every_time():
    first = drawn()
    assert len(set(map(repr, first))) > 20
    assert list(map(repr, drawn())) == list(map(repr, first))
    repeatable = settings.get_profile("repeatable")
    assert repeatable.deadline is None  # which depends on how busy the machine is
    assert repeatable.database is None  # which depends on what failed before


@pytest.mark.parametrize("_", [1, 2])
def test_random_numbers_do_not_depend_on_the_tests_before(_):
    drawn = [random.random(), float(torch.rand(()))]
    random.seed(0)
    torch.manual_seed(0)
    assert drawn == [random.random(), float(torch.rand(()))]
