"""`infolm reproduce` as a person gives it: whole, killed and gone on with, and with bad input."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from one_sentence import one_sentence
from training_tiny import Silent, quiet

from infolm.families.train import train
from infolm.studies.reproduction.measure import measure
from infolm.studies.reproduction.plan import load_plan

RECIPE = "monte-carlo/synthetic-continuous-small"
TINY = ["data.uniform.symbols=8", "model.hidden=8", "model.latent.size=2"]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    one = "objective.samples=1 objective.augment=kl objective.alpha=1"
    path = tmp_path / "tiny.yaml"
    tree = {
        "samples": 10,
        "curves": {
            "dreg-1": {
                "label": "DReG 1",
                "recipe": RECIPE,
                "set": one,
                "sweep": {"objective.lambda": [0.2, 0.8]},
            },
            "bad": {"label": "bad", "recipe": RECIPE, "set": "optimiser.learning_rate=1e38"},
        },
        "figures": {"5.3": {"title": "tiny", "curves": ["dreg-1", "bad"]}},
    }
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def begun(metrics: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until a training has recorded something."""
    end = time.monotonic() + 120
    while not metrics.exists() or not metrics.read_text():
        assert process.poll() is None
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")
def test_killed_it_goes_on_to_the_same_end(infolm, monkeypatch, tmp_path, tiny):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out, overrides = tmp_path / "out", [*TINY, "train.max_steps=200", "train.validate_every=200"]
    command = ["reproduce", str(tiny), *overrides, "--out", str(out)]
    with subprocess.Popen([sys.executable, "-m", "infolm", *command]) as first:
        begun(out / "runs" / "dreg-1-lambda-0.2" / "metrics.jsonl", first)
        first.kill()  # with no warning, while it trains
    assert json.loads((out / "points.json").read_text())["points"] == {}

    done = infolm(*command, "--workers", 2, "--json")
    assert done.code == 1, done.err  # one fails
    found = json.loads(done.out)
    assert found["points"] == json.loads((out / "points.json").read_text())["points"]
    assert list(found["points"]) == ["dreg-1-lambda-0.2", "dreg-1-lambda-0.8", "bad"]
    assert "finite" in found["points"]["bad"]["failure"]
    assert found["summary"] == json.loads((out / "summary.json").read_text())
    assert found["figures"] == [str(out / "figure-5.3.png")]
    assert (out / "figure-5.3.png").read_bytes().startswith(b"\x89PNG")

    for point in load_plan(str(tiny), overrides).of_curve("dreg-1"):  # the same, left alone
        run = tmp_path / point.name
        train(point.recipe, run, False, Silent(), quiet)
        record = found["points"][point.name]
        alone = measure(run, ["train"], None, 10, lambda split, share: None)
        assert {key: record[key] for key in alone} == alone
        measured = alone["splits"]["train"]
        assert measured["sentences"] == measured["tokens"] == 8  # <eos> is none
        assert measured["nll"]["per_sentence"] == measured["nll"]["per_token"]

    told = infolm(*command)  # all is done: told again, in words
    assert told.code == 1
    assert "DReG 1" in told.out
    assert "bad failed: the loss is no longer" in told.out
    assert str(out / "figure-5.3.png") in told.out
    one_sentence(infolm(*command, "seed=2"), "was started with", "--out")


def test_the_list(infolm):
    done = infolm("reproduce")
    assert done.code == 0
    assert "monte-carlo/synthetic-small" in done.out
    rows = {row["reproduction"]: row for row in json.loads(infolm("reproduce", "--json").out)}
    assert rows["monte-carlo/synthetic-small"]["points"] > 10
    assert rows["mogrifier/figure-2.3"]["trainings"] == 21
    assert all(row["claim"] for row in rows.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["monte-carlo/ptb-small", "--seeds", "2"], "is a sweep"),
        (["mogrifier/figure-2.3", "--only", "a"], "is a table"),
        (["mogrifier/figure-2.3", "--all"], "--all is every table"),
        (["mogrifier/chrono", "--scale", "paper"], "no settings for --scale paper"),
        (["mogrifier/chrono", "train.maxsteps=5"], "there is no key 'maxsteps'"),
        (["monte-carlo/synthetic-smal"], "did you mean 'monte-carlo/synthetic-small'"),
        (["none.yaml"], "cannot be read"),
        (["monte-carlo/ptb-small", "objective.lambda=0.5"], "sweeps over"),
        (["monte-carlo/ptb-small", "train.maxsteps=5"], "there is no key 'maxsteps'"),
        (["monte-carlo/ptb-small", "--only", "elbo"], "matches none of the curves"),
    ],
)
def test_bad_input(infolm, tmp_path, arguments, words):
    out = tmp_path / "out"
    one_sentence(infolm("reproduce", *arguments, "--out", out), words)
    assert not out.exists()
