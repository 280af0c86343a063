"""The dropouts: what is shared, what is scaled, and that nothing happens in evaluation."""

import math

import pytest
import torch

from infolm.nn.dropout import drop_connect, embedding_dropout, locked_dropout, mask, step_dropout


@pytest.mark.parametrize("p", [0.001, 0.3, 0.5, 0.9])
def test_a_mask_is_of_independent_bernoulli_numbers(p):
    torch.manual_seed(0)
    n = 400_001  # an odd number: two entries come from one draw
    kept = mask((n,), p, torch.empty(0)) != 0
    assert abs(kept.double().mean().item() - (1 - p)) < 4 * math.sqrt(p * (1 - p) / n)
    # Neighbours, of one draw or of two, are not correlated.
    x = kept.double() - (1 - p)
    for lag in (1, 2, 3):
        correlation = (x[:-lag] * x[lag:]).mean().item() / (p * (1 - p))
        assert abs(correlation) < 4 / math.sqrt(n)


def test_a_mask_of_any_shape_type_and_extreme_rate():
    assert mask((2, 3, 5), 0.5, torch.empty(0, dtype=torch.double)).dtype == torch.double
    assert mask((2, 3, 5), 0.5, torch.empty(0)).shape == (2, 3, 5)
    assert torch.isfinite(mask((9,), 1 - 2**-40, torch.empty(0, dtype=torch.double))).all()


def test_locked_mask_is_shared_over_time_and_not_over_examples():
    torch.manual_seed(0)
    out = locked_dropout(torch.ones(7, 50, 40), 0.3, training=True)
    assert torch.equal(out, out[:1].expand_as(out))
    masks = {tuple(row.tolist()) for row in out[0]}
    assert len(masks) == 50
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.7])


def test_locked_dropout_keeps_the_mean():
    torch.manual_seed(0)
    p, n = 0.4, 200_000
    out = locked_dropout(torch.ones(1, 1, n), p, training=True)
    # Each entry is Bernoulli(1-p)/(1-p), of variance p/(1-p).
    standard_error = math.sqrt(p / (1 - p) / n)
    assert abs(out.mean().item() - 1) < 4 * standard_error


def test_embedding_dropout_drops_whole_words_and_scales_the_rest():
    torch.manual_seed(0)
    weight = torch.randn(2000, 3)
    tokens = torch.arange(2000).repeat(2, 1)  # each word twice: (2, 2000)
    p = 0.25
    out = embedding_dropout(weight, tokens, p, training=True)
    assert torch.equal(out[0], out[1])  # a word is gone, or not, wherever it occurs
    dropped = (out[0] == 0).all(1)
    torch.testing.assert_close(out[0][~dropped], weight[~dropped] / (1 - p))
    standard_error = math.sqrt(p * (1 - p) / 2000)
    assert abs(dropped.float().mean().item() - p) < 4 * standard_error


def test_embedding_dropout_equals_dropping_rows_of_the_matrix():
    weight = torch.randn(11, 5, requires_grad=True)
    tokens = torch.randint(0, 11, (6, 4))
    torch.manual_seed(3)
    fast = embedding_dropout(weight, tokens, 0.5, training=True)
    torch.manual_seed(3)
    slow = (weight * mask((11,), 0.5, weight)[:, None])[tokens]
    torch.testing.assert_close(fast, slow)
    cotangent = torch.randn_like(fast)
    torch.testing.assert_close(
        torch.autograd.grad(fast, weight, cotangent), torch.autograd.grad(slow, weight, cotangent)
    )


def test_drop_connect_drops_single_weights():
    torch.manual_seed(0)
    out = drop_connect(torch.ones(300, 300), 0.5, training=True)
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert abs(out.mean().item() - 1) < 4 * math.sqrt(1 / 90_000)


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_nothing_happens_in_evaluation_and_no_random_number_is_drawn(p):
    x, weight, tokens = torch.randn(3, 2, 4), torch.randn(9, 4), torch.randint(0, 9, (3, 2))
    before = torch.get_rng_state()
    assert locked_dropout(x, p, training=False) is x
    assert drop_connect(weight, p, training=False) is weight
    assert torch.equal(embedding_dropout(weight, tokens, p, training=False), weight[tokens])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_locked_mask_of_packed_sentences_is_one_for_each():
    sizes = torch.tensor([3, 3, 2, 1, 1])
    x = torch.ones(10, 40)
    torch.manual_seed(0)
    dropped = locked_dropout(x, 0.5, True, sizes)
    of_sentence = {0: [0, 3, 6, 8, 9], 1: [1, 4, 7], 2: [2, 5]}
    for rows in of_sentence.values():
        assert (dropped[rows] == dropped[rows[0]]).all()
    assert len({tuple(dropped[rows[0]].tolist()) for rows in of_sentence.values()}) == 3
    assert set(dropped.unique().tolist()) == {0, 2}


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_copies_that_follow_each_other_have_one_mask(copies):
    torch.manual_seed(0)
    found = mask((40 * copies, 30), 0.3, torch.empty(0), copies)
    torch.manual_seed(0)
    once = mask((40, 30), 0.3, torch.empty(0))
    assert torch.equal(found, once.repeat_interleave(copies, 0))
    assert len({tuple(row.tolist()) for row in found}) == 40
    standard_error = math.sqrt(0.3 * 0.7 / once.numel())
    assert abs(found.eq(0).double().mean().item() - 0.3) < 4 * standard_error


@pytest.mark.parametrize("drop", [locked_dropout, step_dropout])
def test_copies_of_packed_sentences_have_one_mask(drop):
    """Two sentences, three copies of each: rows 0-2 and 3-5 of a step, then the longer alone."""
    sizes = torch.tensor([6, 6, 3])
    torch.manual_seed(0)
    out = drop(torch.ones(15, 40), 0.5, True, sizes, 3)
    first, second = [[0, 1, 2], [6, 7, 8], [12, 13, 14]], [[3, 4, 5], [9, 10, 11]]
    for rows in [*first, *second]:
        assert torch.equal(out[rows], out[rows[:1]].expand(3, -1))
    assert not torch.equal(out[0], out[3])
    assert torch.equal(out[0], out[6]) == torch.equal(out[3], out[9]) == (drop is locked_dropout)
    assert torch.equal(out[0], out[12]) == (drop is locked_dropout)
