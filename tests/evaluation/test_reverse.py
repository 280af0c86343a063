"""The yardstick of reverse perplexity: what it learns from which text, and what it says."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning_fabric import Fabric

from infolm.errors import InfolmError
from infolm.evaluation import reverse
from infolm.evaluation.likelihood import log_probs
from infolm.evaluation.reverse import (
    LEAST_TOKENS,
    SMALL,
    Yardstick,
    reverse_measurements,
    stretches,
    yardstick,
)
from infolm.information.languages import MarkovChain

ROWS, TYPES = 100, 6
SOURCE = "a text"


@pytest.fixture(scope="module")
def language():
    """Six words, each followed by any other with its own probability."""
    return MarkovChain(np.random.default_rng(5).dirichlet(np.ones(TYPES), TYPES))


@pytest.fixture(scope="module")
def fabric():
    return Fabric(accelerator="cpu", devices=1)


@pytest.fixture(scope="module")
def text(language):
    return language.sample(LEAST_TOKENS, np.random.default_rng(1)).reshape(ROWS, -1)


@pytest.fixture(scope="module")
def taught(text, fabric):
    return yardstick(text, TYPES, 1, fabric)


def measured(model, tokens, true=None):
    results = reverse_measurements(model, tokens, "test", SOURCE, None, true)
    return {result.metric: result for result in results}


@pytest.fixture(scope="module")
def real(language):
    return language.sample(5000, np.random.default_rng(2))


def true_log_probs(language, tokens):
    return np.log(language.transition[tokens[:-1], tokens[1:]])


def test_a_text_of_the_language_teaches_the_language(language, real, taught):
    """The cross entropy is above the entropy, by no more than 10,000 tokens leave unknown."""
    above = measured(taught, real, true_log_probs(language, real))["reverse_nll_above_entropy"]
    assert -3 * above.stderr < above.value < 0.03


def test_a_model_that_always_writes_the_same_word_teaches_nothing(real, fabric, taught):
    same = np.full((ROWS, LEAST_TOKENS // ROWS), 3)
    poor = measured(yardstick(same, TYPES, 1, fabric), real)["reverse_perplexity"].value
    assert poor > 100 * TYPES  # worse by far than to know nothing at all
    assert measured(taught, real)["reverse_perplexity"].value < TYPES


def test_a_text_without_some_of_the_words_teaches_less(language, text, real, fabric, taught):
    """Diversity: what is left out costs, though all that is written is of the language."""
    kept = text[text != 0]
    kept = np.resize(kept, text.shape)
    poorer = measured(yardstick(kept, TYPES, 1, fabric), real)["reverse_nll"].value
    assert poorer > measured(taught, real)["reverse_nll"].value + 0.1


def test_the_seed_decides_the_model_to_the_bit_and_no_other_numbers_are_used_up(
    text, fabric, taught
):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    told = []
    again = yardstick(text, TYPES, 1, fabric, lambda done, total: told.append((done, total)))
    other = yardstick(text, TYPES, 2, fabric)
    assert torch.equal(torch.get_rng_state(), before)
    assert told == sorted(told)
    assert told[-1] == (1000, 1000)
    for a, b in zip(again.parameters(), taught.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(other.embedding, taught.embedding)
    assert not taught.training


def test_the_pass_that_is_best_on_rows_held_out_is_kept(text, fabric, monkeypatch):
    """They are of another language, so that every pass but the first few makes it worse."""
    text = text.copy()
    held_out = np.random.default_rng(3).integers(TYPES, size=text[::10].shape)
    text[::10] = held_out
    losses = []
    original = reverse.parallel_log_probs

    def watched(model, tokens, *rest):
        assert np.array_equal(tokens, held_out.reshape(-1))
        found = original(model, tokens, *rest)
        losses.append(-found.mean())
        return found

    monkeypatch.setattr(reverse, "parallel_log_probs", watched)
    model = yardstick(text, TYPES, 1, fabric)
    assert len(losses) == reverse.TRAIN.epochs
    kept = -original(model, held_out.reshape(-1), 20, reverse.WARM_UP, reverse.CHUNK).mean()
    assert kept == min(losses) < losses[-1]


def test_words_that_the_text_lacks_keep_a_probability(text, fabric):
    model = yardstick(text, TYPES + 3, 1, fabric)
    log_p = log_probs(model, np.array([0, TYPES, 1, TYPES + 2]), 10)
    assert np.isfinite(log_p).all()
    assert log_p[[0, 2]].max() < math.log(0.01)


def test_the_size_of_the_yardstick(text, fabric, taught, monkeypatch):
    assert Yardstick.parse("100") == Yardstick.parse("1x100") == SMALL
    assert SMALL.optimiser.learning_rate == 0.01
    monkeypatch.setattr(reverse, "TRAIN", reverse.TRAIN.model_copy(update={"max_steps": 2}))
    small, large = (yardstick(text, TYPES, 1, fabric, None, Yardstick(2, n)) for n in (4, 8))
    assert small.stack.widths == [4, 4]
    assert large.stack.widths == [8, 8]
    assert taught.stack.widths == [100]
    for wrong in ("", "x5", "0", "2x0", "0x5", "2x", "-3", "2x5x6", "small"):
        with pytest.raises(InfolmError, match="is not the size of an LSTM: try 2x650"):
            Yardstick.parse(wrong)


def test_measurements_say_what_they_are(taught, real):
    found = measured(taught, real)
    assert set(found) == {"reverse_nll", "reverse_perplexity"}
    nll, perplexity = found["reverse_nll"], found["reverse_perplexity"]
    assert (
        nll.value
        == -log_probs(taught, real, 100).mean()
        == pytest.approx(math.log(perplexity.value))
    )
    assert perplexity.stderr == pytest.approx(perplexity.value * nll.stderr)
    for result in found.values():
        assert result.tokens == len(real) - 1
        assert result.split == "test"
        assert result.method.startswith("an LSTM of ")
        assert result.method.endswith(f"weights that learnt from {SOURCE}")
        assert "not of the text that was learnt from" in result.convention


@given(st.integers(2, 9), st.integers(1, 9), st.integers(0, 50))
def test_stretches_reach_over_the_whole_text_and_share_no_token(rows, length, more):
    tokens = np.arange(rows * length + more)
    found = stretches(tokens, rows, length)
    assert found.shape == (rows, length)
    assert (np.diff(found.reshape(-1)) >= 1).all()  # in order, none twice
    assert (np.diff(found, axis=1) == 1).all()  # each without a gap
    assert (found[0, 0], found[-1, -1]) == (0, len(tokens) - 1)
    gaps = found[1:, 0] - found[:-1, -1]
    assert np.ptp(gaps) <= 1
