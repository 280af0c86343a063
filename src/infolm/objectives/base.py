"""What an objective is: a bound on the quantity we care about, with every term named."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor


@dataclass
class Estimate:
    """An objective's value on a batch.

    loss: the scalar to minimise, in nats per token (or per whatever `count` counts).
    terms: its parts by name, without gradient, each in its own natural unit; `nll` is one of them.
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
