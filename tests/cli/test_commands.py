"""The command line others rely on."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from functools import partial

import pytest
from training_tiny import Silent, quiet, tiny_file, tiny_tree

from infolm.config import Recipe
from infolm.data import synthetic
from infolm.data.synthetic import true_entropy
from infolm.data.tokens import Tokenizer
from infolm.evaluation import generated
from infolm.evaluation.generated import text_information
from infolm.experiment import train

MEASUREMENT_KEYS = {
    *("metric", "value", "unit", "stderr", "tokens", "split", "method", "convention")
}


def test_train_makes_a_run_and_says_what_to_do_next(infolm, tmp_path, small_text):
    recipe = tiny_file(tmp_path, small_text, max_steps=6)
    done = infolm("train", recipe, "--out", tmp_path / "run", "seed=3", "--json")
    assert done.code == 0
    result = json.loads(done.out)
    assert result["run"] == str(tmp_path / "run")
    assert 0 < result["nll"] < 6
    assert f"infolm evaluate {tmp_path / 'run'}" in done.err
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"recipe.yaml", "tokenizer.json", "model.safetensors", "metrics.jsonl"} <= files
    assert "seed: 3" in (tmp_path / "run" / "recipe.yaml").read_text()


def test_ones_own_text_by_a_named_recipe(infolm, tmp_path, small_text):
    done = infolm(
        *("train", "awd-lstm/demo", f"data.path={small_text}", "train.max_steps=2"),
        *("model.hidden=8", "model.embedding=8", "--out", tmp_path / "run"),
    )
    assert done.code == 0, done.err


def test_the_default_folder_is_named_after_the_recipe(infolm, tmp_path, small_text, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_file(tmp_path, small_text, max_steps=2)
    assert infolm("train", "tiny.yaml").code == 0
    assert (tmp_path / "runs" / "tiny" / "model.safetensors").exists()
    again = infolm("train", "tiny.yaml")
    assert again.code == 2
    assert "runs/tiny exists already: add --resume" in again.err
    resumed = infolm("train", "tiny.yaml", "--resume")
    assert resumed.code == 0


def test_evaluate_prints_measurements_with_every_key(infolm, trained):
    done = infolm("evaluate", trained, "--split", "test", "--json")
    assert done.code == 0
    results = json.loads(done.out)
    assert all(set(result) == MEASUREMENT_KEYS for result in results)
    by_metric = {result["metric"]: result for result in results}
    assert by_metric["perplexity"]["value"] == pytest.approx(math.exp(by_metric["nll"]["value"]))
    assert {result["split"] for result in results} == {"test"}
    assert "<eos>" in by_metric["nll"]["convention"]


def test_the_chunk_does_not_matter(infolm, trained):
    values = [
        json.loads(infolm("evaluate", trained, "--chunk", chunk, "--json").out)[0]["value"]
        for chunk in (1, 13, 500)
    ]
    assert values == pytest.approx([values[0]] * 3, rel=1e-5)


def test_both_splits_by_default_and_every_method_has_its_name(infolm, trained):
    done = infolm("evaluate", trained, "--cache", "--baseline", "--json")
    results = json.loads(done.out)
    assert {result["split"] for result in results} == {"valid", "test"}
    methods = {result["method"] for result in results}
    assert len(methods) == 3
    assert any(re.match(r"neural cache \(window \d+, lambda .*, theta .*\)", m) for m in methods)
    assert (trained / "cache.json").exists()
    kept = json.loads((trained / "measurements.json").read_text())
    assert {result["method"] for result in results} <= {entry["method"] for entry in kept}


def test_the_tuned_cache_is_no_worse_than_none_on_validation(infolm, trained):
    results = json.loads(
        infolm("evaluate", trained, "--split", "valid", "--cache", "tune", "--json").out
    )
    nll = {r["method"].split()[0]: r["value"] for r in results if r["metric"] == "nll"}
    assert nll["neural"] <= nll["static,"] + 1e-6


def test_cache_settings_may_be_given_and_the_words_it_helps_shown(infolm, trained):
    done = infolm("evaluate", trained, "--cache", "50,0.2,0.3", "--words", "3")
    assert done.code == 0, done.err
    assert "window 50, lambda 0.2, theta 0.3" in done.out
    assert "helped most" in done.out


def test_parallel_streams_say_so(infolm, trained):
    results = json.loads(infolm("evaluate", trained, "--streams", "4", "--json").out)
    assert "4 parallel streams, warm-up" in results[0]["method"]


def lines(done, metric="nll"):
    """Method -> value of a metric, in the order shown."""
    assert done.code == 0, done.err
    return {r["method"]: r["value"] for r in json.loads(done.out) if r["metric"] == metric}


@pytest.fixture
def own(trained, tmp_path):
    """A copy of the trained run, to be written to."""
    shutil.copytree(trained, tmp_path / "own")
    for path in (tmp_path / "own").glob("*.json"):
        if path.name not in ("tokenizer.json", "corpus.json"):
            path.unlink()
    return tmp_path / "own"


def test_methods_combine_in_one_command(infolm, own):
    options = ("--split", "test", "--json")
    asked = ("--dynamic", "--mc", "3", "--temperature", "tune", "--cache", "tune")
    weights = (own / "model.safetensors").read_bytes()
    done = infolm("evaluate", own, *asked, *options)
    found = lines(done)
    assert (own / "model.safetensors").read_bytes() == weights
    names = ("static", "dynamic", "Monte Carlo", "temperature", "neural cache")
    assert len(found) == 6
    for name, method in zip(names, found, strict=False):
        assert method.startswith(name)
    *_, together = found
    assert all(name in together for name in names[1:])
    assert set(lines(done, "sampling_error")) == {m for m in found if "Monte Carlo" in m}
    files = {path.name for path in own.iterdir()}
    assert {"gradients.safetensors", "dynamic.json", "temperature.json", "cache.json"} <= files
    assert {"temperature-dynamic-mc.json", "cache-dynamic-mc-temperature.json"} <= files
    # What was tuned is used again, and gives the same numbers.
    before = {path.name: path.stat().st_mtime_ns for path in own.glob("*.json")}
    again = lines(
        infolm("evaluate", own, "--dynamic", "--mc", 3, "--temperature", "--cache", *options)
    )
    assert again == found
    for name in ("dynamic", "temperature", "temperature-dynamic-mc", "cache"):
        assert (own / f"{name}.json").stat().st_mtime_ns == before[f"{name}.json"]


def test_tuning_on_validation_helps_there(infolm, own):
    options = ("--split", "valid", "--json")
    found = lines(infolm("evaluate", own, "--dynamic", "tune", "--temperature", *options))
    static, *others = found.values()
    assert len(others) == 3
    assert max(others) < static + 1e-4
    assert others[-1] <= min(others) + 0.01


def test_values_may_be_given_and_are_named(infolm, own):
    done = infolm(
        *("evaluate", own, "--split", "test", "--dynamic", "1e-4,1e-2,1e-3", "--segment", 7),
        *("--temperature", 0.9, "--cache", "50,0.2,0.3", "--json"),
    )
    *_, together = lines(done)
    assert together == (
        "dynamic evaluation (rms, rate 0.0001, decay 0.01, epsilon 0.001, segments of 7 tokens), "
        "temperature 0.9, neural cache (window 50, lambda 0.2, theta 0.3), one stream"
    )
    sgd = infolm(
        *("evaluate", own, "--split", "test", "--dynamic", "0,0", "--dynamic-rule", "sgd"),
        "--json",
    )
    static, dynamic = lines(sgd).values()
    assert dynamic == pytest.approx(static, rel=1e-5)


def test_no_dropout_in_monte_carlo_is_the_static_model(infolm, own):
    done = infolm("evaluate", own, "--split", "test", "--mc", 1, "--mc-rate", 0, "--json")
    static, sampled = lines(done).values()
    assert sampled == pytest.approx(static, rel=1e-6)


def test_gradients_older_than_the_weights_are_collected_anew(infolm, own):
    options = ("evaluate", own, "--split", "test", "--dynamic", "1e-4,1e-3", "--json")
    infolm(*options)
    kept = own / "gradients.safetensors"
    content = kept.read_bytes()
    kept.write_bytes(b"old")
    os.utime(kept, ns=(0, 0))
    assert infolm(*options).code == 0
    assert kept.read_bytes() == content


def test_dynamic_evaluation_without_enough_training_text_is_one_sentence(infolm, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.txt").write_text("a b c d\n" * 4)
    for name in ("valid", "test"):
        (folder / f"{name}.txt").write_text("a b c d\n" * 4)
    recipe = tiny_file(tmp_path, folder, max_steps=2)
    assert infolm("train", recipe, "--out", tmp_path / "run").code == 0
    done = infolm("evaluate", tmp_path / "run", "--dynamic")
    assert done.code == 2
    assert "infolm: dynamic evaluation needs statistics of the training split" in done.err
    sgd = infolm("evaluate", tmp_path / "run", "--dynamic", "--dynamic-rule", "sgd")
    assert sgd.code == 0, sgd.err


def test_sentence_by_sentence(infolm, own):
    done = infolm("evaluate", own, "--split", "test", "--episodic", "--temperature", "--json")
    static, tempered = lines(done)
    assert static == "static, each sentence by itself"
    assert re.match(r"temperature [\d.]+, each sentence by itself", tempered)
    results = json.loads(done.out)
    assert all("from <eos> and a state of zeros" in r["convention"] for r in results)
    stream = json.loads(infolm("evaluate", own, "--split", "test", "--json").out)
    assert results[0]["tokens"] == stream[0]["tokens"] + 1


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A run of a few steps on a text whose language is known."""
    folder = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        patch.setattr(synthetic, "SIZES", {"train": 20_000, "valid": 2500, "test": 2500})
        tree = tiny_tree(folder, max_steps=30, validate_every=10) | {"data": {"corpus": "markov"}}
        train(Recipe.model_validate(tree), folder / "run", False, Silent(), quiet)
        yield folder / "run"


