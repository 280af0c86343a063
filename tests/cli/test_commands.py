"""The command line others rely on."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml
from one_sentence import one_sentence
from training_tiny import Silent, quiet, tiny_file, tiny_tree

from infolm.config import Recipe
from infolm.data import synthetic
from infolm.data.synthetic import true_entropy
from infolm.data.tokens import Tokenizer
from infolm.evaluation import generated
from infolm.evaluation.generated import text_information
from infolm.families.train import train
from infolm.training import checkpoint

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


def test_gradients_know_their_settings(infolm, own):
    """An old file means the usual settings, and others are collected anew."""
    options = ("evaluate", own, "--split", "test", "--dynamic", "1e-4,1e-3", "--json")
    kept = own / "gradients.safetensors"
    *_, usual = lines(infolm(*options)).values()
    squares = checkpoint.load(kept)["squares"]
    checkpoint.save(kept, squares)  # as it was before it had settings
    content = kept.read_bytes()
    *_, old = lines(infolm(*options)).values()
    assert (old, kept.read_bytes()) == (usual, content)
    other = lines(infolm(*options, "--dynamic-statistics", "all,4,10"))
    *_, told = other
    assert "RMS of all batches of 4 x 10 tokens" in told
    assert checkpoint.load(kept)["settings"] == {"batches": None, "columns": 4, "steps": 10}
    assert other[told] != usual
    *_, again = lines(infolm(*options)).values()
    assert again == usual
    assert checkpoint.load(kept)["settings"] == {"batches": 200, "columns": 64, "steps": 20}


def test_tuned_dynamic_evaluation_of_other_statistics_is_tuned_anew(infolm, own):
    options = ("evaluate", own, "--split", "valid", "--dynamic", "--segment", "20", "--json")
    *_, usual = lines(infolm(*options))
    *_, other = lines(infolm(*options, "--dynamic-mean", "tensor", "--dynamic-statistics", "3"))
    assert "mean of RMS" not in usual
    assert "mean of RMS by tensor, RMS of 3 batches of 64 x 20 tokens" in other
    kept = own / "dynamic-20.json"
    before = kept.stat().st_mtime_ns
    infolm(*options, "--dynamic-mean", "tensor", "--dynamic-statistics", "3")
    assert kept.stat().st_mtime_ns == before


def test_the_factor_of_the_dropout_rates_is_tuned_and_kept(infolm, own):
    options = ("evaluate", own, "--split", "valid", "--mc", 3, "--mc-rate")
    done = infolm(*options, "tune", "--json")
    assert done.code == 0, done.err
    kept = own / "mc.json"
    rate = json.loads(kept.read_text())["rate"]
    assert any(f"rates x {rate:.3g}" in line for line in lines(done))
    before = kept.stat().st_mtime_ns
    assert list(lines(infolm(*options, "--json"))) == list(lines(done))
    assert kept.stat().st_mtime_ns == before
    infolm("evaluate", own, "--split", "valid", "--mc", 2, "--mc-rate", "--json")
    assert kept.stat().st_mtime_ns > before  # of another number of masks


def test_a_temperature_within_each_expert(infolm, tmp_path, small_text, own):
    recipe, run = tiny_file(tmp_path, small_text, max_steps=4), tmp_path / "run"
    assert infolm("train", recipe, "model.softmax.experts=2", "--out", run).code == 0
    options = ("--split", "valid", "--temperature", "--tempering", "expert", "--json")
    *_, within = lines(infolm("evaluate", run, *options))
    assert re.fullmatch(r"temperature [\d.]+ within each expert, one stream", within)
    *_, of_mixture = lines(infolm("evaluate", run, "--split", "valid", "--temperature", "--json"))
    assert re.fullmatch(r"temperature [\d.]+, one stream", of_mixture)
    found = lines(infolm("evaluate", run, *options, "--episodic"))
    assert [*found][-1].endswith("within each expert, each sentence by itself")
    plain = ("evaluate", own, "--split", "valid", "--temperature", "0.8", "--json")
    assert lines(infolm(*plain)) == lines(infolm(*plain, "--tempering", "expert"))  # one expert


def test_masks_adapt_by_themselves_or_share_an_adaptation(infolm, own):
    options = ("evaluate", own, "--split", "test", "--dynamic", "1e-3,1e-2", "--mc", 2, "--json")
    *_, (own_name, own_loss) = lines(infolm(*options)).items()
    *_, (name, loss) = lines(infolm(*options, "--mc-adaptation", "shared")).items()
    assert "(2 masks, each adapting by itself, rates" in own_name
    assert "(2 masks, rates" in name
    assert own_loss != loss


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
    from infolm.config import load_recipe, recipe_names

    listed = infolm("recipes")
    assert listed.code == 0
    named = re.findall(r"^(\S+) +\S+$", listed.out, re.MULTILINE)
    assert named == recipe_names()  # none is cut
    assert re.search(r"60\.7 on the validation split, 58\.8 on the test split .paper", listed.out)
    entries = json.loads(infolm("recipes", "--json").out)
    assert [entry["recipe"] for entry in entries] == recipe_names()
    assert {entry["corpus"] for entry in entries} >= {"ptb", "wikitext-2", "python-docs"}
    printed = infolm("recipes", "awd-lstm/ptb")
    assert "24,221,600 parameters" in printed.err
    (tmp_path / "mine.yaml").write_text(printed.out)
    assert load_recipe(str(tmp_path / "mine.yaml")) == load_recipe("awd-lstm/ptb")
    assert json.loads(infolm("recipes", "awd-lstm/ptb", "--json").out)["parameters"] == 24_221_600


def test_a_recipe_is_printed_with_its_variants(infolm):
    printed = infolm("recipes", "mogrifier/ptb")
    assert re.search(r"^  no zigzag +model\.mogrifier\.zigzag=false$", printed.err, re.MULTILINE)
    assert re.search(r"^  full +\(the recipe as it is\)$", infolm("recipes", "bmi/ptb").err, re.M)


def test_a_recipe_whose_size_depends_on_the_text_is_printed_without_it(
    infolm, small_text, tmp_path
):
    path = tiny_file(tmp_path, small_text, max_steps=2)
    printed = infolm("recipes", path)
    assert (printed.code, printed.out, printed.err) == (0, path.read_text(), "")
    assert json.loads(infolm("recipes", path, "--json").out)["parameters"] is None


def test_the_list_of_recipes_needs_no_pytorch():
    script = (
        "import sys; sys.argv = ['infolm', 'recipes']\n"
        "from infolm.cli import main\n"
        "try: main()\n"
        "except SystemExit: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "awd-lstm/demo" in done.stdout


def variants_file(folder: Path, text: Path) -> Path:
    """A tiny recipe with two variants."""
    path = tiny_file(folder, text, max_steps=2, validate_every=1)
    variants = {"No clip": "optimiser.clip=null seed=3", "cell/GRU": "model.cell=gru"}
    tree = yaml.safe_load(path.read_text()) | {"title": "Tiny", "variants": variants}
    path.write_text(yaml.safe_dump(tree))
    return path


def test_a_variant_is_trained_by_its_name(infolm, small_text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    variants_file(tmp_path, small_text)
    done = infolm("train", "tiny.yaml", "--variant", "No clip", "seed=4")
    assert done.code == 0, done.err
    kept = yaml.safe_load(Path("runs/tiny-no-clip/recipe.yaml").read_text())
    assert (kept["title"], kept["optimiser"]["clip"], kept["seed"]) == (
        "Tiny, variant No clip",
        None,
        4,  # given after the variant
    )
    done = infolm("train", "tiny.yaml", "--variant", "No clip", "--variant", "cell/GRU")
    assert done.code == 0, done.err
    kept = yaml.safe_load(Path("runs/tiny-no-clip-cell-gru/recipe.yaml").read_text())
    assert (kept["title"], kept["model"]["cell"]) == ("Tiny, variant No clip and cell/GRU", "gru")
    again = infolm("train", "tiny.yaml", "--variant", "No clip", "seed=4", "--resume")
    assert again.code == 0, again.err
    assert infolm("train", "runs/tiny-no-clip", "--resume").code == 0


def test_a_variant_that_is_not_there(infolm, small_text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = variants_file(tmp_path, small_text)
    one_sentence(
        infolm("train", path, "--variant", "no-clip"),
        "has no variant 'no-clip', did you mean 'No clip'? (there are No clip, cell/GRU)",
    )
    assert not Path("runs").exists()
    one_sentence(
        infolm("train", "awd-lstm/demo", "--variant", "x"), "awd-lstm/demo has no variants"
    )
    assert infolm("train", path, "--out", "run").code == 0
    one_sentence(
        infolm("train", "run", "--resume", "--variant", "No clip"),
        "--variant is for a recipe, and run has one already",
    )


def test_corpora_are_listed(infolm):
    done = infolm("corpora")
    assert done.code == 0
    names = ["ptb", "ptb-char", "wikitext-2", "wikitext-103", "enwik8", "text8", "python-docs"]
    names += ["markov", "hmm", "grammar", "reverse-copy", "yelp", "uniform", "mwc-en", "mwc-fi"]
    names += ["xquad", "babylm-10m"]
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


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch has GNU's OpenMP on Linux only")
@pytest.mark.parametrize(
    ("own", "turns"),
    [({}, "20000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "0")],
)
def test_waiting_threads_sleep_soon_unless_told_otherwise(own, turns):
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    done = subprocess.run(
        [sys.executable, "-m", "infolm", "evaluate", "no-such-run"],
        env=clean | {"OMP_DISPLAY_ENV": "verbose"} | own,
        capture_output=True,
        text=True,
    )
    said = set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr))  # by OpenMP itself
    assert said == {turns}
