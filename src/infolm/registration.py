"""`import infolm` makes `transformers` know the models that `infolm export` wrote.

Neither library waits for the other: the modules below are imported when a program comes to import
the module of `transformers` that they add to, or at once where it has done so already.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

AUTO = "transformers.models.auto"
REGISTERED_BY = {
    f"{AUTO}.configuration_auto": "infolm.causal_lm_config",
    f"{AUTO}.modeling_auto": "infolm.causal_lm",
}
"""A module of transformers -> ours, which registers what it defines when it is imported."""


class _After(Loader):
    """Loads a module, and then ours."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        import_module(REGISTERED_BY[module.__name__])


class _Finder(MetaPathFinder):
    """Finds the modules that are waited for as everybody would, and adds to their loading."""

    def __init__(self) -> None:
        self.waiting = set(REGISTERED_BY)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        self.waiting.remove(name)  # the search below comes here again
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _After(spec.loader)
        return spec


def register() -> None:
    """Once, from `infolm` itself."""
    finder = _Finder()
    for theirs, ours in REGISTERED_BY.items():
        if theirs in sys.modules:
            finder.waiting.remove(theirs)
            import_module(ours)
    sys.meta_path.insert(0, finder)
