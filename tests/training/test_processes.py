"""Two processes that train together do what one process does with the same batches."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes_worker import changed, recipes, sharded, train_all
from shared import once
from training_tiny import Silent, quiet

from infolm.config import Recipe
from infolm.families.train import train
from infolm.training import checkpoint

SUPPORT = Path(__file__).parents[1] / "support"
CASES = list(recipes(Path("text.txt")))


def environment(folder: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {
        "PYTHONPATH": paths,
        "INFOLM_CACHE": str(folder / "tokenised"),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with every training twice, under `one` and `two`: by so many processes."""
    return once(tmp_path_factory, "processes", train_twice)


def train_twice(folder: Path) -> None:
    nouns = ["cat", "dog", "bird", "fish", "child", "king", "river", "stone"]
    text = folder / "text.txt"
    lines = [
        f"the {nouns[i % 8]} sees {' '.join(nouns[j % 8] for j in range(i % 5))} . number {i % 13}"
        for i in range(400)
    ]
    text.write_text("\n".join(lines) + "\n")
    command = [sys.executable, str(SUPPORT / "processes_worker.py"), str(folder / "two"), str(text)]
    workers = [
        subprocess.Popen(
            [*command, str(rank), "2"], env=environment(folder), stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised one"))
        train_all(folder / "one", text)
    said = [worker.communicate(timeout=300)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(said)


LEAPS = ("mim/floored", "bmi/accuracy")
"""Shares of what is at a floor, or above 0, leap where rounding takes one across. The critic's
first gradients are 0 but for rounding, as what they subtract is the same sum in another order, and
Adam makes steps of them nonetheless: so its scores, near 0 yet, have few digits in common."""


def records(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def same_training(expected: Path, found: Path, leaps: tuple[str, ...] = LEAPS) -> None:
    """The same weights and records but for rounding, and those records that leap."""
    one, two = (checkpoint.load(run / "model.safetensors") for run in (expected, found))
    assert one.keys() == two.keys()
    # A batch norm over few sentences divides by what rounding has left of their spread, Adam by
    # gradients that may be near 0.
    tolerance = 1e-4 if "vae" in expected.name or "sharded" in expected.parts else 2e-6
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=1e-5, atol=tolerance)
    for theirs, ours in zip(records(expected), records(found), strict=True):
        for key in theirs.keys() - {"tokens_per_second", *leaps}:
            same = theirs[key]
            if not isinstance(same, str):
                same = pytest.approx(same, rel=1e-4, abs=1e-4)
            assert ours[key] == same, key


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_one_does(trained, name):
    same_training(trained / "one" / name, trained / "two" / name)


def test_in_double_precision_two_processes_agree_on_each_pair_too(trained):
    """The shares that leap in single precision do so by rounding alone."""
    same_training(trained / "one" / "double" / "bmi", trained / "two" / "double" / "bmi", leaps=())


def test_processes_share_the_streams_of_an_evaluation_and_each_has_the_number(trained):
    expected = json.loads((trained / "one" / "measured 0.json").read_text())
    for rank in range(2):
        found = json.loads((trained / "two" / f"measured {rank}.json").read_text())
        for theirs, ours in zip(expected, found, strict=True):
            assert ours.keys() == theirs.keys()
            for key, value in theirs.items():
                number = isinstance(value, float)
                assert ours[key] == (pytest.approx(value, rel=1e-5) if number else value), key
    kept = json.loads((trained / "two" / "lstm" / "measurements.json").read_text())
    assert len(kept) == len(expected)


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_not_shared_the_first_process_measures_alone(trained, infolm, monkeypatch, rank):
    names = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in (names | {"INFOLM_CACHE": str(trained / "tokenised")}).items():
        monkeypatch.setenv(name, value)
    done = infolm("evaluate", trained / "one" / "lstm", "--split", "valid", "--json")
    assert done.code == 0
    if rank:
        assert (done.out, done.err) == ("", "")
    else:
        assert "only the first process measures" in done.err
        assert json.loads(done.out)


SHARDED = list(sharded(Path("text.txt")))


class TestFullyShard:
    """Two processes that hold a share of each layer train as one process does that has them all."""

    @pytest.mark.parametrize("name", SHARDED)
    def test_trains_as_one_process_does(self, trained, name):
        same_training(trained / "one" / "sharded" / name, trained / "two" / "sharded" / name)

    def test_each_process_holds_its_share_alone(self, trained):
        for rank in range(2):
            own, whole = json.loads((trained / "two" / f"share {rank}.json").read_text())
            assert own == pytest.approx(whole / 2, rel=0.01)

    def test_checkpoints_are_whole(self, trained):
        one, two = (
            checkpoint.load(checkpoint.checkpoints(trained / n / "straight" / "checkpoints")[-1])
            for n in ("one", "two")
        )
        for key in one["model"]:
            torch.testing.assert_close(two["model"][key], one["model"][key], rtol=1e-4, atol=1e-4)
        assert one["optimiser"]["state"].keys() == two["optimiser"]["state"].keys()
        for number, slots in one["optimiser"]["state"].items():
            found = two["optimiser"]["state"][number]
            torch.testing.assert_close(found, slots, rtol=1e-3, atol=1e-5)

    def test_resumes_to_the_same_bytes(self, trained):
        best, two = "model.safetensors", trained / "two"
        resumed = two / "sharded" / "transformer" / best
        assert resumed.read_bytes() == (two / "straight" / best).read_bytes()

    def test_one_process_resumes_it_and_says_that_bytes_differ(self, trained, tmp_path):
        recipe = changed(sharded(trained / "text.txt")["transformer"], train={"max_steps": 12})
        run, watcher = shutil.copytree(trained / "two" / "straight", tmp_path / "run"), Silent()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("INFOLM_CACHE", str(trained / "tokenised"))
            train(recipe, run, True, watcher, quiet)
        assert "batches were in 4 parts and are now in 2" in " ".join(watcher.said)
        assert records(run)[-1]["step"] == 12

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("lstm", "divides the layers of Transformers and encoders"),
            ("transformer", "keeps no averages of weights: set averaging.kind=none"),
        ],
    )
    def test_what_it_cannot_do_is_refused(self, name, reason):
        with pytest.raises(ValueError, match=reason):
            changed(recipes(Path("text.txt"))[name], train={"strategy": "fully_shard"})


DYING = """
import os
from infolm.cli import main
from infolm.nn.gather import processes
from infolm.training.loop import Loop

original = Loop._take_step

def dying(self):
    if self.step == 4 and processes()[0] == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise MemoryError("the second process has no memory left")
    return original(self)

Loop._take_step = dying
main()
"""


@pytest.fixture(scope="module")
def restarted(trained, tmp_path_factory) -> Path:
    """The training `lstm` by torchrun, whose second process died after four steps, under `run`;
    `out` and `err` are what was printed."""
    return once(tmp_path_factory, "restarted", lambda folder: train_and_die(trained, folder))


def train_and_die(trained: Path, folder: Path) -> None:
    (folder / "dying.py").write_text(DYING)
    recipe = recipes(trained / "text.txt")["lstm"]
    (folder / "lstm.yaml").write_text(recipe.as_yaml())
    started = subprocess.run(
        [
            *[sys.executable, "-m", "torch.distributed.run", "--standalone"],
            *["--nproc-per-node", "2", "--max-restarts", "1", "dying.py"],
            *["train", "lstm.yaml", "--out", "run", "--resume", "--json"],
            "train.checkpoint_seconds=0",
        ],
        env=environment(trained),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )
    assert started.returncode == 0, started.stderr
    (folder / "out").write_text(started.stdout)
    (folder / "err").write_text(started.stderr)


def test_a_process_that_dies_says_why_and_torchrun_resumes_to_the_same_bytes(trained, restarted):
    said = (restarted / "err").read_text()
    assert "the second process has no memory left" in said
    assert "process 0 lost another one of this training" in said
    assert "resumed at step 4" in said
    best = "model.safetensors"
    assert (restarted / "run" / best).read_bytes() == (trained / "two" / "lstm" / best).read_bytes()


def test_only_the_first_process_prints(restarted):
    (line,) = (restarted / "out").read_text().splitlines()
    assert json.loads(line)["run"] == "run"
    assert (restarted / "err").read_text().count("done: best validation") == 1


def test_another_number_of_processes_resumes_and_says_that_bytes_differ(
    trained, restarted, tmp_path
):
    tree = recipes(trained / "text.txt")["lstm"].model_dump(mode="json")
    tree["train"] |= {"max_steps": 9, "checkpoint_seconds": 0}
    run, watcher = shutil.copytree(restarted / "run", tmp_path / "run"), Silent()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(trained / "tokenised"))
        train(Recipe.model_validate(tree), run, True, watcher, quiet)
    said = " ".join(watcher.said)
    assert "batches were in 2 parts and are now in 1" in said
    assert "so the bytes will differ" in said
    assert records(run)[-1]["step"] == 9


