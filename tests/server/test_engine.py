"""Continuous batching: what is written together is what is written alone."""

import asyncio
import threading
import time

import pytest
import torch

from infolm.families.base import open_run
from infolm.generation.sampling import SamplingSettings, own_uniforms
from infolm.server.bell import Bell
from infolm.server.engine import BusyError, Continuation, Engine
from infolm.server.text import Text


@pytest.fixture(scope="module")
def run(trained):
    return open_run(trained)


@pytest.fixture
def engine(run):
    engine = Engine(run.model, slots=4, waiting=40)
    yield engine
    engine.close()


def asked(run, seed, prompt="the cat", tokens=20, seconds=60.0, **more):
    tokenizer = run.tokenizer
    ids = [tokenizer.eos, *tokenizer.encode(prompt).tolist()]
    uniforms = own_uniforms(torch.Generator().manual_seed(seed), tokens)
    text = Text(tokenizer, ids[-1])
    deadline = time.monotonic() + seconds
    return Continuation(ids, SamplingSettings(**more), uniforms, text, deadline)


def written(engine, *continuations):
    """The texts, when all have ended."""
    done = threading.Semaphore(0)
    for each in continuations:
        each.heard = lambda each=each: each.finish and done.release()
    engine.submit(continuations)
    for _ in continuations:
        assert done.acquire(timeout=60)
    return [each.text.text for each in continuations]


def test_in_company_as_alone(engine, run):
    requests = [
        {
            "seed": i,
            "prompt": "the cat sees a bird and then"[: 3 + 4 * (i % 5)],
            "tokens": 3 + 5 * (i % 6),
            "temperature": 0.7 + 0.1 * (i % 3),
        }
        for i in range(24)
    ]
    together = written(engine, *(asked(run, **each) for each in requests))
    alone = [written(engine, asked(run, **each))[0] for each in requests]
    assert together == alone
    assert len(set(together)) > 12


def test_prompts_are_read_in_parts_as_they_are_at_once(run, monkeypatch):
    prompts = ["the cat sees a bird and then sleeps " * n for n in (9, 1, 4, 2, 9)]
    found = []
    for part in (3, 10**6):
        monkeypatch.setattr("infolm.server.engine.READ_ON", part)
        engine = Engine(run.model)
        asking = [asked(run, i, prompt=prompt) for i, prompt in enumerate(prompts)]
        for each in asking[::2]:
            each.echo, each.alternatives = True, 2
        found.append((written(engine, *asking), asking))
        engine.close()
    (texts, parts), (at_once, wholes) = found
    assert texts == at_once
    for some, all_of_it in zip(parts, wholes, strict=True):
        assert [token.id for token in some.echoed] == [token.id for token in all_of_it.echoed]
        assert [token.log_prob for token in some.echoed] == pytest.approx(
            [token.log_prob for token in all_of_it.echoed], abs=1e-5
        )
    assert len(parts[0].echoed) == len(parts[0].prompt) - 1


def test_a_long_prompt_keeps_nobody_waiting(run, monkeypatch):
    monkeypatch.setattr("infolm.server.engine.READ_ON", 1)
    engine = Engine(run.model)
    long, short = asked(run, 1, prompt="the cat " * 400, tokens=1), asked(run, 2, tokens=3)
    done, ended = [], threading.Event()
    long.heard = lambda: (done.append("long"), ended.set())
    short.heard = lambda: short.finish and done.append("short")
    engine.submit([long])
    engine.submit([short])
    assert ended.wait(60)
    assert done == ["short", "long"]
    gone = asked(run, 3, prompt="the cat " * 400)
    engine.submit([gone])
    gone.cancelled = True
    engine.close()
    assert gone.finish == "cancelled"


def test_one_that_leaves_frees_its_slot(engine, run):
    started = threading.Event()
    endless = [asked(run, i, tokens=10**6, seconds=600) for i in range(4)]
    endless[0].heard = lambda: len(endless[0].written) > 3 and started.set()
    engine.submit(endless)
    assert started.wait(60)
    late = asked(run, 9)
    ended = threading.Event()
    late.heard = lambda: late.finish and ended.set()
    engine.submit([late])
    assert engine.waiting == 1
    assert not late.written
    endless[2].cancelled = True
    assert ended.wait(60)
    assert endless[2].finish == "cancelled"
    assert endless[0].finish is None
    for each in endless:
        each.cancelled = True


def test_a_first_token_waits_for_one_step_of_the_others(run):
    engine = Engine(run.model, slots=40)
    endless = [asked(run, i, tokens=10**5, seconds=600) for i in range(30)]
    started, counts = threading.Event(), []
    endless[0].heard = lambda: len(endless[0].written) > 3 and started.set()
    engine.submit(endless)
    assert started.wait(60)
    for seed in range(5):
        late = asked(run, seed, tokens=3)
        ended = threading.Event()

        def heard(late=late, ended=ended):
            counts.append(len(endless[0].written))
            if late.finish:
                ended.set()

        late.heard = heard
        before = len(endless[0].written)
        engine.submit([late])
        submitted = len(endless[0].written)
        assert ended.wait(60)
        first, *_, last = counts[-3:]
        assert last == first + 2  # a token of each in every step
        # `before` and `submitted` are read while the engine goes on: they bound the step it was in.
        assert first - before >= 1
        assert first - submitted <= 2
    for each in endless:
        each.cancelled = True
    engine.close()


def test_more_than_may_wait_is_refused(engine, run):
    endless = [asked(run, i, tokens=10**6, seconds=600) for i in range(44)]
    engine.submit(endless)
    with pytest.raises(BusyError):
        engine.submit([asked(run, 1)])
    for each in endless:
        each.cancelled = True


def test_time_is_limited(engine, run):
    late = asked(run, 1, tokens=10**6, seconds=0.1)
    written(engine, late)
    assert late.finish == "timeout"
    waited = asked(run, 1, seconds=-1)
    written(engine, waited)
    assert not waited.written


def test_what_goes_wrong_ends_those_alone(engine, run):
    broken = asked(run, 1)
    broken.uniforms = broken.uniforms[:0].new_full((3,), float("nan"))
    broken.prompt = [10**6]
    written(engine, broken)
    assert broken.finish == "error"
    assert written(engine, asked(run, 5)) == written(engine, asked(run, 5))


def test_a_call_waits_for_its_turn(engine, run):
    running = asked(run, 1, tokens=10**6, seconds=600)
    engine.submit([running])
    assert engine.call(lambda: threading.current_thread().name).result(60) == "infolm-engine"
    with pytest.raises(ZeroDivisionError):
        engine.call(lambda: 1 / 0).result(60)
    running.cancelled = True


def test_a_loop_is_woken_once_for_all_events():
    async def woken():
        loop, bell, calls = asyncio.get_running_loop(), Bell(), []
        events = [asyncio.Event() for _ in range(5)]
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *call: (calls.append(call), wake(*call))
        for event in events:
            bell.add(event, loop)
        bell.ring()
        bell.ring()  # nothing is left to say
        assert len(calls) == 1
        async with asyncio.timeout(60):
            await asyncio.gather(*(event.wait() for event in events))
        return bell, events[0], loop

    bell, event, loop = asyncio.run(woken())
    bell.add(event, loop)
    bell.ring()  # the loop has ended, and nobody waits


def test_closing_finishes_what_is_under_way(run):
    engine = Engine(run.model)
    job = asked(run, 1, tokens=50)
    engine.submit([job])
    engine.close()
    assert job.finish == "length"
    with pytest.raises(BusyError):
        engine.submit([asked(run, 1)])
