"""The numbers of a training for TensorBoard.

Its own writer has a thread, whose stack trace a full disk prints beside our sentence. Here an event
is written by who has it, and what fails fails there.
"""

import os
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

VERSION = "brain.Event:2"
"""Of the format: the first record of a file."""
SECONDS = 5.0
"""Between two flushes, at the least: what a page of TensorBoard is behind."""


class Board:
    """A new event file in a folder. What other files there have of `step` and later is void: a
    resumed training takes those steps again."""

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        seconds, rest = divmod(time.time_ns(), 10**9)
        name = f"events.out.tfevents.{seconds}.{socket.gethostname()}.{os.getpid()}.{rest}"
        self._file = RecordWriter(open(folder / name, "xb"))  # noqa: SIM115
        self._flushed = time.monotonic()
        self._add(Event(file_version=VERSION))
        self._add(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def number(self, name: str, value: float, step: int) -> None:
        self._add(Event(step=step, summary=Summary(value=[{"tag": name, "simple_value": value}])))

    def text(self, name: str, text: str, step: int) -> None:
        from torch.utils.tensorboard.summary import text as summary

        self._add(Event(step=step, summary=summary(name, text)))

    def close(self) -> None:
        self._file.close()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._file.write(event.SerializeToString())
        if time.monotonic() > self._flushed + SECONDS:
            self._file.flush()
            self._flushed = time.monotonic()
