"""What is trained and measured, what is left as it is, and what is refused; without training."""

import json
import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from infolm.errors import InfolmError, RunError
from infolm.studies.reproduction import sweep as sweeping
from infolm.studies.reproduction.plan import load_plan
from infolm.studies.reproduction.sweep import sweep

from .conftest import TINY, written

NAMES = [
    "dreg-1-lambda-0.2",
    "dreg-1-lambda-0.8",
    "dreg-4-kl-lambda-0.2",
    "dreg-4-renyi-lambda-0.2-alpha-1.5",
]


class Sweeper:
    """Sweeps with workers that only answer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.said: list[str] = []
        self.shown: list[tuple[float, str]] = []

    def __call__(self, overrides=TINY, workers=1, only=None, **changes):
        plan = load_plan(str(written(self.folder, **changes)), overrides)
        return sweep(
            plan,
            self.out,
            workers,
            only,
            lambda share, text: self.shown.append((share, text)),
            self.said.append,
            lambda stage, done, total: None,
        )

    def told(self):
        """The tasks since the last time: name -> whether to train."""
        path = self.out / "told.jsonl"
        tasks = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("")
        self.attempts = len(tasks)
        return {task["name"]: task["train"] for task in tasks}


@pytest.fixture
def sweeper(tmp_path, monkeypatch):
    made = Sweeper(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(sweeping, "CALL", "fake_point:answer")
    return made


@pytest.mark.parametrize("workers", [1, 3])
def test_every_point_once(sweeper, workers):
    records = sweeper(workers=workers)
    assert list(sweeper.told().values()) == [True] * 4
    assert sorted(records) == sorted(NAMES)
    assert len(sweeper.said) == 4
    assert sweeper.shown[-1][0] == 1
    kept = json.loads((sweeper.out / "points.json").read_text())
    assert list(kept["points"]) == NAMES  # in the order of the plan, whichever ended first
    assert kept["points"] == records
    assert records[NAMES[1]]["curves"] == {"dreg-1": {"objective.lambda": 0.8}, "same": {}}
    assert not (sweeper.out / "runs" / NAMES[0] / "checkpoints").exists()


def test_given_again_it_does_nothing(sweeper):
    first = sweeper()
    before = (sweeper.out / "points.json").read_bytes()
    assert sweeper() == first
    assert len(sweeper.told()) == len(first)
    assert (sweeper.out / "points.json").read_bytes() == before


def test_given_again_it_removes_the_checkpoints_that_a_dead_command_left(sweeper):
    sweeper()
    left = sweeper.out / "runs" / NAMES[0] / "checkpoints"
    left.mkdir()
    sweeper()
    assert not left.exists()


def test_a_part_and_then_the_rest(sweeper):
    assert list(sweeper(only="dreg-4-*")) == NAMES[2:]
    assert sorted(sweeper(only="same")) == [NAMES[1], *NAMES[2:]]
    sweeper.told()
    assert sorted(sweeper()) == sorted(NAMES)
    assert sweeper.told() == {NAMES[0]: True}
    with pytest.raises(
        InfolmError, match=r"--only dreg-5 matches none of the curves, did you mean"
    ):
        sweeper(only="dreg-5")


def test_a_failure_is_kept_and_the_rest_goes_on(sweeper, monkeypatch):
    monkeypatch.setenv("FAKE", json.dumps({NAMES[1]: "fail"}))
    records = sweeper()
    assert records[NAMES[1]]["failure"] == "the loss is no longer finite"
    assert [name for name in NAMES if "splits" in records[name]] == [NAMES[0], *NAMES[2:]]
    assert any("failed: the loss is no longer finite" in line for line in sweeper.said)
    assert (sweeper.out / "runs" / NAMES[1] / "checkpoints").exists()
    sweeper.told()
    monkeypatch.delenv("FAKE")
    assert "failure" in sweeper()[NAMES[1]]  # it would fail again
    shutil.rmtree(sweeper.out / "runs" / NAMES[1])
    assert "splits" in sweeper()[NAMES[1]]
    assert sweeper.told() == {NAMES[1]: True}


def test_a_worker_that_dies_is_replaced(sweeper, monkeypatch):
    monkeypatch.setenv("FAKE", json.dumps({NAMES[0]: "die"}))
    records = sweeper()
    assert "died 3 times" in records[NAMES[0]]["failure"]
    assert all("splits" in records[name] for name in NAMES[1:])
    sweeper.told()
    assert sweeper.attempts == 3 + 3


def test_a_full_disk_ends_it(sweeper, monkeypatch):
    monkeypatch.setenv("FAKE", json.dumps({NAMES[2]: "stop"}))
    with pytest.raises(RunError, match="the disk is full"):
        sweeper()
    kept = json.loads((sweeper.out / "points.json").read_text())
    assert list(kept["points"]) == NAMES[:2]


def test_measured_otherwise_it_is_measured_again_and_not_trained(sweeper):
    sweeper()
    sweeper.told()
    records = sweeper(samples=20, splits=["train", "valid"])
    assert sweeper.told() == dict.fromkeys(NAMES, False)
    assert list(records[NAMES[0]]["splits"]) == ["train", "valid"]


def test_more_points_join(sweeper):
    sweeper()
    sweeper.told()
    tree = json.loads(json.dumps(load_plan(str(written(sweeper.folder))).reproduction.model_dump()))
    tree["curves"]["dreg-1"]["sweep"]["objective.lambda"].append(0.9)
    sweeper(**tree)
    assert sweeper.told() == {"dreg-1-lambda-0.9": True}


def test_another_recipe_under_the_same_name(sweeper):
    sweeper()
    sweeper.told()
    plan = load_plan(str(written(sweeper.folder)))
    curves = plan.reproduction.model_dump()["curves"]
    curves["dreg-4-kl"]["set"] += " optimiser.learning_rate=0.5"
    with pytest.raises(InfolmError, match=f"{NAMES[2]} was started with another recipe.*delete it"):
        sweeper(curves=curves)
    shutil.rmtree(sweeper.out / "runs" / NAMES[2])
    sweeper(curves=curves)
    assert sweeper.told() == {NAMES[2]: True}


def test_another_folder(sweeper):
    sweeper()
    with pytest.raises(InfolmError, match=r"started with data.*max_steps=5.*now has no KEY"):
        sweeper(overrides=[])
    (sweeper.out / "points.json").write_text('{"reproduction": "x", "overrides": [], "points": {}}')
    with pytest.raises(InfolmError, match=r"holds x, not .*tiny\.yaml"):
        sweeper()
    (sweeper.out / "points.json").write_text("{")
    with pytest.raises(InfolmError, match="damaged"):
        sweeper()
    (sweeper.out / "points.json").unlink()
    with pytest.raises(InfolmError, match="holds something else"):
        sweeper()


def test_one_command_at_a_time(sweeper):
    sweeper.out.mkdir()
    with (
        FileLock(sweeper.out / ".lock"),
        pytest.raises(InfolmError, match="another command is working"),
    ):
        sweeper()
