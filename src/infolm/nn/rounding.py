"""Products of matrices rounded to bfloat16.

On a CPU they are oneDNN's, which compiles a kernel for each shape, in half a millisecond, and keeps
the last thousand. Batches of sentences have another number of words each time: their products would
be compiled more often than computed. So rows are filled up to a multiple of `ROWS`, with zeros.
"""

import torch
from torch import Tensor

ROWS = 64


def filled(rows: int, device: torch.device) -> int:
    """How many rows a matrix has that is rounded: the next multiple of `ROWS` on a CPU."""
    return -(-rows // ROWS) * ROWS if device.type == "cpu" else rows


def rounded(x: Tensor) -> Tensor:
    """x (n, F) in bfloat16, with rows of zeros below it up to `filled(n)`."""
    rows = filled(len(x), x.device)
    if rows == len(x):
        return x.bfloat16()
    result = x.new_zeros((rows, x.shape[1]), dtype=torch.bfloat16)
    result[: len(x)] = x
    return result


def mapped(x: Tensor, matrix: Tensor) -> Tensor:
    """x M of the rounded matrices, (n, G) in the precision of x (n, F); M (F, G)."""
    return (rounded(x) @ matrix.bfloat16())[: len(x)].to(x.dtype)


def outer(a: Tensor, b: Tensor) -> Tensor:
    """sum_i a_i b_i^T over n rows, of the rounded matrices, (F, G); a (n, F), b (n, G)."""
    return (rounded(a).t() @ rounded(b)).to(a.dtype)
