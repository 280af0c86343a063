"""The LSTM: weight-dropped (Merity et al. 2017, section 2), capped (Melis 2023, chapter 2)."""

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from infolm.nn.cells.base import CELLS, Cell, State, Weights, chrono_bias
from infolm.nn.cells.mogrifier import Mogrifier
from infolm.nn.dropout import Rates
from infolm.nn.recurrence.driver import choose


def lstm_step(gates: Tensor, c: Tensor, capped: bool) -> State:
    """(h, c) after a step from the gates' pre-activations (B, 4H), in the order i, f, g, o."""
    i, f, g, o = gates.chunk(4, 1)
    i, f, o = i.sigmoid(), f.sigmoid(), o.sigmoid()
    if capped:
        i = torch.minimum(i, 1 - f)
    c = f * c + i * g.tanh()
    return o * c.tanh(), c


@CELLS.register
class LSTM(Cell):
    """One LSTM layer.

        i = sigmoid(W_i x + U_i h + b_i)      f = sigmoid(W_f x + U_f h + b_f)
        o = sigmoid(W_o x + U_o h + b_o)      g = tanh(W_c x + U_c h + b_c)
        c = f * c' + i * g                    h = o * tanh(c)

    With `capped`, i is min(i, 1 - f) in the second last equation, so that |c| <= 1. In training
    U = [U_i, U_f, U_c, U_o] is replaced by DropConnect(U, p), one mask for the whole pass; nothing
    is stored in or hidden behind the module, so `state_dict` holds the raw weight, once. Order of
    gates, two biases and initialisation are those of `nn.LSTM`; without options this is `nn.LSTM`.
    """

    kind, label = "lstm", "LSTM"
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
        self.weight_ih = self._weight(4 * hidden, inputs)
        self.weight_hh = self._weight(4 * hidden, hidden)
        self.bias_ih = self._weight(4 * hidden)
        self.bias_hh = self._weight(4 * hidden)

    def weights(self) -> Weights:
        return self.weight_ih, self.dropped(self.weight_hh), self.bias_ih + self.bias_hh

    def step(
        self, x: Tensor, h: Tensor, state: State, weights: Weights, keep: Tensor | None
    ) -> State:
        weight_ih, weight_hh, bias = weights
        gates = functional.linear(x, weight_ih, bias) + functional.linear(h, weight_hh)
        return lstm_step(gates, state[1], self.capped)

    @torch.no_grad()
    def chrono(self, longest: float) -> None:
        forget = slice(self.hidden, 2 * self.hidden)
        self.bias_ih[forget] = chrono_bias(self.hidden, longest)
        self.bias_hh[forget] = 0

    @torch.no_grad()
    def remember(self, bias: float) -> None:
        self.bias_ih[self.hidden : 2 * self.hidden] += bias

    def forward(
        self, x: Tensor | PackedSequence, state: State, copies: int = 1
    ) -> tuple[Tensor | PackedSequence, State]:
        if isinstance(x, PackedSequence) or not self._on_the_frameworks_kernel(x):
            return super().forward(x, state, copies)
        outputs, h, c = torch.lstm(
            x,
            state,
            [self.weight_ih, self.dropped(self.weight_hh), self.bias_ih, self.bias_hh],
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=False,
        )
        return outputs, (h, c)

    def _on_the_frameworks_kernel(self, x: Tensor) -> bool:
        """Whether to use PyTorch's kernel: without options, and unless ours is faster. The native
        machine is faster with gradients, and plain operations are for single steps, where the
        kernel's preparation does not pay."""
        if self.mogrifier or self.capped or (self.training and self.rates.state) or len(x) == 1:
            return False
        path = choose(self.weight_ih, len(x))
        return path == "fused" or (path == "native" and not torch.is_grad_enabled())
