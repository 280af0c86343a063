"""The YAML files that come with infolm, and a person's own in the same format."""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from infolm.errors import InfolmError
from infolm.section import nearest
from infolm.trees import mapping

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, several times as fast, where PyYAML was built with it."""
DEEPEST = 100
"""Sections within sections that a YAML text may have. libyaml's loader is recursive C code, which a
text of nothing but brackets would crash."""


def parse_yaml(text: str, source: str) -> Any:
    """The tree that a YAML text describes; `source` is its name in a refusal."""
    try:
        if _too_deep(text):
            raise InfolmError(f"{source} is not a recipe: its YAML is nested too deeply")
        return yaml.load(text, Loader=LOADER)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number beyond reason
        said = " ".join(str(error).split())
        raise InfolmError(f"{source} is not valid YAML: {said}") from error


NESTING: dict[type, int] = {
    yaml.MappingStartEvent: 1,
    yaml.SequenceStartEvent: 1,
    yaml.MappingEndEvent: -1,
    yaml.SequenceEndEvent: -1,
}
"""How much deeper the parser is after an event."""


def _too_deep(text: str) -> bool:
    """Whether sections are nested beyond `DEEPEST`, by the parser's events, without recursion."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        depth += NESTING.get(type(event), 0)
        if depth > DEEPEST:
            return True
    return False


@dataclass(frozen=True)
class Shelf:
    """A folder of the package with files paper/name.yaml.

    noun: what one is called. command: what lists them. section: a key that each has, for the one
    who brings something else.
    """

    folder: str
    noun: str
    command: str
    section: str

    def names(self) -> list[str]:
        """As paper/name."""
        return list(_files(self.folder))

    def text(self, source: str) -> str:
        """The YAML of one of `names`, or of a file."""
        path = Path(source)
        if path.suffix in {".yaml", ".yml"}:
            try:
                return path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InfolmError(f"{source} cannot be read: {error}") from error
        files = _files(self.folder)
        if source not in files:
            raise InfolmError(
                f"there is no {self.noun} '{source}'{nearest(source, files)}: "
                f"`{self.command}` lists them; a file must end in .yaml"
            )
        return files[source].read_text(encoding="utf-8")

    def tree(self, source: str) -> dict[str, Any]:
        """The same, parsed."""
        tree = mapping(parse_yaml(self.text(source), source))
        if tree is None:
            raise InfolmError(
                f"{source} is not a {self.noun}: it must be a mapping with '{self.section}' and so "
                "on"
            )
        return tree


@cache
def _files(folder: str) -> dict[str, Traversable]:
    """Of a folder of the package: paper/name -> the file, by name."""
    files = {
        f"{paper.name}/{file.name.removesuffix('.yaml')}": file
        for paper in (resources.files("infolm") / folder).iterdir()
        if paper.is_dir()
        for file in paper.iterdir()
        if file.name.endswith(".yaml")
    }
    return dict(sorted(files.items()))


RECIPES = Shelf("recipes", "recipe", "infolm recipes", "data")
