"""What an objective is: a bound on the quantity we care about, with every term named."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

TIES = "ties"
"""The term beside `accuracy`: the share of what it counts where the right one was tied."""


@dataclass
class Estimate:
    """An objective's value on a batch.

    loss: the scalar to minimise, in nats per token (or per whatever `count` counts).
    terms: its parts by name, without gradient, each in its own natural unit; `nll` is one of them
    where the objective is the main one.
    count: how many tokens the average is over. per: how many of whatever a term is a mean over, by
    its name, where that is not the tokens: `count` decides how much a batch weighs in the records.
    carry: what the objective wants back at the next batch (the hidden state of a stream).
    """

    loss: Tensor
    terms: dict[str, Tensor]
    count: int
    carry: Any = field(default=None, repr=False)
    per: Mapping[str, int] = field(default_factory=dict)


class Objective(Protocol):
    """A pure function of model, batch and carry; `carry` is None at the very first batch."""

    def __call__(self, model: Any, batch: Any, carry: Any) -> Estimate: ...


class Stateful(ABC):
    """An objective with a course of its own: a weight that rises, a phase that ends.

    The loop keeps its state in checkpoints and tells it what happens.
    """

    @abstractmethod
    def __call__(self, model: Any, batch: Any, carry: Any) -> Estimate: ...

    def validated(
        self, events: Sequence[str], progress: float, terms: Mapping[str, float]
    ) -> list[str]:
        """Hear what a validation found and led to, at which share of training; gives events of its
        own. terms: the parts of the validation loss, if it has any."""
        return []

    def held_out(self, model: Any) -> Mapping[str, float]:
        """What is worth knowing of it on text that is not learnt from, by name; read at each
        validation, with the weights that are the answer."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Learner(Stateful):
    """An objective with weights and an optimiser of its own, a critic's for instance.

    The loop steps it together with the model, and keeps it beside the best weights too.
    """

    @abstractmethod
    def step(self) -> None:
        """One step of its optimiser along the gradient that has been added up."""

    @abstractmethod
    def discard(self) -> None:
        """Forget that gradient."""
