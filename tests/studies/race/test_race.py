"""A whole race: what it records, that it can be trained again, and when there is no record."""

import math
import os
import shutil

import numpy as np
import pytest
import torch
from race_tiny import race_tree
from training_tiny import Silent, quiet

from infolm.config import Recipe
from infolm.data import corpora
from infolm.errors import InfolmError
from infolm.evaluation.kneser_ney import KneserNey
from infolm.evaluation.likelihood import log_probs
from infolm.families.running.run import LanguageRun
from infolm.families.train import train
from infolm.studies.race import calibration
from infolm.studies.race.check import check, check_run
from infolm.studies.race.clock import Clock, OutOfTime
from infolm.studies.race.measuring import Measuring
from infolm.studies.race.plan import After, Plan
from infolm.studies.race.race import RESUMING, Rules, _Replan, _Runner, race
from infolm.studies.race.record import LINE, NAME, Record, Replanned, read
from infolm.training.manifest import sha256
from infolm.training.run import RunFolder, read_validations

METHODS = [
    *("static", "temperature", "cache", "Monte Carlo", "Monte Carlo + cache"),
    *("dynamic", "dynamic + cache"),
]


def begun() -> Clock:
    return Clock(0.0, age=lambda: 0.0)


def test_every_method_is_measured_on_both_splits_and_the_best_is_chosen_on_validation(raced):
    record = raced.record
    assert list(record.methods) == [*METHODS, *(f"{name} + Kneser-Ney" for name in METHODS)]
    assert all(method.test for method in record.methods.values())
    assert record.methods[record.best].compared == min(m.compared for m in record.methods.values())
    assert record.rehearsal  # of 30 minutes
    for name in METHODS:  # a mixture at the best weight is no worse than either of its parts
        mixed = record.methods[f"{name} + Kneser-Ney"].valid.nll
        assert mixed <= min(record.methods[name].valid.nll, record.ngrams.valid.nll) + 1e-9


def test_what_is_recorded_is_what_a_plain_reading_gives(raced):
    run = LanguageRun.open(raced.out)
    for split in ("valid", "test"):
        tokens = run.corpus.splits[split].tokens
        nll = -log_probs(run.model, tokens, 50).mean()
        assert getattr(raced.record.methods["static"], split).nll == pytest.approx(nll, abs=1e-5)
        ngrams = KneserNey.fit(run.corpus.splits["train"].tokens, 256, 5)
        of_ngrams = -ngrams.log_probs(tokens).mean()
        assert getattr(raced.record.ngrams, split).nll == pytest.approx(of_ngrams, abs=1e-9)
    assert raced.record.weights == sha256(run.folder.model)


def test_the_phases_follow_each_other_and_the_test_split_comes_last(raced):
    times = raced.record.times
    assert list(times.phases)[-2:] == ["tuning and validation", "test"]
    assert sum(times.phases.values()) == pytest.approx(times.total)
    curve = raced.record.training.curve
    assert curve[-1].seconds < times.tuned <= times.test_opened < times.total < times.limit
    assert [point.step for point in curve] == [8, 16, 24]
    logged = [each["loss"] for each in read_validations(raced.out / "metrics.jsonl")]
    assert [point.nll for point in curve] == logged


