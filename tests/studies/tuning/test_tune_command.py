"""`infolm tune` as a person gives it: whole, killed, interrupted, and with bad input."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import pytest
import yaml
from one_sentence import one_sentence
from training_tiny import tiny_file

from infolm import cli
from infolm.errors import InfolmError
from infolm.studies.tuning import tuner

from .conftest import RANGES, tuned_file


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def infolm(capsys, monkeypatch):
    """A command in this process; the workers of `tune` are processes of their own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["infolm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")
def test_killed_interrupted_and_finished_by_two_workers(infolm, tmp_path, small_text):
    recipe = tuned_file(tmp_path, small_text, max_steps=20, checkpoint_seconds=0)
    out = tmp_path / "study"
    command = ["tune", str(recipe), "--trials", "3", "--out", str(out), "--seeds", "1"]

    def begun(number):
        return (out / "trials" / f"{number:03d}" / "metrics.jsonl").exists()

    with subprocess.Popen([sys.executable, "-m", "infolm", *command]) as first:
        wait_for(lambda: begun(0))
        first.kill()  # with no warning, while it trains

    def press_ctrl_c():
        wait_for(lambda: begun(1))
        os.kill(os.getpid(), signal.SIGINT)

    # pytest-xdist has its workers ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press_ctrl_c).start()
    second = infolm(*command)
    signal.signal(signal.SIGINT, before)
    assert second.code == 130, second.err
    assert f"infolm tune {out} --trials 3" in second.err

    done = infolm("tune", out, "--trials", "3", "--seeds", "1", "--workers", "2", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result == json.loads((out / "result.json").read_text())
    assert result["trials"] == {"total": 3, "complete": 3}
    assert list(result["retrained"]["seeds"]) == ["2"]
    rows = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    assert [row["trial"] for row in rows] == [0, 1, 2]
    assert {row["state"] for row in rows} == {"complete"}
    assert min(row["loss"] for row in rows) == result["best"]["nll"]
    for number in range(3):  # a trial that went on has every step's record once
        records = (out / "trials" / f"{number:03d}" / "metrics.jsonl").read_text().splitlines()
        steps = [r["step"] for r in map(json.loads, records) if r["kind"] == "validation"]
        assert steps == [5, 10, 15, 20]
    svg = (out / "parallel.svg").read_text()
    assert all(f'id="axis-{key}"' in svg for key in RANGES)

    again = infolm("tune", out, "--trials", "3", "--seeds", "1")  # all is done: told again
    assert again.code == 0
    assert "mean ± standard deviation over 1 other seeds" in again.out
    assert "optimistic" in again.out
    best = infolm("train", out / "best.yaml", "--out", tmp_path / "run", "--json")
    assert json.loads(best.out)["nll"] == result["best"]["nll"]


@pytest.fixture
def refused(infolm, tmp_path, small_text):
    def run(*arguments, recipe=None):
        recipe = recipe or tuned_file(tmp_path, small_text, max_steps=2)
        done = infolm("tune", recipe, "--out", tmp_path / "study", *arguments)
        assert not (tmp_path / "study" / "trials").exists()
        return done

    return run


def test_a_recipe_without_ranges(refused, tmp_path, small_text):
    one_sentence(refused(recipe=tiny_file(tmp_path, small_text)), "section 'tuning'", codes=(1, 2))


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ("{optimiser.rate: {low: 1, high: 2}}", "no key 'optimiser.rate'"),
        ("{optimiser.learning_rate: {low: 2, high: 1}}", "low (2) must be below high (1)"),
        ("{optimiser.learning_rate: {low: 0, high: 1, log: true}}", "a low above 0"),
        ("{model.dropout.input: {low: 0, high: 1}}", "model.dropout.input"),
    ],
)
def test_ranges_that_make_no_sense(refused, ranges, words):
    one_sentence(refused(f"tuning={ranges}"), words, codes=(1, 2))


def test_no_trials(refused):
    one_sentence(refused("--trials", "0"), "--trials is 0", codes=(1, 2))


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ("mysql://host/database", "such as postgresql://"),
        ("nonsense", "such as postgresql://"),
        ("postgresql://u:secret@/tune?host=/nowhere", "does not answer"),
    ],
)
def test_a_storage_that_cannot_be_used(refused, storage, words):
    pytest.importorskip("psycopg")
    done = refused("--storage", storage)
    one_sentence(done, words, codes=(1, 2))
    assert "secret" not in done.err


def test_a_package_that_is_missing(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "infolm.studies.tuning.tuner", None)
    monkeypatch.delattr("infolm.studies.tuning.tuner", raising=False)
    one_sentence(refused(), "pip install 'infolm[tune]'", codes=(1, 2))


def test_a_driver_that_is_missing(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    done = refused("--storage", "postgresql://user@host/database")
    one_sentence(done, "pip install 'infolm[postgresql]'", codes=(1, 2))


def test_a_folder_that_holds_something_else(refused, tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.txt").write_text("precious")
    one_sentence(refused(), "is not a study's folder", codes=(1, 2))
    assert [path.name for path in (tmp_path / "study").iterdir()] == ["mine.txt"]


def test_a_study_of_another_recipe(refused, tmp_path, small_text):
    recipe = tuned_file(tmp_path, small_text, max_steps=2)
    (tmp_path / "study").mkdir()
    other = yaml.safe_load(recipe.read_text())
    other["model"]["hidden"] = 13
    (tmp_path / "study" / "study.yaml").write_text(yaml.safe_dump(other))
    one_sentence(refused(), "another recipe (model.hidden was 13 and is now 12)", codes=(1, 2))


def test_a_variant_is_tuned_in_a_folder_of_its_own(infolm, tmp_path, small_text, monkeypatch):
    tree = yaml.safe_load(tuned_file(tmp_path, small_text).read_text())
    tree["variants"] = {"One layer": "model.layers=1 seed=3"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree))
    seen = []

    def tune(recipe, out, *_):
        seen.append((recipe.model.layers, recipe.seed, str(out)))
        raise InfolmError("enough")

    monkeypatch.setattr(tuner, "tune", tune)
    monkeypatch.chdir(tmp_path)
    one_sentence(infolm("tune", "mine.yaml", "--variant", "One layer", "seed=4"), "enough")
    assert seen == [(1, 4, "runs/mine-one-layer-tuning")]
    one_sentence(infolm("tune", "mine.yaml", "--variant", "one"), "did you mean 'One layer'?")
