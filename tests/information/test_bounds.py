"""Bounds on scores: against plain loops, and exactly, on tables whose information is known.

The exact expectations come from a table of integer counts: its pairs, listed once a count, are the
positives, and every x of the list beside every y are the negatives. Their means are E_p and E_q.
"""

import math
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from infolm.information import bounds
from infolm.information.exact import kullback_leibler, mutual_information

untimed = settings(deadline=None, max_examples=60)
EXACT = {"abs": 1e-9, "rel": 0}
BASELINE = 0.3
ALPHA = 0.4
CLIP = 0.7

BOUNDS = {
    "donsker_varadhan": bounds.donsker_varadhan,
    "tuba": partial(bounds.tuba, log_baseline=BASELINE),
    "nwj": bounds.nwj,
    "info_nce": bounds.info_nce,
    "interpolated": partial(bounds.interpolated, log_baseline=BASELINE, alpha=ALPHA),
    "smile": partial(bounds.smile, clip=CLIP),
    "club": bounds.club,
    "jensen_shannon": bounds.jensen_shannon,
    "jensen_shannon_information": bounds.jensen_shannon_information,
}


def drawn(*shape, seed=0):
    """Scores of N pairs and of K negatives each, from (..., N, K)."""
    scores = torch.randn(*shape[:-1], shape[-1] + 1, generator=torch.Generator().manual_seed(seed))
    return scores[..., 0].double(), scores[..., 1:].double()


# Against loops


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def slow(name, positive, negative):
    """Every bound by plain exponentials of plain numbers."""
    p, n = positive.tolist(), negative.tolist()
    flat = [score for row in n for score in row]
    count = len(n[0])
    exp, ln = math.exp, math.log
    if name == "donsker_varadhan":
        return mean(p) - ln(mean(map(exp, flat)))
    if name == "tuba":
        a = exp(BASELINE)
        return 1 + mean(s - BASELINE for s in p) - mean(exp(s) / a for s in flat)
    if name == "nwj":
        return mean(p) - mean(exp(s - 1) for s in flat)
    if name == "info_nce":
        totals = [exp(s) + sum(map(exp, row)) for s, row in zip(p, n, strict=True)]
        return ln(count + 1) + mean(s - ln(total) for s, total in zip(p, totals, strict=True))
    if name == "interpolated":

        def mixed(own):
            return ALPHA * own + (1 - ALPHA) * exp(BASELINE)

        joint, apart = [], []
        for s, row in zip(p, n, strict=True):
            left_out = [
                (exp(s) + sum(map(exp, row[:k] + row[k + 1 :]))) / count for k in range(count)
            ]
            joint.append(s - ln(mixed(mean(left_out))))
            apart += [exp(other) / mixed(mean(map(exp, row))) for other in row]
        return 1 + mean(joint) - mean(apart)
    if name == "smile":
        return mean(p) - ln(mean(min(max(exp(s), exp(-CLIP)), exp(CLIP)) for s in flat))
    if name == "club":
        return mean(p) - mean(flat)
    if name == "jensen_shannon":
        return mean(ln(1 / (1 + exp(-s))) for s in p) + mean(ln(1 / (1 + exp(s))) for s in flat)
    assert name == "jensen_shannon_information"
    return 1 + mean(p) - mean(map(exp, flat))


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("seed", range(3))
def test_each_bound_is_its_formula(name, seed):
    positive, negative = drawn(5, 3, seed=seed)
    expected = slow(name, positive, negative)
    assert BOUNDS[name](positive, negative).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", BOUNDS)
def test_leading_dimensions_are_batches_of_their_own(name):
    positive, negative = drawn(2, 3, 4, 5)
    together = BOUNDS[name](positive, negative)
    assert together.shape == (2, 3)
    for i, j in product(range(2), range(3)):
        alone = BOUNDS[name](positive[i, j], negative[i, j])
        torch.testing.assert_close(together[i, j], alone, rtol=0, atol=1e-12)


def test_a_baseline_may_differ_from_row_to_row():
    positive, negative = drawn(4, 3)
    baseline = torch.tensor([-1.0, 0.0, 0.5, 2.0]).double()
    for bound in (bounds.tuba, partial(bounds.interpolated, alpha=ALPHA)):
        alone = [
            bound(positive[i : i + 1], negative[i : i + 1], log_baseline=baseline[i])
            for i in range(4)
        ]
        together = bound(positive, negative, log_baseline=baseline)
        torch.testing.assert_close(together, torch.stack(alone).mean())


