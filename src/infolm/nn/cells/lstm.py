"""The weight-dropped LSTM (Merity et al. 2017, section 2) on the framework's fused kernel."""

import math

import torch
from torch import Tensor, nn

from infolm.nn.dropout import drop_connect

State = tuple[Tensor, Tensor]


class LSTM(nn.Module):
    """One LSTM layer with DropConnect on the hidden-to-hidden matrix.

        i = sigmoid(W_i x + U_i h + b_i)      f = sigmoid(W_f x + U_f h + b_f)
        o = sigmoid(W_o x + U_o h + b_o)      g = tanh(W_c x + U_c h + b_c)
        c = f * c' + i * g                    h = o * tanh(c)

    In training U = [U_i, U_f, U_c, U_o] is replaced by DropConnect(U, p), one mask for the whole
    pass, and the masked matrix is handed to the kernel itself: nothing is stored in or hidden
    behind the module, so `state_dict` holds the raw weight, once. With p = 0 this is `nn.LSTM`,
    whose order of gates (i, f, g, o), two biases and initialisation U(-1/sqrt(H), 1/sqrt(H)) it
    keeps.
    """

    def __init__(self, inputs: int, hidden: int, weight_drop: float = 0.0) -> None:
        super().__init__()
        self.inputs, self.hidden, self.weight_drop = inputs, hidden, weight_drop
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden))
        self.bias_hh = nn.Parameter(torch.empty(4 * hidden))
        bound = 1 / math.sqrt(hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def initial_state(self, batch: int) -> State:
        """Zeros: h and c, each (1, B, H)."""
        zeros = self.weight_hh.new_zeros(1, batch, self.hidden)
        return zeros, zeros.clone()

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """x: (T, B, inputs) -> outputs (T, B, H) and the state after the last step."""
        weight_hh = drop_connect(self.weight_hh, self.weight_drop, self.training)
        weights = [self.weight_ih, weight_hh, self.bias_ih, self.bias_hh]
        outputs, h, c = torch.lstm(
            x,
            state,
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=False,
        )
        return outputs, (h, c)
