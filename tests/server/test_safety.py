"""Who may ask the server, how much and how often; whatever is sent, it does not fail."""

import json
import os
import socket
import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from serving import served

from infolm.server.limits import Doors, Limits, Rate, host_of

ASK = {"model": "run", "prompt": "the", "max_tokens": 2}


@pytest.fixture(scope="module")
def guarded(trained):
    limits = Limits(slots=1, waiting=1, body=2000, seconds=60, tokens=10**6)
    doors = Doors(key="secret", origins=frozenset({"https://good.example"}))
    with served([trained], limits, doors) as running:
        yield running


HALVES = [b'{"model": "\\ud800"}', b'{"model": "run", "prompt": "\\udc80"}', b'{"\\ud800": 1}']
KEY = {"Authorization": "Bearer secret"}


def ask(address, headers=KEY, **body):
    return requests.post(
        f"{address}/v1/completions", json={**ASK, **body}, headers=headers, timeout=60
    )


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer sécret".encode()}, 401),
        (KEY, 200),
        (KEY | {"Host": "evil.example"}, 403),
        (KEY | {"Host": "evil.example:8000"}, 403),
        (KEY | {"Host": "localhost:1"}, 200),
        (KEY | {"Origin": "https://evil.example"}, 403),
        (KEY | {"Origin": "null"}, 403),
        (KEY | {"Origin": "https://good.example"}, 200),
        (KEY | {"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_only_those_who_may(guarded, headers, status):
    found = ask(guarded[0], headers)
    assert found.status_code == status
    if status != 200:
        assert set(found.json()["error"]) == {"message", "type", "param", "code"}


def test_health_needs_no_key(guarded):
    assert requests.get(f"{guarded[0]}/healthz", timeout=60).json() == {"status": "ok"}
    assert requests.get(f"{guarded[0]}/metrics", timeout=60).status_code == 401


def test_a_large_body_is_refused(guarded):
    assert ask(guarded[0], prompt="the " * 1000).status_code == 413


@pytest.mark.parametrize("body", [b"\xff\xfe{}", b"{", b"[" * 1900, *HALVES, b"1"])
def test_a_broken_body_is_refused(guarded, body):
    headers = KEY | {"Content-Type": "application/json"}
    found = requests.post(f"{guarded[0]}/v1/completions", data=body, headers=headers, timeout=60)
    assert found.status_code == 400
    assert found.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slot(guarded, stream):
    address, services = guarded
    engine, url = services["run"].engine, urlsplit(address)
    body = json.dumps({**ASK, "max_tokens": 10**6, "stream": stream}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: Bearer secret\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with closing(socket.create_connection((url.hostname, url.port))) as client:
        client.sendall(head.encode() + body)
        _until(lambda: engine.active == 1)
        # The slot is taken, one may wait, and no more.
        assert ask(address, n=2).status_code == 429
    _until(lambda: engine.active == 0)
    assert ask(address).status_code == 200


def _until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_time_is_limited(trained):
    with served([trained], Limits(seconds=0.2, tokens=10**6)) as (address, _):
        assert ask(address, max_tokens=10**6).status_code == 408
        stream = ask(address, max_tokens=10**6, stream=True)
        assert '"code": "timeout"' in stream.text.splitlines()[-2]


def test_a_rate_is_kept_for_each_client(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    rate = Rate(60)
    assert [rate.allows("a") for _ in range(61)] == [True] * 60 + [False]
    assert rate.allows("b")
    now = 1.5
    assert [rate.allows("a") for _ in range(2)] == [True, False]


def test_names_of_hosts():
    assert host_of("LocalHost:80") == "localhost"
    assert host_of("[::1]:80") == "::1"
    assert host_of("evil@127.0.0.1") == "127.0.0.1"
    assert host_of("[") == host_of("") == ""


@pytest.mark.filterwarnings("ignore")
def test_whatever_is_sent_the_server_does_not_fail(server):
    address, services = server
    few = settings(
        max_examples=int(os.environ.get("INFOLM_FUZZ_CASES", "8")),
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    for operation in schema.get_all_operations():

        @few
        @given(case=operation.ok().as_strategy(), number=st.integers(0, 3))
        def sent(case, number):
            # Most names are of no model, and would be refused before anything else is read.
            if isinstance(case.body, dict) and number < len(services):
                case.body["model"] = list(services)[number]
            found = case.call(base_url=address, timeout=60)
            assert found.status_code < 500, found.text

        sent()
