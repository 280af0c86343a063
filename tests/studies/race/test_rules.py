"""The rules are checked before a minute is spent, each with one sentence."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_sentence import one_sentence
from race_tiny import race_tree

from infolm.config import Recipe, load_recipe
from infolm.data import corpora
from infolm.data.corpora import DataConfig
from infolm.errors import InfolmError
from infolm.studies.race import calibration
from infolm.studies.race.calibration import REFERENCE, Scores
from infolm.studies.race.clock import Clock, processors, threads
from infolm.studies.race.plan import Rates, Sizes, for_race, measuring_seconds, planned
from infolm.studies.race.race import Rules
from infolm.studies.race.tracks import TRACKS, check_recipe, track_of

BROKEN = {
    ("data.vocabulary=5000",): "data.vocabulary is 5000, and in the track ptb it is none",
    ("data.train_lines=100",): "data.train_lines is 100",
    ("data.lowercase=true",): "data.lowercase is True",
    ("data.corpus=wikitext-103",): "data.corpus is wikitext-103",
    ("data.tokens=char",): "data.tokens is char, and in the track ptb it is word",
    ("start_from=runs/before",): "start_from is runs/before, and a race starts from new weights",
    ("feed.kind=episodes",): "set feed.kind=stream",
    ("train.accelerator=cuda",): "the race is only run on CPUs",
    ("data.path=book.txt",): "data.tokens is word, and in the track bytes it is byte",
}


@pytest.mark.parametrize("overrides", BROKEN, ids=" ".join)
def test_a_recipe_that_breaks_a_rule_is_refused(overrides):
    with pytest.raises(InfolmError) as refused:
        check_recipe(load_recipe("race/ptb", list(overrides)))
    assert BROKEN[overrides] in str(refused.value)


def test_weights_from_elsewhere_are_refused():
    recipe = load_recipe("infoword/demo", ["model.checkpoint=somewhere", "data.corpus=ptb"])
    recipe = recipe.model_copy(update={"data": DataConfig(corpus="ptb")})
    with pytest.raises(InfolmError, match=r"model\.checkpoint is somewhere, and a race starts"):
        check_recipe(recipe)


def test_encoders_do_not_race():
    recipe = load_recipe("infoword/demo").model_copy(update={"data": DataConfig(corpus="ptb")})
    with pytest.raises(InfolmError, match="has no next-token probabilities"):
        check_recipe(recipe)


def test_several_processes_do_not_race(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(InfolmError, match="by one process"):
        check_recipe(load_recipe("race/ptb"))


def test_each_track_has_its_recipes(tmp_path):
    assert check_recipe(load_recipe("race/ptb")).name == "ptb"
    assert check_recipe(load_recipe("race/ptb", ["data.corpus=wikitext-2"])).name == "wikitext-2"
    own = load_recipe("race/ptb", ["data.path=book.txt", "data.tokens=byte"])
    assert track_of(own).name == "bytes"


@pytest.mark.data
def test_the_standard_files_are_known_to_the_byte():
    if not os.environ.get("INFOLM_DATA"):
        pytest.skip("$INFOLM_DATA is not set")
    for name in ("ptb", "wikitext-2"):
        found = TRACKS[name].check_text(DataConfig(corpus=name))
        assert found == TRACKS[name].digests


def test_another_text_under_the_name_of_a_corpus_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("INFOLM_DATA", str(tmp_path))
    (tmp_path / "ptb").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / "ptb" / f"ptb.{split}.txt").write_text(f"the text of {split}\n")
    with pytest.raises(InfolmError, match="the train split of ptb is another text than the track"):
        TRACKS["ptb"].check_text(DataConfig(corpus="ptb"))


def test_a_test_split_that_is_the_training_split_is_refused(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("valid\n" if split == "valid" else "the same\n")
    with pytest.raises(InfolmError, match=r"two splits of .* are the same text"):
        TRACKS["bytes"].check_text(DataConfig(path=tmp_path, tokens="byte"))


def test_a_race_lasts_an_hour_at_most():
    with pytest.raises(InfolmError, match="--minutes is 61: a race lasts 60, a rehearsal less"):
        Rules(minutes=61)


# -- the sealed split ------------------------------------------------------------------------


def test_a_sealed_split_is_in_no_corpus_also_if_it_was_open_before(small_text):
    config = DataConfig(path=small_text)
    before = corpora.load(config)
    tokens = before.splits["test"].tokens.copy()
    with corpora.sealed("test"):
        for corpus in (before, corpora.load(config)):
            assert list(corpus.splits) == ["train", "valid"]
            assert "test" not in corpus.splits
            assert len(corpus.splits) == 2
            with pytest.raises(InfolmError, match="the test split is sealed"):
                corpus.splits["test"]
    after = corpora.load(config)
    assert np.array_equal(after.splits["test"].tokens, tokens)
    assert (after.source, after.fingerprint) == (before.source, before.fingerprint)


def test_a_seal_falls_with_its_block():
    def fail():
        with corpora.sealed("test"):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not corpora._SEALED


# -- time and threads ------------------------------------------------------------------------


def test_a_process_knows_how_old_it_is():
    code = (
        "import time; time.sleep(0.3); "
        "from infolm.studies.race.clock import process_age; print(process_age())"
    )
    began = time.monotonic()
    age = float(subprocess.check_output([sys.executable, "-c", code]))
    assert 0.25 < age < time.monotonic() - began + 0.02  # a tick of the system's clock


def test_phases_add_up_to_the_whole(monkeypatch):
    clock = Clock(10.0, age=lambda: 2.0)
    clock.mark("a")
    clock.mark("b")
    clock.mark("a")
    assert list(clock.phases) == ["a", "b"]
    assert clock.phases["a"] >= 2
    assert sum(clock.phases.values()) == pytest.approx(clock.total)
    assert clock.left() == pytest.approx(10 - clock.elapsed(), abs=0.1)


def test_threads_are_as_many_as_given_and_put_back():
    before, there = torch.get_num_threads(), processors()
    with threads(1):
        assert torch.get_num_threads() == 1
        assert processors() == there[:1]
        child = subprocess.check_output(
            [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
        )
        assert int(child) == 1
    assert (torch.get_num_threads(), processors()) == (before, there)
    with (
        pytest.raises(InfolmError, match=r"--threads is 10000, and this process may use"),
        threads(10_000),
    ):
        pass


# -- calibration -----------------------------------------------------------------------------


def test_a_machine_of_half_the_speed_has_twice_the_time():
    half = Scores(gemm=REFERENCE.gemm / 2, memory=REFERENCE.memory / 2)
    assert calibration.scale([half]) == pytest.approx(2)
    assert calibration.scale([REFERENCE]) == 1
    assert calibration.scale([half, REFERENCE]) == 1  # the faster one holds
    near = Scores(gemm=REFERENCE.gemm / 1.05, memory=REFERENCE.memory)
    assert calibration.scale([near]) == 1


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_faster_machine_never_has_more_time(gemm, memory):
    scores = Scores(gemm=gemm * REFERENCE.gemm, memory=memory * REFERENCE.memory)
    faster = Scores(gemm=2 * scores.gemm, memory=2 * scores.memory)
    assert calibration.ratio(faster) == pytest.approx(calibration.ratio(scores) / 2)
    assert calibration.scale([faster]) <= calibration.scale([scores])


def test_scores_are_measured(monkeypatch):
    monkeypatch.setattr(calibration, "SECONDS", 0.01)
    monkeypatch.setattr(calibration, "NUMBERS", 2**20)
    monkeypatch.setattr(calibration, "SIDE", 128)
    scores = calibration.measure()
    assert 0.01 < scores.gemm < 1e5  # from a watch to a supercomputer
    assert 0.01 < scores.memory < 1e5


# -- the plan --------------------------------------------------------------------------------

RATES = Rates(
    pace=((1.0, 0.4),),
    validation=5,
    token=1e-4,
    tempered=2e-5,
    masked_token=1e-3,
    masked_tempered=2e-4,
    cache_token=4e-4,
    segment=0.05,
    statistics=0.3,
)
PTB = Sizes(valid=73_760, test=82_430, segment=20)


def test_what_is_planned_fits_and_fills_the_time():
    plan = planned(RATES, PTB, elapsed=60, limit=3600)
    whole = 60 + plan.steps * RATES.step + 12 * RATES.validation + plan.reserve
    assert 0.98 * 3600 < whole <= 0.985 * 3600
    assert plan.dynamic
    static, adapting = measuring_seconds(RATES, PTB)
    assert plan.reserve == static + adapting
    assert plan.trial == 12.5  # 5,000 tokens in segments of 20
    assert plan.after.validation == pytest.approx(1.15 * 25_000 * (0.0025 + 9 * 2e-5 + 4e-4))
    assert plan.after.test == pytest.approx(1.15 * 82_430 * (0.0025 + 1e-4 + 1e-3 + 4e-5))
    assert plan.reserve > 10 * plan.trial + plan.after.validation + plan.after.test


def test_dynamic_evaluation_is_left_out_where_it_would_take_too_long():
    static, _ = measuring_seconds(RATES, PTB)
    plan = planned(RATES, PTB, elapsed=30, limit=600)
    assert not plan.dynamic
    assert plan.reserve == static


@given(st.floats(1e-3, 2), st.floats(0, 1000))
def test_slower_steps_or_a_later_start_are_fewer_steps(step, elapsed):
    one = planned(replace(RATES, pace=((1.0, step),)), PTB, elapsed, 3600)
    two = planned(replace(RATES, pace=((0.5, step), (1.0, 3 * step))), PTB, elapsed, 3600)
    assert two.steps == pytest.approx(one.steps / 2, abs=1)
    assert planned(RATES, PTB, elapsed + 40, 3600).steps < planned(RATES, PTB, elapsed, 3600).steps


def test_a_raced_recipe_has_its_steps_and_validations_and_is_itself_else(small_text):
    recipe = Recipe.model_validate(race_tree(small_text))
    raced = for_race(recipe, 1000)
    assert (raced.train.max_steps, raced.train.validate_every) == (1000, 84)
    assert raced.model_copy(update={"train": recipe.train}) == recipe


# -- the command -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["race/ptb", "start_from=runs/x"], "a race starts from new weights"),
        (["awd-lstm/demo"], "this is not a text of the race (data.corpus is python-docs)"),
        (["race/ptb", "--minutes", "90"], "a race lasts 60"),
        (["--run", "runs/x"], "--run is for --check"),
        (["--check", "nothing.json"], "nothing.json does not exist"),
        (["--curve", "curve.png"], "--curve needs records"),
        (["race/ptb", "--threads", "5000"], "lower it"),
    ],
)
def test_mistakes_end_with_one_sentence(infolm, arguments, words):
    one_sentence(infolm("race", *arguments), words)


def test_a_folder_that_is_there_is_not_raced_in(infolm, tmp_path):
    one_sentence(infolm("race", "race/ptb", "--out", tmp_path), "a race cannot be resumed")
