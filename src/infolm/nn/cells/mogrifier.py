"""Mogrification: input and state gate each other before a cell sees them (Melis et al. 2020)."""

import math
from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional

Matrix = tuple[Tensor, ...]
"""A matrix whole, or as two factors: what is multiplied first stands first."""


def mogrify(
    h: Tensor, x: Tensor, matrices: Sequence[Matrix], zigzag: bool
) -> tuple[Tensor, Tensor]:
    """h, x after the rounds of (Melis 2023, eq. 2.2), with x^-1 = x, h^0 = h:

        x^i = 2 sigmoid(Q^i h^{i-1}) * x^{i-2}        for odd i of 1..r
        h^i = 2 sigmoid(R^i x^{i-1}) * h^{i-2}        for even i

    Shapes: x (B, m), h (B, n), Q (m, n), R (n, m); matrices are Q^1, R^2, Q^3, ... No matrices: the
    identity. Without `zigzag` all gates are read from the original h and x (section 2.3.1).
    """
    first_h, first_x = h, x
    for i, matrix in enumerate(matrices, 1):
        if i % 2:
            x = _gate(h if zigzag else first_h, matrix) * x
        else:
            h = _gate(x if zigzag else first_x, matrix) * h
    return h, x


def _gate(v: Tensor, matrix: Matrix) -> Tensor:
    for factor in matrix:
        v = functional.linear(v, factor)
    return 2 * torch.sigmoid(v)


class Mogrifier(nn.Module):
    """The matrices of `mogrify` for r rounds.

    Of rank k > 0 they are products of two factors, (m, k)(k, n) and (n, k)(k, m). The factor 2
    makes matrices of small weights nearly the identity. Best on the Penn Treebank: r 5 or 6, k 40
    to 90.
    """

    def __init__(self, inputs: int, hidden: int, rounds: int, rank: int, zigzag: bool) -> None:
        super().__init__()
        self.zigzag, self.each = zigzag, 2 if rank else 1
        sizes = [(inputs, hidden), (hidden, inputs)]  # of Q and of R
        self.gates = nn.ModuleList(_Factors(*sizes[i % 2], rank) for i in range(rounds))

    def factors(self) -> tuple[Tensor, ...]:
        """One or two of each round, in the order of the rounds."""
        return tuple(self.parameters())

    def matrices(self, factors: Sequence[Tensor]) -> list[Matrix]:
        """The same, round by round."""
        rest = iter(factors)
        return [tuple(islice(rest, self.each)) for _ in self.gates]

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return mogrify(h, x, self.matrices(self.factors()), self.zigzag)


class _Factors(nn.Module):
    """A matrix (outputs, inputs), whole (rank 0) or in two factors."""

    def __init__(self, outputs: int, inputs: int, rank: int) -> None:
        super().__init__()
        shapes: Sequence[tuple[int, int]] = [(outputs, inputs)]
        if rank:
            shapes = [(rank, inputs), (outputs, rank)]
        self.factors = nn.ParameterList(
            torch.empty(shape).uniform_(-1 / math.sqrt(shape[1]), 1 / math.sqrt(shape[1]))
            for shape in shapes
        )
