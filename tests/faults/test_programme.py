"""What was wrong once has a test, and the page of results says what was measured."""

import json

import fault_programme


def test_each_point_has_a_test_that_is_there():
    assert fault_programme.missing_tests() == []


def test_the_page_is_of_the_figures():
    known = json.loads(fault_programme.FIGURES.read_text())
    assert fault_programme.PAGE.read_text() == fault_programme.page(known)
