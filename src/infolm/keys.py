"""The reference of recipe keys, generated from the fields that validate recipes.

`infolm recipes --keys` prints it; the site that `make docs` builds has it as a page.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from infolm.config import Recipe
from infolm.errors import InfolmError
from infolm.section import Section, nearest

NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}


@dataclass(frozen=True)
class Key:
    """One key of a recipe.

    range: bounds or choices; empty if any value of the type is allowed.
    """

    key: str
    type: str
    required: bool
    default: Any
    range: str
    meaning: str

    @property
    def usual(self) -> str:
        """The default as YAML."""
        return "required" if self.required else _written(self.default)


@dataclass(frozen=True)
class Group:
    """The keys of a section, or of one of its kinds.

    title: `model (kind: transformer)`; section: `model`; about: the docstring of its class.
    """

    title: str
    section: str
    about: str
    keys: tuple[Key, ...]


class _Inner(NamedTuple):
    """A section within another, and the default where a recipe does not name its kind."""

    section: type[Section]
    path: str
    title: str
    usual: Any = None


def reference() -> list[Group]:
    """Every section of a recipe and every kind of it, in the order of a recipe.

    Keys that two kinds share, such as the latent variables of models, are listed once.
    """
    found = {group.title: group for group in _groups(_Inner(Recipe, "", "recipe"))}
    return list(found.values())


def beginning(groups: Sequence[Group], name: str) -> list[Group]:
    """Only the keys `name` and `name.*`, and the groups that contain them."""
    found = []
    for group in groups:
        keys = tuple(key for key in group.keys if f"{key.key}.".startswith(f"{name}."))
        if keys:
            found.append(Group(group.title, group.section, group.about, keys))
    if not found:
        known = [each for group in groups for each in (group.section, *(k.key for k in group.keys))]
        raise InfolmError(f"recipes have no key '{name}'{nearest(name, known)}")
    return found


def _groups(inner: _Inner) -> Iterator[Group]:
    """A section's own keys, including those of plain sections inside it; then the sections with
    kinds."""
    keys: list[Key] = []
    later: list[_Inner] = []
    _collect(inner, keys, later)
    keys.sort(key=lambda key: key.key != f"{inner.path}.kind")  # the kind comes first
    yield Group(inner.title, inner.path, _about(inner.section), tuple(keys))
    for each in later:
        yield from _groups(each)


def _collect(outer: _Inner, keys: list[Key], later: list[_Inner]) -> None:
    for own, field in outer.section.model_fields.items():
        name = field.alias or own
        at = f"{outer.path}.{name}" if outer.path else name
        sections = _sections(field.annotation)
        if outer.title.endswith(f"(kind: {field.default})") and name == "kind":
            keys.append(_kind(at, field, outer.usual))
        elif not sections or not _always_there(field):
            keys.append(_key(at, field))
        if get_origin(field.annotation) is dict:
            later += [_Inner(each, f"{at}.KEY", _titled(f"{at}.KEY", each)) for each in sections]
        elif len(sections) > 1:
            usual = getattr(field.get_default(call_default_factory=True), "kind", None)
            later += [_Inner(each, at, _titled(at, each), usual) for each in sections]
        elif sections and not outer.path:
            later.append(_Inner(sections[0], at, at))
        elif sections:
            _collect(_Inner(sections[0], at, ""), keys, later)


def _titled(path: str, section: type[Section]) -> str:
    """The title of a section; a section without a kind is named after its class."""
    kind = section.model_fields.get("kind")
    return f"{path} (kind: {kind.default})" if kind else f"{path} ({section.__name__.lower()})"


def _always_there(field: FieldInfo) -> bool:
    """Whether a section is neither optional nor a table of sections."""
    return get_origin(field.annotation) is not dict and NoneType not in get_args(field.annotation)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _sections(annotation: Any) -> list[type[Section]]:
    """The section classes within a type."""
    if _is_section(annotation):
        return [annotation]
    if get_origin(annotation) is Literal:
        return []
    return [section for part in get_args(annotation) for section in _sections(part)]


def _about(section: type[Section]) -> str:
    """The first paragraph of a section's docstring."""
    return " ".join((inspect.getdoc(section) or "").split("\n\n")[0].split())


