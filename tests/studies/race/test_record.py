"""A record is verified: nothing in it can be changed unnoticed, and rules and sums hold."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_sentence import one_sentence
from training_tiny import quiet

from infolm.errors import InfolmError
from infolm.studies.race.calibration import REFERENCE, Scores
from infolm.studies.race.check import check, check_run
from infolm.studies.race.curve import best_of_each, draw
from infolm.studies.race.record import NAME, Record, read
from infolm.trees import leaves


def changed(record: Record, key: str, value: object) -> Record:
    """The record with another value under a dotted key, signed anew by whoever changed it."""
    tree = record.model_dump(mode="json")
    node = tree
    *parents, last = key.split("/")
    for parent in parents:
        node = node[parent]
    assert last in node
    node[last] = value
    return Record.model_validate(tree).signed()


def test_a_record_is_read_as_it_was_written(raced):
    again = Record.model_validate(json.loads(raced.record.as_json()))
    assert again == raced.record
    assert again.digest() == raced.record.signature


def test_any_changed_number_breaks_the_signature(raced):
    """One digit of any number anywhere."""
    tree = raced.record.model_dump(mode="json", exclude={"recipe", "hardware", "signature"})

    def tampered(node):
        """Every tree with one number changed."""
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in [*items]:
            if isinstance(value, dict | list):
                yield from tampered(value)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                node[key] = value + 1
                yield key
                node[key] = value

    whole = raced.record.model_dump(mode="json")
    count = 0
    for key in tampered(tree):
        count += 1
        faults = check(Record.model_validate({**whole, **tree}))
        assert any("the signature is not that" in fault for fault in faults), key
    assert count > 100


BROKEN = {
    ("times/total", 1e6): "beyond the limit",
    ("times/limit", 1e9): "the limit does not follow",
    ("times/test_opened", 0.0): "opened before training and tuning had ended",
    ("times/phases/test", 1e3): "the phases do not add up",
    ("calibration/scale", 2.0): "the scale does not follow",
    ("methods/static/test/perplexity", 1.0): "static: the perplexity is not e^nll",
    ("best", "static"): "static is not the best on validation",
    ("rehearsal", False): "30 minutes are not those of a record",
    ("seed", 7): "has seed 1, not 7",
    ("track", "ptb"): "its recipe is of the track bytes, not ptb",
    ("recipe/start_from", "runs/x"): "a race starts from new weights",
    ("recipe/data/train_lines", 300): "breaks a rule",
    ("training/planned", 5): "another number of steps than were planned",
    ("training/steps", 10**6): "more steps were taken than planned",
    ("training/best_step", 8): "not those of the best validation",
}


UNREADABLE = [
    ("best", "none", "methods lacks 'none'"),
    ("methods/static/test", None, "methods.static lacks its test number"),
    ("training/curve", [], "training.curve is empty"),
    ("training/curve/0/nll", 1e4, "training.curve.0.nll: input should be less than"),
    ("hardware/processor", "\ud800", "surrogates not allowed"),
    ("calibration/reference/memory", math.inf, "Out of range float values"),
]


@pytest.mark.parametrize(("key", "value", "why"), UNREADABLE, ids=[row[0] for row in UNREADABLE])
def test_what_no_race_writes_is_refused_with_a_sentence(raced, tmp_path, key, value, why):
    tree = raced.record.model_copy(update={"best": "static"}).model_dump(mode="json")
    *parents, last = key.split("/")
    node = tree
    for parent in parents:
        node = node[int(parent) if parent.isdigit() else parent]
    node[last] = value
    (tmp_path / NAME).write_text(json.dumps(tree))
    with pytest.raises(InfolmError, match="is no record of a race") as refused:
        read(tmp_path / NAME)
    assert why in str(refused.value)


@pytest.mark.parametrize(("key", "value"), BROKEN, ids=lambda each: str(each))
def test_a_record_signed_anew_must_still_keep_rules_and_sums(raced, key, value):
    faults = check(changed(raced.record, key, value))
    assert any(BROKEN[key, value] in fault for fault in faults), faults
    assert not any("signature" in fault for fault in faults)


def test_other_references_are_other_rules(raced):
    other = Scores(gemm=2 * REFERENCE.gemm, memory=REFERENCE.memory).model_dump()
    (fault,) = check(changed(raced.record, "calibration/reference", other))
    assert "other reference scores" in fault


def test_an_hour_of_a_program_with_changes_is_no_record(raced):
    tree = raced.record.model_dump(mode="json")
    tree |= {"minutes": 60.0, "rehearsal": False, "commit": "abc+"}
    tree["times"]["limit"] = 3600.0
    assert check(Record.model_validate({**tree, "commit": "abc"}).signed()) == []
    (fault,) = check(Record.model_validate(tree).signed())
    assert "changes that no commit has" in fault


def test_other_weights_and_other_numbers_of_a_run_are_noticed(raced):
    weights = changed(raced.record, "weights", "0" * 64)
    assert check_run(weights, raced.out, quiet) == [
        f"the weights in {raced.out} are not those of the record"
    ]
    nll = raced.record.methods["static"].test.nll + 0.01
    number = {"nll": nll, "perplexity": math.exp(nll), "stderr": None, "tokens": 10}
    better = changed(raced.record, "methods/static/test", number)
    assert check(better) == []
    (fault,) = check_run(better, raced.out, quiet)
    assert "measured again, the static test perplexity is" in fault
    data = changed(raced.record, "data", {**raced.record.data, "test": "0" * 64})
    assert check_run(data, raced.out, quiet) == ["the text here is not that of the record"]


@settings(max_examples=30)
@given(st.recursive(st.none() | st.text() | st.integers(), lambda x: st.dictionaries(st.text(), x)))
def test_what_is_no_record_is_refused_with_a_sentence(tmp_path_factory, tree):
    path = tmp_path_factory.getbasetemp() / "strange.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(InfolmError, match=r"is no record of a race"):
        read(path)


def test_the_command_verifies(infolm, raced, tmp_path):
    done = infolm("race", "--check", raced.out / NAME, "--run", raced.out)
    assert done.code == 0
    assert "It is a rehearsal, not a record of the track bytes. The static test result" in done.out
    tampered = raced.record.model_dump(mode="json") | {"seed": 2}
    (tmp_path / "tampered.json").write_text(json.dumps(tampered))
    one_sentence(infolm("race", "--check", tmp_path / "tampered.json"), "the signature is not that")


def test_the_curve_has_the_best_of_each_family(infolm, raced, tmp_path):
    worse = raced.record.model_dump(mode="json")
    for point in worse["training"]["curve"]:
        point["nll"] += 0.5
    better, other = raced.record, Record.model_validate({**worse, "family": "Transformer"}).signed()
    worse_record = Record.model_validate(worse).signed()
    found = best_of_each([worse_record, other, better])
    assert found == {"LSTM": better, "Transformer": other}
    draw([worse_record, other, better], tmp_path / "curve.svg")
    text = (tmp_path / "curve.svg").read_text()
    named = [f"{family}, {better.training.size}" for family in ("LSTM", "Transformer")]
    for label in (*named, "Kneser-Ney 5-gram", "minutes since"):
        assert label in text
    done = infolm("race", "--curve", tmp_path / "curve.png", raced.out / NAME)
    assert done.code == 0
    assert "LSTM" in done.out
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_records_of_two_tracks_are_on_no_plot(raced):
    other = changed(raced.record, "track", "ptb")
    with pytest.raises(InfolmError, match="of 2 tracks"):
        best_of_each([raced.record, other])


def test_the_recipe_is_whole(raced):
    """Every value is there, so that the record alone says what was trained."""
    assert raced.record.recipe == raced.record.recipe | raced.recipe.model_dump(
        mode="json", exclude={"train"}
    )
    assert leaves(raced.record.recipe)["train.max_steps"] == 24
