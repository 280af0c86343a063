"""Commands whose options come from the families' own classes."""

import inspect
from collections.abc import Callable
from dataclasses import Field, fields
from typing import Annotated, Any, get_type_hints

import typer

from infolm.families.options import flag


def with_options(*kinds: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command that takes `**options`: one for each field of the classes.

    A field that several classes have is one option.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters.values()
        before = [each for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
        named = {each.name for each in before}
        made: dict[str, inspect.Parameter] = {}
        for kind in kinds:
            hints = get_type_hints(kind)
            for each in fields(kind):
                if each.name not in named and each.name not in made:
                    made[each.name] = _parameter(each, hints[each.name])
        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in before]
        parameters[len(before) - 1 : len(before) - 1] = made.values()  # --json stays the last
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


def _parameter(each: Field[Any], hint: Any) -> inspect.Parameter:
    told = each.metadata
    names = [flag(each.name, told)] if told["flag"] or hint is bool else []
    made = typer.Option(
        *names,
        help=told["about"],
        metavar=told["metavar"],
        rich_help_panel=told["panel"],
        show_default=told["shown"],
        min=told["min"],
    )
    return inspect.Parameter(
        each.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=each.default,
        annotation=Annotated[hint, made],
    )
