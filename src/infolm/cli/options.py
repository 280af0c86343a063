"""The command line's options, made from the sections that the families declare."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from infolm.families.options import Described, Options, union

ALONE: dict[str, dict[str, str]] = {}
"""For each command, the options that may stand without a value, and the value this implies."""


def with_options(sections: Mapping[str, type[Options]]) -> Callable[[Any], Any]:
    """Decorate a command that takes `**given` with the options of all families.

    They come before the command's last parameter, --json.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        known = union(sections).values()
        ALONE[command.__name__] = {o.flag: o.option.alone for o in known if o.option.alone}
        signature = inspect.signature(command)
        first, *last, _ = signature.parameters.values()
        ours = [_parameter(each) for each in known]
        keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in last]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[first, *ours, *keyword]
        )
        command.__annotations__ |= {each.name: each.annotation for each in ours}
        return command

    return decorate


def _parameter(described: Described) -> inspect.Parameter:
    option = described.option
    shown: Any = typer.Option(
        described.flag,  # otherwise typer would add a --no-flag
        help=option.help,
        metavar=option.metavar,
        min=option.least,
        max=option.most,
        rich_help_panel=option.panel,
        show_default=option.usual or True,
    )
    return inspect.Parameter(
        described.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=described.default,
        annotation=Annotated[described.annotation, shown],
    )


def spelt_out(arguments: list[str]) -> list[str]:
    """Insert values for options that may stand alone, such as --cache.

    The next argument is a value unless it is an option or an existing file or folder.
    """
    alone = ALONE.get(arguments[0], {}) if arguments else {}
    spelt = list(arguments)
    for i, argument in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else "-"
        option = following.startswith("-") and not following[1:2].isdigit()
        if argument in alone and (option or Path(following).exists()):
            spelt[i] = f"{argument}={alone[argument]}"
    return spelt