def _key(at: str, field: FieldInfo) -> Key:
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    meaning = " ".join((field.description or "").split())
    kind = _type(field.annotation)
    return Key(at, kind, field.is_required(), default, _range(field), meaning)


def _kind(at: str, field: FieldInfo, usual: str | None) -> Key:
    """The key that chooses the kind of a section; its default is the section's default kind."""
    meaning = "kind of the section: the keys below belong to this kind"
    return Key(at, "choice", usual is None, usual, str(field.default), meaning)


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation in NAMES:
        return NAMES[annotation]
    if annotation is NoneType:
        return "none"
    if origin is Annotated:
        return _type(parts[0])
    if origin is Literal:
        return "choice"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(part) for part in parts))
    if origin in (list, tuple):
        kinds = dict.fromkeys(_type(part) for part in parts if part is not Ellipsis)
        return f"list of {' or '.join(kinds)}"
    if origin is dict:
        return f"table of {_type(parts[1])} by key"
    if _is_section(annotation):
        return "section"
    return str(getattr(annotation, "__name__", annotation))


def _written(value: Any) -> str:
    """A value as YAML."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case list() | tuple():
            return f"[{', '.join(map(_written, value))}]"
        case dict():
            return "{}" if not value else str(value)
        case "":
            return '""'
    return str(value)


SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _range(field: FieldInfo) -> str:
    """Bounds and choices of the field and of the parts of its type."""
    found = _bounds(field.metadata) + _allowed(field.annotation)
    return "; ".join(dict.fromkeys(filter(None, found)))


def _bounds(metadata: Sequence[Any]) -> list[str]:
    said = [
        f"{sign} {_written(bound)}"
        for each in metadata
        for name, sign in SIGNS.items()
        if (bound := getattr(each, name, None)) is not None
    ]
    lengths = [least for each in metadata if (least := getattr(each, "min_length", None))]
    return [", ".join(said), *(f"at least {least} long" for least in lengths)]


def _allowed(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [", ".join(map(_written, get_args(annotation)))]
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return _bounds([m for each in metadata for m in getattr(each, "metadata", [each])]) + (
            _allowed(inner)
        )
    return [said for part in get_args(annotation) for said in _allowed(part)]


def as_text(groups: Sequence[Group], width: int) -> str:
    """The reference for the terminal: a line for each key, with its meaning below."""
    lines: list[str] = []
    for group in groups:
        lines += [group.title]
        lines += _filled(group.about, width, "  ")
        for key in group.keys:
            said = key.usual if key.required else f"default {key.usual}"
            shown = "" if key.type == "choice" else key.type
            facts = "; ".join(filter(None, (shown, key.range, said)))
            lines += _filled(f"{key.key}  {facts}", width, "    ")
            lines += _filled(key.meaning, width, "        ")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _filled(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ")


def as_markdown(groups: Sequence[Group]) -> str:
    """The reference as a Markdown page of the site."""
    lines = [
        "# The keys of a recipe",
        "",
        "This page is for writing a recipe, as a YAML file or as `key=value` on the command line",
        "(`infolm train awd-lstm/demo train.epochs=3 seed=2`): every key with its type, default,",
        "range and meaning. A section with a kind has that kind's keys.",
        "",
        "It is generated from the fields that validate recipes; `infolm recipes --keys`",
        "prints it for the terminal.",
    ]
    for group in groups:
        lines += ["", f"## {group.title}", ""]
        if group.about:
            lines += [group.about, ""]
        lines += ["| key | type | default | range | meaning |", "| --- " * 5 + "|"]
        lines += [_row(key) for key in group.keys]
    return "\n".join(lines) + "\n"


def _row(key: Key) -> str:
    default = key.usual if key.required else f"`{key.usual}`"
    said = (re.sub(r"<(?=\w)", "&lt;", each) for each in (key.range, key.meaning))  # no HTML
    cells = (f"`{key.key}`", key.type, default, *said)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
