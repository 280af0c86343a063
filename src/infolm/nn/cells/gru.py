"""The gated recurrent unit (Cho et al. 2014), in the variant of PyTorch and others."""

import torch
from torch import Tensor
from torch.nn import functional

from infolm.nn.cells.base import CELLS, Cell, State, Weights, chrono_bias
from infolm.nn.cells.mogrifier import Mogrifier
from infolm.nn.dropout import Rates


@CELLS.register
class GRU(Cell):
    """One GRU layer, the same as `nn.GRU` without options, order of gates (r, z, n) and all.

        r = sigmoid(W_r x + U_r h + b_r)      n = tanh(W_n x + b_n + r * (U_n h + d_n))
        z = sigmoid(W_z x + U_z h + b_z)      h = (1 - z) * n + z * h'

    The last h' is the state itself, without the dropout and mogrifier applied to h in the products.
    """

    kind, label = "gru", "GRU"

    def __init__(
        self, inputs: int, hidden: int, rates: Rates, mogrifier: Mogrifier | None = None
    ) -> None:
        super().__init__(inputs, hidden, rates, mogrifier)
        self.weight_ih = self._weight(3 * hidden, inputs)
        self.weight_hh = self._weight(3 * hidden, hidden)
        self.bias_ih = self._weight(3 * hidden)
        self.bias_hh = self._weight(3 * hidden)

    def weights(self) -> Weights:
        sizes = [2 * self.hidden, self.hidden]
        gates, candidate = self.dropped(self.weight_hh).split(sizes)
        gates_bias, candidate_bias = self.bias_hh.split(sizes)
        bias = self.bias_ih + functional.pad(gates_bias, (0, self.hidden))
        return self.weight_ih, bias, gates, candidate, candidate_bias

    def step(
        self, x: Tensor, h: Tensor, state: State, weights: Weights, keep: Tensor | None
    ) -> State:
        weight_ih, bias, gates, candidate, candidate_bias = weights
        from_x = functional.linear(x, weight_ih, bias)
        rz, n = from_x.split([2 * self.hidden, self.hidden], 1)
        r, z = (rz + functional.linear(h, gates)).sigmoid().chunk(2, 1)
        n = (n + r * functional.linear(h, candidate, candidate_bias)).tanh()
        return (n + z * (state[0] - n),)

    @torch.no_grad()
    def chrono(self, longest: float) -> None:
        update = slice(self.hidden, 2 * self.hidden)
        self.bias_ih[update] = chrono_bias(self.hidden, longest)
        self.bias_hh[update] = 0

    @torch.no_grad()
    def remember(self, bias: float) -> None:
        self.bias_ih[self.hidden : 2 * self.hidden] += bias
