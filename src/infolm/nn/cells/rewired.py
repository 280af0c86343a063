"""The Rewired LSTM (Melis 2023, section 4.1)."""

import torch
from torch import Tensor
from torch.nn import functional

from infolm.nn.cells.base import CELLS, Cell, State, Weights, chrono_bias
from infolm.nn.cells.mogrifier import Mogrifier
from infolm.nn.dropout import Rates


@CELLS.register
class RewiredLSTM(Cell):
    """The forget gate reads the proposed update, the output gate the memory itself.

        i = sigmoid(W_i x + U_i h + b_i)      j = tanh(W_j x + U_j h + b_j)
        f = sigmoid(V_f (i * j) + U_f h + b_f)
        c = f * c' + min(i, 1 - f) * j        so that |c| <= 1
        o = sigmoid(V_o (M * c) + b_o)        h = o * tanh(c)

    M is the state dropout's mask. `weight_ih` stacks W_i, W_j; `weight_hh` U_i, U_j, U_f; `bias`
    b_i, b_j, b_f.
    """

    kind, label = "rewired", "Rewired LSTM"

    remembered = 2

    def __init__(
        self, inputs: int, hidden: int, rates: Rates, mogrifier: Mogrifier | None = None
    ) -> None:
        super().__init__(inputs, hidden, rates, mogrifier)
        self.weight_ih = self._weight(2 * hidden, inputs)
        self.weight_hh = self._weight(3 * hidden, hidden)
        self.weight_fu = self._weight(hidden, hidden)
        self.weight_oc = self._weight(hidden, hidden)
        self.bias = self._weight(3 * hidden)
        self.bias_o = self._weight(hidden)

    def weights(self) -> Weights:
        sizes = [2 * self.hidden, self.hidden]
        recurrent, biases = self.dropped(self.weight_hh).split(sizes), self.bias.split(sizes)
        of_f = self.weight_fu, recurrent[1], biases[1]
        return self.weight_ih, recurrent[0], biases[0], *of_f, self.weight_oc, self.bias_o

    def step(
        self, x: Tensor, h: Tensor, state: State, weights: Weights, keep: Tensor | None
    ) -> State:
        w_ij, u_ij, b_ij, v_f, u_f, b_f, v_o, b_o = weights
        i, j = (functional.linear(x, w_ij, b_ij) + functional.linear(h, u_ij)).chunk(2, 1)
        i, j = i.sigmoid(), j.tanh()
        f = (functional.linear(i * j, v_f) + functional.linear(h, u_f, b_f)).sigmoid()
        c = f * state[1] + torch.minimum(i, 1 - f) * j
        o = functional.linear(c if keep is None else c * keep, v_o, b_o).sigmoid()
        return o * c.tanh(), c

    @torch.no_grad()
    def chrono(self, longest: float) -> None:
        self.bias[2 * self.hidden :] = chrono_bias(self.hidden, longest)

    @torch.no_grad()
    def remember(self, bias: float) -> None:
        self.bias[2 * self.hidden :] += bias
