"""Two processes that keep measurements at once lose none, and a reader never sees half a file."""

import json
import subprocess
import sys

import pytest

from infolm import files
from infolm.errors import RunError
from infolm.evaluation import measurement

KEEP = """
import sys
from pathlib import Path
from infolm.evaluation.measurement import Measurement, keep
path, name = Path(sys.argv[1]), sys.argv[2]
for i in range(40):
    keep(path, [Measurement(f"{name}{i}", 1.0, "nats", None, 1, "valid", "static", "")])
"""


def test_nothing_is_lost_and_nothing_is_torn(tmp_path):
    path = tmp_path / "measurements.json"
    writers = [subprocess.Popen([sys.executable, "-c", KEEP, str(path), n]) for n in "ab"]
    reads = 0
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            json.loads(path.read_text())
            reads += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert reads > 0
    names = {m.metric for m in measurement.read(path)}
    assert names == {f"{n}{i}" for n in "ab" for i in range(40)}


def test_a_file_that_is_held_for_long_is_a_sentence(tmp_path, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr(files, "PATIENCE", 0.1)
    with FileLock(tmp_path / ".m.json.lock"), pytest.raises(RunError, match="another process"):
        measurement.keep(tmp_path / "m.json", [])
