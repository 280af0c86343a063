"""A claim belongs to one process and falls with it."""

import subprocess
import sys

from infolm.studies.claims import FileClaims

HOLD = """
import sys, time
from pathlib import Path
from infolm.studies.claims import FileClaims
claims = FileClaims(Path(sys.argv[1]))
kept = claims.take("trial-0")
print("held" if kept else "taken", flush=True)
time.sleep(60)
"""


def test_one_holder_at_a_time(tmp_path):
    mine, yours = FileClaims(tmp_path), FileClaims(tmp_path)
    release = mine.take("a")
    assert release
    assert yours.take("a") is None
    assert yours.take("b")
    release()
    with yours.held("a"):
        assert mine.take("a") is None
    assert mine.take("a")


def test_a_claim_falls_with_a_process_that_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        assert FileClaims(tmp_path).take("trial-0") is None
        holder.kill()
    assert FileClaims(tmp_path).take("trial-0")
