"""`infolm variance`: figure 3 of the BMI paper by one command."""

import json
import shutil
import struct
import sys
from pathlib import Path

import pytest
import yaml
from training_tiny import Silent, quiet, tiny_tree

from infolm.config import load_recipe
from infolm.experiment import train


def trained_run(folder: Path, **bmi) -> Path:
    nouns = ["cat", "dog", "bird", "fish", "child", "king"]
    lines = [f"the {nouns[i % 6]} sees a {nouns[(i + i // 7) % 6]} ." for i in range(200)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    tree = tiny_tree(folder / "text.txt", max_steps=20)
    tree["regularisers"] = {"bmi": {"weight": 0.5, "batch": 8, **bmi}}
    (folder / "bmi.yaml").write_text(yaml.safe_dump(tree))
    train(load_recipe(str(folder / "bmi.yaml")), folder / "run", False, Silent(), quiet)
    return folder / "run"


@pytest.fixture(scope="module")
def regularised(tmp_path_factory):
    """A run with a critic, for reading only."""
    folder = tmp_path_factory.mktemp("regularised")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        return trained_run(folder)


def refused(done, *words):
    assert done.code == 2, (done.code, done.err)
    (line,) = [line for line in done.err.splitlines() if line.startswith("infolm: ")]
    for word in words:
        assert word in line


def test_numbers_and_a_picture(infolm, regularised, tmp_path):
    picture = tmp_path / "figure.png"
    before = {path: path.read_bytes() for path in regularised.glob("*.safetensors")}
    done = infolm("variance", regularised, "--batches", 12, "--out", picture, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    left_out = sum(found[name] for name in ("unused", "rl_only", "raml_only"))
    assert found["compared"] + left_out == found["weights"]
    assert found["compared"] > 0.9 * found["weights"]
    assert found["quantiles"]["0.01"] < found["median_ratio"] < found["quantiles"]["0.99"]
    assert found["median_log10_stderr"] > 0
    assert (found["batches"], found["pairs"], found["seed"]) == (12, 8, 1)
    assert found["longest"] == 7
    header = picture.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:])
    assert width > 1000
    assert height > 500
    assert {path: path.read_bytes() for path in regularised.glob("*.safetensors")} == before


def test_the_seed_decides_and_the_run_has_the_picture(infolm, regularised, tmp_path):
    run = shutil.copytree(regularised, tmp_path / "run")
    first, again, other = (
        infolm("variance", run, "--batches", 8, "--seed", seed, "--json").out for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert (run / "variance.png").exists()


def test_without_its_baseline_the_policy_gradient_is_noisier(infolm, regularised, tmp_path):
    command = "variance", regularised, "--batches", 8, "--out", tmp_path / "figure.png", "--json"
    usual, plain = (json.loads(infolm(*command, *more).out) for more in ([], ["--no-baseline"]))
    assert usual["baseline"]
    assert not plain["baseline"]
    assert plain["median_ratio"] > 3 * usual["median_ratio"]


def test_the_table_says_what_was_counted(infolm, regularised, tmp_path):
    done = infolm("variance", regularised, "--batches", 8, "--out", tmp_path / "figure.png")
    assert done.code == 0, done.err
    assert "above 10^4" in done.out
    assert "8 batches of 8 pairs" in done.out
    assert str(tmp_path / "figure.png") in done.out.replace("\n", "")


@pytest.mark.parametrize("bmi", [{"segment": 5}, {"ends": ["."]}], ids=["segments", "stops"])
def test_other_sentences_than_lines(infolm, tmp_path, bmi):
    run = trained_run(tmp_path, **bmi)
    done = infolm("variance", run, "--batches", 8, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["longest"] == bmi.get("segment", 7)


def test_a_run_without_bmi(infolm, trained):
    refused(infolm("variance", trained), "was trained without BMI", "regularisers.bmi.weight=0.1")


def test_a_critic_that_is_missing_or_of_another_model(infolm, regularised, tmp_path):
    run = shutil.copytree(regularised, tmp_path / "run")
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(trained_run(other, weight=0.25) / "bmi.safetensors", run)
    refused(infolm("variance", run), "bmi.safetensors is the critic of another model")
    (run / "bmi.safetensors").unlink()
    refused(infolm("variance", run), "bmi.safetensors, the critic, is missing")


def test_too_few_batches(infolm, regularised, tmp_path):
    done = infolm("variance", regularised, "--batches", 7, "--out", tmp_path / "figure.png")
    refused(done, "--batches is 7, too few")


@pytest.mark.parametrize("name", ["figure.gif", "nowhere/figure.png"])
def test_a_picture_that_cannot_be(infolm, regularised, tmp_path, name):
    done = infolm("variance", regularised, "--out", tmp_path / name)
    refused(done, "name a .png file in a folder that exists")


def test_without_matplotlib_it_says_what_to_install(infolm, regularised, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("infolm.reports")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused(infolm("variance", regularised), "pip install 'infolm[report]'")
