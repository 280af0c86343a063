"""A tie counts its mean over all orders of the tied: against every order, and its limit cases."""

import itertools

import numpy as np
import pytest
import torch

from infolm.information.ties import above, first, standing


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_the_credit_is_the_mean_over_every_order(make):
    """All scores of up to four candidates from three values; whichever order breaks the ties."""
    for size in (1, 2, 3, 4):
        for scores in itertools.product([0.0, 1.0, 2.0], repeat=size):
            firsts = [
                max(order, key=lambda i: scores[i]) == 0  # `max` takes the first of equals
                for order in itertools.permutations(range(size))
            ]
            better, tied = standing(make(scores), make(scores[0]))
            assert float(first(better, tied)) == pytest.approx(np.mean(firsts))
            assert int(better) == sum(score > scores[0] for score in scores)


@pytest.mark.parametrize("size", [2, 5, 100])
def test_equal_scores_have_the_result_of_chance(size):
    scores = torch.zeros(7, size)
    better, tied = standing(scores, scores[:, 0])
    assert first(better, tied).tolist() == pytest.approx([1 / size] * 7)


def test_above_a_threshold():
    scores = torch.tensor([[-1.0, 0.0], [1e-30, 2.0]])
    assert above(scores).tolist() == [[0, 0.5], [1, 1]]
    assert above(scores, 2.0).tolist() == [[0, 0], [0, 0.5]]
    assert np.array_equal(above(scores.numpy()), above(scores).numpy())
