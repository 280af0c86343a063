"""infolm: train, score and study small language models, and measure information.

    import infolm

    run = infolm.train("awd-lstm/demo", "train.epochs=1", out="runs/demo")
    infolm.evaluate(run, split="test")              # measurements, each with unit and convention
    infolm.score(run, "the default is a list")      # the surprisal of each token and word
    infolm.generate(run, num=2, tokens=20)          # texts
    run = infolm.load("runs/demo")                  # the same run, another day
    infolm.compare(["runs/a", "runs/b"]).tests      # is the difference clear?
    infolm.mutual_information(x, y, "ksg")          # an estimate with its interval

The command `infolm` calls the same functions. Nothing heavy is imported before it is used.
"""

from typing import TYPE_CHECKING, Any

from infolm import registration

if TYPE_CHECKING:
    from infolm.library import (
        compare,
        corpora,
        evaluate,
        generate,
        load,
        mutual_information,
        recipes,
        score,
        train,
    )

    __version__: str

__all__ = [
    "__version__",
    "compare",
    "corpora",
    "evaluate",
    "generate",
    "load",
    "mutual_information",
    "recipes",
    "score",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("infolm")
    if name in __all__:
        from infolm import library

        return getattr(library, name)
    raise AttributeError(f"module 'infolm' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__


registration.register()
