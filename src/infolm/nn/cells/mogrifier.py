"""Mogrification: input and state gate each other before a cell sees them (Melis et al. 2020)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mogrifier(nn.Module):
    """h, x -> mogrify(h, x) (Melis 2023, eq. 2.2), with x^-1 = x, h^0 = h and r rounds:

        x^i = 2 sigmoid(Q^i h^{i-1}) * x^{i-2}        for odd i of 1..r
        h^i = 2 sigmoid(R^i x^{i-1}) * h^{i-2}        for even i

    Shapes: x (B, m), h (B, n), Q (m, n), R (n, m). Of rank k > 0 they are products of two factors,
    (m, k)(k, n) and (n, k)(k, m). r = 0 is the identity; the factor 2 makes matrices of small
    weights nearly so. Without `zigzag` all gates are read from the original h and x (section
    2.3.1). Best on the Penn Treebank: r 5 or 6, k 40 to 90.
    """

    def __init__(self, inputs: int, hidden: int, rounds: int, rank: int, zigzag: bool) -> None:
        super().__init__()
        self.zigzag = zigzag
        sizes = [(inputs, hidden), (hidden, inputs)]  # of Q and of R
        self.gates = nn.ModuleList(_Gate(*sizes[i % 2], rank) for i in range(rounds))

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        first_h, first_x = h, x
        for i, gate in enumerate(self.gates, 1):
            if i % 2:
                x = gate(h if self.zigzag else first_h) * x
            else:
                h = gate(x if self.zigzag else first_x) * h
        return h, x


class _Gate(nn.Module):
    """2 sigmoid(Q v), with Q (outputs, inputs) whole (rank 0) or in two factors."""

    def __init__(self, outputs: int, inputs: int, rank: int) -> None:
        super().__init__()
        shapes: Sequence[tuple[int, int]] = [(outputs, inputs)]
        if rank:
            shapes = [(rank, inputs), (outputs, rank)]
        self.factors = nn.ParameterList(
            torch.empty(shape).uniform_(-1 / math.sqrt(shape[1]), 1 / math.sqrt(shape[1]))
            for shape in shapes
        )

    def forward(self, v: Tensor) -> Tensor:
        for factor in self.factors:
            v = functional.linear(v, factor)
        return 2 * torch.sigmoid(v)
