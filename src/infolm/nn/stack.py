"""Layers of recurrent cells, one on the other."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, cast

from torch import Tensor, nn

from infolm.nn.cells.lstm import LSTM, State
from infolm.nn.dropout import locked_dropout


class StackOutput(NamedTuple):
    """What every layer put out, before any dropout, each (T, B, H_l), and the states after."""

    layers: list[Tensor]
    state: list[State]


class Stack(nn.Module):
    """Recurrent layers with locked dropout between them (Merity et al. 2017, section 4.2).

    `sizes` are the input's size and then each layer's: AWD-LSTM on PTB is (400, 1150, 1150, 400).
    """

    def __init__(self, sizes: Sequence[int], weight_drop: float, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.cells = nn.ModuleList(
            LSTM(inputs, hidden, weight_drop) for inputs, hidden in pairwise(sizes)
        )

    def initial_state(self, batch: int) -> list[State]:
        return [cast(LSTM, cell).initial_state(batch) for cell in self.cells]

    def forward(self, x: Tensor, state: Sequence[State]) -> StackOutput:
        """x: (T, B, E), already dropped."""
        layers: list[Tensor] = []
        after: list[State] = []
        for cell, before in zip(self.cells, state, strict=True):
            if layers:
                x = locked_dropout(layers[-1], self.dropout, self.training)
            output, new = cell(x, before)
            layers.append(output)
            after.append(new)
        return StackOutput(layers, after)
