"""What an objective is: a bound on the quantity we care about, with every term named."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor


@dataclass
class Estimate:
    """An objective's value on a batch.

    loss: the scalar to minimise, in nats per token (or per whatever `count` counts).
    terms: its parts by name, without gradient, each in its own natural unit; `nll` is one of them
    where the objective is the main one.
    count: how many tokens the average is over.
    carry: what the objective wants back at the next batch (the hidden state of a stream).
    """

    loss: Tensor
    terms: dict[str, Tensor]
    count: int
    carry: Any = field(default=None, repr=False)


class Objective(Protocol):
    """A pure function of model, batch and carry; `carry` is None at the very first batch."""

    def __call__(self, model: Any, batch: Any, carry: Any) -> Estimate: ...


class Learner(ABC):
    """An objective with weights and an optimiser of its own, a critic's for instance.

    The loop steps it together with the model, keeps it in checkpoints and beside the best weights,
    and tells it what happens.
    """

    @abstractmethod
    def __call__(self, model: Any, batch: Any, carry: Any) -> Estimate: ...

    @abstractmethod
    def step(self) -> None:
        """One step of its optimiser along the gradient that has been added up."""

    @abstractmethod
    def discard(self) -> None:
        """Forget that gradient."""

    @abstractmethod
    def validated(self, events: Sequence[str], progress: float) -> list[str]:
        """Hear what a validation led to, at which share of training; gives events of its own."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
