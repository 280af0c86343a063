"""The learning rate over time, and when to stop."""

from typing import Any, Literal

from pydantic import Field

from infolm.averaging.tail import worse_than_recent
from infolm.section import Section


class ScheduleConfig(Section):
    """What happens to the learning rate when validation no longer improves."""

    kind: Literal["constant", "nonmonotone"] = Field(
        "constant", description="constant, or multiplied by `factor` at each non-improvement"
    )
    factor: float = Field(0.5, gt=0, lt=1, description="of nonmonotone")
    patience: int = Field(5, ge=1, description="of nonmonotone: the interval n, in validations")


class Schedule:
    """Constant, or `factor` times less at each non-monotone trigger (table 4, "no NT-ASGD").

    After a reduction the history starts anew: the next needs more than `patience` validations.
    """

    def __init__(self, config: ScheduleConfig) -> None:
        self.config = config
        self.scale = 1.0
        self.history: list[float] = []

    def validated(self, loss: float) -> list[str]:
        if self.config.kind == "constant":
            return []
        worse = worse_than_recent(loss, self.history, self.config.patience)
        self.history.append(loss)
        if not worse:
            return []
        self.scale *= self.config.factor
        self.history = []
        return ["rate reduced"]

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.history = state["scale"], list(state["history"])
