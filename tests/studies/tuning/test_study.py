"""A study counts its trials, loses none, and goes on from wherever it was killed."""

import json
import statistics

import pytest
import yaml
from optuna.trial import TrialState

from infolm.config import Recipe, load_recipe
from infolm.errors import InfolmError, RunError
from infolm.studies.tuning import results, trials
from infolm.studies.tuning.study import TIMES, Study
from infolm.studies.tuning.trials import Pruning
from infolm.training import checkpoint

from .conftest import REPORTER, loss_of, work


def states(study):
    return [trial.state.name for trial in study.trials()]


def drawn(study):
    return [trial.params for trial in study.trials()]


class Killed(BaseException):
    """Stands for a kill -9: nothing after it is done but what the kernel does."""


def killed_at(number):
    """Trainings of which that of this number dies with its process."""
    usual, calls = trials.train, []

    def train(recipe, *rest):
        calls.append(recipe)
        if len(calls) == number:
            raise Killed
        return usual(recipe, *rest)

    return train


def test_a_study_has_as_many_trials_as_asked_for_and_the_winner_again(open_study, pretended):
    study = open_study()
    work(study, trials=4, seeds=2)
    assert states(study) == ["COMPLETE"] * 4
    assert len({trial.params["optimiser.learning_rate"] for trial in study.trials()}) == 4
    best = study.best()
    assert best.values[0] == min(trial.values[0] for trial in study.trials())
    assert [recipe.seed for recipe in pretended] == [1] * 4 + [2, 3]
    winner = pretended[best.number]
    again = [recipe.model_copy(update={"seed": 1}) for recipe in pretended[4:]]
    assert again == [winner, winner]
    assert study.finished(4, 2)
    assert not study.finished(5, 2)
    assert not study.finished(4, 3)


def test_more_trials_go_on_with_the_same_study(open_study, pretended):
    study = open_study()
    work(study, trials=2, seeds=0)
    first = drawn(study)
    study = open_study()
    work(study, trials=3, seeds=0)
    assert drawn(study)[:2] == first
    assert len(drawn(study)) == 3
    work(study, trials=1, seeds=0)  # fewer than there are: nothing to do
    assert len(pretended) == 3


def test_killed_and_resumed_draws_and_counts_as_if_left_alone(open_study, pretended, monkeypatch):
    work(open_study(out="alone"), trials=11, seeds=1)
    alone = open_study(out="alone")
    for kill in (1, 5):
        with monkeypatch.context() as patch:
            patch.setattr(trials, "train", killed_at(kill))
            with pytest.raises(Killed):
                work(open_study(out="killed"), trials=11, seeds=1)
    work(open_study(out="killed"), trials=11, seeds=1)
    again = open_study(out="killed")
    assert states(again) == states(alone)
    assert drawn(again) == drawn(alone)
    assert again.retrained(again.best().number) == alone.retrained(alone.best().number)


def test_a_trial_that_another_process_trains_is_left_to_it(open_study, pretended):
    theirs = open_study().claim(2, 0)
    study = open_study()
    mine = study.claim(2, 0)
    assert (theirs.number, mine.number) == (0, 1)
    assert study.claim(2, 0) is None  # both are being trained
    assert not study.finished(2, 0)
    theirs.release()  # its process died
    assert study.claim(2, 0).number == 0


def test_seeds_are_shared_between_workers_and_wait_for_the_last_trial(open_study, pretended):
    study = open_study()
    work(study, trials=1, seeds=0)
    last = study.claim(2, 2)
    assert last.number == 1
    assert open_study().claim(2, 2) is None
    study.end(1, 9.0)
    first, second = study.claim(2, 2), open_study().claim(2, 2)
    assert (first.seed, second.seed) == (2, 3)


def test_finished_trials_keep_recipe_and_metrics_and_the_best_its_model(open_study, pretended):
    study = open_study()
    work(study, trials=3, seeds=1)
    best = study.best().number
    for number in range(3):
        kept = {path.name for path in study.folder.trial(number).path.iterdir()}
        of_best = {"model.safetensors", "tokenizer.json", "corpus.json"}
        assert kept == {"recipe.yaml", "metrics.jsonl"} | (of_best if number == best else set())
    assert (study.folder.retrained(best, 2).path / "model.safetensors").exists()


