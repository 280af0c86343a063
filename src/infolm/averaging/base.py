"""Which average of the iterates is the answer."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

RAW = "raw"
"""The name of the iterate itself among the candidates."""


class RunningMean:
    """mean_k = mean_{k-1} + (w_k - mean_{k-1}) / k, tensor by tensor."""

    def __init__(self) -> None:
        self.count = 0
        self.tensors: list[Tensor] = []

    @torch.no_grad()
    def update(self, weights: Sequence[Tensor]) -> None:
        self.count += 1
        if self.count == 1:
            self.tensors = [weight.detach().clone() for weight in weights]
        else:
            torch._foreach_lerp_(self.tensors, list(weights), 1 / self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "tensors": self.tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.tensors = state["count"], list(state["tensors"])


class Averager(ABC):
    """Watches the iterates and names the weights that are the answer.

    The loop calls `update` after each step of the optimiser. At each validation it measures every
    one of `candidates` with those weights swapped in, asks which is the `answer`, and then tells
    the losses to `validated`, which says what follows from them (the event `triggered`, ...).
    Weights are the model's trainable parameters, in their order.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    @abstractmethod
    def update(self, step: int) -> None:
        """After optimiser step number `step` (from 1)."""

    @abstractmethod
    def candidates(self) -> tuple[str, ...]:
        """The weights to measure now; `RAW` is the iterate itself."""

    def answer(self, losses: dict[str, float]) -> str:
        """The candidate that is the answer, by the losses just measured."""
        return self.candidates()[0]

    @abstractmethod
    def validated(self, losses: dict[str, float], progress: float) -> list[str]:
        """Hear the losses; `progress` is the share of training that is done. Gives events."""

    @abstractmethod
    def weights(self, candidate: str) -> Sequence[Tensor]:
        """The tensors of a candidate that is not `RAW`."""

    @contextmanager
    def swapped_in(self, candidate: str) -> Iterator[None]:
        """Inside, the model has the candidate's weights; after, its own again, to the bit."""
        if candidate == RAW:
            yield
            return
        own = [parameter.data for parameter in self.parameters]
        try:
            for parameter, tensor in zip(self.parameters, self.weights(candidate), strict=True):
                parameter.data = tensor
            yield
        finally:
            for parameter, tensor in zip(self.parameters, own, strict=True):
                parameter.data = tensor

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
