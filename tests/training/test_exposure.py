"""Weights after given numbers of words: the right ones, the same after a crash, and of no
consequence for the training."""

import pytest
import torch
from commands import infolm
from training_tiny import Silent, quiet, tiny_tree

from infolm.config import Recipe
from infolm.data.corpora import load
from infolm.errors import InfolmError
from infolm.families.base import open_run
from infolm.families.train import train
from infolm.section import count, in_short
from infolm.training import checkpoint
from infolm.training.run import RunFolder

__all__ = ["infolm"]
WORDS = (100, 200, 300)
STEPS = 16


def recipe(text, averaging="none", **settings):
    tree = tiny_tree(text, **{"max_steps": STEPS, "exposure": WORDS, **settings})
    return Recipe.model_validate(tree | {"averaging": {"kind": averaging}})


def kept(folder):
    return {path.name: path.read_bytes() for path in (folder / "exposure").iterdir()}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A whole training, its text, and what was said."""
    folder, watcher = tmp_path_factory.mktemp("exposure"), Silent()
    text = folder / "text.txt"
    lines = (
        f"the {w} sees a cat number {i % 13}" for i in range(40) for w in "dog bird fish".split()
    )
    text.write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        train(recipe(text), folder / "run", False, watcher, quiet)
    return folder / "run", text, watcher.said


def reached(text):
    """The steps at which so many words had been read, counted in the batches themselves."""
    section = recipe(text)
    corpus = load(section.data)
    feed = section.feed.build(corpus, "train", section.seed)
    read, step, found = 0, 0, {}
    while len(found) < len(WORDS):
        read += int((feed.next().tokens != corpus.tokenizer.eos).sum())
        step += 1
        found |= {words: step for words in WORDS if read >= words and words not in found}
    return found


def test_the_weights_are_those_of_the_step_that_read_so_many_words(done, tmp_path):
    run, text, said = done
    assert sorted(kept(run)) == [f"chck_{words}.safetensors" for words in WORDS]
    steps = {
        words: int(line.split()[1].rstrip(":"))
        for words in WORDS
        for line in said
        if f" {words} words read" in line
    }
    true = reached(text)
    for words, step in steps.items():  # a pass is counted by its share, a step more or less
        assert abs(step - true[words]) <= 1
    train(recipe(text, max_steps=steps[200]), tmp_path / "short", False, Silent(), quiet)
    (*_, last) = checkpoint.checkpoints(RunFolder(tmp_path / "short").checkpoints)
    weights = checkpoint.load(last)["model"]
    found = checkpoint.load(run / "exposure" / "chck_200.safetensors")
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_training_is_the_same_without_it(done, tmp_path):
    run, text, _ = done
    train(recipe(text, exposure=()), tmp_path / "plain", False, Silent(), quiet)
    assert not (tmp_path / "plain" / "exposure").exists()
    plain = (tmp_path / "plain" / "model.safetensors").read_bytes()
    assert plain == (run / "model.safetensors").read_bytes()


class Crash(Silent):
    """A process that dies in the middle of a training."""

    def __init__(self, step):
        super().__init__()
        self.left = step

    def step(self, progress, nll, tokens):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", [4, 9])
def test_a_run_that_was_killed_and_resumed_keeps_the_same(done, tmp_path, step):
    run, text, _ = done
    with pytest.raises(KeyboardInterrupt):
        train(recipe(text), tmp_path / "run", False, Crash(step), quiet)
    if (tmp_path / "run" / "exposure").exists():  # what a crash in the midst of a step may spoil
        for path in (tmp_path / "run" / "exposure").iterdir():
            assert path.read_bytes() == kept(run)[path.name]
    train(recipe(text), tmp_path / "run", True, Silent(), quiet)
    assert kept(tmp_path / "run") == kept(run)


def test_an_average_is_kept_where_there_is_one(done, tmp_path):
    run, text, _ = done
    train(recipe(text, "polyak"), tmp_path / "mean", False, Silent(), quiet)
    assert kept(tmp_path / "mean").keys() == kept(run).keys()
    assert kept(tmp_path / "mean") != kept(run)


def test_what_is_not_reached_is_said(done, tmp_path):
    _, text, _ = done
    watcher = Silent()
    train(recipe(text, exposure=["100", "1M", "1.5k"]), tmp_path / "run", False, watcher, quiet)
    assert list(kept(tmp_path / "run")) == ["chck_100.safetensors"]
    assert "no weights were kept at 1M, 1500" in watcher.said[-1]


def test_export_at(done, tmp_path, infolm):
    run, _, _ = done
    out = tmp_path / "chck_200"
    given = infolm("export", run, "--at", "200", "--out", out)
    assert (given.code, given.err) == (0, "")
    assert "after 200 words" in (out / "README.md").read_text()
    from transformers import AutoModelForCausalLM

    found = AutoModelForCausalLM.from_pretrained(out).language_model.state_dict()
    at, best = open_run(run, 200).model.state_dict(), open_run(run).model.state_dict()
    assert all(torch.equal(found[name], at[name]) for name in at)
    assert not all(torch.equal(found[name], best[name]) for name in at)
    for words, said in [("7", "there are: 100, 200, 300"), ("many", "--at is a number of words")]:
        refused = infolm("export", run, "--at", words, "--out", tmp_path / "other")
        assert (refused.code, said in refused.err, refused.err.count("\n")) == (2, True, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["chck_200"]


def test_a_damaged_file_is_refused(done, tmp_path):
    run, _, _ = done
    path = run / "exposure" / "chck_300.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-4] + b"oops")
    try:
        with pytest.raises(InfolmError, match="damaged"):
            open_run(run, 300)
    finally:
        path.write_bytes(data)


def test_names_of_numbers():
    assert [in_short(n) for n in (1_000_000, 30_000, 10**9, 1_500_000, 7)] == [
        "1M", "30k", "1G", "1500k", "7",
    ]  # fmt: skip
    assert all(count(in_short(n)) == n for n in (1_000_000, 30_000, 10**9, 1_500_000))
