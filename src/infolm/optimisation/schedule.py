"""The learning rate over time, and when to stop."""

import math
from typing import Any, Literal

from pydantic import Field

from infolm.averaging.tail import worse_than_recent
from infolm.metrics import EVENT, Described, describe
from infolm.section import Section

REDUCED = "rate reduced"
describe(
    EVENT,
    Described(REDUCED, meaning="validation no longer improved, so the learning rate was lowered"),
)


class ScheduleConfig(Section):
    """The schedule of the learning rate: fixed, or lowered when validation no longer improves."""

    kind: Literal["constant", "nonmonotone", "plateau", "linear"] = Field(
        "constant",
        description="constant; multiplied by `factor` at each non-improvement; or linear, up for "
        "`warm_up` steps and then down to 0 at the end of training",
    )
    factor: float = Field(0.5, gt=0, lt=1, description="factor of nonmonotone and plateau")
    patience: int = Field(
        5,
        ge=1,
        description="in validations: the interval n of nonmonotone; for plateau the number in a "
        "row "
        "that are no better than the best",
    )
    warm_up: int = Field(0, ge=0, description="for linear: steps in which the rate rises from 0")


def linear(step: int, progress: float, warm_up: int) -> float:
    """The factor of the rate at step 1, 2, ...: the smaller of step / warm_up and 1 - progress.

    progress: the share of training done before this step. So the rate rises to nearly its full
    height and falls linearly to 0.
    """
    return min(step / warm_up if warm_up else 1.0, 1.0 - progress)


class Schedule:
    """Constant, or `factor` times less at each non-monotone trigger (table 4, "no NT-ASGD"), or
    after `patience` validations in a row that are no better than the best ("plateau", as Livne et
    al. 2020).

    After a reduction the history is reset: the next needs more than `patience` validations for
    nonmonotone, and for plateau `patience` that are no better than the best of all.
    """

    def __init__(self, config: ScheduleConfig) -> None:
        self.config = config
        self.scale = 1.0
        self.history: list[float] = []
        self.best, self.waited = math.inf, 0  # of plateau

    def at(self, step: int, progress: float) -> float:
        """The factor of the rate at step 1, 2, ..."""
        if self.config.kind == "linear":
            return linear(step, progress, self.config.warm_up)
        return self.scale

    def validated(self, loss: float) -> list[str]:
        if self.config.kind in ("constant", "linear"):
            return []
        if self.config.kind == "plateau":
            return self._waited(loss)
        worse = worse_than_recent(loss, self.history, self.config.patience)
        self.history.append(loss)
        if not worse:
            return []
        self.scale *= self.config.factor
        self.history = []
        return [REDUCED]

    def _waited(self, loss: float) -> list[str]:
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, loss)
        if self.waited < self.config.patience:
            return []
        self.scale *= self.config.factor
        self.waited = 0
        return [REDUCED]

    def state_dict(self) -> dict[str, Any]:
        plateau = {"best": self.best, "waited": self.waited}
        return {"scale": self.scale, "history": self.history, **plateau}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.history = state["scale"], list(state["history"])
        self.best, self.waited = state.get("best", math.inf), state.get("waited", 0)
