"""JSON and YAML trees, and checks of their types."""

from collections.abc import Mapping
from functools import cache
from typing import Any


def mapping(node: Any) -> dict[str, Any] | None:
    """The node, if it is a mapping."""
    return node if isinstance(node, dict) else None


def leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """{'a': {'b': 1}} -> {'a.b': 1}; an empty mapping is a leaf."""
    found: dict[str, Any] = {}
    for key, node in tree.items():
        inner = f"{path}.{key}" if path else str(key)
        below = mapping(node)
        found |= leaves(below, inner) if below else {inner: node}
    return found


def fits(kind: Any, node: Any) -> bool:
    """Whether the node and all its leaves have a type such as `dict[str, float]`, without
    conversion."""
    from pydantic import ValidationError

    try:
        _adapter(kind).validate_python(node, strict=True)
    except (ValidationError, RecursionError):
        return False
    return True


def encodable(text: str) -> bool:
    """Whether it is text that a file can hold: JSON can write half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
