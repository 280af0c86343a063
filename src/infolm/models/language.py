"""The interface of language models: tokens in, distributions over the next token out.

Every evaluation, sampler and regulariser uses only this interface. A new one is a subclass and its
registered section: see `docs/architecture.md`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import singledispatch
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from infolm.models.base import Model
from infolm.nn.dropout import Rates
from infolm.nn.softmax import Softmax, Tempering

State = Any
"""The state that a model carries from one chunk of a text to the next, for B columns.

It is opaque to all but the model that made it. It consists of tensors in lists, tuples and
dictionaries, so that a checkpoint can store it.
"""


class Output(NamedTuple):
    """hidden: the last layer's output (T, B, H); dropped: the same after the output dropout, which
    the softmax reads; layers: every layer's output; state: after the last step.

    For packed sentences, rows (N, H), and the state after each one's last token."""

    hidden: Tensor
    dropped: Tensor
    layers: list[Tensor]
    state: State


class LanguageModel(Model, ABC):
    """p(w_{t+1} | w_1 ... w_t); tokens are time-major, (T, B).

    embedding: the word vectors (V, E). softmax: reads `Output.dropped`, shares the embedding if
    they are tied. rates: all dropout rates, so that they can be scaled.
    """

    rates: Rates
    embedding: nn.Parameter
    softmax: Softmax

    # -- to be implemented ------------------------------------------------------------------

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """The state before any token."""

    @abstractmethod
    def forward(self, tokens: Tensor | PackedSequence, state: State) -> Output:
        """tokens: (T, B), or packed sentences -> what predicts the token after each.

        Reading a text in one pass or in chunks with a carried state gives the same up to rounding.
        """

    @abstractmethod
    def selected(self, state: State, columns: Tensor) -> State:
        """The columns with these numbers, (C,), in this order; a number may occur several times."""

    @abstractmethod
    def joined(self, states: Sequence[State]) -> State:
        """The concatenated columns of several states; they may have read texts of any length."""

    @abstractmethod
    def kept(self, state: State, columns: Tensor) -> State:
        """The state with the columns that are False in (B,) reset to the initial state."""

    @property
    @abstractmethod
    def widths(self) -> list[int]:
        """Columns of every layer's output."""

    # -- derived ----------------------------------------------------------------------------

    @property
    def one_mask(self) -> bool:
        """Whether some dropout has one mask for all columns, so that samples cannot share a
        batch."""
        return bool(self.rates.embedding or self.rates.weight)

    @property
    def activations(self) -> int:
        """Approximate memory of a token in the forward pass, in numbers."""
        return 8 * sum(self.widths)

    def detached(self, state: State) -> State:
        """The same without gradient."""
        return _map(state, Tensor.detach)

    def dropout_scaled(self, factor: float) -> AbstractContextManager[None]:
        """Inside, every dropout rate is `factor` times the recipe's."""
        return self.rates.scaled(factor)

    def nll_sum(
        self,
        x: Tensor,
        targets: Tensor,
        counts: Tensor | None = None,
        sizes: Tensor | None = None,
    ) -> Tensor:
        """Summed -ln p(target | x) in nats, differentiable; x: (..., H), targets: (...).

        With x (..., D, H), p is the mean over D dropout samples. A target of -1 does not count.
        counts: the weight of each target, shaped like them; none: 1. sizes: of packed sentences,
        how many rows each step has.
        """
        return self.softmax.nll_sum(x, targets, self.embedding, counts, sizes)

    def log_prob(
        self,
        x: Tensor,
        targets: Tensor,
        temperature: float = 1.0,
        tempering: Tempering = "mixture",
    ) -> Tensor:
        """ln p(target | x) of each token, without gradient."""
        return self.softmax.log_prob(x, targets, self.embedding, temperature, tempering)

    def log_probs(self, x: Tensor, temperature: float = 1.0) -> Tensor:
        """ln p(. | x) over the whole vocabulary, (..., V)."""
        return self.softmax.log_probs(x, self.embedding, temperature)


@singledispatch
def _map(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """`function` of every tensor of a state."""
    return state


@_map.register
def _(state: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    return function(state)


@_map.register
def _(state: dict, function: Callable[[Tensor], Tensor]) -> Any:  # type: ignore[type-arg]
    return {key: _map(part, function) for key, part in state.items()}


@_map.register(list)
@_map.register(tuple)
def _(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    return type(state)(_map(part, function) for part in state)
