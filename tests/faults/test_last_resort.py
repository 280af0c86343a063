"""Whatever is wrong, a person sees one sentence, never a stack trace."""

import json
import math
import os
import re
from pathlib import Path

import encoder_runs
import numpy as np
import pytest
import torch
from one_sentence import one_sentence
from training_tiny import tiny_file

from infolm import cli
from infolm.evaluation import measurement
from infolm.evaluation.measurement import Measurement
from infolm.families.base import open_run
from infolm.training import checkpoint
from infolm.training.loop import Loop

DEEP = "[" * 100_000


def test_what_nobody_foresaw_is_a_sentence_and_a_log(infolm, monkeypatch):
    def fail(arguments):
        raise KeyError("unforeseen")

    monkeypatch.setattr(cli, "app", fail)
    done = infolm("report")
    one_sentence(done, "this should not have happened", "'unforeseen'", codes=(1,))
    log = Path(re.search(r"(\S+\.log) shows", done.err)[1])
    assert "Traceback" in log.read_text()
    assert "['infolm', 'report']" in log.read_text()
    log.unlink()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 99"), "not enough memory"),
        (OverflowError("int too big"), "a number is too large"),
        (RecursionError("deep"), "should not have happened"),
        (ValueError("x" * 10_000 + "\n" * 99), "should not have happened"),
    ],
)
def test_the_sentence_is_one_line_of_bearable_length(infolm, monkeypatch, error, said):
    def fail(arguments):
        raise error

    monkeypatch.setattr(cli, "app", fail)
    done = infolm("report")
    one_sentence(done, said, codes=(1,))
    assert len(done.err) < 500
    Path(re.search(r"(\S+\.log) shows", done.err)[1]).unlink()


def test_a_diverged_loss_at_the_end_of_training(infolm, tmp_path, small_text, monkeypatch):
    monkeypatch.setattr(Loop, "run", lambda self: 5000.0)
    recipe = tiny_file(tmp_path, small_text, max_steps=1)
    done = infolm("train", recipe, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert f"{math.exp(700):.2f}" in done.err


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.hidden=10000000", "GB"),
        ("model.hidden=10000000000", "GB"),
        ("model.hidden=1000000000000000000", "GB"),
        ("seed=100000000000000000000000000000", "beyond 64 bits"),
        ("seed=9223372036854775808", "beyond 64 bits"),
        ("model.hidden=99999999999999999999", "beyond 64 bits"),
        (f"seed={'9' * 9000}", "seed"),
        (f"model={'[' * 50_000}", "not valid YAML"),
        (f"title={'{a: ' * 50_000}", "not valid YAML"),
    ],
)
def test_numbers_and_nests_beyond_reason(infolm, tmp_path, small_text, override, words):
    recipe = tiny_file(tmp_path, small_text, max_steps=1)
    done = infolm("train", recipe, override, "--out", tmp_path / "run")
    one_sentence(done, words)
    assert not (tmp_path / "run").exists()


def test_the_largest_seed_there_is(infolm, tmp_path, small_text):
    recipe = tiny_file(tmp_path, small_text, max_steps=1)
    done = infolm("train", recipe, f"seed={2**63 - 1}", "--out", tmp_path / "run")
    assert done.code == 0, done.err


@pytest.mark.parametrize("seed", ["9" * 30, "-" + "9" * 30, "9" * 9000, str(2**63)])
def test_a_seed_of_a_command(infolm, run, seed):
    one_sentence(infolm("generate", run, "--seed", seed), "--seed", "beyond 64 bits")
    one_sentence(infolm("generate", run, f"--seed={seed}"), "--seed", "beyond 64 bits")


def test_a_recipe_nested_too_deeply(infolm, tmp_path):
    (tmp_path / "deep.yaml").write_text(DEEP)
    one_sentence(infolm("train", tmp_path / "deep.yaml"), "deep.yaml")


ONE = {"metric": "nll", "value": 1.5, "unit": "nats", "stderr": 0.1, "tokens": 9}
WORDS = {"split": "valid", "method": "static", "convention": "all"}
HALF_A_LETTER = json.dumps([{**ONE, **WORDS, "method": "\ud800"}])


