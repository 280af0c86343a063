"""Training metrics for TensorBoard.

TensorBoard's own writer has a thread, which prints a stack trace beside our sentence when the disk
is full. Here the caller writes each event, so a failure is raised there.
"""

import os
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

VERSION = "brain.Event:2"
"""The first record of a file in this format."""
SECONDS = 5.0
"""Least seconds between two flushes: the delay of a TensorBoard page."""


class Board:
    """A new event file in a folder. Records of `step` and later in other files there are void: a
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
