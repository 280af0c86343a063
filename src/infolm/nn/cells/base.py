"""What a recurrent layer is: a step repeated over time, between two dropouts of its own."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from infolm.nn.cells.mogrifier import Mogrifier, mogrify
from infolm.nn.dropout import Rates, drop_connect, mask

State = tuple[Tensor, ...]
"""What a layer carries from step to step, its output h first: tensors of shape (1, B, H)."""

Matrices = tuple[Tensor, ...]
"""A layer's hidden-to-hidden matrices."""


class Cell(nn.Module, ABC):
    """One layer, x (T, B, inputs) -> outputs (T, B, H), as a plain loop over time:

        h, x = mogrify(M * h', x)       (the identity without a mogrifier)
        state = step(project(x), h, state')

    M is the state dropout's mask, one for the whole pass. It and the mogrifier act on what the
    weight matrices read, not on what is remembered: an LSTM's c, a GRU's share of h', stay whole.
    DropConnect masks the hidden-to-hidden matrices, once for the whole pass.

    A cell says what of a step is linear in x (`project`, done for all steps in one product where
    no mogrifier needs x step by step) and how a step goes on from there (`step`).
    """

    remembered = 1
    """Tensors of the state."""

    def __init__(self, inputs: int, hidden: int, rates: Rates, mogrifier: Mogrifier | None) -> None:
        super().__init__()
        self.inputs, self.hidden = inputs, hidden
        self.rates, self.mogrifier = rates, mogrifier

    def _weight(self, *shape: int) -> nn.Parameter:
        """U(-1/sqrt(H), 1/sqrt(H)), as PyTorch's own layers have it."""
        bound = 1 / math.sqrt(self.hidden)
        return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """The part of a step that is linear in x, biases included: (..., inputs) -> (..., P)."""

    @abstractmethod
    def recurrent(self) -> tuple[nn.Parameter, ...]:
        """The hidden-to-hidden matrices, which DropConnect masks."""

    @abstractmethod
    def step(
        self, projected: Tensor, h: Tensor, state: State, matrices: Matrices, keep: Tensor | None
    ) -> State:
        """The state after a step.

        projected (B, P): of x. h (B, H): the last output as the matrices see it. state: as it
        was, (B, H) each. matrices: `recurrent`, masked. keep (B, H): the state dropout's mask.
        """

    def chrono(self, longest: float) -> None:
        """Bias of the gate that keeps, ln U(1, T_max - 1) (Tallec and Ollivier 2018, as Melis 2023,
        section 4.4, has it): memories from 2 to T_max steps long. Nothing where there is none."""

    def initial_state(self, batch: int) -> State:
        """Zeros."""
        weight = self.recurrent()[0]
        return tuple(weight.new_zeros(1, batch, self.hidden) for _ in range(self.remembered))

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Outputs (T, B, H), and the state after the last step."""
        matrices = self._masked()
        keep = None
        if self.training and self.rates.state:
            keep = mask((x.shape[1], self.hidden), self.rates.state, x)
        state = tuple(tensor.squeeze(0) for tensor in state)
        gates = self.mogrifier.matrices() if self.mogrifier else []
        outputs = []
        for x_t in x if self.mogrifier else self.project(x):
            h = state[0] if keep is None else state[0] * keep
            if self.mogrifier:
                h, x_t = mogrify(h, x_t, gates, self.mogrifier.zigzag)
                x_t = self.project(x_t)
            state = self.step(x_t, h, state, matrices, keep)
            outputs.append(state[0])
        return torch.stack(outputs), tuple(tensor.unsqueeze(0) for tensor in state)

    def _masked(self) -> Matrices:
        return tuple(drop_connect(w, self.rates.weight, self.training) for w in self.recurrent())


def chrono_bias(size: int, longest: float) -> Tensor:
    """ln U(1, T_max - 1), (size,)."""
    return torch.empty(size).uniform_(1, longest - 1).log_()
