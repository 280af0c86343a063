"""Weight averaging: which average of the iterates is kept."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from infolm.metrics import Described, describe
from infolm.registry import Registry
from infolm.section import Section

RAW = "raw"
"""The name of the iterate itself among the candidates."""
MEAN = "mean"
"""The name of the mean, if there is only one."""

describe(
    "",
    Described(RAW, unit="nats", better="down", meaning="validation loss of the iterate itself"),
    Described(MEAN, unit="nats", better="down", meaning="validation loss of the mean"),
    Described(f"train_{RAW}", unit="nats", better="down", meaning="training loss of the iterate"),
    Described(f"train_{MEAN}", unit="nats", better="down", meaning="training loss of the mean"),
)


def newest_share(count: int, beta: float) -> float:
    """The weight of the newest of `count` iterates: (1 - beta) / (1 - beta^count), 1/count if
    beta is 1."""
    return 1 / count if beta == 1 else (1 - beta) / (1 - beta**count)


class RunningMean:
    """The mean of k iterates, each weighted beta times the one after it; beta = 1: all alike.

    mean_k = mean_{k-1} + (w_k - mean_{k-1}) (1 - beta) / (1 - beta^k), tensor by tensor. This is
    sum_i beta^{k-i} w_i / sum_i beta^{k-i}: the exponential moving average with Adam's bias
    correction, so that early values are not pulled to the start. beta = 0: w_k.
    """

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = beta
        self.count = 0
        self.tensors: list[Tensor] = []

    @torch.no_grad()
    def update(self, weights: Sequence[Tensor]) -> None:
        self.count += 1
        if self.count == 1:
            self.tensors = [weight.detach().clone() for weight in weights]
        else:
            torch._foreach_lerp_(self.tensors, list(weights), newest_share(self.count, self.beta))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "tensors": self.tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.tensors = state["count"], list(state["tensors"])


class AveragerConfig(Section):
    """The section of a recipe that chooses the average. Every kind is registered.

    copies: the number of copies of the weights that it keeps.
    """

    copies: ClassVar[int] = 1
    if TYPE_CHECKING:
        kind: str

    @abstractmethod
    def build(self, model: nn.Module) -> "Averager":
        """The averager of the model's weights."""

    @property
    def judged_on_training_text(self) -> bool:
        """Whether averages are compared by their loss on the training split."""
        return False

    def fault(self, recipe: Any) -> str | None:
        """Why it cannot be used in this recipe, in a sentence."""
        return None

    def unused(self, events: Sequence[str] = ()) -> str | None:
        """A warning if no average was ever chosen, in a training with these events in order; None
        if that cannot happen."""
        return None


AVERAGERS: Registry[AveragerConfig] = Registry("infolm.averaging")


class Averager(ABC):
    """Averages the iterates and chooses the weights to keep.

    The loop calls `update` after each step of the optimiser. At each validation it measures every
    one of `candidates` with those weights swapped in, calls `answer` for the best, and then passes
    the losses to `validated`, which returns events (`triggered`, ...); until then only `update`
    changes anything. Weights are the model's trainable parameters, in their order.
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
        """The candidate to keep, by the losses just measured."""
        return self.candidates()[0]

    def validated(self, losses: dict[str, float], progress: float) -> list[str]:
        """Called with the losses after each validation; progress: the share of training done.
        Returns events."""
        return []

    def lengths(self) -> dict[str, int]:
        """The number of iterates in each mean now, if the averager decides on it.

        Before `validated` they belong to the losses just measured.
        """
        return {}

    def unused(self) -> str | None:
        """At the end of training: a sentence on why no average was ever chosen, if so."""
        return None

    @abstractmethod
    def weights(self, candidate: str) -> Sequence[Tensor]:
        """The tensors of a candidate that is not `RAW`."""

    @contextmanager
    def swapped_in(self, candidate: str) -> Iterator[None]:
        """Inside, the model has the candidate's weights; afterwards its own, to the bit."""
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


class OneMean(Averager, ABC):
    """Keeps a running mean of iterates; before it has any, the iterate itself."""

    def __init__(self, model: nn.Module, beta: float = 1.0) -> None:
        super().__init__(model)
        self.mean = RunningMean(beta)

    def candidates(self) -> tuple[str, ...]:
        return (MEAN,) if self.mean.count else (RAW,)

    def weights(self, candidate: str) -> Sequence[Tensor]:
        return {MEAN: self.mean.tensors}[candidate]

    def state_dict(self) -> dict[str, Any]:
        return self.mean.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean.load_state_dict(state)
