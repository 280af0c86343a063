"""A pool of worker processes, and jobs that survive their deaths.

A job is a call of a function in another process, its arguments and result as JSON:

    jobs = [Job(name, "infolm.studies.reproduction.point:train_and_measure", {...}), ...]
    with Pool(workers=2, seconds=3600) as pool:
        for ended in pool.run(cheapest_first(jobs), watch):
            ...  # ended.job, and ended.result or ended.failure
        pool.out_of_time  # True: the hour is over; jobs that did not end are resumed next time

The function takes the arguments and a `worker.Reporter`, and gives what can be written as JSON. It
must resume where an earlier process was killed, as a training does from its checkpoint. Then:

- A worker that dies (killed, or out of memory) loses only its job. The job is given to another
  worker; after `attempts` deaths it is reported as a failure.
- A job that raises `InfolmError` has failed and is not tried again; the others continue.
- A job that raises `worker.Stop`, or meets a full disk, ends the pool with `RunError`.
- At the end of the block, for whatever reason (Ctrl-C, SIGTERM, no time left, an exception), busy
workers are asked to end; a training saves its state. SIGTERM arrives as KeyboardInterrupt.
- A command that is killed outright leaves no workers behind: each ends at its next report.

A worker has one thread unless told otherwise, and leads a process group of its own, so that Ctrl-C
reaches the command alone.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector
from types import TracebackType
from typing import Any

from infolm.errors import RunError

PAUSE = 0.5
"""Seconds between two calls of `watch`, at most."""
ATTEMPTS = 3
"""A job whose worker dies so often is given up."""


@dataclass(frozen=True)
class Job:
    """name: for people, and the same for no other job of a run. call: "package.module:function".
    priority: those with the lowest come first. cost: what it takes, in whatever unit."""

    name: str
    call: str
    arguments: dict[str, Any]
    priority: int = 0
    cost: float = 0.0


@dataclass(frozen=True)
class Ended:
    """failure: why there is no result; "" if there is one. code: what the last process ended with,
    where the failure is that too many died."""

    job: Job
    result: Any = None
    failure: str = ""
    code: int | None = None


def cheapest_first(jobs: Iterable[Job]) -> list[Job]:
    """By priority, then by cost; of equals the one that was given first."""
    return sorted(jobs, key=lambda job: (job.priority, job.cost))


def share_of_cores(workers: int) -> int:
    """Threads of each worker where so many share what PyTorch would use by itself."""
    import torch

    return max(1, torch.get_num_threads() // workers)


class Worker:
    """A process, and the job it is at. share, stage: how far it is, as it said last."""

    def __init__(self, threads: int) -> None:
        numbers = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "infolm.studies.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | numbers,
            process_group=0,
        )
        self.job: Job | None = None
        self.share, self.stage = 0.0, ""
        self._unread = b""

    def give(self, job: Job) -> None:
        assert self.process.stdin is not None
        self.job, self.share, self.stage = job, 0.0, "starting"
        order = {"call": job.call, "arguments": job.arguments}
        with suppress(BrokenPipeError):  # it has died, which `answers` will find
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def fileno(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def answers(self) -> list[dict[str, Any]] | None:
        """What it has written since the last time; None: it is dead."""
        new = os.read(self.fileno(), 2**16)
        *lines, self._unread = (self._unread + new).split(b"\n")
        return [json.loads(line) for line in lines] if new else None

    def close(self) -> None:
        with suppress(BrokenPipeError), self.process:
            pass  # closes its pipes, and waits for it


class Pool:
    """Up to `workers` workers of `threads` threads each; see the module.

    seconds: no time is left after so many, counted from the start of the block.
    """

    def __init__(
        self, workers: int, threads: int = 1, attempts: int = ATTEMPTS, seconds: float | None = None
    ) -> None:
        self._size, self._threads, self._attempts = workers, threads, attempts
        self._seconds, self._end = seconds, float("inf")
        self._workers: list[Worker] = []
        self._retries: list[Job] = []
        self._deaths: Counter[str] = Counter()
        self.out_of_time = False

    @property
    def busy(self) -> list[tuple[Job, Worker]]:
        """The jobs that are being done, and by whom."""
        return [(worker.job, worker) for worker in self._workers if worker.job is not None]

    def run(
        self, jobs: Iterable[Job], watch: Callable[["Pool"], object] = lambda pool: None
    ) -> Iterator[Ended]:
        """The jobs as they end. They are begun in the order given, each drawn from `jobs` when a
        worker is free for it. `watch` is called when a job has ended, and twice a second.

        Ends early when no time is left.
        """
        waiting, looked = iter(jobs), -PAUSE
        while True:
            self._fill(waiting)
            if time.monotonic() - looked >= PAUSE or not self.busy:
                watch(self)
                looked = time.monotonic()
            if not self.busy:
                return
            left = self._end - time.monotonic()
            if left <= 0:
                self.out_of_time = True
                return
            for key, _ in self._selector.select(min(PAUSE, left)):
                for ended in self._answered(key.data):
                    yield ended
                    looked = -PAUSE

    def _fill(self, waiting: Iterator[Job]) -> None:
        """Give every worker that is free something to do, while there is something."""
        idle = [worker for worker in self._workers if worker.job is None]
        while len(self.busy) < self._size:
            job = self._retries.pop(0) if self._retries else next(waiting, None)
            if job is None:
                return
            (idle.pop() if idle else self._start()).give(job)

    def _start(self) -> Worker:
        worker = Worker(self._threads)
        self._workers.append(worker)
        self._selector.register(worker, EVENT_READ, worker)
        return worker

    def _answered(self, worker: Worker) -> Iterator[Ended]:
        answers = worker.answers()
        if answers is None:
            yield from self._died(worker)
        for answer in answers or []:
            if "stopped" in answer:
                raise RunError(answer["stopped"])
            if "progress" in answer:
                worker.share, worker.stage = answer["progress"], answer["stage"]
            elif worker.job is not None:
                job, worker.job = worker.job, None
                yield Ended(job, answer.get("result"), answer.get("failure", ""))

    def _died(self, worker: Worker) -> Iterator[Ended]:
        self._selector.unregister(worker)
        self._workers.remove(worker)
        worker.close()
        if (job := worker.job) is None:
            return
        self._deaths[job.name] += 1
        if self._deaths[job.name] < self._attempts:
            self._retries.append(job)
        else:
            why = f"its process died {self._attempts} times, perhaps for lack of memory"
            yield Ended(job, failure=why, code=worker.process.returncode)

    def __enter__(self) -> "Pool":
        self._selector = DefaultSelector()
        self._before = _terminated_as_interrupted()
        if self._seconds is not None:
            self._end = time.monotonic() + self._seconds
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.process.terminate()
        try:
            for worker in self._workers:
                worker.process.wait()
        finally:  # asked a second time, we do not wait
            for worker in self._workers:
                worker.process.kill()
                worker.close()
            self._selector.close()
            if self._before is not None:
                signal.signal(signal.SIGTERM, self._before)


def _terminated_as_interrupted() -> Any:
    """From now on SIGTERM raises KeyboardInterrupt; gives the handler before. None: not in the main
    thread, which alone may change it."""
    if threading.current_thread() is not threading.main_thread():
        return None

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    return signal.signal(signal.SIGTERM, interrupt)
