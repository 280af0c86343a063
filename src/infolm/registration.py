"""`import infolm` makes `transformers` know the models that `infolm export` wrote.

Neither library waits for the other: the modules below are imported when a program comes to import
the module of `transformers` that they add to, or at once where it has done so already.

Every program that imports infolm pays for this module, so its classes are finder and loader by
their methods alone: the base classes in `importlib.abc` would bring in half of the standard
library.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

AUTO = "transformers.models.auto"
REGISTERED_BY = {
    f"{AUTO}.configuration_auto": "infolm.causal_lm_config",
    f"{AUTO}.modeling_auto": "infolm.causal_lm",
}
"""A module of transformers -> ours, which registers what it defines when it is imported."""


class _After:
    """Loads a module as its own loader does, and then ours."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        import_module(REGISTERED_BY[module.__name__])


class _Finder:
    """Finds the modules that are waited for as everybody would, and adds to their loading."""

    def __init__(self) -> None:
        self.waiting = set(REGISTERED_BY)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        from importlib.util import find_spec

        self.waiting.remove(name)  # the search below comes here again
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _After(spec.loader)  # type: ignore[assignment]
        return spec


def register() -> None:
    """Once, from `infolm` itself."""
    finder = _Finder()
    for theirs, ours in REGISTERED_BY.items():
        if theirs in sys.modules:
            finder.waiting.remove(theirs)
            import_module(ours)
    sys.meta_path.insert(0, finder)
