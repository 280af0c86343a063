"""A served run: its model in an engine, and its answers."""

import time
from pathlib import Path
from typing import Any, ClassVar

from infolm.server.engine import Engine
from infolm.server.limits import Limits


class RequestError(Exception):
    """An error in a request, for the client."""

    def __init__(self, message: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def late(limits: Limits) -> RequestError:
    return RequestError(f"not done within {limits.seconds:g} s: ask for less", 408, "timeout")


class Service:
    """A run, its engine, and the paths under /v1 that it answers."""

    does: ClassVar[frozenset[str]] = frozenset()
    says: ClassVar[str] = ""
    """The model's description in refusals."""

    def __init__(self, run: Any, limits: Limits) -> None:
        self.run, self.limits = run, limits
        self.name, self.created = Path(run.folder.path).resolve().name, int(time.time())
        self.engine = Engine(run.model, limits.slots, limits.waiting)

    def check(self, what: str) -> None:
        """Refuse a request that the model cannot answer."""
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
