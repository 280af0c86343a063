"""Mogrification: input and state gate each other before a cell sees them (Melis et al. 2020)."""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

GateKind = Literal["linear", "affine", "constant"]


class Gate(NamedTuple):
    """The parameters of a gate: a full matrix or two factors, the first applied first; and a bias.
    Either may be missing."""

    matrix: tuple[Tensor, ...]
    bias: Tensor | None = None


def mogrify(h: Tensor, x: Tensor, gates: Sequence[Gate], zigzag: bool) -> tuple[Tensor, Tensor]:
    """h, x after the rounds of (Melis 2023, eq. 2.2), with x^-1 = x, h^0 = h:

        x^i = 2 sigmoid(Q^i h^{i-1}) * x^{i-2}        for odd i of 1..r
        h^i = 2 sigmoid(R^i x^{i-1}) * h^{i-2}        for even i

    Shapes: x (B, m), h (B, n), Q (m, n), R (n, m); gates are Q^1, R^2, Q^3, ... No gates: the
    identity. Without `zigzag` all gates are read from the original h and x (section 2.3.1). A bias
    is added inside the sigmoid, as in the program of Melis et al. (2020); without a matrix it is a
    learnt scale that does not depend on the data (the first control of section 2.3.4).
    """
    first_h, first_x = h, x
    for i, gate in enumerate(gates, 1):
        if i % 2:
            x = _gate(h if zigzag else first_h, gate) * x
        else:
            h = _gate(x if zigzag else first_x, gate) * h
    return h, x


def _gate(v: Tensor, gate: Gate) -> Tensor:
    if not gate.matrix:
        assert gate.bias is not None
        return 2 * torch.sigmoid(gate.bias)
    *first, last = gate.matrix
    for factor in first:
        v = functional.linear(v, factor)
    return 2 * torch.sigmoid(functional.linear(v, last, gate.bias))


class Mogrifier(nn.Module):
    """The gates of `mogrify` for r rounds: linear, affine (with a bias), or constant (only the
    bias).

    Of rank k > 0 they are products of two factors, (m, k)(k, n) and (n, k)(k, m). The factor 2
    makes gates with small weights nearly the identity. Best on the Penn Treebank: r 5 or 6, k 40 to
    90. Biases start at 0.
    """

    def __init__(
        self,
        inputs: int,
        hidden: int,
        rounds: int,
        rank: int,
        zigzag: bool,
        kind: GateKind = "linear",
    ) -> None:
        super().__init__()
        self.zigzag, self.biased = zigzag, kind != "linear"
        self.each = 0 if kind == "constant" else 2 if rank else 1
        sizes = [(inputs, hidden), (hidden, inputs)]  # of Q and of R
        self.gates = nn.ModuleList(_Factors(*sizes[i % 2], rank, kind) for i in range(rounds))

    def factors(self) -> tuple[Tensor, ...]:
        """The bias, if there is one, and the factors of each round, in the order of the rounds."""
        return tuple(self.parameters())

    def parts(self, factors: Sequence[Tensor]) -> list[Gate]:
        """The same, round by round."""
        rest = iter(factors)
        gates = []
        for _ in self.gates:
            bias = next(rest) if self.biased else None
            gates.append(Gate(tuple(islice(rest, self.each)), bias))
        return gates

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return mogrify(h, x, self.parts(self.factors()), self.zigzag)


class _Factors(nn.Module):
    """A matrix (outputs, inputs), whole (rank 0) or in two factors, and a bias (outputs,)."""

    def __init__(self, outputs: int, inputs: int, rank: int, kind: GateKind) -> None:
        super().__init__()
        self.bias = None if kind == "linear" else nn.Parameter(torch.zeros(outputs))
        shapes: Sequence[tuple[int, int]] = [(outputs, inputs)]
        if kind == "constant":
            shapes = []
        elif rank:
            shapes = [(rank, inputs), (outputs, rank)]
        self.factors = nn.ParameterList(
            torch.empty(shape).uniform_(-1 / math.sqrt(shape[1]), 1 / math.sqrt(shape[1]))
            for shape in shapes
        )
