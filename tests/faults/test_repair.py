"""`infolm repair` brings back what is damaged from what is intact, and deletes nothing."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from one_sentence import one_sentence
from training_tiny import tiny_file

from infolm.errors import InfolmError
from infolm.repair import repair
from infolm.training import checkpoint
from infolm.training.manifest import NAME, Manifest


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


@pytest.fixture
def ended(infolm, run):
    """The run, whose last validation is its best, so that the last checkpoint has those weights."""
    for steps in range(65, 120, 5):
        # One validation at a time, until one is the best: the averager moves on by itself.
        assert infolm("train", run, "--resume", f"train.max_steps={steps}").code == 0
        losses = checkpoint.load(checkpoint.checkpoints(run / "checkpoints")[-1])["losses"]
        if losses[-1] == min(losses):
            return run
    raise AssertionError("no validation was the best")


def mended(infolm, run, *files):
    """Repair; the files are back, what was damaged is aside, and all works again."""
    done = infolm("repair", run, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert set(told["done"]) == set(files)
    assert told["lost"] == {}
    again = infolm("repair", run)
    assert (again.code, again.out) == (0, "all files are intact.\n")
    assert infolm("evaluate", run, "--split", "valid").code == 0
    return told["done"]


def test_a_sound_run_is_left_alone(infolm, run):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = infolm("repair", run)
    assert (done.code, done.out) == (0, "all files are intact.\n")
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    assert [path.name for path in after.keys() - before.keys()] in ([], [".lock"])


@pytest.mark.parametrize("damage", [cut, flip, empty, remove])
def test_the_best_weights_come_back_from_a_checkpoint(infolm, ended, damage):
    model = ended / "model.safetensors"
    right = model.read_bytes()
    damage(model)
    if damage is not remove:
        one_sentence(infolm("evaluate", ended), "model.safetensors", f"infolm repair {ended}")
    how = mended(infolm, ended, "model.safetensors")["model.safetensors"]
    assert "identical to the lost file" in how
    assert model.read_bytes() == right
    assert (ended / "damaged" / "model.safetensors").exists() == (damage is not remove)


def test_weights_that_no_checkpoint_has_are_replaced_and_that_is_said(infolm, run):
    assert infolm("train", run, "--resume", "train.max_steps=62").code == 0
    listed = Manifest.read(run)
    listed.files["model.safetensors"] = ["0" * 64]  # an earlier validation was the best
    listed.write(run)
    empty(run / "model.safetensors")
    how = mended(infolm, run, "model.safetensors")["model.safetensors"]
    assert "taken from checkpoints/step-000000062" in how
    assert "not of the best validation" in how
    checkpoint.load(run / "model.safetensors")


@pytest.mark.parametrize("damage", [cut, empty, remove])
@pytest.mark.parametrize("name", ["tokenizer.json", "corpus.json"])
def test_what_is_made_from_the_text_is_made_again(infolm, run, name, damage):
    right = (run / name).read_bytes()
    damage(run / name)
    mended(infolm, run, name)
    assert (run / name).read_bytes() == right


@pytest.mark.parametrize("text", [None, "", "seed: [", "hidden: 12 -> hidden: 13"])
def test_the_recipe_comes_back_from_the_manifest(infolm, run, text):
    path = run / "recipe.yaml"
    right = path.read_text()
    if text is None:
        path.unlink()
    else:
        path.write_text(right.replace(*text.split(" -> ")) if "->" in text else text)
    mended(infolm, run, "recipe.yaml")
    assert path.read_text() == right


def test_a_damaged_manifest_is_written_anew(infolm, run):
    before = Manifest.read(run)
    cut(run / NAME)
    mended(infolm, run, NAME)
    assert Manifest.read(run).files == before.files


@pytest.mark.parametrize("damage", [cut, flip, empty])
def test_a_damaged_checkpoint_is_put_aside_and_the_one_before_resumes(infolm, run, damage):
    first, last = checkpoint.checkpoints(run / "checkpoints")
    damage(last)
    done = infolm("train", run, "--resume", "train.max_steps=62")
    one_sentence(done, last.name, f"infolm repair {run}", first.name)
    name = f"checkpoints/{last.name}"
    assert first.name in mended(infolm, run, name)[name]
    done = infolm("train", run, "--resume", "train.max_steps=62")
    assert done.code == 0, done.err
    assert f"resumed at step {int(first.stem[5:])}" in done.err


@pytest.mark.parametrize("name", ["measurements.json", "cache.json", "temperature.json"])
@pytest.mark.parametrize("text", ["", "{", "1", "[" * 100_000])
def test_findings_that_cannot_be_read_are_put_aside(infolm, run, name, text):
    (run / name).write_text(text)
    mended(infolm, run, name)
    assert (run / "damaged" / name).read_text() == text


def test_metrics_and_gradients(infolm, run):
    (run / "metrics.jsonl").write_bytes(b"1\n" + (run / "metrics.jsonl").read_bytes())
    (run / "gradients.safetensors").write_bytes(b"x")
    mended(infolm, run, "metrics.jsonl", "gradients.safetensors")


def test_what_cannot_be_mended_is_said_and_nothing_is_deleted(infolm, run):
    empty(run / "model.safetensors")
    shutil.rmtree(run / "checkpoints")
    done = infolm("repair", run)
    assert done.code == 1
    assert "model.safetensors is lost" in done.err
    assert "delete" not in done.err
    assert (run / "model.safetensors").exists()
    one_sentence(infolm("evaluate", run), f"infolm repair {run}")


def test_a_vocabulary_of_a_text_that_has_changed_is_not_made_up(infolm, run, tmp_path):
    recipe = run / "recipe.yaml"
    text = tmp_path / "other.txt"
    text.write_text("quite another text\n" * 400)
    line = next(line for line in recipe.read_text().splitlines() if "  path: " in line)
    recipe.write_text(recipe.read_text().replace(line, f"  path: {text}"))
    (run / "tokenizer.json").unlink()
    done = infolm("repair", run)
    assert done.code == 1
    assert "tokenizer.json is lost: the text has changed" in done.err


def test_what_may_not_be_read_is_not_taken_for_damaged(run, monkeypatch):
    def refused(path, *arguments):
        if path.name == "recipe.yaml":
            raise PermissionError
        return opened(path, *arguments)

    opened = Path.open
    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(InfolmError, match=r"recipe.yaml may not be read.*change its rights"):
        repair(run)
    assert not (run / "damaged").exists()


def test_what_is_no_run(infolm, tmp_path):
    one_sentence(infolm("repair", tmp_path), "not a run's folder")


def test_what_a_regulariser_learnt_comes_back_with_the_weights(infolm, tmp_path, small_text):
    recipe = tiny_file(tmp_path, small_text, max_steps=5, checkpoint_seconds=0)
    out = tmp_path / "bmi-run"
    done = infolm("train", recipe, "regularisers={bmi: {batch: 4}}", "--out", out)
    assert done.code == 0, done.err
    model, critic = out / "model.safetensors", out / "bmi.safetensors"
    right, learnt = model.read_bytes(), checkpoint.load(critic)["critic"]
    cut(model)
    cut(critic)
    mended(infolm, out, model.name, critic.name)
    assert model.read_bytes() == right
    critic.unlink()
    mended(infolm, out, critic.name)
    again = checkpoint.load(critic)["critic"]
    assert again.keys() == learnt.keys()
    assert all(torch.equal(again[name], learnt[name]) for name in learnt)
