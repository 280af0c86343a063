"""A study in a PostgreSQL database, which several machines may share."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from infolm.errors import InfolmError
from infolm.studies.claims import DatabaseClaims

from .conftest import work

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
HOLD = """
import sys, time
from infolm.studies.claims import DatabaseClaims
kept = DatabaseClaims(sys.argv[1], "study").take("trial-0")
print("held" if kept else "taken", flush=True)
time.sleep(60)
"""
pytestmark = pytest.mark.skipif(not BINARIES, reason="no PostgreSQL server is installed")


@pytest.fixture(scope="module")
def server():
    """The address of a server of our own, on a socket in a folder of its own, no port."""
    pytest.importorskip("psycopg")
    bin_ = BINARIES[-1].parent
    user = {"user": "postgres", "group": "postgres", "extra_groups": []}
    if os.geteuid() != 0:  # the server refuses to run as root, and nobody else may change users
        user = {}
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # a socket's path must be short
    if user:
        shutil.chown(folder, "postgres", "postgres")

    def run(name, *arguments):
        subprocess.run(
            [bin_ / name, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=folder, **user
        )

    try:
        run("initdb", "-D", folder / "data", "--auth=trust", "--no-sync", "-U", "tuner")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        run("pg_ctl", "-D", folder / "data", "-w", "-l", folder / "log", "-o", options, "start")
        try:
            yield f"postgresql://tuner@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", folder / "data", "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder)


def test_two_machines_share_a_study(server, open_study, pretended, tmp_path):
    here = open_study(server, out="here/shared")
    there = open_study(server, out="there/shared")  # another folder of the same name
    theirs = there.claim(3, 1)
    mine = here.claim(3, 1)
    assert (theirs.number, mine.number) == (0, 1)
    mine.release()
    theirs.release()  # both died: each trial is trained once by whoever comes
    work(here, trials=3, seeds=1)
    assert there.finished(3, 1)
    assert [trial.number for trial in there.trials()] == [0, 1, 2]
    assert there.retrained(there.best().number) == here.retrained(here.best().number)
    assert len(pretended) == 4


def test_a_study_of_another_recipe_under_that_name_is_refused(server, open_study):
    open_study(server, out="one/named")
    with pytest.raises(InfolmError, match=r"\(named\) holds a study of another recipe"):
        open_study(server, out="two/named", seed=7)


def test_a_claim_falls_with_a_process_that_is_killed(server):
    url = server.replace("postgresql:", "postgresql+psycopg:")
    command = [sys.executable, "-c", HOLD, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        claims = DatabaseClaims(url, "study")
        assert claims.take("trial-0") is None
        with DatabaseClaims(url, "another").held("trial-0"):
            pass
        holder.kill()
    with claims.held("trial-0"):  # the server may need a moment to notice
        pass
