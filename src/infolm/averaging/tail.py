"""No average, the mean of all iterates or of a tail of them, and NT-ASGD's triggered tail."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field
from torch import Tensor, nn

from infolm.averaging.base import AVERAGERS, RAW, Averager, AveragerConfig, OneMean
from infolm.metrics import EVENT, Described, describe

Criterion = Literal["paper", "released", "stalled"]
TRIGGERED, DIVERGED = "triggered", "diverged"
"""Events: averaging starts; training goes back to its best validation."""

describe(EVENT, Described(TRIGGERED, meaning="from here on the mean of the iterates is kept"))


def stagnating(losses: Sequence[float], patience: int) -> bool:
    """Whether the last `patience` of the losses are all no better than the best before them.

    Of Two-Tailed Averaging the thesis says "for a few evaluations"; in its figure 3.6 the loss is
    lowest at 40E and the reset comes at 43E, so the default patience there is 3.
    """
    return len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])


def worse_than_recent(
    newest: float, history: Sequence[float], patience: int, criterion: Criterion = "paper"
) -> bool:
    """NT-ASGD's non-monotonic criterion (Merity et al. 2017, Algorithm 1, line 6).

    `history` are the validation losses before `newest`. `paper`: newest is worse than the best of
    the last `patience`. `released`: newest is worse than the best of all but the last `patience`,
    as in the authors' program, which waits longer if the curve is noisy. Neither is true
    before more than `patience` losses. `stalled`: none of the last `patience` losses, newest
    included, is better than the best before them, as in the program of Melis et al. (2020).
    """
    if criterion == "stalled":
        return stagnating([*history, newest], patience)
    if len(history) <= patience:
        return False
    window = history[-patience:] if criterion == "paper" else history[:-patience]
    return newest > min(window)


@AVERAGERS.register
class NoAverageConfig(AveragerConfig):
    """No averaging: the iterate itself is kept."""

    copies = 0
    kind: Literal["none"] = "none"

    def build(self, model: nn.Module) -> "NoAverage":
        return NoAverage(model)


@AVERAGERS.register
class PolyakConfig(AveragerConfig):
    """Polyak-Ruppert averaging: the mean of all iterates."""

    kind: Literal["polyak"] = "polyak"

    def build(self, model: nn.Module) -> "Tail":
        return Tail(model, self, start=0, every=1)


@AVERAGERS.register
class TailConfig(AveragerConfig):
    """The mean of the iterates from a given step on."""

    kind: Literal["tail"] = "tail"
    start: int = Field(0, ge=0, description="average from the weights after this step on; 0: all")

    def build(self, model: nn.Module) -> "Tail":
        return Tail(model, self, self.start, every=1)

    def fault(self, recipe: Any) -> str | None:
        return _never_begins(self.start, recipe.train.max_steps)

    def unused(self, events: Sequence[str] = ()) -> str:
        return _never_begun(self.start)


@AVERAGERS.register
class SwaConfig(AveragerConfig):
    """Stochastic weight averaging: the mean of some of the iterates from a given step on."""

    kind: Literal["swa"] = "swa"
    start: int = Field(0, ge=0, description="average from the weights after this step on")
    every: int = Field(100, ge=1, description="steps from one iterate of the mean to the next")

    def build(self, model: nn.Module) -> "Tail":
        return Tail(model, self, self.start, self.every)

    def fault(self, recipe: Any) -> str | None:
        return _never_begins(self.start, recipe.train.max_steps)

    def unused(self, events: Sequence[str] = ()) -> str:
        return _never_begun(self.start)


@AVERAGERS.register
class TriggeredConfig(AveragerConfig):
    """NT-ASGD: the mean of the iterates from the first non-improvement on."""

    kind: Literal["triggered"] = "triggered"
    patience: int = Field(5, ge=1, description="the non-monotone interval n, in validations")
    criterion: Criterion = Field(
        "paper",
        description="Algorithm 1 (paper), the authors' program (released), or stalled: the best "
        "loss is `patience` validations old, as Melis et al. (2020)",
    )
    latest: float = Field(
        1.0, gt=0, le=1, description="trigger at this share of training at the latest; 1: never"
    )

    def build(self, model: nn.Module) -> "Triggered":
        return Triggered(model, self)

    def unused(self, events: Sequence[str] = ()) -> str:
        last = [event for event in events if event in (TRIGGERED, DIVERGED)][-1:]
        if last == [TRIGGERED]:
            return (
                "averaging was triggered by the last validation, with no step left to average, so "
                "a single iterate is kept: validate more often (train.validate_every), lower "
                "averaging.patience or averaging.latest, or train longer"
            )
        if TRIGGERED in events:
            return (
                "averaging was triggered, but then training diverged and went back to before that, "
                "and it was not triggered again, so a single iterate is kept: lower "
                "optimiser.learning_rate, or averaging.patience or averaging.latest"
            )
        return (
            "averaging was not triggered before the last validation, as the loss kept improving or "
            f"there were fewer than {self.patience + 2} validations, so a single iterate is "
            "kept: set averaging.latest below 1, lower averaging.patience, or train longer"
        )


def _never_begins(start: int, steps: int | None) -> str | None:
    if steps is None or start <= steps:
        return None
    return (
        f"averaging.start is {start:,}, but training ends after step {steps:,}, so averaging would "
        "never start: lower it, or raise train.max_steps"
    )


def _never_begun(start: int) -> str:
    return (
        f"averaging never started, as training ended before step {start:,} (averaging.start), so "
        "a single iterate is kept: lower averaging.start or train longer"
    )


class NoAverage(Averager):
    """The iterate itself, always."""

    def update(self, step: int) -> None:
        pass

    def candidates(self) -> tuple[str, ...]:
        return (RAW,)

    def weights(self, candidate: str) -> Sequence[Tensor]:
        raise KeyError(candidate)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Tail(OneMean):
    """The mean of w_T, w_{T+c}, w_{T+2c}, ... up to now, with T = `start` and c = `every`.

    w_i are the weights after step i, w_0 the initial ones. c = 1 is tail averaging,
    1/(K-T+1) sum_{i=T}^{K} w_i (thesis, eq. 3.2), and T = 0 with it Polyak's average; c > 1 is
    stochastic weight averaging, whose learning rate the schedule sets.
    """

    def __init__(self, model: nn.Module, config: AveragerConfig, start: int, every: int) -> None:
        super().__init__(model)
        self.config, self.start, self.every = config, start, every
        if self.start == 0:
            self.mean.update(self.parameters)

    def update(self, step: int) -> None:
        if step >= self.start and (step - self.start) % self.every == 0:
            self.mean.update(self.parameters)

    def unused(self) -> str | None:
        return None if self.mean.count else self.config.unused()


class Triggered(OneMean):
    """NT-ASGD (Merity et al. 2017, Algorithm 1): a tail whose start is found during training.

    Validation happens every L steps; when the newest loss is worse than the recent best (see
    `worse_than_recent`), or at the share `latest` of training, averaging starts with the present
    weights. The trigger is undone only where training diverges and goes back to before it.
    """

    def __init__(self, model: nn.Module, config: TriggeredConfig) -> None:
        super().__init__(model)
        self.config = config
        self.history: list[float] = []
        self.undone = False

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
        self.mean.update(self.parameters)
        return [TRIGGERED]

    def unused(self) -> str | None:
        if self.mean.count > 1:
            return None
        # One iterate: the trigger came with the last validation, and the mean was not measured.
        undone = [TRIGGERED, DIVERGED] if self.undone else []
        return self.config.unused([TRIGGERED] if self.mean.count else undone)

    def state_dict(self) -> dict[str, Any]:
        state = {"history": self.history, "mean": self.mean.state_dict()}
        return state | ({"undone": True} if self.undone else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        back = self.mean.count > 0 and not state["mean"]["count"]
        self.undone = self.undone or back or state.get("undone", False)
        self.history = list(state["history"])
        self.mean.load_state_dict(state["mean"])
