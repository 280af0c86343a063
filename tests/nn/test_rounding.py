"""Products of matrices rounded to bfloat16 are the same with rows of zeros, and have few shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.nn.rounding import ROWS, filled, mapped, outer, rounded

CPU = torch.device("cpu")


def exact(x):
    """The rounded numbers."""
    return x.bfloat16().double()


@settings(deadline=None)
@given(rows=st.integers(0, 3 * ROWS), inputs=st.integers(1, 9), outputs=st.integers(1, 9))
def test_are_products_of_the_rounded_numbers(rows, inputs, outputs):
    torch.manual_seed(rows)
    x, y, matrix = (torch.randn(*s) for s in ((rows, inputs), (rows, outputs), (inputs, outputs)))
    near = {"rtol": 2**-7, "atol": 2**-7 * (1 + rows) ** 0.5}
    torch.testing.assert_close(mapped(x, matrix).double(), exact(x) @ exact(matrix), **near)
    torch.testing.assert_close(outer(x, y).double(), exact(x).t() @ exact(y), **near)
    assert mapped(x, matrix).dtype == outer(x, y).dtype == torch.float


@pytest.mark.parametrize("rows", [0, 1, ROWS - 1, ROWS, ROWS + 1])
def test_rows_are_filled_with_zeros(rows):
    x = torch.randn(rows, 5)
    found = rounded(x)
    assert len(found) == filled(rows, CPU) == (rows + ROWS - 1) // ROWS * ROWS
    assert found[:rows].equal(x.bfloat16())
    assert not found[rows:].any()


def test_batches_of_sentences_have_few_shapes():
    assert len({filled(words, CPU) for words in range(400, 1200)}) == 13
    assert filled(401, torch.device("cuda")) == 401