def test_evaluate_shows_how_far_above_the_true_entropy_a_model_is(infolm, drawn, monkeypatch):
    monkeypatch.setenv("INFOLM_CACHE", str(drawn.parent / "tokenised"))
    done = infolm("evaluate", drawn, "--cache", "50,0.1,1", "--baseline", "--json")
    assert done.code == 0, done.err
    results = json.loads(done.out)
    assert all(set(result) == MEASUREMENT_KEYS for result in results)
    for split in ("valid", "test"):
        found = {(r["method"], r["metric"]): r for r in results if r["split"] == split}
        itself = found["the language itself", "nll"]["value"]
        assert found["the language itself", "true_entropy"]["value"] == true_entropy("markov")
        methods = {method for method, _ in found} - {"the language itself"}
        assert len(methods) == 3  # static, with the cache, Kneser-Ney
        for method in methods:
            above = found[method, "nll_above_entropy"]
            assert above["unit"] == "nats per token"
            assert above["value"] == pytest.approx(found[method, "nll"]["value"] - itself)
            assert above["value"] > -3 * above["stderr"]
            assert above["stderr"] < 0.1
    shown = infolm("evaluate", drawn, "--split", "test", "--streams", "4").out
    assert "nll_above_entropy" in shown
    assert "true_entropy" in shown


