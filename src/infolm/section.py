"""The base of every section of a recipe."""

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


def nearest(word: object, words: Iterable[str]) -> str:
    """', did you mean ...?' where one of the words is near enough, else nothing."""
    match = difflib.get_close_matches(str(word), list(words), n=1, cutoff=0.5)
    return f", did you mean '{match[0]}'?" if match else ""


class Section(BaseModel):
    """Typed, unchangeable, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for key in data:
                if key not in known:
                    hint = f"{nearest(key, known)} (there are {', '.join(known)})"
                    raise ValueError(f"there is no key '{key}'{hint}")
        return data