def test_the_recipe_of_a_record_trains_the_same_weights_again(raced, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(raced.record.threads)
    again = Recipe.model_validate(raced.record.recipe)
    train(again, tmp_path / "again", False, Silent(), quiet)
    torch.set_num_threads(before)
    assert sha256(tmp_path / "again" / "model.safetensors") == raced.record.weights


def test_the_record_holds_and_its_run_is_measured_again(raced):
    record = read(raced.out)
    assert record == raced.record
    assert check(record) == []
    assert check_run(record, raced.out, quiet) == []
    header, rule, line = (raced.out / LINE).read_text().splitlines()
    assert header.count("|") == rule.count("|") == line.count("|")
    assert "bytes (rehearsal)" in line
    assert record.signature[:12] in line


@pytest.mark.usefixtures("quick")
def test_the_test_split_cannot_be_read_while_a_race_trains_and_tunes(
    small_text, tmp_path, monkeypatch
):
    """A race whose tuning looks at the test split ends there; its text was not even tokenised."""
    tuned = Measuring.tuned

    def peeking(self, *rest):
        tuned(self, *rest)
        assert not list((tmp_path / "tokenised").rglob("test.tokens"))
        assert list((tmp_path / "tokenised").rglob("valid.tokens"))
        return self.run.corpus.splits["test"]

    monkeypatch.setenv("INFOLM_CACHE", str(tmp_path / "tokenised"))
    monkeypatch.setattr(Measuring, "tuned", peeking)
    recipe = Recipe.model_validate(race_tree(small_text))
    with pytest.raises(InfolmError, match="the test split is sealed until training and tuning"):
        race(recipe, tmp_path / "run", Rules(minutes=30, threads=1), begun(), Silent(), quiet)
    assert not (tmp_path / "run" / NAME).exists()
    corpus = corpora.load(recipe.data)  # the seal is lifted when the race has ended
    assert len(corpus.splits["test"].tokens) > 100


@pytest.mark.usefixtures("quick")
def test_a_race_beyond_its_limit_is_no_record(small_text, tmp_path, monkeypatch):
    """The machine looked slow at first; at the end it proves to be a thousand times faster."""
    reference = calibration.REFERENCE
    fast = calibration.Scores(gemm=1e6 * reference.gemm, memory=1e6 * reference.memory)
    scores = iter([reference, fast])
    monkeypatch.setattr(
        calibration, "measure", lambda passing=0: reference if passing else next(scores)
    )
    tree = race_tree(small_text)
    tree["train"]["max_steps"] = 6
    recipe = Recipe.model_validate(tree)
    with pytest.raises(InfolmError, match=r"beyond the limit of 0\.0, so there is no record"):
        race(recipe, tmp_path / "run", Rules(minutes=30, threads=1), begun(), Silent(), quiet)
    assert (tmp_path / "run" / "measurements.json").exists()
    with pytest.raises(InfolmError, match="stopped early"):
        read(tmp_path / "run")


@pytest.mark.usefixtures("quick")
def test_training_ends_when_its_time_is_up(small_text, tmp_path, monkeypatch):
    """Steps turn out slower than planned: the weights of the best validation are measured."""
    monkeypatch.setattr(
        "infolm.studies.race.race.planned",
        lambda rates, sizes, elapsed, limit: Plan(10**6, limit, dynamic=False),
    )
    monkeypatch.setattr("infolm.studies.race.plan.VALIDATIONS", 100_000)
    tree = race_tree(small_text)
    tree["train"] = {}
    out = tmp_path / "run"
    watcher = Silent()
    record = race(
        Recipe.model_validate(tree), out, Rules(minutes=30, threads=1), begun(), watcher, quiet
    )
    assert record.training.planned == 10**6
    assert record.training.steps == record.training.best_step + 1 == 11
    assert any("training ends after 11 of 1,000,000 steps" in line for line in watcher.said)
    assert check(record) == []


@pytest.mark.usefixtures("quick")
def test_steps_are_planned_anew_where_others_fit(small_text, tmp_path, monkeypatch):
    """A plan of far too many steps becomes one that ends in time, with the end of its schedule."""
    clock = begun()
    monkeypatch.setattr(
        "infolm.studies.race.race.planned",
        lambda rates, sizes, elapsed, limit: Plan(5000, 0.99 * limit - elapsed - 4, dynamic=False),
    )
    monkeypatch.setattr("infolm.studies.race.plan.VALIDATIONS", 500)
    monkeypatch.setattr("infolm.studies.race.race.RESUMING", 0.5)
    tree = race_tree(small_text)
    tree["train"] = {}
    out, watcher = tmp_path / "run", Silent()
    rules = Rules(minutes=30, threads=1)
    record = race(Recipe.model_validate(tree), out, rules, clock, watcher, quiet)
    found = record.training
    assert found.replanned
    assert found.first == 5000
    assert found.planned == found.replanned[-1].steps == record.recipe["train"]["max_steps"]
    assert [each.after % 10 for each in found.replanned] == [0] * len(found.replanned)
    assert found.steps <= found.planned < 5000
    kept = read_validations(RunFolder(out).metrics)
    assert [each["step"] for each in kept] == [point.step for point in found.curve]
    assert any("steps fit into the time, of 5,000 planned" in line for line in watcher.said)
    assert check(record) == []
    assert Record.model_validate_json(record.as_json()).digest() == record.signature


class At:
    """A clock that is set by hand."""

    def __init__(self, now):
        self.now = now

    def elapsed(self):
        return self.now


def test_what_fits_follows_the_pace():
    clock = At(100.0)
    runner = _Runner(Silent(), clock, until=1100 + RESUMING, steps=1000, most=None)
    runner.begin()
    clock.now = 200.0
    runner.validated(100, 0.1, 5.0)  # a second each: 900 more, as planned
    assert not runner.replanned
    clock.now = 400.0
    runner.validated(200, 0.2, 4.0)  # 300 seconds for 200: 700 / 1.5 more
    assert runner.replanned == [Replanned(after=200, steps=666)]
    with pytest.raises(_Replan):
        runner.step(0.2, 4.0, 10)
    runner.begin()
    assert runner.steps == 200
    clock.now = 1000.0
    runner.validated(600, 0.9, 3.9)  # 1.5 again: 66 more
    assert len(runner.replanned) == 1
    fast = _Runner(Silent(), clock, until=2000 + RESUMING, steps=100, most=120)
    fast.begin()
    clock.now = 1010.0
    fast.validated(10, 0.1, 5.0)  # 990 more would fit, and the recipe allows 120 in all
    assert fast.replanned == [Replanned(after=10, steps=120)]
    fast.begin()
    fast.validated(120, 1.0, 4.0)  # the end: nothing is planned after it
    assert len(fast.replanned) == 1
    assert fast.planned == 120


def test_dynamic_evaluation_is_tuned_for_as_long_as_its_walks_still_fit(raced, tmp_path):
    """A clock that stands still: the tuning ends at its end, after one trial, or never begins."""
    out = shutil.copytree(raced.out, tmp_path / "run")
    clock, after = At(1000.0), After(validation=40, test=60)
    plan = Plan(steps=1, reserve=500, dynamic=True, trial=10, after=after)
    trials = {}

    def report(stage, done, total):
        if stage.startswith("tuning dynamic"):
            trials[until] = done

    for until in (2000, 1109, 1059):
        run = LanguageRun.open(out)
        ngrams = KneserNey.fit(run.corpus.splits["train"].tokens, 256, 5)
        names = [each.name for each in Measuring(run, ngrams, clock, report).tuned(plan, until)]
        assert ("dynamic + cache" in names) == (until > 1060)
    assert list(trials) == [2000, 1109]
    assert trials[1109] == 1 < trials[2000]


def test_a_machine_that_has_become_faster_has_less_time():
    """It was calibrated in a slow moment; the end is the earliest of those measured since."""
    clock, ends = At(0.0), iter([1000 + RESUMING, 600 + RESUMING, 900 + RESUMING])
    runner = _Runner(Silent(), clock, 1000 + RESUMING, 1000, most=None, again=lambda: next(ends))
    runner.begin()
    clock.now = 100.0
    runner.validated(100, 0.1, 5.0)
    assert not runner.replanned
    clock.now = 200.0
    runner.validated(200, 0.2, 4.9)
    assert runner.replanned == [Replanned(after=200, steps=600)]
    clock.now = 300.0
    runner.begin()
    clock.now = 400.0
    runner.validated(300, 0.5, 4.8)
    assert runner.until == 600 + RESUMING


def test_a_training_that_is_a_little_late_is_not_cut():
    clock = At(0.0)
    runner = _Runner(Silent(), clock, until=1000 + RESUMING, steps=100, most=None, grace=20)
    runner.begin()
    clock.now = 500.0
    runner.validated(50, 0.5, 4.0)
    clock.now = 1019.0 + RESUMING
    runner.step(0.99, 4.0, 10)
    clock.now = 1021.0 + RESUMING
    with pytest.raises(OutOfTime):
        runner.step(1.0, 4.0, 10)


def test_what_fits_knows_that_later_steps_take_longer():
    """1,000 steps, of which the last quarter takes twice as long: 1,250 seconds."""
    clock, pace = At(0.0), ((0.75, 2.0), (1.0, 4.0))
    runner = _Runner(Silent(), clock, 1250 + RESUMING, steps=1000, most=None, pace=pace)
    runner.begin()
    for step, now in ((250, 250.0), (500, 500.0), (750, 750.0), (800, 850.0), (1000, 1250.0)):
        clock.now = now
        runner.validated(step, step / 1000, 4.0)
    assert not runner.replanned
    late = _Runner(Silent(), clock, 1250 + 1250 + RESUMING, steps=1000, most=None, pace=pace)
    late.begin()
    clock.now = 1250.0 + 500.0  # half of the time that all take, for two fifths of it
    late.validated(400, 0.4, 4.0)
    assert late.replanned == [Replanned(after=400, steps=823)]


@pytest.mark.usefixtures("quick")
@pytest.mark.skipif(os.name != "posix", reason="needs locks")
def test_what_a_dead_race_left_beside_its_run_is_removed(small_text, tmp_path):
    out, left = tmp_path / "race", tmp_path / ".race-probe.abcdefgh.writing"
    for folder in (out, left):
        folder.mkdir()
    recipe = Recipe.model_validate(race_tree(small_text))
    with pytest.raises(InfolmError, match="exists already"):
        race(recipe, out, Rules(minutes=30), begun(), Silent(), quiet)
    assert out.exists()
    assert not left.exists()


def test_no_time_to_train_is_said_at_once(small_text, tmp_path):
    recipe = Recipe.model_validate(race_tree(small_text))
    late = Clock(0.0, age=lambda: 4000.0)
    with pytest.raises(InfolmError, match="leaves no time to train"):
        race(recipe, tmp_path / "run", Rules(minutes=30, threads=1), late, Silent(), quiet)
    assert os.listdir(tmp_path) == ["small.txt"]


def test_numbers_have_their_standard_error_over_the_text(raced):
    run = LanguageRun.open(raced.out)
    tokens = run.corpus.splits["test"].tokens
    losses = -log_probs(run.model, tokens, 50)
    block = len(losses) // 100
    means = losses[: 100 * block].reshape(100, block).mean(1)
    expected = math.exp(losses.mean()) * np.std(means, ddof=1) / 10
    assert raced.record.methods["static"].test.stderr == pytest.approx(expected, rel=1e-3)