@pytest.mark.parametrize(
    "text", ["", "{", "1", "[1]", '["x"]', '{"a": 1}', DEEP, "\x00", "[{}]", HALF_A_LETTER]
)
def test_damaged_measurements(infolm, run, text):
    (run / "measurements.json").write_text(text)
    done = infolm("report", run)
    if text == '{"a": 1}':
        assert done.code != 0
    one_sentence(done, "measurements.json", f"infolm repair {run}")


@pytest.mark.parametrize(
    "text",
    ["", "{", "1", "[]", "{}", '{"window": "many"}', '{"gap": 3}', '{"window": null}', DEEP],
)
def test_damaged_tuned_settings(infolm, run, text):
    cache = run / "cache.json"
    cache.write_text(text)
    later = (run / "model.safetensors").stat().st_mtime_ns + 10**9
    os.utime(cache, ns=(later, later))
    done = infolm("evaluate", run, "--split", "valid", "--cache", "tuned")
    if text == "{}":  # all of them as in the paper
        assert done.code == 0
        return
    one_sentence(done, "cache")


@pytest.mark.parametrize("text", ["", "{", "1", "[]", "{}", DEEP, '{"sha256": []}'])
def test_a_damaged_corpus_file_of_an_earlier_release(infolm, run, text):
    (run / "manifest.json").unlink()
    (run / "corpus.json").write_text(text)
    one_sentence(infolm("evaluate", run), "")


@pytest.mark.parametrize("text", ["", "{", "1", "[]", "{}", DEEP, '{"model": 1}'])
def test_a_damaged_vocabulary_of_an_earlier_release(infolm, run, text):
    (run / "manifest.json").unlink()
    (run / "tokenizer.json").write_text(text)
    one_sentence(infolm("evaluate", run), "tokenizer.json")


STRUCTURES = {
    "empty": {},
    "no step": lambda s: {k: v for k, v in s.items() if k != "step"},
    "a model of numbers": lambda s: s | {"model": {"x": 1}},
    "a model of none": lambda s: s | {"model": None},
    "no optimiser": lambda s: s | {"optimiser": {}},
    "an optimiser of words": lambda s: s | {"optimiser": {"state": {"a": 1}, "param_groups": 3}},
    "no averager": lambda s: s | {"averager": []},
    "a list of feeds": lambda s: s | {"feeds": []},
    "no random numbers": lambda s: s | {"random": {"cpu": 3}},
    "a short random state": lambda s: s | {"random": {"cpu": torch.zeros(3, dtype=torch.uint8)}},
}


@pytest.mark.parametrize("change", STRUCTURES.values(), ids=STRUCTURES.keys())
def test_a_checkpoint_with_a_right_digest_and_the_wrong_structure(infolm, run, change):
    path = checkpoint.checkpoints(run / "checkpoints")[-1]
    state = change(checkpoint.load(path)) if callable(change) else change
    checkpoint.save(path, state)
    one_sentence(infolm("train", run, "--resume", "train.max_steps=62"), path.name)


def test_weights_of_another_type_under_a_right_digest(infolm, run):
    (run / "manifest.json").unlink()
    weights = checkpoint.load(run / "model.safetensors")
    checkpoint.save(run / "model.safetensors", {k: w.int() for k, w in weights.items()})
    one_sentence(infolm("evaluate", run), "model.safetensors", "int32")


def test_an_array_that_declares_more_than_there_is(infolm, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(10.0)[:, None])
    data = (tmp_path / "x.npy").read_bytes()
    claimed = data.replace(b"(10, 1), }" + b" " * 12, b"(1000000000000, 1), }" + b" ")
    assert len(claimed) == len(data)
    assert claimed != data
    (tmp_path / "y.npy").write_bytes(claimed)
    one_sentence(infolm("mi", tmp_path / "x.npy", tmp_path / "y.npy"), "y.npy", "1000000000000")


