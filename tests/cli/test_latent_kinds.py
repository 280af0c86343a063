"""Runs with categorical and quantised codes, and of single symbols, from the command line."""

import json

import pytest
from one_sentence import one_sentence
from training_tiny import Silent, quiet, tiny_sentences

from infolm.config import Recipe, load_recipe
from infolm.errors import InfolmError
from infolm.families.report import write_report
from infolm.families.train import train
from infolm.sentence_vectors import SentenceVectors

SIZES = {"variables": 3, "classes": 4, "embedding": 5}
LATENTS = {
    "gaussian": {"kind": "gaussian", "size": 3},
    "categorical": {"kind": "categorical", **SIZES},
    "quantised": {"kind": "quantised", **SIZES},
}
OBJECTIVES = {
    "gaussian": {
        **{"kind": "monte-carlo", "estimator": "dreg", "samples": 4},
        **{"augment": "renyi", "lambda": 0.5, "alpha": 1.5},
    },
    "categorical": {"kind": "monte-carlo", "estimator": "vimco", "samples": 4},
    "quantised": {"kind": "vq"},
}
KINDS = list(LATENTS)
SYNTHETIC = "monte-carlo/synthetic-continuous-small"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each kind of code, of sentences and of single symbols: `gaussian`, `s-gaussian`."""
    folder = tmp_path_factory.mktemp("kinds")
    text = folder / "text.txt"
    words = ["sun", "moon", "star", "sky", "sea", "rain", "wind", "snow"]
    text.write_text("".join(f"the {words[i % 8]} ? is {words[i % 3]}\n" for i in range(400)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        for kind in KINDS:
            tree = tiny_sentences(text, max_steps=20) | {"objective": OBJECTIVES[kind]}
            tree["model"]["latent"] = LATENTS[kind]
            train(Recipe.model_validate(tree), folder / kind, False, Silent(), quiet)
            values = load_recipe(SYNTHETIC).model_dump(by_alias=True)
            values["data"]["uniform"]["symbols"] = 12
            values["model"] |= {"hidden": 8, "latent": LATENTS[kind]}
            values["train"] |= {"max_steps": 4, "validate_every": 2, "log_every": 1}
            values["objective"] = OBJECTIVES[kind]
            train(Recipe.model_validate(values), folder / f"s-{kind}", False, Silent(), quiet)
    return folder


def measured(infolm, run, *options):
    done = infolm("evaluate", run, "--split", "test", "--codes", "5", *options, "--json")
    assert done.code == 0, done.err
    return {(m["metric"], m["method"]): m for m in json.loads(done.out)}


@pytest.mark.parametrize("run", [*KINDS, *(f"s-{kind}" for kind in KINDS)])
def test_measurements(infolm, runs, run):
    found = measured(infolm, runs / run)
    metrics = {metric for metric, _ in found}
    kind, single = run.removeprefix("s-"), run.startswith("s-")
    first = {"gaussian": "mean", "categorical": "likeliest", "quantised": "nearest"}[kind]
    assert {"reconstruction_nll", "elbo_perplexity", "kl", f"bleu_{first}"} <= metrics
    of_draws = {"importance_weighted_nll", "latent_usage", "latent_usage_per_token"}
    of_draws |= {"latent_usage_effective", "bleu_sampled"}
    assert metrics & of_draws == (set() if kind == "quantised" else of_draws)
    assert ("perplexity_of_classes" in metrics) == (kind != "gaussian")
    lines, words = (12, 1) if single else (20, 5)
    counted = found["elbo_nll", "latent code"]["tokens"]
    assert counted == lines * (words + (not single))
    kept = json.loads((runs / run / "measurements.json").read_text())
    assert {(m["metric"], m["method"]) for m in kept} >= set(found)


def test_without_eos(infolm, runs):
    found = measured(infolm, runs / "categorical", "--no-eos")
    elbo = found["elbo_nll", "latent code, without <eos>"]
    assert elbo["tokens"] == found["latent_usage", "latent code, without <eos>"]["tokens"] == 100
    assert "removed from both" in elbo["convention"]


@pytest.mark.parametrize("run", [*KINDS, *(f"s-{kind}" for kind in KINDS)])
def test_what_is_written(infolm, runs, run, tmp_path):
    one, other = ("3", "7") if run.startswith("s-") else ("the sun", "is sea")
    wanted = {
        ("--num", "3"): 3,
        ("--num", "2", "--aggregated", "--sampled"): 2,
        ("--interpolate", one, other, "--steps", "4"): 4,
        ("--neighbours", one, "--num", "3"): 3,
    }
    for options, rows in wanted.items():
        done = infolm("generate", runs / run, *options, "--json")
        assert done.code == 0, done.err
        assert len(json.loads(done.out)) == rows
    (tmp_path / "some.txt").write_text(f"{one}\n{other}\n")
    done = infolm("generate", runs / run, "--reconstruct", tmp_path / "some.txt", "--json")
    expected = {
        "gaussian": {"mean", "drawn", "10 times"},
        "categorical": {"likeliest", "drawn"},
        "quantised": {"nearest"},
    }
    assert set(json.loads(done.out)[1]) == {"sentence"} | expected[run.removeprefix("s-")]


def test_the_distance_of_classes_is_a_whole_number(infolm, runs):
    done = infolm("generate", runs / "categorical", "--neighbours", "the sun", "--num", "2")
    assert all(line.split()[0].isdigit() for line in done.out.splitlines())


@pytest.mark.parametrize("kind", ["categorical", "quantised"])
def test_what_classes_cannot_do_is_refused(infolm, runs, kind, tmp_path):
    for options in (["--perturb", "the sun"], ["--deviation", "0"]):
        one_sentence(infolm("generate", runs / kind, *options), options[0], "--aggregated")
    refused = infolm("evaluate", runs / kind, "--rank", tmp_path / "none.tsv")
    one_sentence(refused, "Gaussian codes", "model.latent.kind gaussian")


def test_what_symbols_cannot_do_is_refused(infolm, runs, tmp_path):
    run = runs / "s-gaussian"
    one_sentence(infolm("generate", run, "--interpolate", "1 2", "3"), "2 words", "single symbols")
    one_sentence(infolm("generate", run, "--answer", "1"), "single symbols", "sentence")
    one_sentence(infolm("evaluate", run, "--rank", tmp_path / "none.tsv"), "model.kind sentence")
    one_sentence(infolm("evaluate", run, "--mc", "3"), "--mc")
    with pytest.raises(InfolmError, match=r"single symbols.*model\.kind is sentence"):
        SentenceVectors.open(run)


def test_training_says_that_its_loss_is_no_perplexity(infolm, tmp_path):
    sizes = ("data.uniform.symbols=12", "model.hidden=8", "train.max_steps=4")
    done = infolm("train", SYNTHETIC, *sizes, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert "nats per token; the run is in" in done.err
    assert "perplexity" not in done.err


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_has_vectors_of_sentences(runs, kind):
    found = SentenceVectors.open(runs / kind).encode(["the sun", "is sea", "the sun"])
    assert found.shape == (3, {"gaussian": 3, "categorical": 12, "quantised": 15}[kind])
    assert (found[0] == found[2]).all()


@pytest.mark.parametrize("run", [*KINDS, *(f"s-{kind}" for kind in KINDS)])
def test_the_report(runs, run):
    page = write_report(runs / run).read_text(encoding="utf-8")
    kind, single = run.removeprefix("s-"), run.startswith("s-")
    sizes = {
        "gaussian": "a code of 3 dimensions",
        "categorical": "a code of 3 variables with 4 classes",
        "quantised": "a code of 3 codebooks with 4 entries of 5 columns",
    }
    objectives = {
        "gaussian": "objective monte-carlo: dreg of 4 samples, renyi with lambda 0.5, alpha 1.5",
        "categorical": "objective monte-carlo: vimco of 4 samples",
        "quantised": "objective vq",
    }
    opening = "A model of single symbols" if single else "A sentence model"
    assert f"{opening} ({objectives[kind]}) with {sizes[kind]}, an encoder" in page
    bounds = {
        "gaussian": "the best validation loss is",
        "categorical": "by the bound with 4 codes a sentence",
        "quantised": "by the bound with its one code",
    }
    assert bounds[kind] in page
    curve = page.partition("<h2>Learning curve")[2].partition("<h2>")[0]
    assert ("bound on the loss" in curve) == (kind != "quantised")
    assert "loss given the code" not in curve
    assert "stream" not in curve
    drawn = "from codes drawn from N(0, 1²)" if kind == "gaussian" else "drawn uniformly"
    assert drawn in page
    for foreign in ("objective.kl", "objective.kind=mim", "objective.lagging"):
        assert foreign not in page
