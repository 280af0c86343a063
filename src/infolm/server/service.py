"""A run that is served: its model in an engine, and what it answers."""

import time
from pathlib import Path
from typing import Any, ClassVar

from infolm.server.engine import Engine
from infolm.server.limits import Limits


class RequestError(Exception):
    """What is wrong with a request, for the client to read."""

    def __init__(self, message: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def late(limits: Limits) -> RequestError:
    return RequestError(f"not done within {limits.seconds:g} s: ask for less", 408, "timeout")


class Service:
    """A run, its engine, and the paths under /v1 that it answers."""

    does: ClassVar[frozenset[str]] = frozenset()
    says: ClassVar[str] = ""
    """What the model is, where it is asked for something else."""

    def __init__(self, run: Any, limits: Limits) -> None:
        self.run, self.limits = run, limits
        self.name, self.created = Path(run.folder.path).resolve().name, int(time.time())
        self.engine = Engine(run.model, limits.slots, limits.waiting)

    def check(self, what: str) -> None:
        """Refuse what the model cannot do."""
        if what not in self.does:
            raise RequestError(
                f"the model '{self.name}' is {self.says}: /v1/{what} needs another; "
                f"it answers {', '.join(f'/v1/{each}' for each in sorted(self.does))}",
                code="model_not_supported",
            )

    def within_limits(self, texts: list[str]) -> list[str]:
        """The texts, or a refusal of too many."""
        if len(texts) > self.limits.texts:
            raise RequestError(f"{len(texts):,} texts are more than {self.limits.texts:,}")
        return texts

    def check_length(self, tokens: int) -> None:
        if tokens > self.limits.longest:
            raise RequestError(
                f"{tokens:,} tokens are more than {self.limits.longest:,}, the most of a request",
                code="context_length_exceeded",
            )