class TestTextOfBlankLines:
    """Encoders hide words; where there is none they say so."""

    @pytest.fixture(params=["infoword", "mlm", "permutation"])
    def recipe(self, request, tmp_path):
        text = encoder_runs.recipe(tmp_path / "text.txt", request.param).as_yaml()
        (tmp_path / "tiny.yaml").write_text(text)
        return tmp_path / "tiny.yaml"

    def test_alone_are_refused(self, infolm, tmp_path, recipe):
        (tmp_path / "text.txt").write_text("\n" * 4000)
        one_sentence(infolm("train", recipe, "--out", tmp_path / "run"), "")
        assert not (tmp_path / "run").exists()

    def test_alone_in_one_split_are_refused(self, infolm, tmp_path, recipe):
        (tmp_path / "text").mkdir()
        for split, text in {"train": "a cat and a dog\n", "valid": "\n", "test": "a\n"}.items():
            (tmp_path / "text" / f"{split}.txt").write_text(text * 400)
        done = infolm("train", recipe, f"data.path={tmp_path / 'text'}", "--out", tmp_path / "run")
        one_sentence(done, "no word")
        assert not (tmp_path / "run").exists()

    def test_in_stretches_are_passed_over(self, infolm, tmp_path, recipe):
        part = "a cat and a dog see a bird\n" * 9 + "\n" * 900
        (tmp_path / "text.txt").write_text(part * 22)
        done = infolm("train", recipe, "train.max_steps=12", "--out", tmp_path / "run")
        assert done.code == 0, done.err


@pytest.mark.parametrize("name", ["[bold]", "[/red]", "run[/]", "a[link=x]b"])
def test_square_brackets_in_a_folders_name(infolm, tmp_path, small_text, name):
    recipe = tiny_file(tmp_path, small_text, max_steps=1)
    out = tmp_path / name if "/" not in name else tmp_path / name.replace("/", "") / "[" / "]"
    done = infolm("train", recipe, "--out", out)
    assert done.code == 0, done.err
    assert f"the run is in {out}" in done.err.replace("\n", "")
    assert infolm("evaluate", out, "--split", "valid").code == 0


def test_a_closing_tag_in_a_message_is_no_markup(capsys):
    from infolm.cli.app import print_table
    from infolm.console import err

    err.print("runs/[/red] and [bold]")
    print_table(["[/x]"], [["[/red]"]])
    shown = capsys.readouterr()
    assert "runs/[/red] and [bold]" in shown.err
    assert "[/red]" in shown.out
    assert "[/x]" in shown.out


class TestADiskThatTakesNothing:
    @pytest.mark.parametrize("options", [[], ["--temperature", "tune"], ["--dynamic", "1e-4,0"]])
    def test_what_was_measured_is_printed_first(self, infolm, run, monkeypatch, options):
        def full(path, write, before=None):
            raise OSError(28, "No space left on device")

        assert len(open_run(run).corpus.splits["valid"].tokens)  # its tokens are on the disk by now
        monkeypatch.setattr("infolm.files.replace", full)
        done = infolm("evaluate", run, "--split", "valid", "--json", *options)
        assert done.code == 1
        assert {m["metric"] for m in json.loads(done.out)} >= {"nll", "perplexity"}
        (line,) = [line for line in done.err.splitlines() if line.startswith("infolm: ")]
        assert "the measurements could not be saved" in line
        assert "No space left" in line
        table = infolm("evaluate", run, "--split", "valid", *options)
        assert table.code == 1
        assert "perplexity" in table.out

    def test_a_folder_that_may_not_be_written(self, infolm, run, monkeypatch):
        import filelock

        def refused(self, *arguments, **keywords):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(filelock.FileLock, "__enter__", refused)
        done = infolm("evaluate", run, "--split", "valid", "--json")
        assert done.code == 1
        assert json.loads(done.out)
        assert "Permission denied" in done.err

    def test_the_measurements_travel_with_the_refusal(self, tmp_path):
        (tmp_path / "file").touch()
        one = Measurement("nll", 1.0, "nats", None, 1, "valid", "static", "")
        with pytest.raises(measurement.NotKeptError) as refusal:
            measurement.keep(tmp_path / "file" / "m.json", [one])
        assert refusal.value.measurements == [one]
