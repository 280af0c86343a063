"""Connections beyond the limit, slow clients, and the end of a server."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest
import requests
from serving import served

from infolm.errors import InfolmError
from infolm.server import connections
from infolm.server.limits import Limits

LIMIT, SERVED, CROWD = 12, 4, 400
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def asking(tokens, seed=1):
    body = {"model": "run", "prompt": "the", "max_tokens": tokens, "seed": seed, "stream": True}
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


async def completed(reader, writer, tokens, seed=1):
    """Ask on a connection that is kept, and read to the end."""
    writer.write(asking(tokens, seed))
    head = await reader.readuntil(b"\r\n\r\n")
    text = await reader.readuntil(b"\r\n0\r\n\r\n")
    return head.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in text


def test_a_crowd_beyond_the_limit_hurts_nobody_who_is_served(trained):
    with served([trained], Limits(connections=LIMIT)) as (address, _):
        port = urlsplit(address).port

        async def client(seed, over):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            done = []
            while not over.is_set() or len(done) < 3:
                done.append(await completed(reader, writer, 20, seed))
            writer.close()
            await writer.wait_closed()
            return done

        async def intruder(kept):
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                kept.append(writer)
                writer.write(HEALTH)
                return await asyncio.wait_for(reader.read(2000), 30)
            except OSError:
                return b""

        async def both():
            over, kept = asyncio.Event(), []
            clients = [asyncio.create_task(client(i, over)) for i in range(SERVED)]
            await asyncio.sleep(0.3)
            answers = await asyncio.gather(*(intruder(kept) for _ in range(CROWD)))
            over.set()
            done = await asyncio.gather(*clients)
            for writer in kept:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for writer in kept), return_exceptions=True)
            return answers, done

        answers, done = asyncio.run(both())
        let_in = sum(b" 200 " in answer for answer in answers)
        told = [answer for answer in answers if b" 503 " in answer]
        assert let_in <= LIMIT - SERVED  # the others kept their places all the time
        assert told  # some are told why
        assert json.loads(told[0].split(b"\r\n\r\n")[1])["error"]["code"] == "full"
        assert all(len(each) >= 3 and all(each) for each in done)
        # When the crowd has gone there is room again.
        end = time.monotonic() + 30
        while requests.get(f"{address}/healthz", timeout=30).status_code != 200:
            assert time.monotonic() < end


def test_one_who_sends_no_request_is_let_go(trained, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with served([trained], Limits(connections=3)) as (address, _), ExitStack() as stack:
        url = urlsplit(address)
        slow = [socket.create_connection((url.hostname, url.port)) for _ in range(3)]
        for each, start in zip(slow, (b"", b"G", b"GET / HTTP/1.1\r\nHost: local"), strict=True):
            stack.enter_context(closing(each))
            each.sendall(start)
            each.settimeout(30)
        assert [each.recv(100) for each in slow] == [b""] * 3
        assert requests.get(f"{address}/healthz", timeout=30).status_code == 200


def test_a_body_that_comes_too_slowly_is_given_up(trained):
    with served([trained], Limits(seconds=0.3)) as (address, _):
        url = urlsplit(address)
        with closing(socket.create_connection((url.hostname, url.port))) as slow:
            slow.sendall(asking(5)[:-10])
            slow.settimeout(30)
            assert b" 408 " in slow.recv(1000)


def test_a_body_without_end_is_refused_before_it_ends(trained):
    with served([trained], Limits(body=10_000)) as (address, _):
        url = urlsplit(address)
        with closing(socket.create_connection((url.hostname, url.port))) as client:
            head = (
                "POST /v1/score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            client.sendall(head.encode())
            client.settimeout(30)
            chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
            for _ in range(4):
                client.sendall(chunk)
            assert b" 413 " in client.recv(1000)


def test_more_connections_than_files_are_refused_at_the_start(monkeypatch):
    limit = (64, 100)
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: limit)
    with pytest.raises(InfolmError, match="lower --connections to"):
        connections.server_config(None, Limits())


def test_sigterm_finishes_what_is_under_way(trained):
    command = [sys.executable, "-m", "infolm", "serve", str(trained), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True)
    try:
        said = server.stderr.readline()  # the port that was free, once the model is open
        port = int(re.fullmatch(r"Serving run at http://127.0.0.1:(\d+)/ .*\n", said)[1])
        for _ in range(1200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert server.poll() is None
                time.sleep(0.05)
        with closing(socket.create_connection(("127.0.0.1", port))) as client:
            client.settimeout(60)
            client.sendall(asking(1000))
            text = client.recv(2**16)
            assert b"data: " in text or text.startswith(b"HTTP/1.1 200")
            server.send_signal(signal.SIGTERM)
            while part := client.recv(2**16):
                text += part
        assert b"data: [DONE]" in text
        assert b'"finish_reason": "length"' in text
        assert server.wait(60) in (0, -signal.SIGTERM)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), 1)
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
        server.stderr.close()


def test_small_packets_are_sent_at_once():
    async def accepted():
        done = asyncio.get_running_loop().create_future()

        def take(reader, writer):
            connection = writer.get_extra_info("socket")
            done.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with connections.bound("127.0.0.1", 0) as listening:
            async with await asyncio.start_server(take, sock=listening):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                assert await done
                writer.close()

    asyncio.run(accepted())


def test_a_port_that_is_taken_is_refused_with_advice(trained, infolm):
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = infolm("serve", trained, "--port", other.getsockname()[1])
    assert done.code == 2
    assert "in use" in done.err
    assert "--port 0 takes a free one" in " ".join(done.err.split())