@pytest.mark.parametrize("shape", [(2, 2), (5, 5), (3, 4, 4), (2, 3, 6, 6)])
def test_contrast_takes_the_diagonal_and_leaves_the_rest_in_order(shape):
    scores = torch.arange(math.prod(shape)).view(shape)
    positive, negative = bounds.contrast(scores)
    size = shape[-1]
    for batch in product(*map(range, shape[:-2])):
        for i in range(size):
            assert positive[batch][i] == scores[batch][i, i]
            others = [scores[batch][i, j].item() for j in range(size) if j != i]
            assert negative[batch][i].tolist() == others


def test_contrast_passes_gradients_to_where_the_scores_came_from():
    scores = torch.zeros(4, 4, requires_grad=True)
    positive, negative = bounds.contrast(scores)
    (positive.sum() - negative.sum()).backward()
    assert scores.grad.equal(2 * torch.eye(4) - 1)


# Limits


def test_no_bound_overflows_where_its_value_is_finite():
    low, high = -1e4, 1e4
    for p, n in product([low, 0.0, high], repeat=2):
        positive = torch.full((3,), p)
        negative = torch.tensor([[n, low, 0.0]] * 3)
        for name, bound in BOUNDS.items():
            scores = [positive.clone().requires_grad_(), negative.clone().requires_grad_()]
            value = bound(*scores)
            if n == high and name in ("tuba", "nwj", "jensen_shannon_information"):
                assert value == -math.inf  # E_q[e^T] itself
                continue
            value.backward()
            assert value.isfinite(), name
            assert all(side.grad.isfinite().all() for side in scores), name


def test_large_scores_have_the_values_that_are_left_when_small_terms_vanish():
    positive, negative = torch.full((2,), 1e4), torch.tensor([[1e4, -1e4], [-1e4, -1e4]])
    assert bounds.donsker_varadhan(positive, negative).item() == pytest.approx(
        math.log(4), abs=1e-3
    )
    expected = (math.log(3 / 2) + math.log(3)) / 2
    assert bounds.info_nce(positive, negative).item() == pytest.approx(expected, abs=1e-3)
    assert bounds.jensen_shannon(positive, negative).item() == pytest.approx(-2500)


def test_the_bounds_that_are_limits_of_others():
    positive, negative = drawn(6, 4)
    tuba, nwj, dv = bounds.tuba, bounds.nwj, bounds.donsker_varadhan
    same = partial(torch.testing.assert_close, rtol=0, atol=1e-12)
    same(nwj(positive, negative), tuba(positive, negative, 1.0))
    same(bounds.interpolated(positive, negative, 0.4, 0.0), tuba(positive, negative, 0.4))
    same(bounds.smile(positive, negative, math.inf), dv(positive, negative))
    same(bounds.smile(positive, negative, 0.0), positive.mean())
    # The best constant baseline of tuba is E_q[e^T], and gives Donsker and Varadhan's.
    best = bounds.log_mean_exp(negative, (-2, -1))
    same(tuba(positive, negative, best.expand(6)), dv(positive, negative))
    # No jump at either end of alpha.
    for end in (0.0, 1.0):
        near = bounds.interpolated(positive, negative, 0.4, abs(end - 1e-9))
        torch.testing.assert_close(
            near, bounds.interpolated(positive, negative, 0.4, end), rtol=0, atol=1e-7
        )


@given(arrays(np.float64, (5, 4), elements=st.floats(-50, 50)))
@untimed
def test_contrastive_bounds_stay_below_their_ceilings(scores):
    positive, negative = torch.from_numpy(scores[:, 0]), torch.from_numpy(scores[:, 1:])
    assert bounds.info_nce(positive, negative).item() <= math.log(4) + 1e-12
    assert bounds.interpolated(positive, negative, 0.0, 1.0).item() <= math.log(3) + 1e-12


def test_a_perfect_critic_reaches_the_ceiling_and_nothing_to_compare_with_gives_nothing():
    positive, negative = torch.full((5,), 30.0), torch.full((5, 7), -30.0)
    assert bounds.info_nce(positive, negative).item() == pytest.approx(math.log(8))
    assert bounds.interpolated(positive, negative, 0.0, 1.0).item() == pytest.approx(math.log(7))
    assert bounds.info_nce(positive, negative[:, :0]).item() == 0.0


# Exact expectations over a table

COUNTS = np.array([[3, 1, 2], [1, 4, 1]])
TRUTH = mutual_information(COUNTS / COUNTS.sum())
LOG_RATIO = np.log(COUNTS * COUNTS.sum() / np.outer(COUNTS.sum(1), COUNTS.sum(0)))