def again(trained: Path, name: str, out: str, sections: dict[str, dict]) -> tuple[Path, Silent]:
    """The training `name` once more in one process, with other settings."""
    tree = recipes(trained / "text.txt")[name].model_dump(mode="json")
    for section, values in sections.items():
        tree[section] |= values
    watcher = Silent()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(trained / "tokenised"))
        train(Recipe.model_validate(tree), trained / out / name, False, watcher, quiet)
    return trained / out / name, watcher


WHOLE = {"bmi", "vae", "vq", "infoword"}
"""What looks at a whole batch."""


@pytest.mark.parametrize("name", CASES)
def test_parts_one_after_another_train_as_the_whole_batch_does(trained, name):
    run, watcher = again(trained, name, "parts", {"train": {"accumulate": 3}})
    assert "in 3 parts one after another" in watcher.said[0]
    assert ("not quite as the whole batch" in watcher.said[0]) == (name in WHOLE)
    if name not in WHOLE:
        same_training(trained / "one" / name, run)


@pytest.mark.parametrize("name", CASES)
def test_bfloat16_learns_what_single_precision_does(trained, name):
    """Losses within 3 %, though products are rounded to 8 bits; weights stay in full precision."""
    run, _ = again(trained, name, "bfloat16", {"train": {"precision": "bf16-mixed"}})
    weights = checkpoint.load(run / "model.safetensors")
    assert all(weight.dtype != torch.bfloat16 for weight in weights.values())
    expected, found = (records(each) for each in (trained / "one" / name, run))
    for theirs, ours in zip(expected, found, strict=True):
        for key in ("loss", f"{recipes(trained)[name].objective.kind}/nll"):
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], rel=0.03, abs=0.02), key


@pytest.mark.parametrize("name", ["transformer", "infoword"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_activations_computed_again_change_nothing(trained, name, accumulate):
    parts = {"accumulate": accumulate}
    kept, _ = again(trained, name, f"kept {accumulate}", {"train": parts})
    anew = {"train": parts, "model": {"activation_checkpointing": True}}
    computed, _ = again(trained, name, f"computed {accumulate}", anew)
    same_training(kept, computed)
