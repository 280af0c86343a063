"""Clocks that jump or stand still do no harm: to what is trained, kept, locked or swept."""

import itertools
import json
import math
import os
import threading
import time

import pytest
from training_tiny import Silent, quiet, tiny_recipe

from infolm import files
from infolm.families.train import train
from infolm.training import checkpoint
from infolm.training.run import RunFolder, read_metrics

YEAR = 365 * 24 * 3600.0


@pytest.fixture
def jumping(monkeypatch):
    """The time of day goes a year ahead, a year back, and stands, from look to look."""
    real, steps = time.time, itertools.cycle((0.0, YEAR, -YEAR, YEAR, YEAR, -2 * YEAR))
    monkeypatch.setattr(time, "time", lambda: real() + next(steps))


@pytest.fixture
def standing(monkeypatch):
    """The clock of durations has ticks of a day, as a coarse one has of a few milliseconds."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)


def test_training_is_the_same_by_any_clock(tmp_path, small_text, request):
    recipe = tiny_recipe(small_text, max_steps=6, validate_every=3, log_every=1)
    train(recipe, tmp_path / "one", False, Silent(), quiet)
    request.getfixturevalue("jumping")
    request.getfixturevalue("standing")
    train(recipe, tmp_path / "two", False, Silent(), quiet)
    for name in ("model.safetensors", "checkpoints/step-000000006.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    speeds = [
        record["tokens_per_second"]
        for record in read_metrics(tmp_path / "two" / "metrics.jsonl")
        if record["kind"] == "step"
    ]
    assert len(speeds) == 6
    assert all(0 < speed < math.inf for speed in speeds)


def test_progress_by_a_clock_that_stands(standing, capsys):
    from infolm.console import TrainingBar, bar

    with bar("training") as shown:
        watcher = TrainingBar(shown)
        for step in range(5):
            watcher.step(step / 4, 3.0, 100)
    assert "Traceback" not in capsys.readouterr().err


def test_settings_of_former_weights_are_tuned_anew_though_the_clock_was_set_back(infolm, run):
    asked = ("evaluate", run, "--split", "valid", "--cache")
    assert infolm(*asked).code == 0
    settings = run / "cache.json"
    before = settings.read_bytes()
    assert infolm(*asked).code == 0
    assert settings.read_bytes() == before
    weights = checkpoint.load(run / "model.safetensors")
    RunFolder(run).save_model({name: 1.5 * tensor for name, tensor in weights.items()})
    long_ago = settings.stat().st_mtime_ns - 10**12  # by a clock that was set back before
    os.utime(run / "model.safetensors", ns=(long_ago, long_ago))
    assert infolm(*asked).code == 0
    after = json.loads(settings.read_bytes())
    assert after["weights"] == checkpoint.mark(run / "model.safetensors")
    assert after["weights"] != json.loads(before)["weights"]


def test_what_a_living_writer_holds_stays_and_a_dead_ones_goes(tmp_path, jumping):
    with files.scratch_file(tmp_path, "living") as living:
        living.write_text("")
        os.utime(living.parent, (0, 0))
        dead = tmp_path / ".dead.abcd1234.writing"
        dead.write_text("")
        os.utime(dead, (time.time() + 2 * YEAR,) * 2)
        for _ in range(6):
            files.sweep(tmp_path)
        assert living.exists()
        assert not dead.exists()


def test_one_waits_for_a_lock_whatever_the_time_of_day(tmp_path, jumping):
    path, order = tmp_path / "file", []
    taken = threading.Event()

    def hold():
        with files.held(path):
            taken.set()
            threading.Event().wait(0.2)
            order.append("first")

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    with files.held(path):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
