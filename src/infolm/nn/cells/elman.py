"""The simple recurrent network (Elman 1990)."""

from torch import Tensor
from torch.nn import functional

from infolm.nn.cells.base import CELLS, Cell, State, Weights
from infolm.nn.cells.mogrifier import Mogrifier
from infolm.nn.dropout import Rates


@CELLS.register
class Elman(Cell):
    """h = tanh(W x + U h + b): `nn.RNN` with one bias."""

    kind, label = "elman", "Elman"

    def __init__(
        self, inputs: int, hidden: int, rates: Rates, mogrifier: Mogrifier | None = None
    ) -> None:
        super().__init__(inputs, hidden, rates, mogrifier)
        self.weight_ih = self._weight(hidden, inputs)
        self.weight_hh = self._weight(hidden, hidden)
        self.bias = self._weight(hidden)

    def weights(self) -> Weights:
        return self.weight_ih, self.dropped(self.weight_hh), self.bias

    def step(
        self, x: Tensor, h: Tensor, state: State, weights: Weights, keep: Tensor | None
    ) -> State:
        weight_ih, weight_hh, bias = weights
        h = functional.linear(x, weight_ih, bias) + functional.linear(h, weight_hh)
        return (h.tanh(),)
