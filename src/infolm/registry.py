"""The registry of kinds, one for each choice in a recipe.

A kind is registered where it is defined:

    @MODELS.register
    class TransformerConfig(ModelConfig):
        kind: Literal["transformer"] = "transformer"

and that is all: the union that recipes are checked against, the lists of kinds and the conformance
suites of the tests are made from the registry. To add a kind, add a file to the package that the
registry reads.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Generic, Literal, TypeVar, Union

from infolm.trees import mapping

T = TypeVar("T")


class Registry(Mapping[str, type[T]], Generic[T]):
    """The kinds of one thing, by name, as the modules of `package` define them.

    The modules are imported when the kinds are first needed. Kinds are sorted by name. module: the
    module of each subpackage that defines kinds, if subpackages define them.
    """

    def __init__(self, package: str, module: str = "") -> None:
        self.package, self._module = package, module
        self._kinds: dict[str, type[T]] = {}
        self._complete = False

    def register(self, kind: type[T]) -> type[T]:
        """Decorate a class to register it under its `kind`."""
        name = _name(kind)
        if name in self._kinds:
            raise ValueError(f"{self.package} has two kinds '{name}'")
        self._kinds[name] = kind
        return kind

    def _all(self) -> dict[str, type[T]]:
        if not self._complete:
            self._complete = True  # first: a module may ask for the kinds while it is imported
            for found in pkgutil.iter_modules(import_module(self.package).__path__):
                if not self._module:
                    import_module(f"{self.package}.{found.name}")
                elif found.ispkg:
                    import_module(f"{self.package}.{found.name}.{self._module}")
        return self._kinds

    def __getitem__(self, name: str) -> type[T]:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all()))

    def __len__(self) -> int:
        return len(self._all())

    def name(self) -> Any:
        """The type of a key that names one of the kinds."""
        return Literal[tuple(self)]

    def section(self, usual: str | None = None) -> Any:
        """The type of a recipe's section that is one of the kinds.

        usual: the kind of a section that does not name one.
        """
        from pydantic import BeforeValidator, Field  # not needed for the options of commands

        kinds = tuple(self.values())
        checked = Annotated[Union[kinds], Field(discriminator="kind")]  # type: ignore[valid-type]  # noqa: UP007
        if usual is None:
            return checked
        return Annotated[checked, BeforeValidator(partial(with_kind, usual))]


def with_kind(usual: str, tree: Any) -> Any:
    """A section's tree with its kind; the usual one if it names none."""
    return {"kind": usual, **tree} if mapping(tree) is not None else tree


def _name(kind: type) -> str:
    """The default of a section's field `kind`, or the class attribute of that name."""
    fields = getattr(kind, "model_fields", {})
    return str(fields["kind"].default if "kind" in fields else kind.kind)  # type: ignore[attr-defined]
