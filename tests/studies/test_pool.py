"""The pool does every job, whatever happens to its workers."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from infolm.errors import RunError
from infolm.studies.pool import Ended, Job, Pool, cheapest_first

HERE = Path(__file__).parent
COMMAND = """
import sys
from infolm.studies.pool import Job, Pool
job = Job("one", "pool_jobs:count", {"folder": sys.argv[1], "wait": 1})
with Pool(1) as pool:
    list(pool.run([job]))
"""


@pytest.fixture(autouse=True)
def _jobs_are_found(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))


@pytest.fixture
def counting(tmp_path):
    """A job that counts in a folder of its own."""

    def job(name, **arguments):
        return Job(name, "pool_jobs:count", {"folder": str(tmp_path / name), **arguments})

    return job


def done(jobs, workers=1, **options):
    with Pool(workers, **options) as pool:
        return {ended.job.name: ended for ended in pool.run(jobs)}


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def alive(pid):
    """Whether there is a process of this number that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(folder):
    return [int(path.name.split("-")[1]) for path in folder.glob("life-*")]


def test_every_job_once_and_in_order_by_one_worker(counting):
    names = [str(i) for i in range(5)]
    with Pool(1) as pool:
        ended = list(pool.run([counting(name) for name in names]))
    assert [each.job.name for each in ended] == names
    assert [each.result["made"] for each in ended] == [3] * 5
    assert len({each.result["pid"] for each in ended}) == 1
    assert {each.result["threads"] for each in ended} == {"1"}
    assert not pool.out_of_time


def test_several_workers_with_threads_and_jobs_drawn_when_one_is_free(counting):
    drawn, most = [], []

    def jobs():
        for i in range(6):
            drawn.append(i)
            yield counting(str(i))

    with Pool(2, threads=3) as pool:
        ended = []
        for each in pool.run(jobs(), lambda pool: most.append(len(pool.busy))):
            assert len(drawn) <= len(ended) + 2
            ended.append(each)
    assert len({each.job.name for each in ended}) == 6
    assert {each.result["threads"] for each in ended} == {"3"}
    assert max(most) == 2
    assert most[-1] == 0


def test_no_jobs_start_no_worker():
    with Pool(2) as pool:
        assert list(pool.run([])) == []
        assert pool._workers == []


def test_a_worker_that_dies_loses_its_job_alone_and_the_job_resumes(counting):
    found = done([counting("a"), counting("b", die=1, deaths=2), counting("c")])
    assert [each.failure for each in found.values()] == [""] * 3
    assert found["b"].result["made"] == 2  # the first step was made before the first death
    assert found["a"].result["pid"] != found["b"].result["pid"]
    assert found["b"].result["pid"] == found["c"].result["pid"]


def test_a_job_whose_workers_die_is_given_up(counting, tmp_path):
    found = done([counting("a", die=0, deaths=99), counting("b")], attempts=2)
    assert found["a"].failure == "its process died 2 times, perhaps for lack of memory"
    assert found["a"].code == -signal.SIGKILL
    assert len(pids(tmp_path / "a")) == 2
    assert found["b"].result["made"] == 3


def test_a_worker_that_dies_idle_is_replaced(counting):
    with Pool(1) as pool:
        for ended in pool.run([counting("a"), counting("b")]):
            if ended.job.name == "a":
                os.kill(ended.result["pid"], signal.SIGKILL)
            last = ended
    assert last.job.name == "b"
    assert last.result["made"] == 3


def test_failures_are_reported_and_the_rest_goes_on(counting, capfd):
    bad, wrong = Job("bad", "pool_jobs:fail", {}), Job("wrong", "pool_jobs:blunder", {})
    missing = Job("missing", "pool_jobs:nothing", {})
    found = done([bad, wrong, missing, counting("good")])
    assert found["bad"] == Ended(bad, failure="the input is bad: mend it")
    assert found["wrong"].failure == "KeyError: 'what is not there'"
    assert "nothing" in found["missing"].failure
    assert found["good"].result["made"] == 3
    printed = capfd.readouterr()
    assert "blunder" in printed.err  # a fault of the program shows its traceback
    assert printed.out == ""


@pytest.mark.parametrize(
    ("function", "words"), [("stop", "nothing can go on"), ("full_disk", "No space left")]
)
def test_a_fault_that_stops_all(counting, function, words, tmp_path):
    with pytest.raises(RunError, match=words):
        done([Job("a", f"pool_jobs:{function}", {}), counting("b")])
    assert not (tmp_path / "b").exists()


def test_time_that_runs_out(counting, tmp_path):
    with Pool(1, seconds=1.0) as pool:
        ended = list(pool.run([counting("a"), counting("b", wait=2), counting("c")]))
    assert pool.out_of_time
    assert [each.job.name for each in ended] in ([], ["a"])  # a slow machine may end none
    assert not (tmp_path / "c").exists()
    assert not any(alive(pid) for folder in tmp_path.iterdir() for pid in pids(folder))
    assert done([counting("b")])["b"].result["made"] == 3 - len(
        [step for step in ("0", "1") if ended]
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_workers_and_pass(counting, tmp_path, number):
    before = signal.getsignal(signal.SIGTERM)
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # xdist ignores Ctrl-C

    def press():
        until(lambda: (tmp_path / "a" / "0").exists())
        os.kill(os.getpid(), number)

    threading.Thread(target=press).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            done([counting("a", wait=1)])
    finally:
        signal.signal(signal.SIGINT, usual)
    assert not any(map(alive, pids(tmp_path / "a")))
    assert signal.getsignal(signal.SIGTERM) is before


def test_workers_end_when_the_command_is_killed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", COMMAND, tmp_path / "a"]) as command:
        until(lambda: (tmp_path / "a" / "0").exists())
        (worker,) = pids(tmp_path / "a")
        assert alive(worker)
        command.kill()
    until(lambda: not alive(worker))


def test_the_order_is_by_priority_and_then_by_cost():
    jobs = [
        Job("late", "", {}, priority=1, cost=0),
        Job("expensive", "", {}, cost=2),
        Job("cheap", "", {}, cost=1),
        Job("cheap too", "", {}, cost=1),
    ]
    assert [job.name for job in cheapest_first(jobs)] == ["cheap", "cheap too", "expensive", "late"]
