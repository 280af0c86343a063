"""`infolm finetune`: a table or JSON, a folder for transformers, and refusals before any work."""

import json
import os
import shutil
import signal

import pytest
import torch
import yaml
from encoder_tiny import NOUNS, squad_folder, sst2_folder
from one_sentence import one_sentence
from training_tiny import Silent, quiet

from infolm.config import load_recipe
from infolm.families.train import train
from infolm.finetuning import search


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A run of a tiny encoder, for reading only."""
    folder = tmp_path_factory.mktemp("encoder")
    lines = [
        f"the {NOUNS[i % 10]} is good and bad , what is a {NOUNS[(i + i // 7) % 10]} ?"
        for i in range(600)
    ]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    tree = {
        "data": {"path": str(folder / "text.txt"), "tokens": "wordpiece", "vocabulary": 120},
        "feed": {"kind": "sequences", "batch": 4, "length": 32, "masking": "spans"},
        "model": {"kind": "encoder", "layers": 2, "hidden": 16, "heads": 2, "length": 32},
        "objective": {"kind": "infoword"},
        "optimiser": {"kind": "adamw", "learning_rate": 1e-3},
        "train": {"max_steps": 4, "validate_every": 4},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tree))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        train(load_recipe(str(folder / "tiny.yaml")), folder / "run", False, Silent(), quiet)
    return folder / "run"


@pytest.fixture
def sst2(tmp_path):
    return sst2_folder(tmp_path / "sst2")


QUICK = ("--task", "sst2", "--epochs", 2, "--learning-rate", 0.003, "--batch", 16)


def test_json_has_everything_and_is_the_same_again(infolm, encoder, sst2, tmp_path):
    asked = ("finetune", encoder, *QUICK, "--data", sst2, "--seeds", 2, "--batch", 32, "--json")
    done = infolm(*asked, "--out", tmp_path / "one")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["task"], told["fresh"], told["share"], told["length"]) == ("sst2", False, 1, 32)
    assert told["examples"] == {
        "train": {"examples": 96, "cut": 0},
        "dev": {"examples": 32, "cut": 0},
    }
    assert told["choice"] == {"on": "half", "examples": {"dev": {"choosing": 16, "reported": 16}}}
    assert told["head"] == "pooler"
    assert told["majority"] == {"dev": {"accuracy": 0.5}}
    assert told["best_constant"] == {"dev": {"answer": "0", "scores": {"accuracy": 0.5}}}
    assert [(t["batch"], t["seed"]) for t in told["trials"]] == [(16, 1), (16, 2), (32, 1), (32, 2)]
    for trial in told["trials"]:
        values = [epoch["choice"]["dev"]["accuracy"] for epoch in trial["by_epoch"]]
        assert len(values) == 2
        assert trial["best_epoch"] == 1 + values.index(max(values))
    assert [row["seeds"] for row in told["configurations"]] == [2, 2]
    assert sum(row["chosen"] for row in told["configurations"]) == 1
    assert told["chosen"]["test"] == {}
    assert told.pop("folder") == str(tmp_path / "one")
    assert json.loads((tmp_path / "one" / "results.json").read_text()) == told
    again = json.loads(infolm(*asked, "--out", tmp_path / "two").out)
    del again["folder"]
    assert again == told
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert weights[0] == weights[1]


def test_a_table_and_a_folder_of_its_own_for_each_variant(infolm, encoder, sst2):
    asked = ("finetune", encoder, *QUICK, "--data", sst2)
    done = infolm(*asked, "--seeds", 2)
    assert done.code == 0, done.err
    for part in (
        "accuracy, best epoch",
        "accuracy, last epoch",
        "±",
        "most frequent class",
        "best constant: ",
        "chosen on one half of dev and measured on the other",
        "dev: 16 to choose by, 16 reported.",
        "train: 96 examples, 0 cut to 32 tokens.",
        str(encoder / "finetuned" / "sst2"),
    ):
        assert part in done.out
    assert "GLUE's average" not in done.out  # of a single task
    again = infolm(*asked, "--fresh", "--share", 0.5, "--choose-on", "dev", "--head", "linear")
    assert again.code == 0, again.err
    assert "chosen on the examples that it is measured on" in again.out
    told = json.loads((encoder / "finetuned" / "sst2-fresh-0.5" / "results.json").read_text())
    assert (told["head"], told["choice"]["on"]) == ("linear", "dev")
    made = {path.name for path in (encoder / "finetuned").iterdir()}
    assert made >= {"sst2", "sst2-fresh-0.5"}
    assert not [name for name in made if name.startswith(".")]


def test_questions(infolm, encoder, tmp_path):
    data = squad_folder(tmp_path / "squad")
    done = infolm("finetune", encoder, "--task", "squad", "--data", data, "--epochs", 1, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["chosen_by"] == "f1"
    assert set(told["chosen"]["dev"]["dev"]) == {"f1", "exact_match"}
    assert told["majority"] is told["best_constant"] is None
    assert told["windows"] == "answer"
    assert told["chosen"]["files"] == ["predictions.json"]
    predictions = json.loads((encoder / "finetuned" / "squad" / "predictions.json").read_text())
    assert len(predictions) == 16
    assert told["examples"]["dev"]["examples"] == 16
    done = infolm("finetune", encoder, "--task", "squad", "--data", data, "--epochs", 1)
    assert "windows of at most 32 tokens" in done.out


def test_a_test_file_with_labels_is_measured_once(infolm, encoder, sst2, tmp_path):
    (sst2 / "test.tsv").write_text("sentence\tlabel\nthe good cat\t1\nthe bad cat\t0\n")
    done = infolm("finetune", encoder, *QUICK, "--data", sst2, "--out", tmp_path / "out", "--json")
    told = json.loads(done.out)
    assert told["examples"]["test"] == {"examples": 2, "cut": 0}
    assert told["chosen"]["test"]["test"]["accuracy"] in (0, 0.5, 1)


def test_the_grid_is_tried(infolm, encoder, sst2, tmp_path, monkeypatch):
    tried = []

    def stop(problem, encoder, settings, report, state):
        tried.extend(settings)
        raise search.RunError("enough")

    monkeypatch.setattr(search, "search", stop)
    asked = ("finetune", encoder, "--task", "sst2", "--data", sst2, "--grid")
    infolm(*asked, "--seeds", 5)
    assert tried == search.grid(search.HIGH_RATES, search.BATCHES, 10, 5)  # it has 16 columns
    tried.clear()
    infolm(*asked, "--batch", 32, "--fresh")
    assert tried == search.grid(search.HIGH_RATES, [32], 10, 1)
    monkeypatch.setattr(search, "NARROW", 16)
    tried.clear()
    infolm(*asked)
    assert tried == search.grid(search.RATES, search.BATCHES, 10, 1)


def test_one_answer_to_everything_is_warned_of(infolm, encoder, sst2, tmp_path):
    asked = ("finetune", encoder, "--task", "sst2", "--data", sst2, "--epochs", 1)
    out = tmp_path / "out"
    done = infolm(*asked, "--learning-rate", 1e-9, "--head", "linear", "--out", out)
    told = json.loads((out / "results.json").read_text())
    answers = told["trials"][0]["by_epoch"][0]["answers"]["dev"]
    warned = "the chosen model gives the same answer to all 32 examples of dev"
    assert answers == 1
    assert warned in done.err
    assert told["warnings"][0].startswith(warned)


def test_the_average_of_several_tasks(infolm, encoder, sst2, tmp_path):
    run = tmp_path / "run"  # without what other tests leave
    shutil.copytree(encoder, run, ignore=shutil.ignore_patterns("finetuned"))
    rte = tmp_path / "rte"
    rte.mkdir()
    lines = (sst2 / "train.tsv").read_text().splitlines()[1:]
    words = {"0": "entailment", "1": "not_entailment"}
    pairs = [f"{s}\tthe cat\t{words[label]}" for s, label in (line.split("\t") for line in lines)]
    for name in ("train.tsv", "dev.tsv"):
        (rte / name).write_text("\n".join(["sentence1\tsentence2\tlabel", *pairs]) + "\n")
    (rte / "test.tsv").write_text("index\tsentence1\tsentence2\n0\tthe good cat\tthe cat\n")
    assert infolm("finetune", run, *QUICK, "--data", sst2).code == 0
    asked = ("finetune", run, *QUICK[2:], "--task", "rte", "--data", rte)
    done = infolm(*asked)
    assert done.code == 0, done.err
    assert "(2 of 8 tasks, without cola, mrpc, qqp, mnli, qnli, stsb)" in done.out
    folder = run / "finetuned"
    assert "The chosen model, RTE.tsv and results.json are in" in done.out
    head, line = (folder / "rte" / "RTE.tsv").read_text().splitlines()
    assert head == "index\tprediction"
    assert line.split("\t")[1] in words.values()
    values = [
        json.loads((folder / task / "results.json").read_text())["chosen"]["dev"]["dev"]["accuracy"]
        for task in ("sst2", "rte")
    ]
    done = infolm("finetune", run, "--average", "--json")
    average = json.loads(done.out)[0]
    assert average["leaderboard"] == average["paper"] == pytest.approx(sum(values) / 2)
    said = f"{50 * sum(values):.1f} as the leaderboard averages"
    assert said in infolm("finetune", run, "--average").out


def test_bad_input_is_refused_before_any_training(infolm, encoder, trained, sst2, tmp_path):
    out = tmp_path / "out"

    def refused(*arguments, words, run=encoder, data=sst2):
        done = infolm("finetune", run, "--data", data, "--out", out, *arguments)
        one_sentence(done, *words)
        assert not out.exists()

    refused(*QUICK, run=trained, words=("model.kind recurrent", "encoder"))
    refused(*QUICK, run=tmp_path, words=("recipe.yaml", "config.json"))
    refused("--task", "sst", words=("'sst'", "sst2"))
    refused(*QUICK, data=tmp_path / "nowhere", words=("nowhere",))
    refused(words=("--task is missing", "--average"))
    refused("--average", words=("no result of a GLUE task",), run=tmp_path)
    refused(*QUICK, "--length", 33, words=("--length 33", "32"))
    refused(*QUICK, "--share", 0, words=("--share 0",))
    refused(*QUICK, "--share", 1.5, words=("--share 1.5",))
    refused(*QUICK, "--learning-rate", -1, words=("--learning-rate",))
    (sst2 / "dev.tsv").write_text("sentence\tlabel\nthe good cat\tmaybe\n")
    refused(*QUICK, words=("line 2", "dev.tsv", "maybe"))


def test_an_interruption_leaves_no_result_and_is_resumed(
    infolm, encoder, sst2, tmp_path, monkeypatch
):
    out, steps, step = tmp_path / "results" / "out", [], torch.optim.AdamW.step

    def interrupted(self, *arguments):
        steps.append(self)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)

    command = ("finetune", encoder, *QUICK, "--data", sst2)
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", interrupted)
        done = infolm(*command, "--out", out)
        assert done.code == 130
        assert done.out == ""
        assert "The same command resumes" in done.err
        assert [path.name for path in out.parent.iterdir()] == [".out-trials"]
        assert infolm(*command, "--out", out).code == 0
    assert len(steps) == 2 * 6  # two epochs: no step is taken twice
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    infolm(*command, "--out", tmp_path / "alone")
    for name in ("results.json", "model.safetensors"):
        assert (out / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_a_loss_that_is_not_finite_leaves_nothing(infolm, encoder, sst2, tmp_path, monkeypatch):
    from infolm.finetuning.problems import Classification

    monkeypatch.setattr(Classification, "loss", lambda *_: torch.tensor(torch.nan))
    out = tmp_path / "out"
    done = infolm("finetune", encoder, *QUICK, "--data", sst2, "--out", out)
    one_sentence(done, "loss of step 1 is nan", "--learning-rate", codes=(1,))
    assert not out.exists()
    assert not list(tmp_path.glob(".out*"))
