"""Two-Tailed Averaging (Melis 2022; 2023, chapter 3): a tail whose start need not be chosen."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field
from torch import Tensor, nn

from infolm.averaging.base import AVERAGERS, RAW, Averager, AveragerConfig, RunningMean
from infolm.averaging.tail import stagnating
from infolm.metrics import EVENT, Described, describe

SHORT, LONG = "short", "long"

for _name in (SHORT, LONG):
    describe(
        "",
        Described(
            _name, unit="nats", better="down", meaning=f"validation loss of the {_name} mean"
        ),
        Described(f"train_{_name}", unit="nats", better="down"),
        Described(f"{_name}_length", f"length of the {_name} mean", "iterates", decimals=0),
    )
describe(
    EVENT,
    Described(
        "switched",
        meaning="the short mean was as good as the long one, or the long one had stopped "
        "improving, so "
        "the short one became the long one",
    ),
    Described("emptied", meaning="the short mean had stopped improving, so it was restarted"),
    Described(
        "restarted",
        meaning="the iterate was better than the mean of those since the validation before, so "
        "both means were restarted",
    ),
)


@AVERAGERS.register
class TwoTailedConfig(AveragerConfig):
    """2TA: the longer of two running means, replaced by the shorter as soon as that is as good."""

    copies = 2
    kind: Literal["two-tailed"] = "two-tailed"
    extensions: bool = Field(True, description="Algorithm 2; otherwise the core, Algorithm 1")
    patience: int = Field(
        3, ge=1, description="validations without improvement after which a mean is stagnating"
    )
    switch_on: Literal["valid", "train"] = Field(
        "valid",
        description="the split whose losses decide on the means; reports and the choice of the "
        "kept weights "
        "always use the validation split",
    )
    switch_tokens: int | None = Field(
        None, ge=2, description="with switch_on train: use this many first tokens; none: all"
    )

    @property
    def judged_on_training_text(self) -> bool:
        return self.switch_on == "train"

    def build(self, model: nn.Module) -> "TwoTailed":
        return TwoTailed(model, self)

    def fault(self, recipe: Any) -> str | None:
        model, feed = recipe.model, recipe.feed
        if self.switch_on == "valid" or (model.capability, feed.kind) == ("language", "stream"):
            return None
        return (
            "averaging.switch_on train measures a running text, which needs a language model and "
            f"feed.kind stream, not model.kind {model.kind} and {feed.kind}: set "
            "averaging.switch_on=valid"
        )

    def unused(self, events: Sequence[str] = ()) -> str:
        return (
            "at every validation the iterate was better than the mean of the iterates since the "
            "previous one, so a single iterate is kept: train longer, or validate more often "
            "(train.validate_every)"
        )


class _Tail(RunningMean):
    """A running mean with the losses it was measured at."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.losses = list(state["losses"])


class _Verdict(NamedTuple):
    """The decision after a validation: the weights to keep, and the changes of the two means."""

    answer: str
    switch: bool = False  # the short mean becomes the long one, and a new short one starts
    empty: bool = False  # the short mean is restarted
    restart: bool = False  # both are restarted


class TwoTailed(Averager):
    """Keeps a short and a long running mean of the iterates, of S <= L of them.

    Every iterate goes into both. At each validation, E steps after the one before, with the losses
    F1, FS and FL of the iterate and of the two means (Algorithm 2; what only the extensions do is
    in brackets):

        if FS <= FL [or FL is stagnating]:  S, L <- 0, S: the short mean becomes the long one
        [else if FS is stagnating:          S <- 0]
        [if L > 1 and F1 <= FL:             the answer is the iterate; if L = E, also S, L <- 0, 0]
        else                                the answer is the long mean

    At the first validation after a start both means are the same; they are measured once, and the
    switch only starts a short one. Files, measurements and `answer` use the names before the
    switch: after one, the answer is `short`. A mean keeps its losses through a switch, and these
    decide whether it stagnates.

    The losses are those of the validation split, or with `switch_on: train` of the training split
    (section 3.6, ii). The thesis found 3.93 nats so on the validation split, and else 3.92.
    """

    def __init__(self, model: nn.Module, config: TwoTailedConfig) -> None:
        super().__init__(model)
        self.config = config
        self.short, self.long = _Tail(), _Tail()
        self.period = 0  # steps since the last validation: E, when the next one comes
        self.used = False  # whether a mean has been the answer

    def update(self, step: int) -> None:
        self.short.update(self.parameters)
        self.long.update(self.parameters)
        self.period += 1

    def candidates(self) -> tuple[str, ...]:
        if self.short.count == self.long.count:
            return (RAW, LONG) if self.long.count else (RAW,)
        return (RAW, SHORT, LONG) if self.short.count else (RAW, LONG)

    def lengths(self) -> dict[str, int]:
        return {SHORT: self.short.count, LONG: self.long.count}

    def answer(self, losses: dict[str, float]) -> str:
        return self._judge(losses).answer

    def _judge(self, losses: dict[str, float]) -> _Verdict:
        if not self.long.count:
            return _Verdict(RAW)
        best, length = LONG, self.long.count
        short = SHORT if SHORT in losses else LONG  # the same weights, measured once
        switch = self.short.count > 0 and (
            losses[short] <= losses[LONG] or self._stagnating(self.long, losses[LONG])
        )
        empty = not switch and self._stagnating(self.short, losses[short])
        if switch:
            best, length = short, self.short.count
        if self.config.extensions and length > 1 and losses[RAW] <= losses[best]:
            return _Verdict(RAW, switch, empty, restart=length == self.period)
        return _Verdict(best, switch, empty)

    def _stagnating(self, tail: _Tail, newest: float) -> bool:
        return self.config.extensions and stagnating([*tail.losses, newest], self.config.patience)

    def validated(self, losses: dict[str, float], progress: float) -> list[str]:
        verdict = self._judge(losses)
        events = []
        if self.long.count:
            self.long.losses.append(losses[LONG])
        if self.short.count:
            self.short.losses.append(losses.get(SHORT, losses[LONG]))
        if verdict.switch:
            if SHORT in losses:
                events.append("switched")
            self.short, self.long = _Tail(), self.short
        if verdict.empty:
            events.append("emptied")
            self.short = _Tail()
        if verdict.restart:
            events.append("restarted")
            self.short, self.long = _Tail(), _Tail()
        self.period = 0
        self.used = self.used or verdict.answer != RAW
        return events

    def unused(self) -> str | None:
        return None if self.used else self.config.unused()

    def weights(self, candidate: str) -> Sequence[Tensor]:
        return {SHORT: self.short.tensors, LONG: self.long.tensors}[candidate]

    def state_dict(self) -> dict[str, Any]:
        return {
            "short": self.short.state_dict(),
            "long": self.long.state_dict(),
            "period": self.period,
            "used": self.used,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.short.load_state_dict(state["short"])
        self.long.load_state_dict(state["long"])
        self.period, self.used = state["period"], state["used"]
