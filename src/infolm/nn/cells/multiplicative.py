"""The multiplicative LSTM (Krause et al. 2016; Melis 2023, section 2.3.2)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from infolm.nn.cells.base import Cell, Matrices, State, chrono_bias
from infolm.nn.cells.lstm import lstm_step
from infolm.nn.cells.mogrifier import Mogrifier
from infolm.nn.dropout import Rates


class MultiplicativeLSTM(Cell):
    """An LSTM whose gates read m = (W_m x) * (U_m h) in the place of h.

    `weight_ih` stacks W of the gates (i, f, g, o) on W_m; the LSTM is what is left where m is h.
    """

    remembered = 2

    def __init__(
        self,
        inputs: int,
        hidden: int,
        rates: Rates,
        mogrifier: Mogrifier | None = None,
        capped: bool = False,
    ) -> None:
        super().__init__(inputs, hidden, rates, mogrifier)
        self.capped = capped
        self.weight_ih = self._weight(5 * hidden, inputs)
        self.weight_mh = self._weight(hidden, hidden)
        self.weight_hh = self._weight(4 * hidden, hidden)
        self.bias = self._weight(4 * hidden)

    def project(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight_ih)

    def recurrent(self) -> tuple[nn.Parameter, ...]:
        return self.weight_mh, self.weight_hh

    def step(
        self, projected: Tensor, h: Tensor, state: State, matrices: Matrices, keep: Tensor | None
    ) -> State:
        weight_mh, weight_hh = matrices
        gates, from_x = projected.split([4 * self.hidden, self.hidden], 1)
        m = from_x * functional.linear(h, weight_mh)
        return lstm_step(gates + functional.linear(m, weight_hh, self.bias), state[1], self.capped)

    @torch.no_grad()
    def chrono(self, longest: float) -> None:
        self.bias[self.hidden : 2 * self.hidden] = chrono_bias(self.hidden, longest)
