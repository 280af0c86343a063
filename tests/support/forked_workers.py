"""Workers of a pool that are forked from the command, where PyTorch is imported already.

`fork_workers()` is for a process that was itself forked for one command. A worker then starts in
hundredths of a second instead of two seconds; it is given its jobs and ends as any other.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def fork_workers(first: Callable[[], None] = lambda: None) -> None:
    """Have the pool fork its workers in this process, for good. first: what each begins with."""
    from infolm.studies import pool

    def start(command: list[str], **how: Any) -> ForkedWorker:
        assert command[1:] == ["-m", "infolm.studies.worker"], command
        return ForkedWorker(first)

    pool.subprocess = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)  # type: ignore[assignment]


class ForkedWorker:
    """What the pool uses of `subprocess.Popen`."""

    def __init__(self, first: Callable[[], None]) -> None:
        orders, give = os.pipe()
        answers, answer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        self.returncode: int | None = None
        if not self.pid:
            os._exit(_work(first, orders, answer))
        os.close(orders)
        os.close(answer)
        self.stdin, self.stdout = os.fdopen(give, "wb"), os.fdopen(answers, "rb")

    def wait(self) -> None:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def send_signal(self, number: int) -> None:
        if self.returncode is None:  # a process that ended is there until it is waited for
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "ForkedWorker":
        return self

    def __exit__(self, *error: Any) -> None:
        self.stdout.close()
        try:
            self.stdin.close()
        finally:
            self.wait()


def _work(first: Callable[[], None], orders: int, answer: int) -> int:
    """What a worker does, in its own process; its exit code."""
    try:
        os.setpgid(0, 0)
        for number, handler in (
            (signal.SIGTERM, signal.SIG_DFL),
            (signal.SIGINT, signal.default_int_handler),
        ):
            signal.signal(number, handler)
        os.dup2(orders, 0)
        os.dup2(answer, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # locks of the command, for instance
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        first()
        from infolm.studies.worker import main

        return main()
    except BaseException:
        import traceback

        traceback.print_exc()
        return 70
    finally:
        sys.stderr.flush()
