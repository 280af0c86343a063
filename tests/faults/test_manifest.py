"""A run's files are what infolm wrote, or a sentence says which is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from one_sentence import one_sentence
from training_tiny import tiny_tree
from whole import WHOLE

from infolm.errors import InfolmError
from infolm.families.base import open_run
from infolm.training import manifest
from infolm.training.manifest import Manifest
from infolm.training.run import RunFolder

DEFINING = ["tokenizer.json", "corpus.json", "model.safetensors"]


def change_a_letter(path: Path) -> None:
    """So that the file can still be read."""
    data = path.read_bytes()
    if path.name == "tokenizer.json":
        changed = data.replace(b'"cat"', b'"cot"')
    elif path.name == "corpus.json":
        changed = data.replace(b'"name": "', b'"name": "x')
    else:
        changed = data[:-1] + bytes([data[-1] ^ 1])
    assert changed != data
    path.write_bytes(changed)


def test_the_manifest_has_the_digest_of_each_file(run):
    listed = Manifest.read(run).files
    assert sorted(listed) == sorted([*DEFINING, "recipe.yaml"])
    for name, digests in listed.items():
        assert digests == [manifest.sha256(run / name)]


@pytest.mark.parametrize("name", DEFINING)
def test_one_changed_letter_is_refused_by_name(infolm, run, name):
    change_a_letter(run / name)
    for command in (("evaluate", run), ("train", run, "--resume", "train.max_steps=62")):
        one_sentence(infolm(*command), str(run / name), f"infolm repair {run}")


def test_a_run_of_an_earlier_release_opens_resumes_and_gets_one(infolm, run):
    (run / manifest.NAME).unlink()
    assert infolm("evaluate", run, "--split", "valid").code == 0
    assert not (run / manifest.NAME).exists()  # who only reads writes none
    assert infolm("train", run, "--resume", "train.max_steps=62").code == 0
    listed = Manifest.read(run)
    assert sorted(listed.files) == sorted([*DEFINING, "recipe.yaml"])
    assert all(listed.files[name] == [manifest.sha256(run / name)] for name in listed.files)
    assert listed.recipe == (run / "recipe.yaml").read_text()


@pytest.mark.parametrize("text", ["", "{", "1", "[]", '{"format": "infolm run 1", "files": 3}'])
def test_a_damaged_manifest_is_a_sentence(infolm, run, text):
    (run / manifest.NAME).write_text(text)
    one_sentence(infolm("evaluate", run), "manifest.json is damaged", f"infolm repair {run}")


class TestARecipeEditedByHand:
    def edit(self, run, before, after):
        text = (run / "recipe.yaml").read_text()
        assert before in text
        (run / "recipe.yaml").write_text(text.replace(before, after))

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("max_steps: 60", "max_steps: 62"),
            ("title: ''", "title: mine"),
            ("log_every: 3", "log_every: 7"),
        ],
    )
    def test_soundly_is_taken_and_said(self, infolm, run, before, after):
        self.edit(run, before, after)
        done = infolm("evaluate", run, "--split", "valid")
        assert done.code == 0, done.err
        assert "recipe.yaml was edited by hand" in done.err
        done = infolm("train", run, "--resume")
        assert done.code == 0, done.err
        assert "recipe.yaml was edited by hand" in done.err
        done = infolm("evaluate", run, "--split", "valid")  # training has written it
        assert "edited" not in done.err

    def test_the_text_may_have_moved(self, infolm, run, trained, tmp_path):
        text = tmp_path / "moved.txt"
        text.write_bytes((trained.parent / "text.txt").read_bytes())
        self.edit(run, str(trained.parent / "text.txt"), str(text))
        done = infolm("evaluate", run, "--split", "valid")
        assert done.code == 0, done.err
        assert "data.path was" in done.err
        text.write_text(text.read_text().replace("cat", "cow"))
        one_sentence(infolm("evaluate", run, "--split", "valid"), "no longer the one")

    @pytest.mark.parametrize(
        ("before", "after", "said"),
        [
            ("hidden: 12", "hidden: 13", "model.hidden was 12 and is now 13"),
            ("seed: 1", "seed: 2", "seed was 1 and is now 2"),
            ("learning_rate: 5.0", "learning_rate: 4.0", "optimiser.learning_rate was 5.0"),
        ],
    )
    def test_unsoundly_is_refused_with_the_change(self, infolm, run, before, after, said):
        self.edit(run, before, after)
        for command in (("evaluate", run), ("train", run, "--resume", "train.max_steps=62")):
            one_sentence(infolm(*command), "edited by hand", said, f"infolm repair {run}")

    def test_a_comment_is_no_edit(self, infolm, run):
        self.edit(run, "seed: 1", "seed: 1  # mine")
        done = infolm("evaluate", run, "--split", "valid")
        assert done.code == 0
        assert "edited" not in done.err

    def test_what_is_no_recipe_any_more(self, infolm, run):
        (run / "recipe.yaml").write_text("seed: [")
        one_sentence(infolm("evaluate", run), "not valid YAML", f"infolm repair {run}")


def test_a_file_that_training_replaces_meanwhile_is_no_damage(run, monkeypatch):
    """The manifest is read, then the file is replaced, then its digest is taken."""
    folder, digest = RunFolder(run), manifest.sha256
    pending = [True]

    def slow(path):
        if pending and path == folder.tokenizer:
            pending.clear()
            folder.keep(
                folder.tokenizer, lambda to: to.write_text(folder.tokenizer.read_text() + " ")
            )
        return digest(path)

    monkeypatch.setattr(manifest, "sha256", slow)
    folder.verify(folder.tokenizer)
    assert not pending
    folder.tokenizer.write_text(folder.tokenizer.read_text() + " ")
    with pytest.raises(InfolmError, match=r"tokenizer\.json is not the file"):
        folder.verify(folder.tokenizer)


def test_another_build_of_the_cells_is_said_on_resume(infolm, run):
    listed = Manifest.read(run)
    if not listed.native:
        pytest.skip("there is no compiler")
    done = infolm("train", run, "--resume", "train.max_steps=61")
    assert "another build" not in done.err
    before = listed.native["compiler"]
    listed = Manifest.read(run)
    for steps, native, was in (
        (62, {**listed.native, "compiler": "c++ 4.2"}, "c++ 4.2"),
        (63, {}, "none"),  # it was trained without a compiler
    ):
        listed = Manifest.read(run)
        listed.native = native
        listed.write(run)
        done = infolm("train", run, "--resume", f"train.max_steps={steps}")
        assert done.code == 0
        assert f"compiler was {was} and is {before}" in " ".join(done.err.split())
    assert Manifest.read(run).native["compiler"] == before


# -- killed between any two operations on files ----------------------------------------------

HARNESS = """
import os, signal, sys
from pathlib import Path
import torch
import infolm.training.board
torch.set_num_threads(1)
from infolm.config import load_recipe
from infolm.families.train import train
from infolm.families.base import open_run
sys.path.insert(0, {tests!r})
from training_tiny import Silent, quiet

