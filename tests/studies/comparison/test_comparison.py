"""Runs side by side: groups, tests, and nothing called clear that its test does not."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from scipy import stats

import infolm as library
from infolm.errors import InfolmError
from infolm.evaluation.likelihood import parallel_log_probs
from infolm.evaluation.paired import PAIRED, TEXT, WELCH, over_text
from infolm.families.running.run import LanguageRun
from infolm.studies.comparison.comparison import compare
from infolm.studies.comparison.picture import band
from infolm.studies.comparison.runs import read
from infolm.studies.comparison.text import kept

A, B = (4.31, 4.35, 4.30), (4.21, 4.26, 4.19)


def perplexity(value, split="test", method="static, one stream"):
    return {
        "metric": "perplexity",
        "value": value,
        "unit": "perplexity per token",
        "stderr": None,
        "tokens": 100,
        "split": split,
        "method": method,
        "convention": "all tokens",
    }


@pytest.fixture
def six(made_up):
    a = [made_up(f"lstm-{s}", loss, s) for s, loss in enumerate(A, 1)]
    return a + [made_up(f"gru-{s}", loss, s, cell="gru") for s, loss in enumerate(B, 1)]


def test_runs_that_differ_in_their_seed_are_one_group(six):
    found = compare(six)
    assert [g.label for g in found.groups] == ["lstm", "gru"]
    assert [g.seeds for g in found.groups] == [[1, 2, 3], [1, 2, 3]]
    assert found.groups[0].mean == pytest.approx(np.mean(A))
    assert found.groups[1].deviation == pytest.approx(np.std(B, ddof=1))
    assert found.differs == {"model.cell": ["lstm", "gru"]}


def test_matching_seeds_are_paired_and_others_are_welchs(six, made_up):
    (paired,) = compare(six).tests
    assert paired.found.kind == PAIRED
    assert paired.found.p == pytest.approx(stats.ttest_rel(B, A).pvalue)
    fourth = made_up("gru-4", 4.4, 4, cell="gru")
    (welch,) = compare([*six, fourth]).tests
    assert welch.found.kind == WELCH
    assert welch.found.p == pytest.approx(stats.ttest_ind(A, (*B, 4.4), equal_var=False).pvalue)


def test_the_sentence_says_clear_where_the_test_does_and_nowhere_else(six, made_up):
    (test,) = compare(six).tests
    assert test.clear
    assert "gru has a lower validation loss than lstm" in test.sentence
    assert "paired t-test over seeds" in test.sentence
    # The same three seeds, but a third group: both p are corrected, and this one is not clear.
    others = [
        made_up(f"elman-{s}", a + d, s, cell="elman")
        for s, (a, d) in enumerate(zip(A, (0.1, -0.2, 0.05), strict=True), 1)
    ]
    clear, unclear = compare([*six, *others]).tests
    assert clear.p_holm == pytest.approx(2 * clear.found.p)
    assert not unclear.clear
    assert "no clear difference" in unclear.sentence
    assert "lower" not in unclear.sentence
    assert "higher" not in unclear.sentence


def test_one_run_each_is_no_test_over_seeds(made_up):
    found = compare([made_up("a", 4.0), made_up("b", 5.0, cell="gru")])
    assert not [t for t in found.tests if t.found.kind != TEXT]
    assert found.groups[0].deviation is None
    assert any("no test over seeds with one run of a, b" in note for note in found.notes)


def test_the_same_training_counts_once(made_up):
    found = compare([made_up("a", 4.0), made_up("a-copy", 4.0), made_up("b", 4.1, cell="gru")])
    assert [len(g.values) for g in found.groups] == [1, 1]
    assert any("same training (seed 1), which counts once" in note for note in found.notes)


def test_groups_by_a_key_say_what_else_differs_within_them(made_up):
    runs = [
        made_up(f"{cell}-{hidden}", loss, cell=cell, hidden=hidden)
        for cell, hidden, loss in [("lstm", 8, 4.0), ("lstm", 16, 3.9), ("gru", 8, 4.1)]
    ]
    found = compare(runs, by="model.cell")
    assert [g.label for g in found.groups] == ["model.cell=lstm", "model.cell=gru"]
    assert any("also differ in model.hidden" in note for note in found.notes)
    assert found.differs["model.hidden"] == [[8, 16], 8]
    assert len(compare(runs, by="model").groups) == 3
    assert len(compare(runs, by="feed").groups) == 1
    with pytest.raises(InfolmError, match=r"did you mean 'model\.cell'"):
        compare(runs, by="model.cel")


def test_what_was_measured_is_compared_by_the_same_method(made_up):
    tuned = "neural cache (window {}, lambda 0.1, theta 1), one stream"
    runs = [
        made_up(
            f"r{s}",
            4.0,
            s,
            measured=[
                perplexity(60.0 + s),
                perplexity(50.0 + s, method=tuned.format(s)),
                perplexity(900.0, method="Kneser-Ney 5-gram"),
            ],
        )
        for s in (1, 2)
    ]
    assert compare(runs).metric.name == "validation_loss"  # on valid nothing was measured
    assert compare(runs, split="test").groups[0].mean == 61.5
    cached = compare(runs, split="test", method="cache")
    assert cached.groups[0].mean == 51.5
    assert cached.metric.method == "cache, tuned for each run"


def test_runs_without_a_common_metric_are_refused_in_a_sentence(made_up):
    one = made_up("one", 4.0, measured=[perplexity(60.0)])
    two = made_up("two", 4.0, 2)
    with pytest.raises(InfolmError, match=r"two has no perplexity of the test split: measure it"):
        compare([one, two], metric="perplexity", split="test")
    other = made_up("other", 4.0, 3, measured=[perplexity(60.0, method="20 streams")])
    with pytest.raises(InfolmError, match="no common metric"):
        compare([one, other], metric="perplexity", split="test")
    with pytest.raises(InfolmError, match="did you mean 'perplexity'"):
        compare([one, other], metric="perplexty")


def test_numbers_of_different_texts_or_vocabularies_are_noted(made_up):
    here, there = made_up("here", 4.0), made_up("there", 4.0, 2, text="1" * 64)
    assert any("not comparable" in note for note in compare([here, there]).notes)
    other = made_up("other", 4.0, 3)
    (other / "tokenizer.json").write_text("[]")
    assert any("different vocabularies" in note for note in compare([here, other]).notes)


def test_the_text_is_tested_by_losses_of_the_same_tokens(trained_pair):
    runs = [*trained_pair["lstm"], *trained_pair["gru"]]
    found = library.compare(runs, text=True)
    (test,) = [t for t in found.tests if t.found.kind == TEXT]
    losses = []
    for group in trained_pair.values():
        each = []
        for path in group:
            run = LanguageRun.open(path)
            tokens = run.corpus.splits["valid"].tokens
            each.append(-parallel_log_probs(run.model, tokens, 20, 200, 200))
        losses.append(np.mean(each, 0))
    assert test.found == over_text(*losses)
    assert test.clear
    assert "gru has a higher loss than lstm" in test.sentence
    assert all((path / "log_probs" / "valid.safetensors").exists() for path in runs)


def test_kept_log_probabilities_are_those_of_the_present_weights(trained_pair, tmp_path):
    first, second = trained_pair["lstm"]
    library.compare([first, *trained_pair["gru"]], text=True)
    copy = tmp_path / "copy"
    shutil.copytree(first, copy)
    result = read(copy)
    assert kept(copy, "valid", result.vocabulary, result.text) is not None
    shutil.copy(second / "model.safetensors", copy / "model.safetensors")
    assert kept(copy, "valid", result.vocabulary, result.text) is None


def test_every_format_has_the_same_numbers(infolm, six):
    found = json.loads(infolm("compare", *six, "--json").out)
    mean = found["groups"][1]["mean"]
    assert set(found["groups"][0]) >= {"runs", "mean", "deviation", "seeds"}
    assert set(found["tests"][0]) >= {"kind", "difference", "stderr", "p"}
    rows = list(csv.DictReader(io.StringIO(infolm("compare", *six, "--format", "csv").out)))
    assert [float(row["value"]) for row in rows] == [*A, *B]
    assert [row["model.cell"] for row in rows] == ["lstm"] * 3 + ["gru"] * 3
    for form in ("markdown", "latex", "table"):
        done = infolm("compare", *six, "--format", form)
        assert done.code == 0
        assert f"{mean:.4f}" in done.out
        assert found["tests"][0]["sentence"] in done.out
    assert r"\textbf{4.2200}" in infolm("compare", *six, "--format", "latex").out


def test_labels_are_safe_in_latex_and_markdown(infolm, made_up):
    runs = [made_up("a_1%", 4.0), made_up("b|c", 4.1, cell="gru")]
    assert r"a\_1\%" in infolm("compare", *runs, "--format", "latex").out
    assert r"b\|c" in infolm("compare", *runs, "--format", "markdown").out


def test_curves_are_the_mean_of_a_group_and_its_spread(six):
    group = compare(six).groups[0]
    mean, low, high = band(group)
    assert mean.values[-1] == pytest.approx(np.mean(A))
    assert (high - low)[-1] == pytest.approx(2 * np.std(A, ddof=1))


def test_a_picture_and_one_page(infolm, six, tmp_path):
    for name, start in (("c.png", b"\x89PNG"), ("c.svg", b"<?xml")):
        assert infolm("compare", *six, "--plot", tmp_path / name).code == 0
        assert (tmp_path / name).read_bytes().startswith(start)
    done = infolm("report", *six)
    page = six[0].parent / "comparison.html"
    assert done.out == f"{page}\n"
    text = page.read_text()
    sentence = json.loads(infolm("compare", *six, "--json").out)["tests"][0]["sentence"]
    assert sentence in text
    assert "What differs between the recipes" in text
    assert not (six[0] / "report.html").exists()
    assert infolm("report", *six, "--out", tmp_path / "p.html").out == f"{tmp_path / 'p.html'}\n"
    assert infolm("compare", *six, "--plot", tmp_path / "c.pdf").code == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "nowhere is not a run's folder"),
        (["--split", "dev"], "--split is train, valid, test, not 'dev'"),
        (["--metric", "validation_loss", "--split", "test"], "has no validation_loss of the test"),
    ],
)
def test_bad_input_is_one_sentence(infolm, six, arguments, sentence):
    done = infolm("compare", *six, *arguments)
    assert done.code == 2
    assert sentence in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_run_without_a_validation_is_refused(infolm, made_up):
    run = made_up("early", 4.0)
    (run / "metrics.jsonl").unlink()
    done = infolm("compare", run)
    assert done.code == 2
    assert "has no validation yet" in done.err
