"""Names have one description in each scope, found from the particular to the general."""

import pytest

from infolm.families.base import FAMILIES
from infolm.metrics import EVENT, Described, describe, described, known, within

assert FAMILIES["language"]  # whose modules describe what they measure


def test_a_name_is_sought_in_its_term_then_in_the_scopes_then_everywhere():
    assert described("bmi/accuracy", "encoder").unit == "share of pairs"
    assert described("infoword/accuracy", "encoder").unit == "share"
    assert described("mim/nll", "latent").label == "loss given the code"
    assert described("nll", "encoder").label == "cross entropy"
    assert described("mim/loss", "latent").unit == "nats per sentence"
    assert described("loss", "latent").label == "validation loss"
    assert not known("accuracy")


def test_what_nobody_has_described_is_called_by_its_name():
    found = described("other/some_term")
    assert (found.label, found.meaning, found.heading, found.axis) == ("some term",) * 4
    assert found.better is None
    assert not known("other/some_term")


def test_a_standard_error_is_described_with_its_quantity():
    found = described("bmi/mine_stderr")
    assert found.label == "standard error of MINE (eq. 4)"
    assert (found.unit, found.better) == ("nats", None)
    assert not known("bmi/nothing_stderr")


def test_nothing_is_described_twice():
    with pytest.raises(ValueError, match="'stopped' is described twice for 'event'"):
        describe(EVENT, Described("stopped"))
    assert "triggered" in within(EVENT)
    assert {name for name in within("language") if name.startswith("critic_")} == {
        "critic_accuracy",
        "critic_jensen_shannon",
        "critic_mine",
    }