OPERATIONS = ("replace", "rename", "unlink", "mkdir")
os.fsync = lambda descriptor: None  # a killed process loses nothing that it has written

def child(out, kill=0, report=None):
    pid = os.fork()
    if pid == 0:
        done = [0]
        def counted(original):
            def operation(*arguments, **keywords):
                done[0] += 1
                if done[0] == kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **keywords)
            return operation
        for name in OPERATIONS:
            setattr(os, name, counted(getattr(os, name)))
        train(load_recipe({recipe!r}), Path(out), True, Silent(), quiet)
        if report:
            print(done[0], flush=True)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

# Here, so that a child finds the text tokenised and everything imported.
train(load_recipe({recipe!r}), Path({folder!r} + "/first"), True, Silent(), quiet)
assert child({folder!r} + "/alone", report=True) == 0
for line in sys.stdin:
    out = {folder!r} + "/" + line.strip()
    assert child(out, int(line)) == -signal.SIGKILL, line
    if (Path(out) / "model.safetensors").exists():
        open_run(Path(out))
    assert child(out) == 0, ("does not resume", line)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_before_any_operation_on_files_a_run_agrees_with_its_manifest(tmp_path, small_text):
    recipe = tmp_path / "tiny.yaml"
    tree = tiny_tree(small_text, max_steps=2, checkpoint_seconds=0)
    tree["train"]["validate_every"] = 1
    recipe.write_text(yaml.safe_dump(tree | {"regularisers": {"bmi": {"batch": 4}}}))
    script = HARNESS.format(
        recipe=str(recipe), folder=str(tmp_path), tests=str(Path(__file__).parents[1] / "support")
    )
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        operations = int(process.stdout.readline())
        kills = range(1, operations + 1, 1 if WHOLE else 4)
        orders = "".join(f"{k}\n" for k in kills)
        _, err = process.communicate(orders)
    assert process.returncode == 0, err
    assert operations > 25
    alone = tmp_path / "alone"
    names = [*DEFINING, "recipe.yaml", "manifest.json", "bmi.safetensors"]
    for kill in kills:
        for name in names:
            assert (tmp_path / str(kill) / name).read_bytes() == (alone / name).read_bytes(), kill
        assert not list((tmp_path / str(kill)).rglob("*.writing")), kill


def test_the_weights_of_a_run_can_be_read_in_the_middle_of_a_save(run):
    """With both digests in the manifest, either file is right."""
    listed = Manifest.read(run)
    listed.files["model.safetensors"].append("0" * 64)
    listed.write(run)
    open_run(run)
    text = json.loads((run / manifest.NAME).read_text())
    assert len(text["files"]["model.safetensors"]) == 2
