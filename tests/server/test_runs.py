"""The runs of a folder while they are trained: what is new is read, and what is damaged is not."""

import errno
import io
import json
import math
import os
import shutil

import numpy as np
import pytest
import requests
from serving import served

from infolm.errors import InfolmError
from infolm.server import runs as module
from infolm.server.runs import MOST_POINTS, Curve, Runs, Watched

BAD = '<script>alert("1")</script>'


@pytest.fixture
def folder(tmp_path, trained, monkeypatch):
    """A folder with a run of 60 steps that has ended, as nobody has looked at it."""
    monkeypatch.setattr(module, "FRESH", 0.0)
    shutil.copytree(trained, tmp_path / "runs" / "study" / "one", ignore=_light)
    return tmp_path / "runs"


def _light(_, names):
    return {name for name in names if name in ("checkpoints", "tensorboard")}


def lines(path, *records):
    with path.open("ab") as file:
        for record in records:
            file.write(record if isinstance(record, bytes) else json.dumps(record).encode() + b"\n")


def points(answer, key):
    (curve,) = (curve for curve in answer["curves"] if curve["key"] == key)
    return list(zip(curve["steps"], curve["values"], strict=True))


def test_the_table_says_what_the_run_has_reached(folder):
    (row,) = Runs(folder).rows()
    text = (folder / "study/one/metrics.jsonl").read_text()
    records = [json.loads(line) for line in text.splitlines()]
    losses = [r["loss"] for r in records if r["kind"] == "validation"]
    assert row["id"] == "study/one"
    assert (row["status"], row["step"], row["progress"]) == ("done", 60, 1.0)
    assert row["best"]["loss"] == min(losses)
    assert row["best"]["words"] == f"perplexity {math.exp(min(losses)):.2f}"
    assert row["recipe"]["model"] == "recurrent"
    assert row["damaged_lines"] == 0


def test_only_what_is_new_is_given_and_damage_does_no_harm(folder):
    path = folder / "study/one/metrics.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:2]))
    runs = Runs(folder)
    first = runs.curves("study/one", -1, -1)
    known = points(first, "step/likelihood/nll")
    assert known
    last = known[-1][0]
    lines(
        path, *whole[2:4], b"\xff\xfe\n", b'{"kind": "step"}\n', b"[" * 9999 + b"\n", whole[4][:20]
    )
    assert runs.rows()[0]["damaged_lines"] == 3
    second = runs.curves("study/one", first["version"], last)
    lines(path, whole[4][20:], *whole[5:])
    third = runs.curves("study/one", first["version"], last)
    news = points(third, "step/likelihood/nll")
    assert len(points(second, "step/likelihood/nll")) < len(news)
    every = [json.loads(line) for line in whole]
    true = [(r["step"], r["likelihood/nll"]) for r in every if r["kind"] == "step"]
    assert known + news == true
    assert (
        points(runs.curves("study/one", first["version"] + 1, last), "step/likelihood/nll") == true
    )


def test_numbers_that_json_has_not_are_left_out(folder):
    path = folder / "study/one/metrics.jsonl"
    huge = {"kind": "step", "step": 61, "x/nll": 1e308, "tokens_per_second": math.nan}
    lines(path, huge, huge, {"kind": "validation", "step": 61, "loss": -math.inf, "progress": 7.0})
    runs = Runs(folder)
    json.dumps([runs.rows(), runs.curves("study/one", -1, -1)], allow_nan=False)
    assert runs.rows()[0]["progress"] == 1.0


def test_a_resumed_training_writes_anew(folder):
    path = folder / "study/one/metrics.jsonl"
    runs = Runs(folder)
    before = runs.curves("study/one", -1, -1)
    kept = path.read_bytes().splitlines(keepends=True)[:2]
    (path.parent / "new").write_bytes(b"".join(kept))
    os.replace(path.parent / "new", path)
    after = runs.curves("study/one", before["version"], 10**6)
    assert after["version"] != before["version"]
    assert len(points(after, "step/likelihood/nll")) == len([k for k in kept if b'"step", ' in k])


def test_who_holds_the_lock_trains_and_looking_stops_nobody(folder):
    watched = Watched(folder / "study/one", "one")
    watched.look()
    assert watched.row()["status"] == "done"
    with watched.folder.locked():
        assert watched.row()["status"] == "training"
    assert watched.row()["status"] == "done"
    lines(watched.folder.metrics, {"kind": "step", "step": 80, "epoch": 0})
    watched.look()
    assert watched.row()["status"] == "stopped"  # no validation at its last step


