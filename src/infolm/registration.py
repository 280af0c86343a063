"""`import infolm` registers the models that `infolm export` writes with `transformers`.

Either library may be imported first. The modules below are imported when a program imports the
module of `transformers` that they extend, or at once if it is already imported.

Every program that imports infolm pays for this module. So its finder and loader have no base class:
those in `importlib.abc` would import half of the standard library.
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
    """Loads a module with its own loader, and then imports ours."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        import_module(REGISTERED_BY[module.__name__])


class _Finder:
    """Finds the awaited modules in the usual way, and wraps their loaders."""

    def __init__(self) -> None:
        self.waiting = set(REGISTERED_BY)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        from importlib.util import find_spec

        self.waiting.remove(name)  # the search below calls this method again
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _After(spec.loader)  # type: ignore[assignment]
        return spec


def register() -> None:
    """Install the finder; called once, when `infolm` is imported."""
    finder = _Finder()
    for theirs, ours in REGISTERED_BY.items():
        if theirs in sys.modules:
            finder.waiting.remove(theirs)
            import_module(ours)
    sys.meta_path.insert(0, finder)
