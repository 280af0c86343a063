"""Every metric, term and event described once, where it is defined.

    describe("bmi", Described("accuracy", unit="share of pairs", better="up", meaning=...))
    described("bmi/accuracy").unit

`metrics.jsonl` and `measurements.json` have names; reports, curves, comparisons and the command's
JSON read here what is behind a name. The same name can be different quantities: the `nll` of a
language model is the loss of the text, that of an encoder of what was hidden. So a description is
of a scope: what the model can do (language, latent, encoder), a term of the loss (bmi), `EVENT`, or
"" where a name is the same everywhere. A name `term/name` is sought in the scope `term` first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

EVENT = "event"
"""The scope of what happens at a step."""
STDERR = "_stderr"
"""What follows the name of a quantity in the name of its standard error."""


@dataclass(frozen=True)
class Described:
    """What is behind a name.

    label: in words, by default the name's own. heading: of a column, by default the label. unit:
    nats are natural units; "" where it has none, or each measurement says its own. decimals: how
    many are shown. better: which way is better; None where neither is. meaning: a sentence, or part
    of one. axis: what a plot's axis says: quantities of one axis share a panel, and one of the axis
    "" is drawn only where there is nothing else. ignorance: its value if the model knows nothing.
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
    """Make names known within a scope; each once."""
    for each in described:
        if (scope, each.name) in _KNOWN:
            raise ValueError(f"'{each.name}' is described twice for '{scope}'")
        _KNOWN[scope, each.name] = each


def known(name: str, *scopes: str) -> bool:
    """Whether anybody has described the name."""
    return _found(name, scopes) is not None


def described(name: str, *scopes: str) -> Described:
    """What is known of a name in the first of the scopes that has it, or by its name alone."""
    return _found(name, scopes) or Described(name.rpartition("/")[2], decimals=3)


def within(scope: str) -> Mapping[str, Described]:
    """All that a scope has, by name."""
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