def expectations(counts, critic):
    """T of every pair and of every x beside every y: their means are E_p[T] and E_q[T]."""
    cells = [cell for cell, count in np.ndenumerate(counts) for _ in range(count)]
    x, y = np.array(cells).T
    return torch.from_numpy(critic[x, y]), torch.from_numpy(critic[np.ix_(x, y)])


def of_x(counts, values):
    """A function of x for every pair of the list, (N,)."""
    return torch.from_numpy(np.repeat(values, counts.sum(1)))


def test_the_list_of_pairs_has_the_expectations_of_the_table():
    positive, negative = expectations(COUNTS, LOG_RATIO)
    p = COUNTS / COUNTS.sum()
    q = np.outer(p.sum(1), p.sum(0))
    assert positive.mean().item() == pytest.approx((p * LOG_RATIO).sum(), **EXACT)
    assert negative.mean().item() == pytest.approx((q * LOG_RATIO).sum(), **EXACT)
    assert positive.mean().item() == pytest.approx(TRUTH, **EXACT)


@pytest.mark.parametrize(
    ("bound", "shift"),
    [
        ("donsker_varadhan", 0.0),
        ("donsker_varadhan", -3.0),
        ("nwj", 1.0),
        ("tuba", BASELINE),
        ("jensen_shannon_information", 0.0),
    ],
)
def test_the_best_critic_makes_the_bound_tight(bound, shift):
    value = BOUNDS[bound](*expectations(COUNTS, LOG_RATIO + shift))
    assert value.item() == pytest.approx(TRUTH, **EXACT)


def test_tuba_is_tight_for_any_baseline_of_x():
    baseline = np.array([-1.0, 0.7])
    scores = expectations(COUNTS, LOG_RATIO + baseline[:, None])
    assert bounds.tuba(*scores, of_x(COUNTS, baseline)).item() == pytest.approx(TRUTH, **EXACT)


def test_the_jensen_shannon_proxy_is_twice_the_divergence_less_its_ceiling():
    p = COUNTS / COUNTS.sum()
    q = np.outer(p.sum(1), p.sum(0))
    middle = (p + q) / 2
    divergence = (kullback_leibler(p, middle) + kullback_leibler(q, middle)) / 2
    value = bounds.jensen_shannon(*expectations(COUNTS, LOG_RATIO))
    assert value.item() == pytest.approx(2 * divergence - 2 * math.log(2), **EXACT)


def test_club_adds_the_reverse_divergence():
    p = COUNTS / COUNTS.sum()
    expected = TRUTH + kullback_leibler(np.outer(p.sum(1), p.sum(0)), p)
    # What it scores by is ln p(y|x); any function of x cancels.
    conditional = np.log(COUNTS / COUNTS.sum(1, keepdims=True))
    for critic in (conditional, LOG_RATIO, conditional + np.array([[5.0], [-2.0]])):
        value = bounds.club(*expectations(COUNTS, critic))
        assert value.item() == pytest.approx(expected, **EXACT)


tables = arrays(np.int64, (2, 3), elements=st.integers(0, 4)).filter(np.any)
critics = arrays(np.float64, (2, 3), elements=st.floats(-8, 8))
baselines = arrays(np.float64, 2, elements=st.floats(-8, 8))


@given(tables, critics, baselines)
@untimed
def test_no_critic_takes_a_lower_bound_above_the_truth(counts, critic, baseline):
    scores = expectations(counts, critic)
    truth = mutual_information(counts / counts.sum()) + 1e-9
    assert bounds.donsker_varadhan(*scores).item() <= truth
    assert bounds.nwj(*scores).item() <= truth
    assert bounds.jensen_shannon_information(*scores).item() <= truth
    assert bounds.tuba(*scores, of_x(counts, baseline)).item() <= truth


@given(critics)
@untimed
def test_no_critic_beats_the_log_ratio_at_the_jensen_shannon_proxy(critic):
    best = bounds.jensen_shannon(*expectations(COUNTS, LOG_RATIO)).item()
    assert bounds.jensen_shannon(*expectations(COUNTS, critic)).item() <= best + 1e-9


# Expectations over every batch of a small table

SMALL = np.array([[0.45, 0.15], [0.05, 0.35]])


