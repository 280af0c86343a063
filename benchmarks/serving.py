"""Many clients of a server beside one: tokens a second, first tokens, memory, a crowd.

    python benchmarks/serving.py RUN [--seconds 60] [--requests 10000] [--crowd 10000] [--check]

The server runs in a process of its own, at a free port of this machine, and is asked as a client
across the network would ask it. Times depend on the machine: the ratios are what counts. Five
things are claimed, and `--check` makes any that fails an exit code:

    many clients for so many seconds: no error, and at least 5 times the tokens/s of one client
    the 99th percentile of their first token is within 10 times its median for one client
    memory is flat over so many requests
    a crowd of connections beyond the limit leaves those that are being served without an error
    SIGTERM ends the server, and with it every completion that is under way is finished
"""

import argparse
import asyncio
import json
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

SHORTEST, LONGEST = 16, 48
"""Tokens of a completion. Were all as long, the clients would soon ask in step."""
TIMES_TOKENS = 5.0
"""Tokens a second of many clients beside one, at the least."""
TIMES_FIRST = 10.0
"""p99 of the first token of many clients beside the median of one, at the most."""
FLAT = 0.02
"""Growth of memory that is still called flat, a share: what allocators leave between requests."""
END = b"data: [DONE]\n\n"


class Load(NamedTuple):
    """rate: tokens a second. firsts: seconds from a request to its first token. wrong: what went
    wrong, in words."""

    rate: float
    firsts: list[float]
    wrong: list[str]

    @property
    def median(self) -> float:
        return statistics.median(self.firsts)

    def quantile(self, share: float) -> float:
        return sorted(self.firsts)[min(len(self.firsts) - 1, int(share * len(self.firsts)))]


class Claim(NamedTuple):
    holds: bool
    sentence: str


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60, help="of each of the two loads")
    parser.add_argument("--requests", type=int, default=10_000, help="for memory")
    parser.add_argument("--crowd", type=int, default=10_000, help="connections beyond the limit")
    parser.add_argument("--connections", type=int, default=512, help="the server's limit")
    parser.add_argument("--check", action="store_true", help="fail where a claim does not hold")
    given = parser.parse_args()
    _allow_files(given.crowd + 1000)
    claims = asyncio.run(measured(given))
    for claim in claims:
        print(f"{'holds ' if claim.holds else 'FAILS '} {claim.sentence}")
    if given.check and not all(claim.holds for claim in claims):
        raise SystemExit(1)


async def measured(given: argparse.Namespace) -> list[Claim]:
    """Every claim, of one server."""
    name = given.run.resolve().name
    claims: list[Claim] = []
    async with _served(given.run, given.connections) as (port, server):
        await load(port, name, given.clients, min(3.0, given.seconds))  # nobody's first is measured
        one = await load(port, name, 1, given.seconds)
        print(
            f"1 client: {one.rate:,.0f} tokens/s, first token {1000 * one.median:.1f} ms (median), "
            f"{1000 * one.quantile(0.99):.1f} ms (p99)"
        )
        many = await load(port, name, given.clients, given.seconds)
        print(
            f"{given.clients} clients: {many.rate:,.0f} tokens/s, first token "
            f"{1000 * many.median:.1f} ms (median), {1000 * many.quantile(0.99):.1f} ms (p99), "
            f"{len(many.firsts):,} requests"
        )
        faster, later = many.rate / one.rate, many.quantile(0.99) / one.median
        wrong = one.wrong + many.wrong
        claims += [
            Claim(
                faster >= TIMES_TOKENS and not wrong,
                f"{given.clients} clients for {given.seconds:g} s: {len(wrong)} errors, "
                f"{faster:.1f} times the tokens/s of one (at least {TIMES_TOKENS:g})",
            ),
            Claim(
                later <= TIMES_FIRST,
                f"p99 of the first token is {later:.1f} times its median for one client (at most "
                f"{TIMES_FIRST:g})",
            ),
            await memory(port, server.pid, name, given.clients, given.requests),
            await crowd(port, name, given.crowd, given.connections),
            await ending(port, server, name),
        ]
        for each in dict.fromkeys(wrong):
            print(f"error: {each}")
    return claims


# -- what is measured ------------------------------------------------------------------------


async def load(port: int, model: str, clients: int, seconds: float) -> Load:
    """Clients that each ask again as soon as they are answered."""
    begun = time.monotonic()
    firsts: list[float] = []
    wrong: list[str] = []
    tokens = 0

    async def client(number: int) -> None:
        nonlocal tokens
        seed = number
        await asyncio.sleep(number / clients)  # they come one after the other, in a second
        async with Client(port) as own:
            while time.monotonic() < begun + seconds:
                seed += clients
                try:
                    num = SHORTEST + seed % (LONGEST - SHORTEST + 1)
                    firsts.append(await own.complete(model, seed, num))
                    tokens += num
                except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                    wrong.append(f"{type(error).__name__}: {error}")
                    await own.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return Load(tokens / (time.monotonic() - begun), firsts, wrong)


