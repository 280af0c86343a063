"""The base of every section of a recipe."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

from infolm.trees import mapping

OF_A_RUN = {"of_a_run": True}
"""The validation context of a recipe that stands in a run's folder, every key resolved."""


def nearest(word: object, words: Iterable[str]) -> str:
    """', did you mean ...?' if one of the words is near enough, else ''."""
    spelt = {each.casefold(): each for each in words}
    match = difflib.get_close_matches(str(word).casefold(), spelt, n=1, cutoff=0.5)
    return f", did you mean '{spelt[match[0]]}'?" if match else ""


THOUSANDS = {"G": 10**9, "M": 10**6, "k": 10**3}


def count(value: Any) -> Any:
    """'24M' -> 24000000; any other text is left to the type's own check."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMG])", value) if isinstance(value, str) else None
    return round(float(match[1]) * THOUSANDS[match[2]]) if match else value


def in_short(number: int) -> str:
    """24000000 -> '24M'; all digits if the number is not round."""
    for letter, size in THOUSANDS.items():
        if number % size == 0:
            return f"{number // size}{letter}"
    return str(number)


class Section(BaseModel):
    """Typed, immutable, and strict about its keys.

    former_defaults: for a key whose default differs from what older runs did, the value for runs
    started before the key existed. A run's recipe has every key, so one that lacks the key is older
    than the key.
    """

    former_defaults: ClassVar[Mapping[str, Any]] = {}

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: Any, info: ValidationInfo) -> Any:
        if mapping(data) is not None:
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for key in data:
                if key not in known:
                    hint = f"{nearest(key, known)} (there are {', '.join(known)})"
                    raise ValueError(f"there is no key '{key}'{hint}")
            for key, value in data.items():
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    raise ValueError(f"{key} is a number beyond 64 bits: choose a smaller one")
            if info.context == OF_A_RUN:
                return {**cls.former_defaults, **data}
        return data
