"""How a model's thread wakes event loops."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress


class Bell:
    """Events that are set in their loops together: to wake a loop is a call of the system, after
    which the loop competes with the thread for Python. One thread alone uses it."""

    def __init__(self) -> None:
        self._events: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}

    def add(self, event: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        """An event to be set when the bell is next rung."""
        self._events.setdefault(loop, []).append(event)

    def ring(self) -> None:
        for loop, events in self._events.items():
            with suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(_set, events)
        self._events.clear()


def _set(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        event.set()
