"""The multiplicative LSTM (Krause et al. 2016; Melis 2023, section 2.3.2)."""

import torch
from torch import Tensor
from torch.nn import functional

from infolm.nn.cells.base import CELLS, Cell, State, Weights, chrono_bias
from infolm.nn.cells.lstm import lstm_step
from infolm.nn.cells.mogrifier import Mogrifier
from infolm.nn.dropout import Rates


@CELLS.register
class MultiplicativeLSTM(Cell):
    """An LSTM whose gates read m = (W_m x) * (U_m h) in the place of h.

    `weight_ih` stacks W of the gates (i, f, g, o) on W_m; with m = h it is the LSTM.
    """

    kind, label = "multiplicative", "multiplicative LSTM"
    can_cap = True

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

    def weights(self) -> Weights:
        weight_mh, weight_hh = self.dropped(self.weight_mh), self.dropped(self.weight_hh)
        return self.weight_ih, functional.pad(self.bias, (0, self.hidden)), weight_mh, weight_hh

    def step(
        self, x: Tensor, h: Tensor, state: State, weights: Weights, keep: Tensor | None
    ) -> State:
        weight_ih, bias, weight_mh, weight_hh = weights
        from_x = functional.linear(x, weight_ih, bias)
        gates, m = from_x.split([4 * self.hidden, self.hidden], 1)
        m = m * functional.linear(h, weight_mh)
        return lstm_step(gates + functional.linear(m, weight_hh), state[1], self.capped)

    @torch.no_grad()
    def chrono(self, longest: float) -> None:
        self.bias[self.hidden : 2 * self.hidden] = chrono_bias(self.hidden, longest)

    @torch.no_grad()
    def remember(self, bias: float) -> None:
        self.bias[self.hidden : 2 * self.hidden] += bias
