"""The built-in YAML files, and a person's own files in the same format."""

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
"""libyaml's loader, several times as fast, if PyYAML was built with it."""
DEEPEST = 100
"""Greatest depth of nested sections in a YAML text. libyaml's loader is recursive C code, which a
text of nothing but brackets would crash."""


def parse_yaml(text: str, source: str) -> Any:
    """The tree of a YAML text; `source` is its name in error messages."""
    try:
        if _too_deep(text):
            raise InfolmError(f"{source} is not a recipe: its YAML is nested too deeply")
        return yaml.load(text, Loader=LOADER)
    # ValueError: an impossible date or a number too large
    except (yaml.YAMLError, ValueError) as error:
        said = " ".join(str(error).split())
        raise InfolmError(f"{source} is not valid YAML: {said}") from error


NESTING: dict[type, int] = {
    yaml.MappingStartEvent: 1,
    yaml.SequenceStartEvent: 1,
    yaml.MappingEndEvent: -1,
    yaml.SequenceEndEvent: -1,
}
"""The change in depth after each parser event."""


def _too_deep(text: str) -> bool:
    """Whether sections are nested deeper than `DEEPEST`; reads parser events, without recursion."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        depth += NESTING.get(type(event), 0)
        if depth > DEEPEST:
            return True
    return False


@dataclass(frozen=True)
class Shelf:
    """A folder of the package with files paper/name.yaml.

    noun: what one file is called. command: the command that lists them. section: a key that every
    file has; its absence shows that a file is something else.
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
        """The parsed YAML of one of `names`, or of a file."""
        tree = mapping(parse_yaml(self.text(source), source))
        if tree is None:
            raise InfolmError(
                f"{source} is not a {self.noun}: it must be a mapping with '{self.section}' and so "
                "on"
            )
        return tree


@cache
def _files(folder: str) -> dict[str, Traversable]:
    """The files of a package folder by name: paper/name -> file."""
    files = {
        f"{paper.name}/{file.name.removesuffix('.yaml')}": file
        for paper in (resources.files("infolm") / folder).iterdir()
        if paper.is_dir()
        for file in paper.iterdir()
        if file.name.endswith(".yaml")
    }
    return dict(sorted(files.items()))


RECIPES = Shelf("recipes", "recipe", "infolm recipes", "data")
