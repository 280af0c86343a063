"""A run killed at any moment and resumed ends with the same bytes as one left alone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from whole import WHOLE

STEPS = 24

# One process imports everything once and forks a child for each training; the child sends itself
# SIGKILL at the place and count it is told, so nothing is flushed, closed or cleaned up.
HARNESS = """
import os, signal, sys
from pathlib import Path
import torch
import infolm.training.board
from lightning_fabric import Fabric
torch.set_num_threads(1)
from infolm.config import load_recipe
from infolm.families.train import train
from infolm.training import checkpoint
from infolm.training.loop import Loop
sys.path.insert(0, {tests!r})
from training_tiny import Silent, quiet

PLACES = {{
    "step": (Loop, "_take_step"),            # before a step
    "backward": (Fabric, "backward"),        # in the middle of one
    "validate": (Loop, "_validate"),         # after a step, before its validation
    "saving": (checkpoint, "save_file"),     # before a file is written
    "written": (os, "fsync"),                # written, not yet renamed
    "rename": (os, "replace"),               # just before a rename
}}

def die_at(place, count):
    owner, name = PLACES[place]
    original, calls = getattr(owner, name), [0]
    def dying(*arguments, **keywords):
        calls[0] += 1
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **keywords)
    setattr(owner, name, dying)

def child(out, place=None, count=0):
    pid = os.fork()
    if pid == 0:
        if place:
            die_at(place, count)
        train(load_recipe({recipe!r}), Path(out), True, Silent(), quiet)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

# Here, so that a child finds the text tokenised and everything imported.
train(load_recipe({recipe!r}), Path({folder!r} + "/alone"), True, Silent(), quiet)
for line in sys.stdin:
    out, *kills = line.split()
    for kill in kills:
        place, count = kill.split(":")
        code = child(out, place, int(count))
        assert code == -signal.SIGKILL, (out, kill, code)
    assert child(out) == 0
"""

KILLS = {
    "before steps": ["step:1", "step:2", "step:9"],
    "inside steps": ["backward:5", "backward:11"],
    "before validations": ["validate:1", "validate:2", "validate:1"],
    "before files are written": ["saving:1", "saving:4", "saving:3"],
    "before renames": ["rename:2", "rename:3", "rename:6"],
    "between writing and renaming": ["written:1", "written:5", "written:9"],
    "again and again": ["step:4", "written:7", "validate:1", "backward:3", "rename:4", "step:2"],
}


OFTEN = ("inside steps", "between writing and renaming", "again and again")
"""Those of every setting; the others of the first alone, unless `make faults` asks for all."""

SETTINGS = {
    "plain": {},
    "bmi": {"regularisers": {"bmi": {"batch": 4}}},
    "as the Mogrifier": {
        "model": {
            "connections": "skip-raw",
            "forget_bias": 1.0,
            "softmax": {"experts": 2, "dropout": 0.3},
        },
        "objective": {"state_reset": 0.3},
        "optimiser": {"kind": "adam", "beta1": 0, "learning_rate": 0.01, "l2_penalty": 1e-5},
    },
    "switching on the training loss": {
        "averaging": {"kind": "two-tailed", "switch_on": "train", "switch_tokens": 500},
        "train": {"validate_every": 2},
    },
}


def records(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k != "tokens_per_second"} for line in lines
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_sigkill_at_many_places_and_resume_gives_the_same_bytes(tmp_path, small_text, settings):
    from training_tiny import tiny_tree

    recipe = tmp_path / "tiny.yaml"
    tree = tiny_tree(small_text, max_steps=STEPS, checkpoint_seconds=0)
    for section, values in settings.items():
        tree[section] = values if "kind" in values else tree.get(section, {}) | values
    recipe.write_text(yaml.safe_dump(tree))
    script = HARNESS.format(
        recipe=str(recipe), folder=str(tmp_path), tests=str(Path(__file__).parents[1] / "support")
    )
    runs = {
        name: tmp_path / name.replace(" ", "-")
        for name in KILLS
        if WHOLE or not settings or name in OFTEN
    }
    orders = "".join(f"{run} {' '.join(KILLS[name])}\n" for name, run in runs.items())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], input=orders, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    alone = tmp_path / "alone"
    last = f"checkpoints/step-{STEPS:09d}.safetensors"
    event = "switched" if "averaging" in settings else "triggered"
    assert any(record.get("name") == event for record in records(alone))
    files = ["model.safetensors", last, "recipe.yaml", "tokenizer.json"]
    files += [f"{name}.safetensors" for name in settings.get("regularisers", {})]
    for name, run in runs.items():
        for file in files:
            assert (run / file).read_bytes() == (alone / file).read_bytes(), (name, file)
        assert records(run) == records(alone), name
        assert not list(run.glob(".*.writing")), name


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, small_text):
    from training_tiny import tiny_file

    recipe = tiny_file(tmp_path, small_text, max_steps=4000, validate_every=50)
    out = tmp_path / "run"
    command = [sys.executable, "-m", "infolm", "train", str(recipe), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stderr:
            if line.startswith("step 100,"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130
    assert f"infolm train {out} --resume" in rest
    step = max(int(path.stem.split("-")[1]) for path in (out / "checkpoints").iterdir())
    assert 100 <= step < 4000
    resumed = subprocess.run(
        [*command[:4], str(out), f"train.max_steps={step + 20}", "--resume"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert f"resumed at step {step:,}" in resumed.stderr
