"""`manifest.json`: checksums of the files that define a run.

It has the SHA-256 of each file, the recipe's text, and the build of the native cells. While a file
is replaced, two checksums are valid: a manifest with both is on disk before the file is renamed,
and one with only the new checksum is written after it. So a run killed at any moment agrees with
its manifest.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infolm.errors import InfolmError
from infolm.training import checkpoint
from infolm.trees import fits, mapping

NAME = "manifest.json"
FORMAT = "infolm run 1"


@dataclass
class Manifest:
    """files: the SHA-256 that each may have. recipe: as infolm last wrote it. native: the build of
    the cells' library (`native.build`), empty if it was not used."""

    files: dict[str, list[str]] = field(default_factory=dict)
    recipe: str = ""
    native: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, sort_keys=True) + "\n"

    def write(self, folder: Path) -> None:
        text = self.as_json()
        checkpoint.atomically(folder / NAME, lambda path: path.write_text(text, encoding="utf-8"))

    @classmethod
    def read(cls, folder: Path) -> "Manifest | None":
        """The manifest of a run's folder; None for runs of earlier releases."""
        path = folder / NAME
        try:
            return cls._checked(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, RecursionError) as error:
            raise InfolmError(
                f"{path} is damaged ({error}): `infolm repair {folder}` checks the run's files and "
                "rewrites it"
            ) from error

    @classmethod
    def _checked(cls, tree: Any) -> "Manifest":
        tree = mapping(tree) or {}
        if tree.pop("format", None) != FORMAT:
            raise ValueError(f"it lacks the mark '{FORMAT}'")
        manifest = cls(**tree)
        sound = fits(dict[str, list[Any]], manifest.files) and fits(str, manifest.recipe)
        if not sound or mapping(manifest.native) is None:
            raise ValueError("its entries are of the wrong kind")
        return manifest


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def altered(path: Path) -> bool | None:
    """Whether a file differs from what infolm wrote; None if the manifest does not list it."""
    manifest = Manifest.read(path.parent)
    while True:
        allowed = manifest.files.get(path.name) if manifest else None
        if not allowed:
            return None
        if sha256(path) in allowed:
            return False
        again = Manifest.read(path.parent)
        if again == manifest:
            return True
        manifest = again  # a training process was replacing the file
