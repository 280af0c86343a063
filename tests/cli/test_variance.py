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
from infolm.families.train import train


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


# -- Monte Carlo objectives -----------------------------------------------------------------


@pytest.fixture(scope="module", params=["gaussian", "categorical"])
def coded(request, tmp_path_factory):
    """Runs with either kind of code, for reading only."""
    folder = tmp_path_factory.mktemp(request.param)
    estimator = {"gaussian": "dreg", "categorical": "vimco"}[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        recipe = load_recipe(
            "monte-carlo/synthetic-continuous-small",
            [
                "data.uniform.symbols=16",
                "feed.batch=8",
                "model.hidden=8",
                f"model.latent.kind={request.param}",
                f"objective.estimator={estimator}",
                "train.max_steps=4",
                "train.validate_every=2",
            ],
        )
        train(recipe, folder / "run", False, Silent(), quiet)
    return request.param, folder / "run"


def test_estimators_are_compared(infolm, coded, tmp_path):
    kind, run = coded
    picture = tmp_path / "figure.png"
    command = "variance", run, "--batches", 8, "--samples", "3,1", "--out", picture
    before = (run / "model.safetensors").read_bytes()
    done = infolm(*command, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["augment"] == "renyi"
    assert (found["draws"], found["sentences"], found["seed"]) == (8, 8, 1)
    rows = [(row["estimator"], row["samples"]) for row in found["estimators"]]
    through = ["elbo", "iwae", "stl", "dreg"] if kind == "gaussian" else []
    both = [(name, count) for name in (*through, "reinforce") for count in (1, 3)]
    assert rows == [*both, ("vimco", 3)]
    for row in found["estimators"]:
        for side in ("encoder", "decoder"):
            assert row[side]["noise"] > 0
            assert row[side]["ratio"] > 0
            assert row[side]["noise_stderr"] > 0
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (run / "model.safetensors").read_bytes() == before
    assert infolm(*command, "--json").out == done.out
    assert infolm(*command, "--json", "--seed", 2).out != done.out
    table = infolm(*command).out
    assert "reinforce" in table
    assert "8 draws of a batch of 8 sentences" in table
    assert "augment renyi, lambda 0.6, alpha" in table


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--samples", "1,x"], "--samples are whole numbers above 0"),
        (["--samples", "0"], "--samples are whole numbers above 0"),
        (["--batches", 7], "7 gradients are too few"),
        (["--no-baseline"], "--no-baseline is for runs with BMI"),
    ],
)
def test_bad_options_of_a_monte_carlo_run(infolm, coded, tmp_path, options, said):
    refused(infolm("variance", coded[1], "--out", tmp_path / "figure.png", *options), said)


def test_samples_are_for_monte_carlo_runs(infolm, regularised):
    done = infolm("variance", regularised, "--samples", "1,4")
    refused(done, "--samples is for runs with objective.kind monte-carlo", "likelihood")
