"""Objectives of encoders and what they need: each in one sentence that says all that is wrong."""

from typing import Any

import pytest
from pydantic import ValidationError

from infolm.config import Recipe
from infolm.objectives.base import OBJECTIVES
from infolm.objectives.encoding import EncoderObjectiveConfig
from infolm.section import OF_A_RUN

FITTING: dict[str, dict[str, dict[str, Any]]] = {
    "skip-gram": {"feed": {"kind": "windows", "length": 512}, "model": {"head": "context"}},
    "mlm": {"feed": {"kind": "sequences"}, "model": {}},
    "mlm-nce": {"feed": {"kind": "sequences", "masking": "spans"}, "model": {}},
    "nsp": {"feed": {"kind": "sentence-pairs"}, "model": {"head": "next"}},
    "permutation": {
        "feed": {"kind": "sequences", "masking": "order"},
        "model": {"architecture": "xlnet"},
    },
    "infoword": {"feed": {"kind": "sequences", "masking": "spans"}, "model": {}},
}


def tree(kind: str, **changed: dict[str, Any]) -> dict[str, Any]:
    given = FITTING.get(kind, FITTING["mlm"])
    whole = {
        "data": {"corpus": "ptb", "tokens": "wordpiece", "vocabulary": 1000},
        "feed": given["feed"],
        "model": {"kind": "encoder", "layers": 1, "hidden": 8, "heads": 2, "length": 128}
        | given["model"],
        "objective": {"kind": kind},
        "optimiser": {"kind": "adamw", "learning_rate": 0.001},
    }
    return {key: {**section, **changed.get(key, {})} for key, section in whole.items()} | {
        key: section for key, section in changed.items() if key not in whole
    }


def refusal(given: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate(given)
    (error,) = caught.value.errors()
    return str(error["ctx"]["error"])


@pytest.mark.parametrize("kind", FITTING)
def test_what_fits_is_taken(kind):
    assert set(FITTING) == {
        kind for kind, config in OBJECTIVES.items() if issubclass(config, EncoderObjectiveConfig)
    }
    assert Recipe.model_validate(tree(kind)).objective.kind == kind


def test_a_run_from_before_the_key_has_every_n_gram_as_a_pair():
    given = tree("infoword")
    assert Recipe.model_validate(given).objective.dim_pairs == "masked"
    assert Recipe.model_validate(given, context=OF_A_RUN).objective.dim_pairs == "all"


def test_skip_gram_reads_words_too():
    Recipe.model_validate(tree("skip-gram", data={"tokens": "word", "vocabulary": None}))


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        ("skip-gram", {"model": {"head": "words"}}, "model.head to context (it is words)"),
        (
            "skip-gram",
            {"data": {"tokens": "char", "vocabulary": None}},
            "data.tokens to word or wordpiece (it is char)",
        ),
        (
            "mlm",
            {"data": {"tokens": "word", "vocabulary": None}},
            "data.tokens to wordpiece (it is word)",
        ),
        ("mlm", {"feed": {"masking": "order"}}, "feed.masking to tokens or spans (it is order)"),
        ("infoword", {"feed": {"masking": "tokens"}}, "feed.masking to spans (it is tokens)"),
        (
            "permutation",
            {"model": {"architecture": "bert"}},
            "model.architecture to xlnet (it is bert)",
        ),
        (
            "nsp",
            {"feed": {"length": 200}},
            "feed.length to at most 128, model.length (it is 200)",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_what_to_set(kind, changed, said):
    assert refusal(tree(kind, **changed)) == (
        f"objective.kind {kind} needs other settings: set {said}"
    )


def test_all_that_is_wrong_is_said_at_once():
    given = tree("permutation", feed={"masking": "tokens", "length": 256})
    given["model"]["architecture"] = "bert"
    assert refusal(given).count("(it is") == 3


def test_a_language_model_does_not_learn_from_masked_words():
    given = tree("mlm")
    given["model"] = {"kind": "recurrent"}
    assert "model.kind to encoder (it is recurrent)" in refusal(given)


@pytest.mark.parametrize("kind", ["likelihood", "vae"])
def test_an_encoder_has_its_own_objectives(kind):
    said = refusal(tree(kind))
    assert "or keep model.kind and set objective.kind to " in said
    assert {"skip-gram", "mlm", "infoword"} <= set(said.rpartition("objective.kind to ")[2].split())


def test_bmi_is_not_for_encoders():
    assert "set regularisers.bmi=null" in refusal(tree("mlm", regularisers={"bmi": {}}))