def test_it_removes_the_checkpoints_that_a_dead_command_left(open_study, pretended):
    study = open_study()
    work(study, trials=2, seeds=1)
    left = [study.folder.trial(0), study.folder.retrained(study.best().number, 2)]
    for run in left:
        run.checkpoints.mkdir()
    study.tidy()
    assert not any(run.checkpoints.exists() for run in left)


def test_a_trial_that_fails_is_recorded_and_the_study_goes_on(open_study, pretended, monkeypatch):
    usual, faults = trials.train, [RunError("the loss is no longer finite"), MemoryError()]

    def failing(recipe, *rest):
        if faults:
            raise faults.pop(0)
        return usual(recipe, *rest)

    monkeypatch.setattr(trials, "train", failing)
    study = open_study()
    work(study, trials=3, seeds=0)
    assert states(study) == ["FAIL", "FAIL", "COMPLETE"]
    told = [results.row(study, trial)["failure"] for trial in study.trials()]
    assert told == ["the loss is no longer finite", "MemoryError", None]
    assert "trial 0 failed: the loss" in results.describe(study, study.trials()[0])


def test_all_trials_failing_is_one_sentence(open_study, pretended, monkeypatch):
    def failing(*_):
        raise RunError("the loss is no longer finite")

    monkeypatch.setattr(trials, "train", failing)
    study = open_study()
    work(study, trials=2, seeds=3)
    with pytest.raises(RunError, match=r"all 2 trials failed.*no longer finite"):
        results.summary(study, 3)


def test_a_full_disk_is_no_trials_fault(open_study, pretended, monkeypatch):
    def full(*_):
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise RunError("model.safetensors could not be written") from error

    monkeypatch.setattr(trials, "train", full)
    study = open_study()
    with pytest.raises(RunError, match="could not be written"):
        work(study, trials=2, seeds=0)
    assert states(study) == ["RUNNING"]


def test_a_trial_that_always_kills_its_process_is_given_up(open_study, pretended, monkeypatch):
    study = open_study()
    with monkeypatch.context() as patch:
        for _ in range(TIMES):
            patch.setattr(trials, "train", killed_at(1))
            with pytest.raises(Killed):
                work(study, trials=2, seeds=0)
    work(study, trials=2, seeds=0)
    assert states(study) == ["FAIL", "COMPLETE"]
    assert "died 3 times" in study.trials()[0].user_attrs["failure"]


def test_one_that_was_killed_with_its_command_is_not(open_study, pretended, monkeypatch):
    study = open_study()
    with monkeypatch.context() as patch:
        for number in range(TIMES + 2):
            study.command = str(number)
            patch.setattr(trials, "train", killed_at(1))
            with pytest.raises(Killed):
                work(study, trials=1, seeds=0)
    work(study, trials=1, seeds=0)
    assert states(study) == ["COMPLETE"]


def test_a_trial_that_gets_on_between_two_deaths_is_not(open_study, pretended, monkeypatch):
    study = open_study()
    folder = study.folder.trial(0).checkpoints
    folder.mkdir(parents=True)
    with monkeypatch.context() as patch:
        for step in range(TIMES + 2):
            patch.setattr(trials, "train", killed_at(1))
            with pytest.raises(Killed):
                work(study, trials=1, seeds=0)
            checkpoint.save_step(folder, step, {})
    work(study, trials=1, seeds=0)
    assert states(study) == ["COMPLETE"]


def pruned_by_hand(others, own, at):
    """The median rule: the best so far is worse than the median of the others at this moment."""
    return min(own) > statistics.median(losses[at] for losses in others)


def test_the_median_rule_after_five_trials_and_a_third_of_training(open_study, pretended):
    curves = [[5 - 0.1 * t + 0.3 * i for t in range(10)] for i in (0, 2, 1, 4, 3)]
    study = open_study()
    for curve in curves:
        task = study.claim(9, 0)
        watcher = Pruning(study.begin(task.number), REPORTER)
        for t, loss in enumerate(curve):
            watcher.validated(t, (t + 1) / 10, loss)  # none is pruned among the first five
        study.end(task.number, min(curve))
    for offset in (0.5, 0.75):  # better, and worse than the median of the five
        own = [5 - 0.1 * t + offset for t in range(10)]
        task = study.claim(9, 0)
        watcher = Pruning(study.begin(task.number), REPORTER)
        ended = None
        for t, loss in enumerate(own):
            try:
                watcher.validated(t, (t + 1) / 10, loss)
            except trials.Pruned:
                ended = t
                break
        expected = [
            t for t in range(9) if (t + 1) / 10 >= 1 / 3 and pruned_by_hand(curves, own[: t + 1], t)
        ]
        assert ended == (expected[0] if expected else None)
        study.end(task.number, None if expected else min(own))
    assert states(study)[5:] == ["COMPLETE", "PRUNED"]
    assert "pruned at 40%" in results.describe(study, study.trials()[6])


