"""The simple recurrent network (Elman 1990)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from infolm.nn.cells.base import Cell, Matrices, State
from infolm.nn.cells.mogrifier import Mogrifier
from infolm.nn.dropout import Rates


class Elman(Cell):
    """h = tanh(W x + U h + b): `nn.RNN` with one bias."""

    def __init__(
        self, inputs: int, hidden: int, rates: Rates, mogrifier: Mogrifier | None = None
    ) -> None:
        super().__init__(inputs, hidden, rates, mogrifier)
        self.weight_ih = self._weight(hidden, inputs)
        self.weight_hh = self._weight(hidden, hidden)
        self.bias = self._weight(hidden)

    def project(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight_ih, self.bias)

    def recurrent(self) -> tuple[nn.Parameter, ...]:
        return (self.weight_hh,)

    def step(
        self, projected: Tensor, h: Tensor, state: State, matrices: Matrices, keep: Tensor | None
    ) -> State:
        return (torch.addmm(projected, h, matrices[0].t()).tanh(),)
