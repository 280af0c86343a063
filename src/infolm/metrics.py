"""Every metric, term and event described once, where it is defined.

    describe("bmi", Described("accuracy", unit="share of pairs", better="up", meaning=...))
    described("bmi/accuracy").unit

`metrics.jsonl` and `measurements.json` contain names; reports, curves, comparisons and the
command's JSON look up their descriptions here. The same name can mean different quantities: the
`nll` of a language model is the loss of the text, that of an encoder the loss of the hidden tokens.
So a description belongs to a scope: a capability (language, latent, encoder), a term of the loss
(bmi), `EVENT`, or "" if the name means the same everywhere. A name `term/name` is looked up in the
scope `term` first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

EVENT = "event"
"""The scope of events at a step."""
STDERR = "_stderr"
"""The suffix that turns a quantity's name into the name of its standard error."""


@dataclass(frozen=True)
class Described:
    """The description of a name.

    label: in words, by default the name itself. heading: of a column, by default the label. unit:
    nats are natural units; "" if there is none, or if each measurement names its own. decimals: how
    many are shown. better: which direction is better; None if neither. meaning: a sentence, or part
    of one. axis: the label of a plot's axis; quantities with the same axis share a panel, and one
    with the axis "" is drawn only if there is nothing else. ignorance: its value if the model knows
    nothing.
    """

    name: str
    label: str = ""
    unit: str = ""
    decimals: int = 4
    better: Literal["up", "down"] | None = None
    meaning: str = ""
    heading: str = ""
    axis: str | None = None
    ignorance: float | None = None

    def __post_init__(self) -> None:
        label = self.label or self.name.replace("_", " ")
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "meaning", self.meaning or label)
        object.__setattr__(self, "heading", self.heading or label)
        object.__setattr__(self, "axis", label if self.axis is None else self.axis)


_KNOWN: dict[tuple[str, str], Described] = {}


def describe(scope: str, *described: Described) -> None:
    """Register descriptions within a scope; each name once."""
    for each in described:
        if (scope, each.name) in _KNOWN:
            raise ValueError(f"'{each.name}' is described twice for '{scope}'")
        _KNOWN[scope, each.name] = each


def known(name: str, *scopes: str) -> bool:
    """Whether the name is described."""
    return _found(name, scopes) is not None


def described(name: str, *scopes: str) -> Described:
    """The description of a name in the first scope that has it, or one made from the name alone."""
    return _found(name, scopes) or Described(name.rpartition("/")[2], decimals=3)


def within(scope: str) -> Mapping[str, Described]:
    """All descriptions of a scope, by name."""
    return {name: each for (of, name), each in _KNOWN.items() if of == scope}


def _found(name: str, scopes: tuple[str, ...]) -> Described | None:
    term, _, short = name.rpartition("/")
    for scope in ([term] if term else []) + [*scopes, ""]:
        if found := _KNOWN.get((scope, short)):
            return found
    if short.endswith(STDERR) and (of := _found(name.removesuffix(STDERR), scopes)):
        label = f"standard error of {of.label}"
        return replace(of, name=short, label=label, meaning=label, better=None, ignorance=None)
    return None
