"""Tasks that are handed to workers, one at a time each, and what comes of them."""

import json
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from infolm.errors import RunError
from infolm.studies.reproduction.worker import Task
from infolm.studies.workers import Worker, crew, start

PAUSE = 0.5
"""Seconds that are waited for workers who say nothing."""
DEATHS = 3
"""A task whose worker dies so often is given up."""

Answer = dict[str, Any]


class Hand:
    """A worker, and what it is at."""

    def __init__(self, worker: Worker) -> None:
        assert worker.stdin is not None
        assert worker.stdout is not None
        self.worker, self._in, self.out = worker, worker.stdin, worker.stdout
        self.task: Task | None = None
        self.share, self.stage = 0.0, ""
        self._unread = b""

    def give(self, task: Task) -> None:
        self.task, self.share, self.stage = task, 0.0, "starting"
        with suppress(BrokenPipeError):  # its death is heard of soon
            self._in.write(task.to_json() + "\n")
            self._in.flush()

    def hear(self) -> list[Answer] | None:
        """What it has said since the last time; None: it is dead."""
        said = os.read(self.out.fileno(), 2**16)
        *lines, self._unread = (self._unread + said).split(b"\n")
        return [json.loads(line) for line in lines] if said else None


class Pool:
    """Up to so many workers, and the tasks that none of them has begun."""

    def __init__(
        self,
        tasks: Sequence[Task],
        workers: int,
        processes: list[Worker],
        selector: DefaultSelector,
    ) -> None:
        self._waiting, self._workers = deque(tasks), workers
        self._processes, self._selector = processes, selector
        self._hands: list[Hand] = []
        self._deaths: Counter[str] = Counter()

    @property
    def busy(self) -> list[tuple[Task, Hand]]:
        return [(hand.task, hand) for hand in self._hands if hand.task is not None]

    def results(self) -> Iterator[tuple[Task, Answer]]:
        """Tasks that have ended, with the last answer about each: result or failure. Nothing if
        none has for a moment."""
        self._fill()
        for key, _ in self._selector.select(PAUSE):
            hand: Hand = key.data
            answers = hand.hear()
            if answers is None:
                self._dismiss(hand)
                yield from self._after_death(hand)
            for answer in answers or []:
                if "stopped" in answer:
                    raise RunError(answer["stopped"])
                if "progress" in answer:
                    hand.share, hand.stage = answer["progress"], answer["stage"]
                elif hand.task is not None:
                    task, hand.task = hand.task, None
                    yield task, answer

    def _fill(self) -> None:
        """Nobody idle while something waits."""
        wanted = min(self._workers, len(self.busy) + len(self._waiting))
        for _ in range(wanted - len(self._hands)):
            hand = Hand(start("infolm.studies.reproduction.worker", str(self._workers)))
            self._hands.append(hand)
            self._processes.append(hand.worker)
            self._selector.register(hand.out, EVENT_READ, hand)
        for hand in self._hands:
            if hand.task is None and self._waiting:
                hand.give(self._waiting.popleft())

    def _dismiss(self, hand: Hand) -> None:
        self._selector.unregister(hand.out)
        self._hands.remove(hand)
        self._processes.remove(hand.worker)
        with suppress(BrokenPipeError), hand.worker:
            pass  # closes its pipes

    def _after_death(self, hand: Hand) -> Iterator[tuple[Task, Answer]]:
        if hand.task is None:
            return
        self._deaths[hand.task.name] += 1
        if self._deaths[hand.task.name] < DEATHS:
            self._waiting.appendleft(hand.task)  # it goes on from its checkpoint
        else:
            why = f"its process died {DEATHS} times, for want of memory perhaps"
            yield hand.task, {"failure": why}


@contextmanager
def pool(tasks: Sequence[Task], workers: int) -> Iterator[Pool]:
    """Inside, workers are at the tasks; at the end those that still are save and end."""
    with crew() as processes, DefaultSelector() as selector:
        yield Pool(tasks, workers, processes, selector)
