"""Many clients of a server beside one: tokens a second, the wait for a first token, memory.

    python benchmarks/serving.py RUN [--clients 50] [--seconds 10] [--requests 500]

The server runs in a process of its own, at a free port of this machine. Times depend on the
machine: the ratios are what counts.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

TOKENS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--requests", type=int, default=500, help="of the measurement of memory")
    given = parser.parse_args()
    port = _free_port()
    command = [sys.executable, "-m", "infolm", "serve", str(given.run), "--port", str(port)]
    server = subprocess.Popen(command)
    try:
        _wait(port, server)
        name = given.run.resolve().name
        one = load(port, name, 1, given.seconds)
        many = load(port, name, given.clients, given.seconds)
        before = _resident(server.pid)
        with ThreadPoolExecutor(given.clients) as pool:
            list(pool.map(lambda seed: ask(port, name, seed), range(given.requests)))
        after = _resident(server.pid)
    finally:
        server.terminate()
        server.wait(60)
    print(f"1 client: {one[0]:,.0f} tokens/s, first token {1000 * one[1]:.1f} ms (median)")
    print(
        f"{given.clients} clients: {many[0]:,.0f} tokens/s, {many[0] / one[0]:.1f} times as many; "
        f"p99 of the first token {1000 * many[2]:.1f} ms, {many[2] / one[1]:.1f} times the median "
        f"of one client; {many[3]} errors"
    )
    print(
        f"memory: {before / 2**20:,.1f} MiB, after {given.requests:,} more requests "
        f"{after / 2**20:,.1f} MiB"
    )


def load(port: int, model: str, clients: int, seconds: float) -> tuple[float, float, float, int]:
    """Tokens a second, the median and p99 of the seconds to a first token, and errors."""
    end = time.monotonic() + seconds
    firsts: list[float] = []
    counts, errors, lock = [0] * clients, [0], threading.Lock()

    def client(number: int) -> None:
        seed = number
        while time.monotonic() < end:
            seed += clients
            try:
                first, tokens = ask(port, model, seed)
            except (OSError, ValueError):
                with lock:
                    errors[0] += 1
                continue
            with lock:
                firsts.append(first)
                counts[number] += tokens

    begun = time.monotonic()
    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = sum(counts) / (time.monotonic() - begun)
    p99 = sorted(firsts)[min(len(firsts) - 1, int(0.99 * len(firsts)))]
    return rate, statistics.median(firsts), p99, errors[0]


def ask(port: int, model: str, seed: int) -> tuple[float, int]:
    """Stream a completion: the seconds to its first event, and its tokens."""
    body = {"model": model, "prompt": "", "max_tokens": TOKENS, "seed": seed, "stream": True}
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    begun = time.monotonic()
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise ValueError(answer.read().decode())
    answer.readline()
    first = time.monotonic() - begun
    if not answer.read().endswith(b"data: [DONE]\n\n"):
        raise ValueError("the stream has no end")
    connection.close()
    return first, TOKENS


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _wait(port: int, server: "subprocess.Popen[bytes]") -> None:
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not start")


def _resident(pid: int) -> int:
    """Bytes of a process in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    main()
