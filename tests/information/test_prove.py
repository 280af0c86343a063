"""Planted information: as much as is said, in columns that stay what they are."""

import numpy as np
import pytest

from infolm.information.gaussian import Gaussian, gaussian_information
from infolm.information.prove import Reading, planted, proved, sentence


@pytest.mark.parametrize("nats", [0.0, 0.5, 2.0])
def test_what_is_planted_is_there(nats):
    rng = np.random.default_rng(0)
    x, y = np.exp(rng.standard_normal((20_000, 1))), rng.standard_normal((20_000, 1)) ** 3
    found = Gaussian(copula=True).estimate(*planted(x, y, nats)).value
    assert found == pytest.approx(nats, abs=0.03)


def test_several_columns_hold_just_as_much():
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((20_000, d)) @ rng.standard_normal((d, d)) for d in (3, 2))
    assert gaussian_information(*planted(x, y, 0.7)) == pytest.approx(0.7, abs=0.03)


def test_columns_keep_their_values_and_their_own_dependence():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((2, 500, 2)).cumsum(2)
    a, b = planted(x, y, 1.0)
    np.testing.assert_array_equal(a, x)
    np.testing.assert_array_equal(b[np.lexsort(b.T)], y[np.lexsort(y.T)])


def test_a_proof_reads_every_amount_and_says_so():
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 400))
    readings = proved(x, y, {"copula": Gaussian(copula=True).estimate})
    assert [reading.planted for reading in readings] == [0, 0.1, 0.5, 1, 2]
    assert "in 5 of 5" in sentence(readings, "copula", 400)
    wrong = [Reading("ksg", 1.0, 0.2, (0.1, 0.3), None)]
    assert "in 0 of 1" in sentence(wrong, "ksg", 400)
