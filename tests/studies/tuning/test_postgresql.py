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
WORKER = """
import sys, time
from pathlib import Path
from infolm.config import load_recipe
from infolm.studies.tuning import trials
from infolm.studies.tuning.study import Study, StudyFolder
from infolm.studies.worker import Reporter

def train(recipe, out, resume, watcher, report):
    print(recipe.optimiser.learning_rate, flush=True)
    time.sleep(60)

trials.train = train
folder = StudyFolder(Path(sys.argv[1]))
study = Study(folder, load_recipe(str(folder.recipe)), "text", sys.argv[2])
trials.take_turn(study, int(sys.argv[3]), 0, Reporter(sys.stderr))
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


def test_a_worker_killed_in_mid_trial_loses_that_trial_alone(
    server, open_study, pretended, tmp_path
):
    """Two machines without a shared folder; the other one is killed while it trains."""
    here = open_study(server, out="here/killed")
    open_study(server, out="there/killed").close()
    first = here.claim(3, 0)
    first.release()  # trial 0 is there, and nobody trains it
    command = [sys.executable, "-c", WORKER, tmp_path / "there/killed", server, "3"]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **quiet) as worker:
        rate = float(worker.stdout.readline())  # it is at trial 0
        second = here.claim(3, 0)
        assert second.number == 1  # trial 0 is the other's
        second.release()
        worker.kill()
    work(here, trials=3, seeds=0)
    assert [trial.state.name for trial in here.trials()] == ["COMPLETE"] * 3
    assert here.values(here.trials()[0])["optimiser.learning_rate"] == rate
    assert rate in [recipe.optimiser.learning_rate for recipe in pretended]
    assert len(pretended) == 3
    assert not (tmp_path / "there/killed/trials/000").exists()  # and nothing of it was needed


def test_a_result_that_comes_too_late_changes_nothing(server, open_study, pretended):
    here = open_study(server, out="here/late")
    there = open_study(server, out="there/late")
    here.claim(1, 0).release()  # as if its connection was lost
    work(there, trials=1, seeds=0)
    before = there.trials()[0].values
    here.end(0, 1.0)
    here.end(0, None, "a failure")
    assert there.trials()[0].values == before
    assert there.trials()[0].state.name == "COMPLETE"


def test_the_server_asks_after_silent_machines(server):
    claims = DatabaseClaims(
        server.replace("postgresql:", "postgresql+psycopg:") + "&options=-c%20work_mem%3D1234kB",
        "study",
    )
    with claims._engine.connect() as connection:
        assert connection.exec_driver_sql("show work_mem").scalar() == "1234kB"
        asked = connection.exec_driver_sql(
            "select reset_val from pg_settings where name = 'tcp_keepalives_idle'"
        ).scalar()
        assert asked in ("30", "0")  # 0 on a socket of one machine, where none is needed