async def memory(port: int, pid: int, model: str, clients: int, requests: int) -> Claim:
    """Resident memory after a tenth of the requests, and after the others."""
    sizes = []
    for number in (requests // 10, requests - requests // 10):
        left = iter(range(number))
        await asyncio.gather(*(_ask(port, model, left) for _ in range(clients)))
        sizes.append(_resident(pid))
    before, after = sizes
    growth = (after - before) / before
    return Claim(
        growth <= FLAT,
        f"memory over {requests:,} requests: {before / 2**20:,.1f} MiB after a tenth of them, "
        f"{after / 2**20:,.1f} MiB at the end ({100 * growth:+.1f} %, at most {100 * FLAT:g} %)",
    )


async def _ask(port: int, model: str, seeds: Iterator[int]) -> None:
    async with Client(port) as own:
        for seed in seeds:
            await own.complete(model, seed, 4)


async def crowd(port: int, model: str, size: int, limit: int, served: int = 20) -> Claim:
    """`size` connections are opened and kept while `served` clients are being served."""
    quiet = await load(port, model, served, 3)
    serving = asyncio.Event()
    firsts: list[float] = []
    wrong: list[str] = []
    over = False

    async def client(number: int) -> None:
        async with Client(port) as own:
            seed = number
            while not over:
                try:
                    firsts.append(await own.complete(model, seed))
                except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                    wrong.append(f"{type(error).__name__}: {error}")
                    return
                seed += served
                serving.set()

    clients = [asyncio.create_task(client(number)) for number in range(served)]
    await serving.wait()
    begun = time.monotonic()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # so that no client waits for them
        loop = asyncio.get_running_loop()
        refused = await loop.run_in_executor(pool, intruders, port, size)
    seconds = time.monotonic() - begun
    over = True
    await asyncio.gather(*clients)
    least = max(0, size - limit)
    slower = statistics.median(firsts) / quiet.median
    for each in dict.fromkeys(wrong):
        print(f"error: {each}")
    return Claim(
        not wrong and refused >= least,
        f"{size:,} connections in {seconds:.1f} s, {refused:,} refused (at least {least:,}); "
        f"{served} clients were served {len(firsts):,} completions meanwhile with {len(wrong)} "
        f"errors, the first token after {slower:.1f} times as long",
    )


def intruders(port: int, size: int) -> int:
    """Open connections, ask, and keep them; gives how many were refused."""
    _allow_files(size + 1000)
    kept: list[asyncio.StreamWriter] = []

    async def intruder() -> bool:
        try:
            async with asyncio.timeout(30):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                kept.append(writer)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return b" 200 " not in await reader.readline()
        except (OSError, TimeoutError):
            return True

    async def all_of_them() -> int:
        found = await asyncio.gather(*(intruder() for _ in range(size)))
        for writer in kept:
            writer.close()
        return sum(found)

    return asyncio.run(all_of_them())


async def ending(port: int, server: asyncio.subprocess.Process, model: str, num: int = 20) -> Claim:
    """SIGTERM while completions are being written."""
    clients = [Client(port) for _ in range(num)]
    answers = [asyncio.create_task(c.complete(model, i, 400)) for i, c in enumerate(clients)]
    await asyncio.sleep(0.3)
    server.send_signal(signal.SIGTERM)
    done = await asyncio.gather(*answers, return_exceptions=True)
    wrong = [each for each in done if isinstance(each, BaseException)]
    code = await asyncio.wait_for(server.wait(), 60)
    for client in clients:
        await client.close()
    return Claim(
        not wrong,
        f"SIGTERM with {num} completions under way: {num - len(wrong)} were finished, exit code "
        f"{code}",
    )


# -- a client --------------------------------------------------------------------------------


class Client:
    """One that keeps its connection, as OpenAI's does; with little work of its own, so that it is
    the server that is measured."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._streams:
            self._streams[1].close()
            with suppress(OSError):
                await self._streams[1].wait_closed()
        self._streams = None

    async def complete(self, model: str, seed: int, tokens: int = 32) -> float:
        """Stream a completion: the seconds from the request to its first event."""
        body = {"model": model, "prompt": "", "max_tokens": tokens, "seed": seed, "stream": True}
        content = json.dumps(body).encode()
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        begun = time.monotonic()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
            b"\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise ValueError(head.split(b"\r\n")[0].decode())
        first, text = 0.0, b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            text += (await reader.readexactly(size + 2))[:-2]
            first = first or time.monotonic() - begun
        await reader.readexactly(2)
        if not text.endswith(END):
            raise ValueError(text[-200:].decode())
        return first


# -- the server ------------------------------------------------------------------------------


@asynccontextmanager
async def _served(
    run: Path, connections: int
) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    port = _free_port()
    command: Sequence[str] = [
        *(sys.executable, "-m", "infolm", "serve", str(run)),
        *("--port", str(port), "--connections", str(connections)),
    ]
    server = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    try:
        while server.returncode is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                await asyncio.sleep(0.1)
        if server.returncode is not None:
            raise SystemExit(f"the server did not start: try {' '.join(command)}")
        yield port, server
    finally:
        if server.returncode is None:
            server.terminate()
            await asyncio.wait_for(server.wait(), 60)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _resident(pid: int) -> int:
    """Bytes of a process in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _allow_files(number: int) -> None:
    """Every connection is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        limit = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


if __name__ == "__main__":
    main()