def expected_over_batches(bound, p, critic, size):
    """E of a bound over all batches of `size` pairs, the other rows' y being the negatives."""
    cells = list(np.ndindex(p.shape))
    batches = np.array(list(product(range(len(cells)), repeat=size)))
    x, y = np.array(cells)[batches].transpose(2, 0, 1)
    weight = torch.from_numpy(p[x, y].prod(1))
    scores = torch.from_numpy(critic[x[:, :, None], y[:, None, :]])
    return (weight * bound(*bounds.contrast(scores))).sum().item()


def expected_over_draws(bound, p, critic, count):
    """E over all pairs with `count` negatives drawn by themselves."""
    margin = p.sum(0)
    total = 0.0
    for (x, y), weight in np.ndenumerate(p):
        for others in product(range(len(margin)), repeat=count):
            positive = torch.tensor([critic[x, y]])
            negative = torch.tensor([[critic[x, other] for other in others]])
            total += weight * margin[list(others)].prod() * bound(positive, negative).item()
    return total


@given(arrays(np.float64, (2, 2), elements=st.floats(-6, 6)), st.floats(-3, 3), st.floats(0, 1))
@untimed
def test_bounds_from_batches_are_below_the_truth_on_average(critic, baseline, alpha):
    truth = mutual_information(SMALL) + 1e-9
    mixed = partial(bounds.interpolated, log_baseline=baseline, alpha=alpha)
    for size in (2, 3):
        assert expected_over_batches(bounds.info_nce, SMALL, critic, size) <= truth
    assert expected_over_batches(mixed, SMALL, critic, 3) <= truth
    for count in (1, 2):
        assert expected_over_draws(bounds.info_nce, SMALL, critic, count) <= truth
    assert expected_over_draws(mixed, SMALL, critic, 2) <= truth


def test_nwj_is_unbiased_and_donsker_varadhan_high_on_small_batches():
    p = SMALL
    critic = np.log(p / np.outer(p.sum(1), p.sum(0)))
    truth = mutual_information(p)
    unbiased = expected_over_batches(bounds.nwj, p, critic + 1, 3)
    assert unbiased == pytest.approx(truth, **EXACT)
    assert expected_over_batches(bounds.donsker_varadhan, p, critic, 3) > truth + 0.01


def test_info_nce_closes_in_on_the_truth_with_more_negatives():
    critic = np.log(SMALL / np.outer(SMALL.sum(1), SMALL.sum(0)))
    truth = mutual_information(SMALL)
    lacks = [truth - expected_over_draws(bounds.info_nce, SMALL, critic, k) for k in (1, 3, 7)]
    assert all(lack > 0 for lack in lacks)
    # The lack falls as one over the number of candidates, a mean's variance.
    assert lacks[1] / lacks[0] == pytest.approx(1 / 2, rel=0.2)
    assert lacks[2] / lacks[1] == pytest.approx(1 / 2, rel=0.2)


# MINE


def test_mine_has_the_gradient_of_the_paper_with_an_average_over_batches():
    rate, average, log_average = 0.2, None, None
    weight = torch.tensor([0.3, -0.5]).double().requires_grad_()
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(4, 2, generator=generator).double()  # what T is linear in
        z = torch.randn(4, 3, 2, generator=generator).double()
        objective, log_average = bounds.mine(x @ weight, z @ weight, log_average, rate)
        (gradient,) = torch.autograd.grad(objective, weight)
        exps = [math.exp(v @ weight.detach()) for v in z.flatten(0, 1)]
        now = mean(exps)
        average = now if average is None else (1 - rate) * average + rate * now
        slope = mean(e * v for e, v in zip(exps, z.flatten(0, 1), strict=True))
        torch.testing.assert_close(gradient, x.mean(0) - slope / average, rtol=0, atol=1e-12)
        assert log_average.item() == pytest.approx(math.log(average), abs=1e-12)
        assert not log_average.requires_grad


@pytest.mark.parametrize(("log_average", "rate"), [(None, 0.01), (torch.tensor(3.0), 1 - 1e-12)])
def test_the_gradient_of_mine_is_donsker_varadhans_when_it_remembers_nothing(log_average, rate):
    scores = drawn(5, 4)
    sides = [side.clone().requires_grad_() for side in scores]
    ours = torch.autograd.grad(bounds.mine(*sides, log_average, rate)[0], sides)
    theirs = torch.autograd.grad(bounds.donsker_varadhan(*sides), sides)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_the_average_of_mine_stays_in_the_log_domain():
    huge = torch.full((2, 3), 5e3)
    objective, log_average = bounds.mine(torch.zeros(2), huge, torch.tensor(5e3), 0.1)
    assert objective.item() == pytest.approx(-1)
    assert log_average.item() == pytest.approx(5e3)