@pytest.fixture
def quick(monkeypatch):
    """Two folds and a few steps where there would be ten and thousands: not to be believed."""
    monkeypatch.setattr(generated, "FOLDS", 2)
    monkeypatch.setattr(generated, "text_information", partial(text_information, steps=3))


def test_what_a_model_writes_is_measured_beside_real_text(infolm, drawn, quick, monkeypatch):
    monkeypatch.setenv("INFOLM_CACHE", str(drawn.parent / "tokenised"))
    options = ("--split", "test", "--streams", 4, "--generated", 10_000, "--json")
    done = infolm("evaluate", drawn, "--reverse", "--mi", "--real", *options)
    assert done.code == 0, done.err
    assert "the mutual information of 10,000 tokens that the model wrote" in done.err
    results = json.loads(done.out)
    assert all(set(result) == MEASUREMENT_KEYS for result in results)
    for metric in ("mutual_information", "mutual_information_shuffled"):
        splits = [(r["split"], r["unit"], r["tokens"]) for r in results if r["metric"] == metric]
        assert splits == [("generated", "nats", 10_000), ("train", "nats", 10_000)]
    above = [r for r in results if r["metric"] == "reverse_nll_above_entropy"]
    written, real = above
    assert written["method"].endswith("10,000 tokens that the model wrote (seed 1)")
    assert real["method"].endswith("10,000 tokens of the training text itself (seed 1)")
    # The run has seen a few steps only, so its text teaches less than the language's own.
    assert -3 * real["stderr"] < real["value"] < written["value"] - 3 * written["stderr"]
    kept = json.loads((drawn / "measurements.json").read_text())
    assert all(result in kept for result in results)

    again = infolm("evaluate", drawn, "--reverse", *options)
    assert [r for r in json.loads(again.out) if r in results] == json.loads(again.out)
    other = infolm("evaluate", drawn, "--reverse", "--seed", 2, *options)
    (third,) = (r for r in json.loads(other.out) if r["metric"] == "reverse_nll")
    assert third["method"].endswith("(seed 2)")
    assert third["value"] not in [r["value"] for r in results]