def test_a_resumed_trial_may_pass_a_validation_again(open_study, pretended):
    study = open_study()
    task = study.claim(1, 0)
    Pruning(study.begin(task.number), REPORTER).validated(5, 0.5, 4.0)
    Pruning(study.begin(task.number), REPORTER).validated(5, 0.5, 4.0)
    assert study.trials()[0].intermediate_values == {500: 4.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2},
        {"tuning": {"model.dropout.input": {"low": 0, "high": 0.9}}},
        {"optimiser": {"kind": "sgd", "learning_rate": 5, "clip": 0.5}},
    ],
)
def test_a_study_of_another_recipe_is_refused(open_study, pretended, changes):
    study = open_study()
    with pytest.raises(InfolmError, match="study of another recipe"):
        open_study(**changes)
    study.folder.recipe.unlink()
    with pytest.raises(InfolmError, match=r"study\.db holds a study of another recipe"):
        Study(study.folder, with_changes(study.recipe, changes), "text", None)
    with pytest.raises(InfolmError, match="text was text and is now another"):
        Study(study.folder, study.recipe, "another", None)


def with_changes(recipe, changes):
    return Recipe.model_validate({**recipe.model_dump(mode="json"), **changes})


def test_titles_and_the_seconds_between_checkpoints_may_change(open_study, pretended):
    work(open_study(), trials=2, seeds=0)
    again = open_study(
        title="another",
        train={
            "max_steps": 10,
            "validate_every": 5,
            "validation_streams": 3,
            "checkpoint_seconds": 7,
        },
    )
    assert again.recipe.title == "another"
    assert [trial.number for trial in again.trials()] == [0, 1]
    assert again.finished(trials=2, seeds=0)


def test_the_result(open_study, pretended, small_text):
    study = open_study()
    work(study, trials=4, seeds=3)
    result = results.summary(study, 3)
    best = study.best()
    assert result["trials"] == {"total": 4, "complete": 4}
    assert result["best"]["nll"] == best.values[0]
    assert result["best"]["values"]["model.layers"] >= 1  # clamped
    again = [best.values[0] + 0.01 * i for i in (1, 2, 3)]  # the seed is the only noise
    assert result["retrained"]["nll"]["mean"] == pytest.approx(statistics.fmean(again))
    assert result["retrained"]["nll"]["deviation"] == pytest.approx(0.01)
    assert "optimistic" in result["retrained"]["note"]

    results.write_table(study)
    results.write(study, result)
    assert json.loads(study.folder.result.read_text())["best"] == result["best"]
    rows = [json.loads(line) for line in study.folder.table.read_text().splitlines()]
    assert [row["loss"] for row in rows] == [trial.values[0] for trial in study.trials()]
    assert list(rows[0]["validations"]) == ["50%", "100%"]
    winner = load_recipe(str(study.folder.best))
    assert loss_of(winner) == best.values[0]
    assert "tuning: {}" in study.folder.best.read_text()
    assert yaml.safe_load(study.folder.best.read_text())["title"] == "tuned"


def test_one_seed_has_no_deviation_and_a_failed_one_no_part_in_the_mean():
    found = results.spread({2: {"loss": 1.0}, 3: {"failure": "diverged"}})
    assert found["nll"] == {"mean": 1.0, "deviation": None}
    assert found["failures"] == {3: "diverged"}


def test_states_have_names():
    assert set(results.STATES) == set(TrialState) - {TrialState.WAITING}


def test_a_study_that_was_begun_before_a_key_existed_goes_on(open_study):
    study = open_study()
    before = study._study.user_attrs["identity"]
    older = {**before, "data": {k: v for k, v in before["data"].items() if k != "held_out"}}
    study._study.set_user_attr("identity", older)
    open_study()
    study._study.set_user_attr("identity", {**older, "seed": 99})
    with pytest.raises(InfolmError, match="seed was 99 and is now"):
        open_study()
