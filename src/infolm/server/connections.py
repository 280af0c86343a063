"""Limits on connections: their number, and the time for a request to arrive.

uvicorn's own limit refuses the next request of a client that is being served as soon as others
have filled the server, and it waits for a request forever. Here an accepted connection stays
accepted; one beyond the limit is refused whatever it sends; and one that sends no request is
closed.
"""

import asyncio
import json
import os
import socket
from typing import Any, ClassVar

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from infolm.errors import InfolmError
from infolm.server.limits import Limits, error_body

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

HEAD_SECONDS = 20.0
"""For a request's first line and headers to come; a browser opens connections ahead of use."""
REFUSED = 128
"""Connections beyond the limit that are kept until they have read why they are refused; others are
closed at once."""
REFUSED_SECONDS = 2.0
BACKLOG = 256
"""Connections that the system keeps for the server to accept, and that it accepts at a time."""
OTHER_FILES = 128
"""Open files besides connections: libraries, runs, the loop's own."""


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address, port 0 being any that is free; nobody is heard there yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small packets at once only where the protocol is named: else the first token
    # waits for the client to acknowledge the headers, which may take it 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # a port whose last owner has gone; elsewhere it means another thing
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise InfolmError(
            f"cannot listen on {host}, port {port} ({error.strerror}): choose another --host or "
            "--port; "
            "--port 0 takes a free one"
        ) from None
    return found


def server_config(app: Any, limits: Limits, **options: Any) -> Config:
    """uvicorn's settings for an application within limits."""
    _allow_files(limits.connections + REFUSED + OTHER_FILES)
    return Config(
        app,
        http=_gate(limits),
        ws="none",
        backlog=BACKLOG,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
        server_header=False,
        **options,
    )


def _gate(limits: Limits) -> type["Gate"]:
    class Limited(Gate):
        most = limits.connections
        seconds = min(HEAD_SECONDS, limits.seconds)

    return Limited


class Gate(H11Protocol):
    """A connection, let in or refused."""

    most: ClassVar[int]
    seconds: ClassVar[float]
    _refused: ClassVar[set["Gate"]] = set()
    _let_in = True
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) < self.most:
            super().connection_made(transport)
            self._waiting = self.loop.call_later(self.seconds, self._idle)
            return
        self.transport, self._let_in = transport, False
        if len(self._refused) >= REFUSED:
            transport.abort()
            return
        self._refused.add(self)
        self._waiting = self.loop.call_later(REFUSED_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        if not self._let_in:
            self.transport.write(_FULL)
            self.transport.close()
            return
        super().data_received(data)
        if self.cycle is not None:
            self._no_longer_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_longer_waiting()
        if self._let_in:
            super().connection_lost(exc)
        else:
            self._refused.discard(self)

    def _no_longer_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _idle(self) -> None:
        """No whole request came in time."""
        if not self.transport.is_closing():
            self.transport.close()


def _allow_files(number: int) -> None:
    """Every connection is an open file."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= number or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < number:
        raise InfolmError(
            f"this many connections need {number:,} open files, and the system allows {hard:,}: "
            f"lower --connections to {max(1, hard - REFUSED - OTHER_FILES):,}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


_BODY = json.dumps(
    error_body("too many clients are connected: try again later", "server_error", None, "full")
).encode()
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)