def test_time_left_is_by_the_progress_that_was_seen(folder):
    path = folder / "study/one/metrics.jsonl"
    path.write_bytes(b"")
    watched = Watched(folder / "study/one", "one")
    for at, progress in ((1000, 0.25), (1010, 0.35), (1030, 0.55)):
        lines(path, {"kind": "step", "step": at, "progress": progress})
        os.utime(path, (at, at))
        watched.look()
    # 0.3 of the whole in 30 seconds, so 0.45 in 45.
    assert watched.course.seconds_left() == pytest.approx(45)


def test_runs_that_come_later_appear_and_those_that_go_are_gone(folder):
    runs = Runs(folder)
    assert len(runs.rows()) == 1
    shutil.copytree(folder / "study/one", folder / BAD.replace("/", "\u2215"))
    shutil.copytree(folder / "study/one", folder / "half.abcdefgh.writing")
    os.symlink(folder / "study", folder / "loop")
    assert len(runs.rows()) == 2
    shutil.rmtree(folder / "study")
    (row,) = runs.rows()
    assert row["id"].startswith("<script>")


def test_no_link_is_followed_and_no_path_is_read(folder, tmp_path):
    secret = tmp_path / "secret.jsonl"
    lines(secret, {"kind": "step", "step": 1, "secret/nll": 1.0})
    path = folder / "study/one/metrics.jsonl"
    path.unlink()
    path.symlink_to(secret)
    runs = Runs(folder)
    assert runs.curves("study/one", -1, -1)["curves"] == []
    for name in ("../secret.jsonl", str(secret), "study", "", ".", "study/one/"):
        with pytest.raises(KeyError):
            runs.curves(name, -1, -1)
    with pytest.raises(InfolmError, match="is not a folder"):
        Runs(secret)


def test_a_recipe_that_cannot_be_read_is_a_sentence(folder):
    (folder / "study/one/recipe.yaml").write_text("model: [")
    (row,) = Runs(folder).rows()
    assert row["problem"]
    assert str(folder) not in row["problem"]


def test_a_long_curve_is_thinned_to_means_of_blocks():
    curve, values = Curve(), np.random.default_rng(1).normal(size=5 * MOST_POINTS + 3)
    changed = sum(curve.add(step, value) for step, value in enumerate(values.tolist()))
    assert changed == 3
    assert len(curve.steps) < MOST_POINTS
    whole = len(curve.steps) * curve.block
    means = values[:whole].reshape(-1, curve.block).mean(1)
    assert np.array(curve.values) == pytest.approx(means)
    assert curve.steps.tolist() == list(range(curve.block - 1, whole, curve.block))


def test_over_http(folder):
    with served([], watched=folder) as (address, _):
        table = requests.get(f"{address}/v1/runs", timeout=60).json()
        assert table["watching"]
        assert [row["id"] for row in table["data"]] == ["study/one"]
        found = requests.get(f"{address}/v1/runs/curves", {"run": "study/one"}, timeout=60).json()
        assert points(found, "validation/loss")
        for name in ("study/../study/one", "/etc/passwd"):
            got = requests.get(f"{address}/v1/runs/curves", {"run": name}, timeout=60)
            assert got.status_code == 404
            assert set(got.json()["error"]) == {"message", "type", "param", "code"}
        assert requests.get(f"{address}/v1/models", timeout=60).json()["data"] == []


def test_a_line_is_read_once(folder, monkeypatch):
    runs, read = Runs(folder), []
    runs.rows()
    monkeypatch.setattr(module, "record_of", lambda line: read.append(line))
    runs.rows()
    assert read == []
    lines(folder / "study/one/metrics.jsonl", b"one\n", b"two")
    runs.rows()
    lines(folder / "study/one/metrics.jsonl", b" lines\n")
    runs.rows()
    assert read == [b"one", b"two lines"]


def test_metrics_on_a_bad_disk_are_read_when_they_can_be(folder, monkeypatch):
    shutil.copytree(folder / "study" / "one", folder / "study" / "two")
    (bad, runs) = (folder / "study" / "two" / "metrics.jsonl").stat().st_ino, Runs(folder)

    class Damaged(io.FileIO):
        def read(self, size=-1):
            if os.fstat(self.fileno()).st_ino == bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().read(size)

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fdopen", lambda descriptor, mode: Damaged(descriptor, mode))
        steps = {row["id"]: row["step"] for row in runs.rows()}
    assert steps == {"study/one": 60, "study/two": 0}
    assert {row["step"] for row in runs.rows()} == {60}
