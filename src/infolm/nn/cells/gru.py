"""The gated recurrent unit (Cho et al. 2014), in the variant that frameworks have."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from infolm.nn.cells.base import Cell, Matrices, State, chrono_bias
from infolm.nn.cells.mogrifier import Mogrifier
from infolm.nn.dropout import Rates


class GRU(Cell):
    """One GRU layer, the same as `nn.GRU` without options, order of gates (r, z, n) and all.

        r = sigmoid(W_r x + U_r h + b_r)      n = tanh(W_n x + b_n + r * (U_n h + d_n))
        z = sigmoid(W_z x + U_z h + b_z)      h = (1 - z) * n + z * h'

    The last h' is the state itself, whatever dropout and mogrifier made of the h in the products.
    """

    def __init__(
        self, inputs: int, hidden: int, rates: Rates, mogrifier: Mogrifier | None = None
    ) -> None:
        super().__init__(inputs, hidden, rates, mogrifier)
        self.weight_ih = self._weight(3 * hidden, inputs)
        self.weight_hh = self._weight(3 * hidden, hidden)
        self.bias_ih = self._weight(3 * hidden)
        self.bias_hh = self._weight(3 * hidden)

    def project(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight_ih, self.bias_ih)

    def recurrent(self) -> tuple[nn.Parameter, ...]:
        return (self.weight_hh,)

    def step(
        self, projected: Tensor, h: Tensor, state: State, matrices: Matrices, keep: Tensor | None
    ) -> State:
        gates, size = 2 * self.hidden, self.hidden
        from_h = functional.linear(h, matrices[0], self.bias_hh)
        r, z = (projected[:, :gates] + from_h[:, :gates]).sigmoid().split(size, 1)
        n = torch.addcmul(projected[:, gates:], r, from_h[:, gates:]).tanh()
        return (torch.lerp(n, state[0], z),)

    @torch.no_grad()
    def chrono(self, longest: float) -> None:
        update = slice(self.hidden, 2 * self.hidden)
        self.bias_ih[update] = chrono_bias(self.hidden, longest)
        self.bias_hh[update] = 0