def test_the_yardstick_and_the_stride_are_as_told(infolm, drawn, quick, monkeypatch):
    monkeypatch.setenv("INFOLM_CACHE", str(drawn.parent / "tokenised"))
    options = ("--split", "test", "--streams", 4, "--generated", 10_000, "--json")
    asked = ("--reverse", "--yardstick", "2x6", "--mi", "--stride", 90)
    results = json.loads(infolm("evaluate", drawn, *asked, *options).out)
    (reverse,) = (r for r in results if r["metric"] == "reverse_nll")
    types = len(Tokenizer.load(drawn / "tokenizer.json"))
    # Two layers, each with two matrices and two vectors of four gates; a tied embedding, biases.
    weights = 2 * (2 * 4 * 6 * 6 + 2 * 4 * 6) + 6 * types + types
    assert reverse["method"].startswith(f"an LSTM of {weights:,} weights")
    (found,) = (r for r in results if r["metric"] == "mutual_information")
    assert "a pair every 90 tokens" in found["convention"]
    assert "js-dv, 100 pairs" in found["method"]


def test_generate_is_reproducible_by_seed(infolm, trained):
    first = infolm("generate", trained, "--tokens", 12, "--num", 2, "--seed", 5)
    again = infolm("generate", trained, "--tokens", 12, "--num", 2, "--seed", 5)
    other = infolm("generate", trained, "--tokens", 12, "--num", 2, "--seed", 6)
    assert first.code == 0
    assert first.out == again.out != other.out


def test_generate_goes_on_from_a_prompt_and_as_json(infolm, trained):
    done = infolm("generate", trained, "--prompt", "the cat", "--greedy", "--tokens", 5, "--json")
    (sample,) = json.loads(done.out)
    assert sample["prompt"] == "the cat"
    assert sample["text"]


def test_generate_with_a_cache_writes_other_text(infolm, trained):
    options = ["generate", trained, "--tokens", 30, "--seed", 5]
    plain, cached = infolm(*options), infolm(*options, "--cache", "20,0.9,1")
    assert cached.code == 0
    assert cached.out != plain.out


def test_report_says_where_it_is(infolm, trained):
    path = str(trained / "report.html")
    assert infolm("report", trained).out == f"{path}\n"
    assert json.loads(infolm("report", trained, "--json").out) == [path]


def test_recipes_are_listed_and_printed_to_copy(infolm, tmp_path):
    listed = infolm("recipes")
    assert listed.code == 0
    assert "awd-lstm/ptb-small" in listed.out
    assert "24.2M" in listed.out
    assert "60.7 / 58.8" in listed.out
    entries = json.loads(infolm("recipes", "--json").out)
    assert {entry["corpus"] for entry in entries} >= {"ptb", "wikitext-2", "python-docs"}
    printed = infolm("recipes", "awd-lstm/ptb")
    (tmp_path / "mine.yaml").write_text(printed.out)
    from infolm.config import load_recipe

    assert load_recipe(str(tmp_path / "mine.yaml")) == load_recipe("awd-lstm/ptb")


def test_corpora_are_listed(infolm):
    done = infolm("corpora")
    assert done.code == 0
    names = ["ptb", "ptb-char", "wikitext-2", "wikitext-103", "enwik8", "text8", "python-docs"]
    names += ["markov", "hmm", "grammar", "reverse-copy", "yelp", "uniform"]
    assert all(re.search(rf"^ *{name} ", done.out, re.MULTILINE) for name in names)
    assert {entry["name"] for entry in json.loads(infolm("corpora", "--json").out)} == set(names)


def test_help_names_every_command_and_imports_nothing_heavy():
    script = (
        "import sys; from infolm.cli import app;"
        "from typer.testing import CliRunner;"
        "print(CliRunner().invoke(app, ['--help']).output);"
        "heavy = {'torch', 'numpy', 'pydantic', 'tokenizers', 'lightning_fabric', 'yaml'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in ("train", "evaluate", "generate", "report", "mi", "recipes", "corpora"):
        assert command in done.stdout
