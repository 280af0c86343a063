"""The learning rate over time, and when to stop."""

import math
from typing import Any, Literal

from pydantic import Field

from infolm.averaging.tail import worse_than_recent
from infolm.section import Section


class ScheduleConfig(Section):
    """What happens to the learning rate when validation no longer improves."""

    kind: Literal["constant", "nonmonotone", "plateau"] = Field(
        "constant", description="constant, or multiplied by `factor` at each non-improvement"
    )
    factor: float = Field(0.5, gt=0, lt=1, description="of nonmonotone and plateau")
    patience: int = Field(
        5,
        ge=1,
        description="in validations: of nonmonotone the interval n, of plateau how many in a row "
        "are no better than the best",
    )


class Schedule:
    """Constant, or `factor` times less at each non-monotone trigger (table 4, "no NT-ASGD"), or
    after `patience` validations in a row that are no better than the best ("plateau", as Livne et
    al. 2020).

    After a reduction the history starts anew: the next needs more than `patience` validations of
    nonmonotone, and `patience` of plateau that are no better than the best of all.
    """

    def __init__(self, config: ScheduleConfig) -> None:
        self.config = config
        self.scale = 1.0
        self.history: list[float] = []
        self.best, self.waited = math.inf, 0  # of plateau

    def validated(self, loss: float) -> list[str]:
        if self.config.kind == "constant":
            return []
        if self.config.kind == "plateau":
            return self._waited(loss)
        worse = worse_than_recent(loss, self.history, self.config.patience)
        self.history.append(loss)
        if not worse:
            return []
        self.scale *= self.config.factor
        self.history = []
        return ["rate reduced"]

    def _waited(self, loss: float) -> list[str]:
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, loss)
        if self.waited < self.config.patience:
            return []
        self.scale *= self.config.factor
        self.waited = 0
        return ["rate reduced"]

    def state_dict(self) -> dict[str, Any]:
        plateau = {"best": self.best, "waited": self.waited}
        return {"scale": self.scale, "history": self.history, **plateau}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.history = state["scale"], list(state["history"])
        self.best, self.waited = state.get("best", math.inf), state.get("waited", 0)
