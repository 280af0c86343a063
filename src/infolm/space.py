"""The search space of a study: keys of the recipe, each with its range."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator

from infolm.section import Section
from infolm.trees import mapping

if TYPE_CHECKING:
    from optuna.trial import Trial

Value = bool | int | float | str | None


class Between(Section):
    """Numbers from `low` to `high`, both included."""

    low: float = Field(description="the least number drawn")
    high: float = Field(description="the greatest")
    log: bool = Field(False, description="spread evenly over the logarithm")
    integer: bool = Field(False, description="whole numbers only")
    clamp: float | None = Field(
        None, description="smaller draws become this value, so a share of the trials has exactly it"
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low ({self.low:g}) must be below high ({self.high:g})")
        if self.log and self.low <= 0:
            raise ValueError(f"a log range needs a low above 0, not {self.low:g}")
        if self.integer and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError("an integer range needs whole numbers for low and high")
        return self

    def suggest(self, trial: "Trial", key: str) -> float:
        """The number drawn for `trial`; an earlier draw is kept."""
        if self.integer:
            return trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(key, self.low, self.high, log=self.log)

    def value(self, drawn: float) -> float:
        """The recipe's value: the number drawn, clamped."""
        clamped = drawn if self.clamp is None else max(drawn, self.clamp)
        return int(clamped) if self.integer else clamped

    def unit(self, drawn: float) -> float:
        """The position of a number in the range: 0 at `low`, 1 at `high`."""
        low, high = self.low, self.high
        if self.log:
            low, high, drawn = math.log(low), math.log(high), math.log(drawn)
        return (drawn - low) / (high - low)

    def ends(self) -> list[Value]:
        """Values that the recipe must all accept."""
        return [self.value(self.low), self.value(self.high)]


def short(value: Value) -> str:
    """A value of a range for a person to read."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Choices(Section):
    """One of a few values."""

    choices: list[Value] = Field(min_length=1, description="values of the key")

    def suggest(self, trial: "Trial", key: str) -> Value:
        return trial.suggest_categorical(key, self.choices)

    def value(self, drawn: Value) -> Value:
        return drawn

    def unit(self, drawn: Value) -> float:
        """The first choice is at 0, the last at 1; a single choice in the middle."""
        last = len(self.choices) - 1
        return self.choices.index(drawn) / last if last else 0.5

    def ends(self) -> list[Value]:
        return self.choices


def _kind(section: Any) -> str:
    """The key's value in a section, or in the mapping a section is read from."""
    chosen = mapping(section) or getattr(section, "__dict__", {})
    return "choices" if "choices" in chosen else "between"


Range = Annotated[
    Annotated[Between, Tag("between")] | Annotated[Choices, Tag("choices")], Discriminator(_kind)
]
Space = Mapping[str, Between | Choices]
"""Dotted path of a key in the recipe -> its range."""


def suggest(space: Space, trial: "Trial") -> None:
    """Draw the keys that `trial` lacks; earlier draws are kept."""
    for key, section in space.items():
        section.suggest(trial, key)


def values(space: Space, drawn: Mapping[str, Any]) -> dict[str, Value]:
    """The recipe's values for the numbers drawn."""
    return {key: section.value(drawn[key]) for key, section in space.items() if key in drawn}
