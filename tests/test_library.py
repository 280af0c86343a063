"""`import infolm`: the same functions as the command's, by name, and nothing heavy before use."""

import subprocess
import sys

import numpy as np
import pytest
from training_tiny import tiny_file

import infolm
from infolm.errors import InfolmError
from infolm.families.running.run import LanguageRun


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    lines = [f"the cat sees dog number {i % 7} and then bird {i % 5}" for i in range(300)]
    text = folder / "text.txt"
    text.write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        recipe = tiny_file(folder, text, max_steps=20, validate_every=10)
        return infolm.train(recipe, "seed=3", out=folder / "run")


def test_training_gives_the_run_and_loading_gives_it_again(run):
    assert isinstance(run, LanguageRun)
    assert run.recipe.seed == 3
    again = infolm.load(str(run.folder.path))
    for ours, theirs in zip(run.model.parameters(), again.model.parameters(), strict=True):
        assert ours.equal(theirs)
    assert infolm.load(run) is run


def test_evaluating_measures_the_splits_by_the_options(run):
    both = infolm.evaluate(run)
    assert {m.split for m in both} == {"valid", "test"}
    (static,) = [m for m in infolm.evaluate(run, split="test") if m.metric == "nll"]
    hot = infolm.evaluate(run, split="test", temperature="1.5")
    values = {m.method: m.value for m in hot if m.metric == "nll"}
    assert values.pop(static.method) == pytest.approx(static.value)
    assert list(values.values()) != [static.value]


def test_texts_are_decided_by_the_seed(run):
    first, second = (infolm.generate(run, num=2, seed=5, tokens=8, top_k=3) for _ in range(2))
    assert first == second
    assert len(first) == 2
    assert infolm.generate(run, num=2, seed=6, tokens=8) != first


@pytest.mark.parametrize("call", [infolm.evaluate, infolm.generate])
def test_an_option_that_is_not_there_is_refused_with_the_nearest(run, call):
    with pytest.raises(InfolmError, match="did you mean 'temperature'"):
        call(run, temprature="1.5")


def test_mutual_information_of_a_gaussian_in_nats_and_bits():
    rng = np.random.default_rng(0)
    x = rng.normal(size=2000)
    y = 0.8 * x + 0.6 * rng.normal(size=2000)
    truth = -0.5 * np.log(1 - 0.64)
    nats = infolm.mutual_information(x, y, "ksg", neighbours=5)
    bits = infolm.mutual_information(x, y, "ksg", unit="bits", neighbours=5)
    assert nats.value == pytest.approx(truth, abs=4 * nats.stderr)
    assert bits.value == pytest.approx(nats.value / np.log(2))
    with pytest.raises(InfolmError, match="unit is nats or bits"):
        infolm.mutual_information(x, y, unit="bytes")


def test_there_are_recipes_and_corpora():
    assert "awd-lstm/demo" in infolm.recipes()
    assert "ptb" in infolm.corpora()


def test_importing_loads_nothing_heavy():
    code = (
        "import sys, infolm; infolm.recipes(); infolm.corpora(); infolm.__version__; dir(infolm); "
        "print([m for m in ('torch', 'scipy', 'transformers', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        infolm.nothing  # noqa: B018


def test_mutual_information_by_the_panel_is_the_default():
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 150))
    found = infolm.mutual_information(x, x + y, permutations=19)
    low, high = found.interval
    assert low <= 0.5 * np.log(2) <= high
    assert found.p_value <= 0.05
    assert infolm.mutual_information(x, x + y, "fast", permutations=19) == found
