"""A server's limits, and the guard that enforces them: clients, sizes, rates."""

import asyncio
import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from infolm.server.metrics import Metrics

LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
OPEN = frozenset({"/healthz"})
"""Paths that need no key, besides the page."""
MOST_CLIENTS = 10_000
"""Clients whose rates are remembered."""


@dataclass(frozen=True)
class Limits:
    """slots: continuations written side by side; waiting: requests that may wait for one. longest:
    tokens of a prompt or text; tokens: of a completion; texts: of a request; stop: characters of a
    stop string. body: bytes. rate: requests a minute of a client, 0 for any number. seconds: of a
    request. connections: at a time."""

    slots: int = 64
    waiting: int = 256
    longest: int = 2048
    tokens: int = 2048
    texts: int = 128
    stop: int = 64
    body: int = 2**20
    rate: int = 0
    seconds: float = 120.0
    connections: int = 512


@dataclass(frozen=True)
class Doors:
    """Access rules. hosts: names in the Host header; origins: other sites whose pages may send
    requests; key: the token in `Authorization: Bearer`; open: paths without a key."""

    hosts: frozenset[str] = LOCAL
    origins: frozenset[str] = frozenset()
    key: str | None = None
    open: frozenset[str] = OPEN


def error_body(
    message: str, kind: str = "invalid_request_error", param: Any = None, code: Any = None
) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass
class Rate:
    """A bucket of tokens for each client: `rate` a minute, as many at once."""

    rate: int
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def allows(self, client: str) -> bool:
        if not self.rate:
            return True
        now = time.monotonic()
        left, then = self._left.pop(client, (float(self.rate), now))
        left = min(self.rate, left + (now - then) * self.rate / 60)
        self._left[client] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
        return left >= 1


class Guard:
    """Refuses a request before anything reads it; an ASGI application around another.

    A page elsewhere can make a browser send requests here: by a name of its own that it points to
    this machine, or across sites. So Host and Origin must be known ones.
    """

    def __init__(
        self, app: Any, limits: Limits, doors: Doors, metrics: Metrics, paths: Collection[str]
    ) -> None:
        self._app, self._limits, self._doors, self._metrics = app, limits, doors, metrics
        self._paths = frozenset(paths)  # that are counted by name
        self._rate = Rate(limits.rate)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        status = 500

        async def counted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *SAFE]
            await send(message)

        try:
            refused = self._refusal(scope)
            source = receive
            if refused is None and scope["method"] not in ("GET", "HEAD"):
                body, refused = await self._body(receive)
                source = _replayed(body, receive)
            if refused is not None:
                await _refuse(counted, *refused)
            else:
                await self._app(scope, source, counted)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.add("infolm_requests_total", path=path, status=str(status))

    def _refusal(self, scope: Any) -> tuple[int, str, str] | None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = [value.decode("latin-1") for value in headers.get(b"host", [])]
        if len(hosts) != 1 or host_of(hosts[0]) not in self._doors.hosts:
            return 403, "this Host is not allowed: see --allow-host", "forbidden"
        for origin in (value.decode("latin-1") for value in headers.get(b"origin", [])):
            own = f"{scope.get('scheme', 'http')}://{hosts[0]}"
            if origin != own and origin not in self._doors.origins:
                return (
                    403,
                    "pages of other sites may not send requests: see --allow-origin",
                    "forbidden",
                )
        sites = headers.get(b"sec-fetch-site", [])
        if b"cross-site" in sites and not headers.get(b"origin") and scope["path"] != "/":
            return (
                403,
                "pages of other sites may not send requests: see --allow-origin",
                "forbidden",
            )

        if self._doors.key is not None and scope["path"] not in self._doors.open:
            given = b"".join(headers.get(b"authorization", []))
            if not hmac.compare_digest(given, b"Bearer " + self._doors.key.encode()):
                return (
                    401,
                    "the API key is missing or wrong: send it as a bearer token",
                    "invalid_api_key",
                )
        client = scope.get("client") or ("unknown", 0)
        if not self._rate.allows(client[0]):
            limit = f"more than {self._limits.rate} requests a minute: wait"
            return 429, limit, "rate_limit_exceeded"
        return None

    async def _body(self, receive: Any) -> tuple[bytes, tuple[int, str, str] | None]:
        """The whole of it, if it is not too large and comes in time."""
        body = b""
        try:
            async with asyncio.timeout(self._limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return b"", (400, "the client went away", "disconnected")
                    body += message.get("body", b"")
                    if len(body) > self._limits.body:
                        most = f"the body is larger than {self._limits.body:,} bytes"
                        return b"", (413, most, "body_too_large")
                    if not message.get("more_body"):
                        return body, None
        except TimeoutError:
            return b"", (408, "the body did not come in time", "timeout")


SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'"),
]


def host_of(header: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def doors(
    host: str, hosts: Collection[str], origins: Collection[str], key: str | None, page: set[str]
) -> Doors:
    """For a server at `host`, an address or name."""
    return Doors(LOCAL | {host, *map(str.lower, hosts)}, frozenset(origins), key, OPEN | page)


def _replayed(body: bytes, receive: Any) -> Any:
    """A `receive` that gives the body once, then what comes after it."""
    sent = False

    async def again() -> Any:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Any, status: int, message: str, code: str) -> None:
    body = json.dumps(error_body(message, code=code)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if status == 429:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
