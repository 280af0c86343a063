"""No average, the average of a tail, and NT-ASGD's triggered tail."""

from abc import ABC
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field
from torch import Tensor, nn

from infolm.averaging.base import RAW, Averager, RunningMean
from infolm.section import Section

MEAN = "mean"
Criterion = Literal["paper", "released"]


def worse_than_recent(
    newest: float, history: Sequence[float], patience: int, criterion: Criterion = "paper"
) -> bool:
    """NT-ASGD's non-monotonic criterion (Merity et al. 2017, Algorithm 1, line 6).

    `history` are the validation losses before `newest`. Never true before more than `patience`
    of them. `paper`: newest is worse than the best of the last `patience`. `released`: newest is
    worse than the best of all but the last `patience`, as the authors' program has it, which waits
    longer where the curve is noisy.
    """
    if len(history) <= patience:
        return False
    window = history[-patience:] if criterion == "paper" else history[:-patience]
    return newest > min(window)


class NoAverageConfig(Section):
    """The last iterate is the answer."""

    kind: Literal["none"] = "none"


class TailConfig(Section):
    """The mean of the iterates from a given step on."""

    kind: Literal["tail"] = "tail"
    start: int = Field(0, ge=0, description="average from the weights after this step on; 0: all")


class TriggeredConfig(Section):
    """NT-ASGD: the mean of the iterates from the first non-improvement on."""

    kind: Literal["triggered"] = "triggered"
    patience: int = Field(5, ge=1, description="the non-monotone interval n, in validations")
    criterion: Criterion = Field("paper", description="Algorithm 1, or the authors' program")
    latest: float = Field(
        1.0, gt=0, le=1, description="trigger at this share of training at the latest; 1: never"
    )


class _Tail(Averager, ABC):
    """The mean of the iterates since `_begin`; before that, the iterate itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.mean = RunningMean()

    def _begin(self) -> None:
        self.mean.update(self.parameters)

    def candidates(self) -> tuple[str, ...]:
        return (MEAN,) if self.mean.count else (RAW,)

    def weights(self, candidate: str) -> Sequence[Tensor]:
        return {MEAN: self.mean.tensors}[candidate]


class NoAverage(_Tail):
    """The iterate itself, always."""

    def update(self, step: int) -> None:
        pass

    def validated(self, losses: dict[str, float], progress: float) -> list[str]:
        return []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Tail(_Tail):
    """1/(K-T+1) sum_{i=T}^{K} w_i, with T = `start`: w_i are the weights after step i, w_0 the
    initial ones."""

    def __init__(self, model: nn.Module, config: TailConfig) -> None:
        super().__init__(model)
        self.start = config.start
        if self.start == 0:
            self._begin()

    def update(self, step: int) -> None:
        if step >= self.start:
            self.mean.update(self.parameters)

    def validated(self, losses: dict[str, float], progress: float) -> list[str]:
        return []

    def state_dict(self) -> dict[str, Any]:
        return self.mean.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean.load_state_dict(state)


class Triggered(_Tail):
    """NT-ASGD (Merity et al. 2017, Algorithm 1): a tail whose start is found on the way.

    Validation happens every L steps; when the newest loss is worse than the recent best (see
    `worse_than_recent`), or at the share `latest` of training, averaging starts with the present
    weights. The trigger cannot be undone.
    """

    def __init__(self, model: nn.Module, config: TriggeredConfig) -> None:
        super().__init__(model)
        self.config = config
        self.history: list[float] = []

    def update(self, step: int) -> None:
        if self.mean.count:
            self.mean.update(self.parameters)

    def validated(self, losses: dict[str, float], progress: float) -> list[str]:
        if self.mean.count:
            return []
        newest = losses[RAW]
        worse = worse_than_recent(newest, self.history, self.config.patience, self.config.criterion)
        late = self.config.latest < 1 and progress >= self.config.latest
        self.history.append(newest)
        if not (worse or late):
            return []
        self._begin()
        return ["triggered"]

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "mean": self.mean.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = list(state["history"])
        self.mean.load_state_dict(state["mean"])
