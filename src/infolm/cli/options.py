"""The command line's options, made from the sections that the families declare."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from infolm.families.options import Described, Options, union

SECTIONS: dict[str, Mapping[str, type[Options]]] = {}
"""Of each command that has such options, the families' sections."""


def with_options(sections: Mapping[str, type[Options]]) -> Callable[[Any], Any]:
    """Decorates a command that takes `**given`: the options of all families, by name.

    They stand before the command's last parameter, --json.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        SECTIONS[command.__name__] = sections
        signature = inspect.signature(command)
        first, *last, _ = signature.parameters.values()
        ours = [_parameter(each) for each in union(sections).values()]
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
        described.flag,  # by itself: else a flag would have a --no-flag
        help=option.help,
        metavar=option.metavar,
        min=option.least,
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
    """With values for options that may stand alone, such as --cache.

    What follows is a value unless it is another option, or a run's folder.
    """
    if not arguments or arguments[0] not in SECTIONS:
        return arguments
    alone = {each.flag: each.option.alone for each in union(SECTIONS[arguments[0]]).values()}
    spelt = list(arguments)
    for i, argument in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else "-"
        option = following.startswith("-") and not following[1:2].isdigit()
        if alone.get(argument) and (option or Path(following).is_dir()):
            spelt[i] = f"{argument}={alone[argument]}"
    return spelt
