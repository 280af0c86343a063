"""What a recipe or a command asks of memory and time is told before anything is allocated."""

import resource
import time

import pytest
import torch
from one_sentence import one_sentence
from training_tiny import tiny_file, tiny_recipe, tiny_sentences

from infolm.config import Recipe
from infolm.errors import InfolmError
from infolm.families import demand
from infolm.families.base import open_run
from infolm.families.demand import Demand, of_training, refuse_giants
from infolm.generation.sampling import SamplingSettings
from infolm.generation.text import write


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.layers=99999"], ["399,998 parameter tensors", "model.layers"]),
        (["model.mogrifier.rounds=100000"], ["200,010 parameter tensors", "rounds"]),
        (["model.layers=99999", "model.mogrifier.rounds=100000"], ["GB"]),
        (["model.hidden=30000"], ["training takes at least", "GB"]),
        (["model.softmax.experts=100000000"], ["GB"]),
        (["feed.batch=1000000000"], ["lower feed.batch"]),
    ],
)
def test_a_giant_is_refused_at_once(infolm, tmp_path, small_text, overrides, words):
    recipe = tiny_file(tmp_path, small_text, max_steps=1)
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = infolm("train", recipe, *overrides, "--out", tmp_path / "run")
    one_sentence(done, *words)
    assert not (tmp_path / "run").exists()
    assert time.process_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


def test_a_strangers_run_that_says_it_is_a_giant(infolm, run):
    (run / "manifest.json").unlink()
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("  layers: 2", "  layers: 99999"))
    for command in ("evaluate", "generate"):
        one_sentence(infolm(command, run), "399,998 parameter tensors")


@pytest.mark.parametrize("layers", [1, 2, 10, 11, 12, 13, 40])
@pytest.mark.parametrize("rounds", [0, 1, 11, 12, 13, 14])
def test_what_is_counted_is_what_is_made(small_text, layers, rounds):
    model = tiny_recipe(small_text).model
    mogrifier = model.mogrifier.model_copy(update={"rounds": rounds})
    model = model.model_copy(update={"layers": layers, "mogrifier": mogrifier})
    found = model.size_of(50)
    with torch.device("meta"):
        parameters = list(model.build(50).parameters())
    assert found.parameters == sum(parameter.numel() for parameter in parameters)
    assert found.tensors == len(parameters)


def test_sections_within_the_model_are_counted_too(small_text):
    tree = tiny_sentences(small_text)
    tree["model"]["encoder"]["layers"] = tree["model"]["decoder"]["layers"] = 50_000
    found = Recipe.model_validate(tree).model.size_of(50)
    assert found.tensors > 400_000


def test_memory_is_of_weights_gradients_optimiser_averages_and_a_batch(small_text):
    recipe = tiny_recipe(small_text)  # sgd keeps nothing, the triggered average one copy
    size = recipe.model.size_of(50)
    found = of_training(recipe, 50, tokens=10**9)
    assert found.bytes == 4 * (3 * size.parameters + 4 * 8 * size.rows)
    assert of_training(recipe, 50, tokens=7).activations == 7 * size.rows
    # The rows are those of the cells, 4 gates each: 2 layers of 12, the last of 8 as it is tied.
    assert size.rows == 2 * (4 * 12 + 4 * 8)


def test_what_fits_is_allowed_and_what_does_not_is_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(demand, "memory", lambda: 2**30)
    refuse_giants(Demand(2**26, 10, activations=0, copies=4))
    with pytest.raises(InfolmError, match=r"1\.25 GB of memory \(1\.00 for 67,108,864 parameters"):
        refuse_giants(Demand(2**26, 10, activations=2**26, copies=4))
    with pytest.raises(InfolmError, match="parameters take 2"):
        refuse_giants(Demand(2**29, 10))
    with pytest.raises(InfolmError, match="more than 8,589,934,592 GB"):
        refuse_giants(Demand(demand.UNCOUNTED, 1))


def test_the_memory_of_a_container_counts(tmp_path, monkeypatch):
    real = demand.Path
    (tmp_path / "memory.max").write_text("1000000\n")
    monkeypatch.setattr(demand, "Path", lambda path: real(tmp_path / real(path).name))
    assert demand.memory() == 1_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert demand.memory() > 10**8


class TestSamples:
    def test_are_written_a_few_at_a_time(self, run, monkeypatch):
        opened = open_run(run)
        common = (opened.model, opened.tokenizer, "", 5)
        whole = write(*common, 7, 1, SamplingSettings())
        monkeypatch.setattr("infolm.generation.text.SIDE_BY_SIDE", 3)
        assert write(*common, 7, 1, SamplingSettings()) == whole
        monkeypatch.setattr("infolm.generation.text.AT_ONCE", 1)
        assert write(*common, 7, 1, SamplingSettings()) == whole

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            (["--num", 10**8], "equal to 100000"),
            (["--tokens", 10**8], "equal to 1000000"),
            (["--steps", 10**8], "equal to 100000"),
            (["--longest", 10**8], "equal to 10000"),
            (["--num", 10**5, "--tokens", 10**6], "100,000,000,000 tokens"),
        ],
    )
    def test_too_many_or_too_long_are_refused(self, infolm, run, options, word):
        done = infolm("generate", run, *options)
        assert done.code == 2
        assert word in " ".join(done.err.split())

    def test_so_they_are_in_the_library(self, run):
        import infolm

        with pytest.raises(InfolmError, match="--num is at most 100,000, not 100,000,000"):
            infolm.generate(run, num=10**8)

    @pytest.mark.parametrize("option", ["--generated", "--mc", "--codes", "--nz"])
    def test_options_of_evaluate_are_bounded(self, infolm, run, option):
        done = infolm("evaluate", run, option, 10**12)
        assert done.code == 2
        assert "less than or equal to" in " ".join(done.err.split())
