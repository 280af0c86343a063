"""The base of recurrent layers: a step repeated over time, with its own dropouts."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from infolm.nn.cells.mogrifier import Mogrifier, mogrify
from infolm.nn.dropout import Rates, drop_connect, mask
from infolm.nn.recurrence.driver import Recurrence, choose
from infolm.nn.recurrence.program import trace
from infolm.registry import Registry

State = tuple[Tensor, ...]
"""The state of a layer, its output h first: tensors of shape (1, B, H)."""

Weights = tuple[Tensor, ...]
"""The matrices and biases of a step."""


class Cell(nn.Module, ABC):
    """One layer, x (T, B, inputs) -> outputs (T, B, H). At each step

        h, x = mogrify(M * h', x)       (the identity without a mogrifier)
        state = step(x, h, state')

    M is the state dropout's mask, one for the whole pass. It and the mogrifier act on the input of
    the weight matrices, not on the memory: an LSTM's c and a GRU's share of h' are not masked.
    DropConnect masks the hidden-to-hidden matrices, once for the whole pass.

    A cell is its `weights` and its `step`, in plain PyTorch on rows of a batch. From these
    `infolm.nn.recurrence` makes the loop over time and its gradient. A step may use the operations
    that `recurrence.program` can trace: `functional.linear`, sigmoid, tanh, `minimum`, sums,
    products, and parts of a vector by `chunk` or `split`. It is traced at the first call: later
    changes of the cell's options have no effect.
    """

    kind: ClassVar[str]
    label: ClassVar[str]
    """Its name in recipes, and in words."""
    remembered = 1
    """Tensors of the state."""
    can_cap = False
    """Whether it takes the option `capped`."""

    def __init__(self, inputs: int, hidden: int, rates: Rates, mogrifier: Mogrifier | None) -> None:
        super().__init__()
        self.inputs, self.hidden = inputs, hidden
        self.rates, self.mogrifier = rates, mogrifier

    def _weight(self, *shape: int) -> nn.Parameter:
        """U(-1/sqrt(H), 1/sqrt(H)), as PyTorch's own layers have it."""
        bound = 1 / math.sqrt(self.hidden)
        return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))

    @abstractmethod
    def weights(self) -> Weights:
        """The weights that `step` reads, in order; hidden-to-hidden matrices are `dropped`."""

    @abstractmethod
    def step(
        self, x: Tensor, h: Tensor, state: State, weights: Weights, keep: Tensor | None
    ) -> State:
        """The state after a step.

        x (B, inputs) and h (B, H), the last output, as the matrices see them. state: as it was,
        (B, H) each. keep (B, H): the state dropout's mask.
        """

    def chrono(self, longest: float) -> None:
        """Bias of the gate that keeps, ln U(1, T_max - 1) (Tallec and Ollivier 2018, as Melis 2023,
        section 4.4, has it): memories from 2 to T_max steps long. No effect if there is no such
        gate."""

    def remember(self, bias: float) -> None:
        """Add to the initial bias of the forget gate. No effect if there is no such gate."""

    def initial_state(self, batch: int) -> State:
        """Zeros."""
        like = next(self.parameters())
        return tuple(like.new_zeros(1, batch, self.hidden) for _ in range(self.remembered))

    def dropped(self, weight: Tensor) -> Tensor:
        """DropConnect, in training."""
        return drop_connect(weight, self.rates.weight, self.training)

    def forward(
        self, x: Tensor | PackedSequence, state: State, copies: int = 1
    ) -> tuple[Tensor | PackedSequence, State]:
        """Outputs (T, B, H), and the state after the last step.

        Sentences of several lengths come, and their outputs go, as a `PackedSequence`; each one's
        state is then that after its own last token. copies: this many consecutive rows, copies of a
        sentence, share a mask of the state dropout.
        """
        if isinstance(x, PackedSequence):
            rows, sizes = x.data, x.batch_sizes.tolist()
            state = _permuted(state, x.sorted_indices)
            outputs, state = self._over(rows, state, sizes, copies)
            return x._replace(data=outputs), _permuted(state, x.unsorted_indices)
        steps, batch, _ = x.shape
        rows = x.reshape(steps * batch, -1)
        outputs, state = self._over(rows, state, [batch] * steps, copies)
        return outputs.view(steps, batch, -1), state

    def _over(
        self, x: Tensor, state: State, sizes: Sequence[int], copies: int
    ) -> tuple[Tensor, State]:
        """x: the rows of all steps, `sizes[t]` of step t; likewise the outputs."""
        gates = self.mogrifier.factors() if self.mogrifier else ()
        weights = (*self.weights(), *gates)
        keep = None
        if self.training and self.rates.state:
            keep = mask((sizes[0], self.hidden), self.rates.state, x, copies, dim=0)
        state = tuple(tensor.squeeze(0) for tensor in state)
        path = choose(weights[0], len(sizes))
        if path == "plain":
            outputs, state = self._plain(x, state, weights, keep, sizes)
        else:
            run = self._recurrence(weights, keep is not None)
            outputs, state = run(path, x, state, weights, keep, sizes)
        return outputs, tuple(tensor.unsqueeze(0) for tensor in state)

    def _plain(
        self,
        x: Tensor,
        state: State,
        weights: Weights,
        keep: Tensor | None,
        sizes: Sequence[int],
    ) -> tuple[Tensor, State]:
        """The loop in plain PyTorch; the state of rows that have ended does not change."""
        outputs = []
        for x_t in x.split(list(sizes)):
            n = x_t.shape[0]  # which an exported graph keeps variable, as len would not
            now = tuple(tensor[:n] for tensor in state)
            new = self._step(x_t, now, weights, None if keep is None else keep[:n])
            state = tuple(torch.cat([a, b[n:]]) for a, b in zip(new, state, strict=True))
            outputs.append(new[0])
        return torch.cat(outputs), state

    def _step(self, x: Tensor, state: State, weights: Weights, keep: Tensor | None) -> State:
        """A step with dropout and mogrifier around `step`."""
        h = state[0] if keep is None else state[0] * keep
        if self.mogrifier:
            count = len(self.mogrifier.factors())
            weights, factors = weights[:-count], weights[-count:]
            h, x = mogrify(h, x, self.mogrifier.parts(factors), self.mogrifier.zigzag)
        return self.step(x, h, state, weights, keep)

    def _recurrence(self, weights: Weights, masked: bool) -> Recurrence:
        known = _recurrences.setdefault(self, {})
        if masked not in known:
            sizes = self.inputs, self.hidden, self.remembered
            known[masked] = Recurrence(trace(self._step, *sizes, weights, masked))
        return known[masked]


CELLS: Registry[Cell] = Registry("infolm.nn.cells")

_recurrences: WeakKeyDictionary[Cell, dict[bool, Recurrence]] = WeakKeyDictionary()
"""Kept outside the cells, so that these are copied and saved without them."""


def _permuted(state: State, order: Tensor | None) -> State:
    return state if order is None else tuple(tensor.index_select(1, order) for tensor in state)


def chrono_bias(size: int, longest: float) -> Tensor:
    """ln U(1, T_max - 1), (size,)."""
    return torch.empty(size).uniform_(1, longest - 1).log_()
