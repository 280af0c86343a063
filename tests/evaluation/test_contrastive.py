"""Held-out text by an encoder's objective: means, errors, and hidden words among all words."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infolm.data.sequences import SequenceBatch
from infolm.evaluation.contrastive import (
    ALL,
    LEAST,
    AmongAll,
    Tally,
    contrastive_measurements,
)
from infolm.objectives.base import Estimate

VALUES = st.lists(st.floats(-10, 10), min_size=LEAST, max_size=40)


@given(VALUES)
def test_of_batches_as_large_the_error_is_that_of_a_mean(values):
    tally = Tally(np.array(values), np.full(len(values), 7.0))
    assert tally.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert tally.stderr == pytest.approx(np.std(values, ddof=1) / len(values) ** 0.5, abs=1e-9)


def test_the_error_is_the_spread_of_the_mean():
    """Of batches of random sizes whose values go with the size, drawn 4,000 times."""
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 20, (4000, 60)).astype(float)
    values = 0.1 * counts + rng.normal(size=counts.shape) / np.sqrt(counts)
    drawn = [Tally(*pair) for pair in zip(values, counts, strict=True)]
    spread = np.std([tally.mean for tally in drawn])
    assert np.mean([tally.stderr for tally in drawn]) == pytest.approx(spread, rel=0.05)


def test_few_batches_have_no_error():
    assert Tally(np.ones(LEAST - 1), np.ones(LEAST - 1)).stderr is None


class Known:
    """A "model" whose context is the token itself: f(a, b) = ln p(b | a) / q(b) + c(a)."""

    class Head:
        bias = torch.zeros(5)

        def __call__(self, hidden):
            return hidden

    def __init__(self, scores):
        self.head, self.embedding = self.Head(), scores.T

    def __call__(self, tokens):
        return torch.nn.functional.one_hot(tokens, 5).float()


def test_the_best_scores_among_few_give_the_probability_among_all():
    generator = torch.Generator().manual_seed(0)
    log_p = torch.randn(5, 5, generator=generator).log_softmax(1)
    log_q, shift = torch.randn(5, generator=generator).log_softmax(0), torch.arange(5.0)
    tokens = torch.randint(5, (3, 4), generator=generator)
    places, words = torch.tensor([0, 3, 5, 11]), torch.tensor([1, 4, 0, 2])
    model = Known(log_p - log_q + shift[:, None])

    def nothing(model, batch, carry):
        return Estimate(torch.tensor(0.0), {}, 4)

    found = AmongAll(nothing, log_q)(model, SequenceBatch(tokens, places, words), None).terms
    contexts = tokens.flatten()[places]
    assert found["vocabulary_nll"] == pytest.approx(-float(log_p[contexts, words].mean()), abs=1e-5)
    right = (log_p[contexts].argmax(1) == words).float().mean()
    assert float(found["accuracy"]) == float(right)


def test_words_that_are_all_as_likely_are_told_by_chance():
    tokens = torch.randint(5, (3, 4), generator=torch.Generator().manual_seed(0))
    batch = SequenceBatch(tokens, torch.tensor([0, 3, 5, 11]), torch.tensor([1, 4, 0, 2]))

    def nothing(model, batch, carry):
        return Estimate(torch.tensor(0.0), {}, 4)

    found = AmongAll(nothing, torch.zeros(5))(Known(torch.zeros(5, 5)), batch, None).terms
    assert float(found["accuracy"]) == pytest.approx(1 / 5)
    assert float(found["ties"]) == 1
    assert float(found["vocabulary_nll"]) == pytest.approx(math.log(5))
    two = torch.zeros(5, 5).index_fill(1, torch.tensor([0, 1]), 1.0)  # two words share the top
    found = AmongAll(nothing, torch.zeros(5))(Known(two), batch, None).terms
    assert float(found["accuracy"]) == pytest.approx((1 / 2 + 0 + 1 / 2 + 0) / 4)


def test_the_accuracys_convention_says_how_many_ties_there_were():
    counts = np.array([5.0, 3.0])
    found = {"accuracy": Tally(np.array([0.5, 1.0]), counts), "nll": Tally(np.ones(2), counts)}
    found["ties"] = Tally(np.array([0.4, 0.0]), counts)
    listed = contrastive_measurements(found, "test", "among few", "pair", "so")
    assert {m.metric: m.convention for m in listed} == {
        "accuracy": "so; the right one tied with others in 2: each counts 1 / their number",
        "nll": "so",
    }


def test_measurements_say_what_they_are():
    ones = np.ones(12)
    found = {name: Tally(ones, 5 * ones) for name in ("nll", "dim", "vocabulary_nll", "accuracy")}
    listed = contrastive_measurements(found, "test", "among few", "hidden token", "so")
    told = {m.metric: (round(m.value, 3), m.unit, m.method, m.tokens) for m in listed}
    assert told == {
        "nll": (1, "nats per hidden token", "among few", 60),
        "dim": (1, "nats per n-gram", "among the batch's n-grams", 60),
        "perplexity": (2.718, "perplexity per hidden token", ALL, 60),
        "accuracy": (1, "share of hidden tokens", ALL, 60),
    }
