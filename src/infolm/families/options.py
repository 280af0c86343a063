"""Options that belong to a family: described once, as the fields of a dataclass.

    @dataclass(frozen=True)
    class Evaluate:
        mc: int = option(0, "With probabilities averaged over so many dropout masks.", min=0)

The command line makes its options from the fields, and the library takes them by name. Nothing
heavy is imported here: `infolm --help` reads these classes.
"""

from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any

from infolm.errors import InfolmError
from infolm.section import nearest


def option(
    default: Any,
    about: str,
    flag: str = "",
    *,
    metavar: str | None = None,
    panel: str | None = None,
    shown: str | bool = True,
    min: float | None = None,
) -> Any:
    """A field of an options class.

    about: the help. flag: its name on the command line, where that is not the field's. shown: the
    default as the help tells it.
    """
    told = {"about": about, "flag": flag, "metavar": metavar, "panel": panel}
    return field(default=default, metadata={**told, "shown": shown, "min": min})


def flag(name: str, described: Mapping[str, Any]) -> str:
    """What an option is called on the command line."""
    return described["flag"] or f"--{name.replace('_', '-')}"


def given(values: Mapping[str, Any], kinds: tuple[type, ...]) -> dict[str, str]:
    """The options among `values` that differ from their defaults: name -> flag."""
    known = {each.name: each for kind in kinds for each in fields(kind)}
    return {
        name: flag(name, known[name].metadata)
        for name, value in values.items()
        if name in known and value != known[name].default
    }


def chosen(kind: type, values: Mapping[str, Any]) -> Any:
    """An instance of an options class from values by name, or a sentence on those it lacks."""
    known = [each.name for each in fields(kind)]
    for name in values:
        if name not in known:
            raise InfolmError(
                f"there is no option '{name}' here{nearest(name, known)} (there are "
                f"{', '.join(known)})"
            )
    return kind(**values)


def default(kind: type, name: str) -> Any:
    """The default of one option."""
    (found,) = (each.default for each in fields(kind) if each.name == name)
    assert found is not MISSING
    return found
