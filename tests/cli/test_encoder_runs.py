"""What the commands do with the run of an encoder, and what they refuse."""

import json
import re

import pytest
from encoder_runs import KINDS, recipe, train_encoders
from one_sentence import one_sentence
from training_tiny import Silent

from infolm.config import load_recipe
from infolm.errors import InfolmError
from infolm.families.contrastive.run import EncoderRun
from infolm.training.run import read_metrics


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each objective, for reading only."""
    return train_encoders(tmp_path_factory.mktemp("encoders"))


TERMS = {
    "mlm": {"nll", "information", "perplexity", "accuracy"},
    "infoword": {"loss", "nll", "information", "dim", "dim_information", "perplexity", "accuracy"},
    "permutation": {"nll", "information", "perplexity"},
    "nsp": {"nll", "information", "accuracy"},
    "skip-gram": {"nll", "information"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_measured_by_its_objective(infolm, runs, kind):
    done = infolm("evaluate", runs / kind, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert {m["split"] for m in found} == {"valid", "test"}
    on_valid = {m["metric"]: m["value"] for m in found if m["split"] == "valid"}
    assert set(on_valid) == TERMS[kind]
    records = read_metrics(runs / kind / "metrics.jsonl")
    best = min((r for r in records if r["kind"] == "validation"), key=lambda r: r["loss"])
    for name in on_valid.keys() & best.keys():  # the draws of validation are the same
        assert on_valid[name] == pytest.approx(best[name], abs=1e-6), name
    if kind in ("mlm", "permutation"):
        assert on_valid["perplexity"] == pytest.approx(2.718281828 ** best["nll"], rel=1e-4)
    again = infolm("evaluate", runs / kind, "--split", "test")
    tied = kind == "nsp"  # a model of a few steps, on sentences that are there twice
    assert ("the right one tied with others in" in again.out) == tied
    assert "one pass over the split" in again.out
    assert ("n-grams are those shown as [MASK]s" in found[0]["convention"]) == (kind == "infoword")


@pytest.mark.parametrize("kind", KINDS)
def test_its_report_tells_no_perplexity_where_there_is_none(infolm, runs, kind):
    done = infolm("report", runs / kind)
    assert done.code == 0, done.err
    page = (runs / kind / "report.html").read_text()
    lead = re.search('<p class="lead">(.*?)</p>', page)[1]
    assert ("perplexity" in lead) == (kind in ("mlm", "permutation"))
    verdict = re.search('</h1>\\s*<p class="verdict">(.*?)</p>', page)[1]
    assert ("by frequency" in verdict) == (kind in ("mlm", "permutation"))
    assert ("InfoNCE is" in verdict) == (kind not in ("mlm", "permutation"))
    assert verdict.startswith(("<strong>Nothing learnt yet", "<strong>It has learnt"))
    assert "infolm generate" not in page
    assert "Samples" not in page
    assert "Kneser" not in page
    assert 'id="information"' in page
    assert ('id="ngrams"' in page) == (kind == "infoword")
    assert ("--as word2vec" in page) == (kind == "skip-gram")


def test_what_an_encoder_cannot_do_is_refused(infolm, runs):
    run = runs / "mlm"
    for arguments, said in [
        (["generate", run], "generates no text"),
        (["variance", run], "is an encoder"),
        (["evaluate", run, "--cache", "tune"], "--cache"),
        (["evaluate", run, "--no-eos"], "--no-eos"),
        (["generate", run, "--interpolate", "a", "b"], "generates no text"),
    ]:
        done = infolm(*arguments)
        assert (done.code, said in done.err, "latent code" in done.err) == (2, True, False)


def test_another_kind_of_run_is_no_encoder(trained):
    with pytest.raises(InfolmError, match=r"model\.kind recurrent"):
        EncoderRun.open(trained)


@pytest.mark.parametrize(
    ("kind", "said"), [("mlm", "perplexity of hidden words"), ("infoword", "nats;")]
)
def test_training_ends_with_what_it_reached(infolm, runs, tmp_path, kind, said):
    saved = tmp_path / "recipe.yaml"
    saved.write_text(recipe(runs / "text.txt", kind).as_yaml())
    done = infolm("train", saved, "--out", tmp_path / "run", "--json")
    assert said in done.err
    assert json.loads(done.out)["unit"] == "nats"
    assert f"next: infolm evaluate {tmp_path / 'run'}\n" in done.err
    last = done.err.splitlines()[-2]
    assert ("perplexity" in last) == (kind == "mlm")


def test_a_study_is_refused_where_losses_are_no_perplexities(runs, tmp_path):
    tuner = pytest.importorskip("infolm.studies.tuning.tuner")
    chosen = load_recipe(str(runs / "infoword" / "recipe.yaml"))
    with pytest.raises(InfolmError, match="choose mlm or permutation"):
        tuner.tune(chosen, tmp_path / "s", 1, 1, 0, None, print, Silent().say, print)


def test_no_text_is_scored(infolm, runs):
    done = infolm("score", runs / "mlm", "--text", "the cat")
    one_sentence(done, "is an encoder", "choose a run of a language model")
