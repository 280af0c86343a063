"""Neural estimators: honest folds, honest errors, and lower bounds that stay below the truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from infolm.errors import InfolmError
from infolm.information import bounds, neural
from infolm.information.critics import Bilinear, Critic, GaussianRatio, Separable
from infolm.information.estimate import half_width
from infolm.information.exact import CorrelatedGaussian
from infolm.information.neural import (
    BOUNDS,
    GROUPS,
    TOLERANCE,
    Canonical,
    Neural,
    Prepared,
    all_scores,
    best_cut,
    cross_fitted,
    fewest_rows,
    fit,
    jackknife,
    parts,
)

untimed = settings(deadline=None, max_examples=60)
LOWER = [kind for kind, bound in BOUNDS.items() if bound.side == "lower"]


def normals(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def scores_of(size, seed=0, lift=1.0):
    scores = torch.from_numpy(normals(size, size, seed=seed))
    return scores + lift * torch.eye(size)


# Folds


def plain(fold):
    return tuple(part.tolist() for part in fold)


@given(st.integers(2, 8), st.integers(0, 150), st.integers(0, 5))
@untimed
def test_random_folds_are_partitions_and_every_row_is_tested_once(folds, more, seed):
    samples = fewest_rows(folds) + more
    tested = []
    for train, valid, test in map(plain, parts(samples, folds, None, seed)):
        assert sorted(train + valid + test) == list(range(samples))
        assert 0 < len(valid) < len(train)
        tested += test
    assert sorted(tested) == list(range(samples))


@given(st.integers(2, 8), st.integers(0, 150), st.integers(0, 6))
@untimed
def test_folds_of_a_sequence_keep_their_distance(folds, more, margin):
    samples = fewest_rows(folds) + more
    tested = []
    for train, valid, test in map(plain, parts(samples, folds, margin, seed=0)):
        assert test == list(range(test[0], test[-1] + 1))
        for row in test:
            assert not set(range(row - margin, row + margin + 1)) & set(train + valid)
        for row in valid:
            assert not set(range(row - margin, row + margin + 1)) & set(train)
        left_out = samples - len(train) - len(valid) - len(test)
        assert left_out == 3 * margin  # no more than the three cuts of the circle need
        assert len(set(train + valid)) == len(train) + len(valid)
        assert valid
        tested += test
    assert tested == list(range(samples))


def test_folds_are_drawn_anew_for_another_seed():
    one, same, other = ([plain(fold) for fold in parts(100, 2, None, seed)] for seed in (0, 0, 1))
    assert one == same != other


# The standard error


def test_the_jackknife_leaves_out_rows_with_all_their_pairs():
    scores = scores_of(43)
    groups = np.array_split(np.arange(43), GROUPS)
    values = []
    for group in groups:
        kept = [i for i in range(43) if i not in group]
        pairs = [scores[i, i].item() for i in kept]
        others = [math.exp(scores[i, j]) for i in kept for j in kept if i != j]
        values.append(sum(pairs) / len(pairs) - math.log(sum(others) / len(others)))
    centre = sum(values) / GROUPS
    variance = (GROUPS - 1) / GROUPS * sum((value - centre) ** 2 for value in values)
    expected = math.sqrt(variance)
    assert jackknife(scores, bounds.donsker_varadhan) == pytest.approx(expected, rel=1e-9)


def test_the_jackknife_of_a_mean_is_its_textbook_error():
    def mean(positive, negative):
        return positive.mean(-1)

    samples, repeats = 50, 200
    draws = normals(repeats, samples)
    errors = [jackknife(torch.diag(torch.from_numpy(draw)), mean) for draw in draws]
    in_groups = draws.reshape(repeats, GROUPS, -1).mean(2)
    expected = in_groups.std(1, ddof=1) / math.sqrt(GROUPS)
    np.testing.assert_allclose(errors, expected, rtol=1e-9)
    # Its square is unbiased for 1 / N, and varies as a chi square of GROUPS - 1 degrees.
    tolerance = 4 * math.sqrt(2 / (GROUPS - 1) / repeats)
    assert np.square(errors).mean() * samples == pytest.approx(1, abs=tolerance)


# Canonical coordinates


def mixed(samples=300, seed=0):
    """Four columns and three that depend on them."""
    x = normals(samples, 4, seed=seed) @ normals(4, 4, seed=seed + 1)
    y = x[:, :3] + normals(samples, 3, seed=seed + 2)
    return x, y


def test_canonical_coordinates_are_white_and_correlate_by_rho_alone():
    x, y = mixed()
    canonical = Canonical.fit(x, y)
    u, v = (side.double() for side in canonical(x, y))
    both = torch.cat([u, v], 1)
    assert both.mean(0).abs().max() < 1e-5
    expected = torch.eye(7).double()
    rho = torch.from_numpy(canonical.rho)
    expected[range(3), range(4, 7)] = expected[range(4, 7), range(3)] = rho
    torch.testing.assert_close(both.T @ both / len(x), expected, rtol=0, atol=1e-5)
    assert 1 > rho[0] >= rho[1] >= rho[2] > 0


def test_canonical_coordinates_forget_monotone_maps_of_the_columns():
    x, y = mixed()
    bent = np.stack(
        [np.exp(x[:, 0]), x[:, 1] ** 3, np.arctan(x[:, 2]), -1 / (1 + np.exp(x[:, 3]))], 1
    )
    plain, other = Canonical.fit(x, y), Canonical.fit(bent, 5 + np.sinh(y))
    np.testing.assert_allclose(other.rho, plain.rho, atol=1e-9)
    for a, b in zip(plain(x, y), other(bent, 5 + np.sinh(y)), strict=True):
        # An axis may point either way.
        torch.testing.assert_close(a.abs(), b.abs(), rtol=0, atol=1e-4)
    assert Neural(steps=0, folds=2).estimate(x, y).value == pytest.approx(
        Neural(steps=0, folds=2).estimate(3 * x - 1, y).value, abs=1e-4
    )


def test_collinear_columns_are_merged():
    x, y = mixed()
    twice = np.concatenate([x, 2 * x[:, :1], -x[:, 1:2]], 1)
    canonical = Canonical.fit(twice, y)
    assert canonical.of_x.axes.shape == (6, 4)
    np.testing.assert_allclose(canonical.rho, Canonical.fit(x, y).rho, atol=1e-9)
    u, _ = canonical(twice, y)
    torch.testing.assert_close(u.T @ u / len(x), torch.eye(4), rtol=0, atol=1e-4)


def test_shrinkage_takes_off_what_independent_columns_would_correlate_by():
    x, y = mixed()
    canonical = Canonical.fit(x, y)
    np.testing.assert_allclose(canonical.shrunk(0.0), canonical.rho, atol=1e-9)
    half = canonical.shrunk(0.3)
    expected = np.sqrt(np.maximum((canonical.rho**2 - 0.3) / 0.7, 0))
    np.testing.assert_allclose(half, expected, atol=1e-9)
    assert not canonical.shrunk(1.0).any()
    same = Canonical.fit(x, x)
    assert (same.shrunk(0.0) < 1).all()  # so that the ratio stays finite


# Reading and keeping


def test_scores_of_all_pairs_come_in_blocks_that_change_nothing():
    samples = neural.BLOCK + 7
    critic = Separable(2, 2)
    nn.init.normal_(critic.h[-1].weight)
    x, y = torch.from_numpy(normals(2, samples, 2)).float()
    scores = all_scores(critic, x, y)
    torch.testing.assert_close(scores, critic(x, y).detach(), rtol=1e-4, atol=1e-4)
    assert not scores.requires_grad


@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_cut_is_the_lowest_quantile_of_the_pairs_that_is_as_good_as_the_best(kind, seed):
    bound = BOUNDS[kind]
    scores = 4 * scores_of(20, seed).float()
    value, height = best_cut(scores, bound)
    if not bound.cut:
        assert height == math.inf
        assert value == pytest.approx(bound.chosen(*bounds.contrast(scores)).item(), abs=1e-4)
        return
    heights = np.quantile(scores.diagonal().numpy(), neural.CUTS)
    values = [bound.chosen(*bounds.contrast(scores.clamp(max=float(h)))).item() for h in heights]
    good = [i for i, v in enumerate(values) if v >= max(values) - TOLERANCE]
    assert height == pytest.approx(heights[good[0]], abs=1e-4)
    assert value == pytest.approx(values[good[0]], abs=1e-4)


def test_the_cut_saves_a_bound_from_one_negative_that_scores_too_high():
    scores = 2 * torch.eye(50)
    scores[3, 4] = 30.0
    value, height = best_cut(scores, BOUNDS["mine"])
    assert height == 2
    assert value == pytest.approx(2 - math.log((49 * 50 - 1 + math.e**2) / (49 * 50)), abs=1e-4)


def test_a_higher_cut_must_be_worth_it():
    scores = torch.diag(torch.linspace(2, 2 + TOLERANCE, 51))
    assert best_cut(scores, BOUNDS["mine"])[1] == pytest.approx(2 + TOLERANCE / 2, abs=1e-6)


def linear_pairs(samples=400):
    x = torch.from_numpy(normals(samples, 1)).float()
    return x, 0.8 * x + 0.6 * torch.from_numpy(normals(samples, 1, seed=1)).float()


def trained(objective, critic, steps, chosen=bounds.jensen_shannon_information):
    """`fit` with an objective of our own; the rows of validation are others."""
    bound = BOUNDS["nwj"]._replace(trained=lambda: objective, chosen=chosen)
    x, y = linear_pairs()
    train, valid = (x[:300], y[:300]), (x[300:], y[300:])
    return fit(Prepared(None, [critic]), bound, train, valid, steps, seed=0), valid


def test_a_bound_that_only_gets_worse_leaves_the_critic_as_it_was_and_stops():
    calls = []

    def backwards(positive, negative):
        calls.append(1)
        return -bounds.jensen_shannon_information(positive, negative)

    start = GaussianRatio(torch.tensor([0.8]), Bilinear(1, 1))
    fitted, (x, y) = trained(backwards, start, steps=5000)
    assert not fitted.critic.correction(x, y).any()
    assert not fitted.exhausted
    assert len(calls) == neural.PATIENCE * neural.EVERY


def test_the_critic_is_kept_as_it_was_where_it_validated_best():
    calls, seen = [], []

    def there_and_back(positive, negative):
        calls.append(1)
        sign = 1 if len(calls) <= 4 * neural.EVERY else -1
        return sign * bounds.jensen_shannon_information(positive, negative)

    def watched(positive, negative):
        seen.append(bounds.jensen_shannon_information(positive, negative).item())
        return torch.tensor(seen[-1])

    fitted, valid = trained(there_and_back, Bilinear(1, 1), steps=5000, chosen=watched)
    scores = all_scores(fitted.critic, *valid).clamp(max=fitted.cut)
    kept = bounds.jensen_shannon_information(*bounds.contrast(scores)).item()
    assert not fitted.exhausted
    assert kept > seen[0] + 0.1  # better than the start
    assert kept >= max(seen) - 2 * TOLERANCE  # and than all that came after
    assert len(calls) < 5000


def test_steps_that_run_out_while_the_critic_improves_are_told():
    fitted, _ = trained(bounds.jensen_shannon_information, Bilinear(1, 1), steps=neural.EVERY)
    assert fitted.exhausted


def test_the_candidate_that_validates_best_is_the_one_that_is_trained():
    x, y = linear_pairs()
    critics = [GaussianRatio(torch.tensor([rho]), Bilinear(1, 1)) for rho in (0.0, 0.8, 0.99)]
    fitted = fit(Prepared(None, critics), BOUNDS["nwj"], (x, y), (x, y), steps=1, seed=0)
    assert fitted.critic.rho.item() == pytest.approx(0.8)


def test_batches_are_groups_of_rows_and_each_pass_has_a_row_once_at_most():
    x, y = torch.arange(700), torch.arange(700) + 1000
    drawn = list(neural._batches(x, y, group=32, steps=6, seed=0))
    per_pass = 700 // neural.BATCH
    for first in range(0, 6, per_pass):
        rows = torch.cat([a.flatten() for a, _ in drawn[first : first + per_pass]])
        assert len(set(rows.tolist())) == per_pass * neural.BATCH
    assert all(a.shape == (neural.BATCH // 32, 32) for a, _ in drawn)
    assert all((b - a == 1000).all() for a, b in drawn)
    [(a, _)] = neural._batches(x[:20], y[:20], group=32, steps=1, seed=0)
    assert a.shape == (1, 20)


# Estimates

GAUSSIAN = CorrelatedGaussian.with_information(2, 0.8)


def gaussian_estimate(kind):
    """On 900 rows; what is true of the estimate whatever the bound."""
    x, y = GAUSSIAN.sample(900, np.random.default_rng(3))
    estimate = Neural(kind, folds=3, steps=neural.EVERY).estimate(x, y)
    assert (estimate.estimator, estimate.samples, estimate.unit) == (kind, 900, "nats")
    assert len(estimate.folds) == 3
    assert estimate.value == pytest.approx(np.mean(estimate.folds))
    low, high = estimate.interval
    width = half_width(estimate.stderr, 3 * (GROUPS - 1))
    assert high >= estimate.value + width - 1e-12
    assert low == pytest.approx(0 if estimate.bound == "upper" else estimate.value - width)
    # A fold has the error of a third of the rows; shuffled pairs, which share nothing, are one.
    of_fold = math.sqrt(3) * estimate.stderr
    assert np.std(estimate.folds) < 2 * of_fold
    assert abs(estimate.permuted) < 4 * of_fold
    return estimate


@pytest.mark.parametrize("kind", LOWER)
def test_lower_bounds_are_near_the_truth_and_not_above(kind):
    estimate, truth = gaussian_estimate(kind), GAUSSIAN.mutual_information
    assert estimate.bound == "lower"
    assert estimate.value < truth + 4 * estimate.stderr
    assert estimate.value > truth - 4 * estimate.stderr - 0.03
    assert 0.01 < estimate.stderr < 0.07
    assert estimate.warning is None


def test_smile_is_near_the_truth_and_says_that_it_is_no_bound():
    estimate = gaussian_estimate("smile")
    assert estimate.bound is None
    assert estimate.value == pytest.approx(
        GAUSSIAN.mutual_information, abs=4 * estimate.stderr + 0.03
    )


def test_club_is_the_truth_and_the_reverse_divergence():
    estimate = gaussian_estimate("club")
    rho2 = -math.expm1(-GAUSSIAN.mutual_information)  # of each of two pairs of columns
    expected = 2 * rho2 / (1 - rho2)  # I + KL(p(x) p(y) || p(x, y)), by hand
    assert estimate.bound == "upper"
    assert estimate.value > GAUSSIAN.mutual_information
    assert estimate.value == pytest.approx(expected, abs=4 * estimate.stderr)
    low, high = estimate.interval
    assert low == 0
    assert high > estimate.value


def parabola(samples, noise=0.5):
    """y = x^2 + noise: nothing correlates, but I is large; x, y and I by quadrature."""
    x = normals(samples, seed=5)
    y = x**2 + noise * normals(samples, seed=6)
    at, step = np.linspace(-9, 9, 3001, retstep=True)
    to, by = np.linspace(-4, 40, 2201, retstep=True)
    normal = np.exp(-(at**2) / 2) / math.sqrt(2 * math.pi)
    given = np.exp(-(((to[:, None] - at**2) / noise) ** 2) / 2) / noise / math.sqrt(2 * math.pi)
    density = (given * normal).sum(1) * step
    assert density.sum() * by == pytest.approx(1, abs=1e-6)
    entropy = -(density * np.log(density + 1e-300)).sum() * by
    return x, y, entropy - 0.5 * math.log(2 * math.pi * math.e * noise**2)


def test_a_critic_finds_what_does_not_correlate():
    x, y, truth = parabola(600)
    assert truth > 0.5
    start = Neural(folds=2, steps=0).estimate(x, y)
    assert abs(start.value) < 0.05
    estimate = Neural(folds=2, steps=150).estimate(x, y)
    assert 0.6 * truth < estimate.value < truth + 4 * estimate.stderr
    assert abs(estimate.permuted) < 4 * math.sqrt(2) * estimate.stderr


@pytest.mark.parametrize("critic", ["bilinear", "concatenated", "five-way"])
def test_every_critic_can_be_chosen_and_starts_from_the_gaussian(critic):
    x, y = GAUSSIAN.sample(200, np.random.default_rng(4))
    estimate = Neural("nwj", critic, folds=2, steps=3).estimate(x, y)
    assert estimate.value == pytest.approx(
        GAUSSIAN.mutual_information, abs=4 * estimate.stderr + 0.03
    )


def test_without_a_gaussian_start_a_critic_starts_from_nothing():
    x, y = GAUSSIAN.sample(600, np.random.default_rng(4))
    start = Neural("nwj", "bilinear", gaussian_start=False, folds=2, steps=0)
    assert start.estimate(x, y).value == 0
    learnt = replace(start, steps=100).estimate(x, y)
    assert 4 * learnt.stderr < learnt.value < GAUSSIAN.mutual_information + 4 * learnt.stderr


SMALL = Neural("mine", folds=2, steps=5)


def small(samples=100):
    return GAUSSIAN.sample(samples, np.random.default_rng(8))


def test_a_seed_decides_all_and_the_global_generator_is_left_alone():
    before = torch.random.get_rng_state()
    one, same = SMALL.estimate(*small()), SMALL.estimate(*small())
    assert one == same
    assert replace(SMALL, seed=1).estimate(*small()).folds != one.folds
    torch.manual_seed(17)
    assert SMALL.estimate(*small()) == one
    torch.random.set_rng_state(before)
    SMALL.estimate(*small())
    assert torch.random.get_rng_state().equal(before)


def test_the_number_of_threads_changes_nothing_and_is_restored():
    threads = torch.get_num_threads()
    try:
        estimates = []
        for count in (1, 3):
            torch.set_num_threads(count)
            estimates.append(SMALL.estimate(*small()))
            assert torch.get_num_threads() == count
        assert estimates[0] == estimates[1]
    finally:
        torch.set_num_threads(threads)


class Fails(Critic):
    group = 32

    def forward(self, x, y):
        raise FloatingPointError(f"{torch.get_num_threads()} thread")


def test_a_critic_that_fails_is_heard_and_the_threads_are_restored():
    threads = torch.get_num_threads()

    def prepare(x, y):
        return Prepared(Canonical.fit(x, y), [Fails()])

    try:
        torch.set_num_threads(2)
        with pytest.raises(FloatingPointError, match="1 thread"):
            cross_fitted("", *small(), prepare, "mine", 2, None, 5, 0, None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_progress_counts_the_folds_and_the_shuffled_pairs():
    seen = []
    replace(SMALL, progress=lambda done, total: seen.append((done, total))).estimate(*small())
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_a_sequence_is_cut_into_stretches():
    x, y = small()
    got = replace(SMALL, sequence=True).estimate(x, y)
    expected, random = (
        cross_fitted("mine", x, y, SMALL._prepare, "mine", 2, margin, 5, 0, None)
        for margin in (1, None)
    )
    assert got == expected
    assert got.folds != random.folds


def test_lists_tensors_and_single_columns_are_rows_too():
    x, y = small()
    x, y = x[:, 0], y[:, 0]
    expected = SMALL.estimate(x, y)
    assert SMALL.estimate(x.tolist(), torch.from_numpy(y)[:, None]) == expected


# What an estimate warns of


def test_a_value_near_the_ceiling_of_the_rows_is_flagged():
    x = normals(100, 1)
    estimate = Neural(folds=2, steps=5).estimate(x, x + 1e-4 * normals(100, 1, seed=1))
    assert "near the ceiling ln 50 = 3.91 nats of the pairs a fold is read on" in estimate.warning


def test_too_many_columns_for_the_rows_are_flagged():
    x, y = CorrelatedGaussian.with_information(10, 1.0).sample(400, np.random.default_rng(0))
    estimate = Neural(folds=2, steps=5).estimate(x, y)
    assert "more on the rows they were trained on" in estimate.warning
    assert estimate.interval[1] > 1.0


def test_too_few_steps_are_flagged():
    x, y, _ = parabola(400)
    estimate = Neural(folds=2, steps=neural.EVERY).estimate(x, y)
    assert f"2 of 2 critics were still improving after {neural.EVERY} steps" in estimate.warning


def test_shuffled_pairs_that_seem_to_share_something_are_flagged():
    assert neural._control(neural.Reading(0.3, 0.01, 0.3, False)).endswith("give 0.30 nats")
    assert neural._control(neural.Reading(0.02, 0.01, 0.02, False)) is None


def test_what_the_rows_are_too_few_to_show_is_left_open():
    """20 + 20 columns and 200 rows: no critic does well on new rows, whatever the truth."""
    task = CorrelatedGaussian.with_information(20, 1.0)
    x, y = task.sample(200, np.random.default_rng(0))
    for kind in ("mine", "infonce"):
        found = Neural(kind, folds=2, steps=60).estimate(x, y)
        assert found.value < 0.5
        assert found.warning
        assert found.interval[0] < 1.0 < found.interval[1]


# Columns and rows out of the ordinary


def test_from_nothing_means_from_nothing_even_where_rho_is_near_one():
    x = normals(300, 1)
    prepared = Neural(gaussian_start=False)._prepare(x, x + 0.01 * normals(300, 1, seed=1))
    (critic,) = prepared.candidates
    assert isinstance(critic, GaussianRatio)
    assert not critic.rho.any()


def test_a_column_that_is_constant_in_a_fold_is_left_out_there():
    x = np.column_stack([normals(300), np.arange(300) == 7])
    found = Neural(folds=2, steps=40).estimate(x, x[:, :1] + normals(300, 1, seed=1))
    assert found.value > 0.1
    with pytest.raises(InfolmError, match="varies so rarely"):
        Neural(folds=2, steps=40).estimate(x[:, 1], normals(300))


def test_many_rows_are_read_in_parts(monkeypatch):
    """The mean of the parts' bounds, with an error to match, in bounded memory."""
    task = CorrelatedGaussian.with_information(1, 0.5)
    x, y = task.sample(800, np.random.default_rng(0))
    whole = Neural(folds=2, steps=10).estimate(x, y)
    monkeypatch.setattr(neural, "READ", 100)
    in_parts = Neural(folds=2, steps=10).estimate(x, y)
    assert in_parts.value == pytest.approx(whole.value, abs=whole.stderr)
    assert in_parts.stderr == pytest.approx(whole.stderr, rel=0.5)


# Bad input


@pytest.mark.parametrize(
    ("estimator", "x", "y", "words"),
    [
        (Neural(folds=2), normals(79, 2), normals(79, 2), "79 pairs are too few.*needs 80"),
        (Neural(), normals(100), normals(100), "needs 200"),
        (Neural(folds=1), normals(100), normals(100), "1 folds are too few"),
        (Neural(), normals(300), normals(301), "300 rows and y has 301"),
        (Neural(), np.ones(300), normals(300), "constant"),
        (Neural(), np.where(np.arange(300) == 7, np.nan, 1.0), normals(300), "row 7"),
    ],
)
def test_bad_input_is_told_in_a_sentence(estimator, x, y, words):
    with pytest.raises(InfolmError, match=words):
        estimator.estimate(x, y)
