"""The reference pages of the site, made from the code: recipe keys, commands and the Python API."""

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

import infolm
import infolm.cli
from infolm import keys, library
from infolm.cli.app import app
from infolm.errors import InfolmError

PAGES: dict[str, Callable[[], str]] = {}
"""The maker of each page, by its path in the site."""


def _page(path: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    def add(make: Callable[[], str]) -> Callable[[], str]:
        PAGES[path] = make
        return make

    return add


@_page("docs/reference/keys.md")
def recipe_keys() -> str:
    return keys.as_markdown(keys.reference())


@_page("docs/reference/commands.md")
def commands() -> str:
    """Every command with its arguments and options, as `--help` has them."""
    group: Any = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        "This page lists every command of `infolm` with its arguments and options. It is made from",
        "the same declarations as `infolm COMMAND --help`.",
        "[The quickstart](../quickstart.md) shows how they are used. `infolm --version` prints the",
        "version.",
    ]
    for name, command in group.commands.items():
        lines += ["", f"## infolm {name}", "", *_help(command.help)]
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += ["", "```", f"infolm {name} {usage}", "```"]
        lines += ["", "| name | type | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [_option(each, context) for each in command.params if not each.hidden]
    return "\n".join(lines) + "\n"


def _help(text: str) -> Iterator[str]:
    """The paragraphs of a command's help. Those behind a backspace keep their lines; examples of
    the command are code."""
    for paragraph in (text or "").split("\n\n"):
        kept = paragraph.removeprefix("\b\n")
        if kept.startswith("infolm "):
            yield from ("```", kept, "```", "")
        else:
            yield from (_plain(" ".join(kept.split())), "")


def names_of(option: Any) -> list[str]:
    """How an option is given, or what an argument is called: `FILE` and `-` of `[FILE|-]`."""
    if option.param_type_name == "option":
        return [*option.opts, *option.secondary_opts]
    return (option.metavar or option.name.upper()).strip("[]").split("|")


def _option(option: Any, context: Any) -> str:
    """A row of the table: names, type, default and meaning."""
    names = ", ".join(f"`{name}`" for name in names_of(option))
    kind = "flag" if getattr(option, "is_flag", False) else option.display_type(context).strip("<>")
    if option.required:
        usual = "required"
    elif isinstance(option.show_default, str):  # in words
        usual = _plain(option.show_default)
    elif option.default in (None, "", (), []) or callable(option.default):
        usual = ""
    elif kind == "flag":
        usual = "on" if option.default is True else "off"
    else:
        usual = f"`{option.default}`"
    return _row(names, kind.replace("|", ", "), usual, _plain(option.help or ""))


@_page("docs/reference/python.md")
def python_api() -> str:
    """The public names of `infolm`, and the classes that their signatures name."""
    lines = [
        "# The Python API",
        "",
        "This page lists what `import infolm` offers: each function with its signature, and the",
        "classes of what it returns. [infolm as a library](../python.md) has examples.",
    ]
    for name in public_names():
        what = getattr(library, name)
        lines += ["", f"## infolm.{name}", "", *_signature(f"infolm.{name}", what)]
        lines += _docstring(what)
    lines += ["", "## infolm.__version__", "", "The version that is installed, as text."]
    for each in classes():
        lines += ["", f"## {each.__name__}", "", f"`{each.__module__}.{each.__qualname__}`", ""]
        lines += [*_docstring(each), *_members(each)]
    return "\n".join(lines) + "\n"


def public_names() -> list[str]:
    return [name for name in infolm.__all__ if name != "__version__"]


def classes() -> list[type]:
    """What the library imports for its types alone, and the error that all of it raises."""
    tree = ast.parse(Path(inspect.getfile(library)).read_text(encoding="utf-8"))
    imports = [
        node
        for branch in tree.body
        if isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "TYPE_CHECKING"
        for node in branch.body
        if isinstance(node, ast.ImportFrom) and node.module
    ]
    found = [
        getattr(importlib.import_module(str(node.module)), alias.name)
        for node in imports
        for alias in node.names
    ]
    return [*found, InfolmError]


def _signature(name: str, what: Any) -> list[str]:
    """A call as code, one parameter a line where it is long."""
    signature = inspect.signature(what)
    named = [each.kind for each in signature.parameters.values()]
    parts = [_parameter(each) for each in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in named and inspect.Parameter.VAR_POSITIONAL not in named:
        parts.insert(named.index(inspect.Parameter.KEYWORD_ONLY), "*")
    end = f" -> {_annotation(signature.return_annotation)}"
    said = f"{name}({', '.join(parts)}){end}"
    if len(said) > 88:
        said = "\n    ".join([f"{name}(", *(f"{part}," for part in parts)]) + f"\n){end}"
    return ["```python", said, "```", ""]


def _parameter(parameter: inspect.Parameter) -> str:
    stars: dict[object, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    said = f"{stars.get(parameter.kind, '')}{parameter.name}: {_annotation(parameter.annotation)}"
    usual = parameter.default
    return said if usual is inspect.Parameter.empty else f"{said} = {usual!r}"


def _annotation(annotation: Any) -> str:
    """A type as the source has it, without the modules' names."""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(annotation))


def _members(owner: type) -> list[str]:
    """Tables of the fields, and of properties and methods with a docstring."""
    lines = []
    if dataclasses.is_dataclass(owner):
        own = [each for each in dataclasses.fields(owner) if not each.name.startswith("_")]
        lines += ["", "| field | type |", "| --- | --- |"]
        lines += [
            _row(f"`{each.name}`", _plain(_annotation(each.type)).replace("|", "or"))
            for each in own
        ]
    called = inspect.isfunction, lambda each: isinstance(each, classmethod | staticmethod)
    methods = [
        _row(f"`{name}{'()' if any(is_it(member) for is_it in called) else ''}`", _first(member))
        for name, member in inspect.getmembers_static(owner)
        if not name.startswith("_") and name not in dir(Exception)
        if any(is_it(member) for is_it in called) or isinstance(member, property | cached_property)
        if inspect.getdoc(member)
    ]
    if methods:
        lines += ["", "| property or method | meaning |", "| --- | --- |", *methods]
    return lines


def _first(what: Any) -> str:
    """The first paragraph of a docstring."""
    return _plain(" ".join((inspect.getdoc(what) or "").split("\n\n")[0].split()))


def _docstring(what: Any) -> list[str]:
    """A docstring as Markdown: indented lines are code."""
    text = inspect.getdoc(what) or ""
    return ["\n\n".join(_paragraph(each) for each in text.split("\n\n"))]


def _paragraph(text: str) -> str:
    if text.startswith("    "):
        return text
    # "name: meaning" begins a line of its own, as in the source.
    return _plain(re.sub(r"\n(?=\w+(, \w+)*: )", "  \n", text))


def _plain(text: str) -> str:
    """Markdown without HTML: <unk> is a word, but in code it stands as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"<(?=[\w/])", "&lt;", part) for part in parts
    )


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"
