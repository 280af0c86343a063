"""Exports: a trained model in the format of another program.

A form is a class with `kind`, registered where it is defined, one file each. Its fields are the
options it takes, and its methods are named after the capabilities it can hold: `language`, `latent`
and `encoder`. A capability without a method is refused with a sentence.
"""

import os
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from infolm import files
from infolm.errors import InfolmError, RunError
from infolm.families.base import Run, family_of
from infolm.registry import Registry

Weights = Literal["float32", "int8"]
"""The precision of matrices, in formats that offer a choice: as trained, or in 8 bits."""


class Export(ABC):
    """One format.

    kind: its name after --to. reads: the program that reads it, after 'for'. several: whether it
    holds more than one run. Each option is a field of the subclass, a dataclass; formats share
    options of one name.
    """

    kind: ClassVar[str]
    reads: ClassVar[str]
    several: ClassVar[bool] = False

    def write(self, run: Run, making: Path, *more: Run) -> None:
        """Write the run's model, and those of `more` runs, as the file or folder `making`, which
        does not exist yet."""
        if more and not self.several:
            raise InfolmError(
                f"--to {self.kind} holds one run, not {1 + len(more)}: export them one by one"
            )
        writers = [self._writer(each) for each in (run, *more)]
        writers[0](run, making, *more)

    def _writer(self, run: Run) -> Callable[..., None]:
        """The method for what the run is."""
        writer: Callable[..., None] | None = getattr(self, run.recipe.model.capability, None)
        if writer is None:
            held = [family.a for name, family in _families().items() if hasattr(self, name)]
            raise InfolmError(
                f"{run.folder.path} is {family_of(run.recipe).a}, which --to {self.kind} cannot "
                f"hold: choose a run that is {' or '.join(held)}, or another --to"
            )
        return writer


EXPORTS: Registry[Export] = Registry("infolm.exports")


def _families() -> Mapping[str, Any]:
    from infolm.families.base import FAMILIES

    return FAMILIES


def made(kind: str, options: Mapping[str, Any]) -> Export:
    """The form of this name with these options, those that are None left out."""
    if kind not in EXPORTS:
        raise InfolmError(f"--to is {', '.join(EXPORTS)}, not '{kind}'")
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        homes = [each for each in EXPORTS if name in _options(EXPORTS[each])]
        if kind not in homes:
            raise InfolmError(
                f"--{name} is an option of --to {' and '.join(homes)}, not of --to {kind}: leave "
                "it out, or choose another --to"
            )
    return EXPORTS[kind](**given)


def _options(form: type[Export]) -> set[str]:
    return {field.name for field in fields(form)}  # type: ignore[arg-type]


def export(run: Run, form: Export, out: Path, *more: Run) -> None:
    """Write `out` atomically, with `more` runs beside the first if the format holds several."""
    files.sweep(out.parent, out.name)
    if out.exists():
        raise InfolmError(f"{out} exists already: name another with --out")
    with whole(out) as making:
        form.write(run, making, *more)


@contextmanager
def whole(out: Path) -> Iterator[Path]:
    """A name to write a file or a folder to, which then becomes `out`; or no trace is left."""
    try:
        files.make_folder(out.parent)
        with files.scratch_folder(out.parent, f".{out.name}") as scratch:
            making = scratch / out.name
            yield making
            # For anyone to read, as the other files: Safetensors writes for its owner alone.
            for each in (making, *making.rglob("*")):
                if each.is_file():
                    each.chmod(0o644)
            files.flush_tree(making)
            os.replace(making, out)
            files.flush_folder(out.parent)
    except OSError as error:
        raise RunError(f"{out} cannot be created ({error}): choose another --out") from error
