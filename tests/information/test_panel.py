"""The panel: the interval holds the truth, or there is a warning; and none where none is due."""

import math
from dataclasses import replace

import numpy as np
import pytest

from infolm.information.estimate import Estimate
from infolm.information.evidence import Evidence
from infolm.information.exact import (
    CorrelatedGaussian,
    StudentT,
    UniformNoise,
    mutual_information,
)
from infolm.information.gaussian import Gaussian
from infolm.information.panel import Judgement, Panel, judged, with_critic
from infolm.information.registry import estimator


def answer(x, y, **settings):
    return Panel(fast=True, permutations=39, **settings).estimate(x, y)


def holds(answer, truth):
    low, high = answer.interval
    return low <= truth <= high


@pytest.mark.parametrize(
    ("dimension", "nats", "samples"),
    [(1, 0.3, 200), (1, 1.0, 2_000), (2, 0.0, 500), (4, 0.5, 1_000), (10, 1.0, 1_500)],
)
def test_gaussians_need_no_warning(dimension, nats, samples):
    task = CorrelatedGaussian.with_information(dimension, nats)
    found = answer(*task.sample(samples, np.random.default_rng(4)))
    assert found.warning is None
    assert holds(found, nats)
    assert found.kind == ("about" if nats else "none")


def test_what_columns_are_like_does_not_matter():
    rng = np.random.default_rng(4)
    x = rng.standard_normal(800)
    y = 0.7 * x + math.sqrt(0.51) * rng.standard_normal(800)
    plain, bent = answer(x, y), answer(np.exp(4 * x), y**5)
    assert bent.value == pytest.approx(plain.value, abs=1e-9)
    assert bent.interval == pytest.approx(plain.interval, abs=1e-9)


def test_rounded_independent_columns_share_nothing():
    x, y = np.round(10 * np.random.default_rng(5).standard_normal((2, 1_000)))
    found = answer(x, y)
    assert found.kind == "none"
    assert found.interval[0] == 0
    assert found.warning is None
    mixture = estimator("mixture").estimate(x, y)
    assert mixture.interval[0] == 0
    assert "withdrawn" in mixture.warning


def test_heavy_tails_and_hard_edges():
    rng = np.random.default_rng(6)
    cauchy = StudentT(CorrelatedGaussian.from_correlations([0.0]), 1)
    for task in (cauchy, UniformNoise(0.75)):
        found = answer(*task.sample(2_000, rng))
        assert holds(found, task.mutual_information)
        assert found.warning is None


def test_neighbours_of_heavy_tailed_columns_say_that_their_ranks_disagree():
    rng = np.random.default_rng(4)
    x = rng.standard_normal(800)
    y = 0.8 * x + 0.6 * rng.standard_normal(800)
    found = estimator("ksg").estimate(np.exp(4 * x), y**5)
    assert "disagree" in found.warning
    low, high = found.interval
    assert low <= -0.5 * math.log(1 - 0.64) <= high


def ring(rng, samples=1_000):
    angle = 2 * np.pi * rng.random(samples)
    radius = 1 + 0.1 * rng.standard_normal(samples)
    return radius * np.cos(angle), radius * np.sin(angle)


def test_a_correlation_that_misses_a_ring_says_so():
    x, y = ring(np.random.default_rng(7))
    assert abs(Gaussian(copula=True).estimate(x, y).value) < 0.02
    found = estimator("copula").estimate(x, y)
    assert "disagree" in found.warning
    assert found.interval[1] > 0.6
    assert 0.6 < answer(x, y).value < 0.85


@pytest.mark.parametrize("periods", [30, 300])
def test_what_is_too_fine_is_told(periods):
    rng = np.random.default_rng(8)
    x = rng.random(1_000)
    y = np.sin(2 * np.pi * periods * x) + 0.2 * rng.standard_normal(1_000)
    found = answer(x, y)
    assert any(each in found.warning for each in ("oscillation", "waves", "grows with the rows"))
    assert found.verdict.startswith("at least")


def test_nearly_deterministic_pairs_reach_the_ceiling():
    rng = np.random.default_rng(9)
    x = rng.standard_normal(500)
    for y in (x + 1e-6 * rng.standard_normal(500), x, x**2):
        found = answer(x, y)
        assert found.warning
        assert found.kind == "at least"


def test_rows_in_time_are_told_by_every_estimator():
    walks = np.random.default_rng(10).standard_normal((2, 800)).cumsum(1)
    found = answer(*walks)
    assert found.verdict == "these rows are a time series"
    for name in ("ksg", "gaussian", "mixture"):
        assert "--sequence" in estimator(name).estimate(*walks).warning


def test_copies_of_rows_are_told():
    rng = np.random.default_rng(11)
    x, y = rng.standard_normal((2, 300))
    order = rng.permutation(600)
    found = answer(np.tile(x, 2)[order], np.tile(y, 2)[order])
    assert "copies" in found.warning


def test_values_that_both_columns_often_have_are_no_copies():
    rng = np.random.default_rng(12)
    on = rng.random(1_000) < 0.5
    x, y = np.exp(rng.standard_normal((2, 1_000))) * on
    found = answer(x, y)
    assert found.warning is None
    assert holds(found, math.log(2))


def test_a_table_leads_where_it_is_filled():
    rng = np.random.default_rng(13)
    x = rng.integers(0, 3, 1_000)
    y = np.where(rng.random(1_000) < 0.5, x, rng.integers(0, 3, 1_000))
    joint = 0.5 * np.eye(3) / 3 + 0.5 / 9
    truth = (joint * np.log(9 * joint)).sum()
    found = answer(x, y)
    assert [each.estimator for each in found.estimates] == ["ksg-scores", "copula", "miller-madow"]
    assert found.value == found.estimates[-1].value
    assert holds(found, truth)


def test_p_values_of_independent_pairs_are_not_small_too_often():
    """Of 20, one is expected below 0.05; five or more have a probability below 0.003."""
    small = sum(
        answer(*np.random.default_rng(seed).standard_normal((2, 100))).p_value <= 0.05
        for seed in range(20)
    )
    assert small <= 4


def test_the_same_seed_gives_the_same():
    x, y = ring(np.random.default_rng(14), 300)
    assert answer(x, y, seed=3) == answer(x, y, seed=3)


def test_a_class_beside_a_continuous_column():
    """Three classes two standard deviations apart: 0.619 nats, without a warning; the classes need
    no order."""
    rng = np.random.default_rng(31)
    classes = rng.integers(0, 3, 800)
    y = 2 * np.array([1, 2, 0])[classes] + rng.standard_normal(800)
    found = answer(classes, y)
    assert found.warning is None
    assert holds(found, 0.619)
    assert found.value == pytest.approx(0.619, abs=0.08)


def test_rows_that_are_copies_of_each_other_across_the_sides():
    rng = np.random.default_rng(32)
    x, y = rng.standard_normal((2, 200))
    y[:60] = x[:60]
    found = answer(x, y)
    assert found.kind == "at least"
    assert "near equality" in found.warning


def test_a_dozen_rows_are_too_few_but_no_error():
    x = np.arange(12.0)
    found = answer(x, x[::-1] ** 2)
    assert "too few" in found.warning


def test_ranks_are_read_beside_normal_scores():
    """On a Gaussian both read the same; what ranks read beyond two standard errors is the value."""
    task = CorrelatedGaussian.with_information(1, 0.5)
    evidence = Evidence(*task.sample(400, np.random.default_rng(33)))
    near = evidence.nearest
    assert near.uniform == pytest.approx(near.value - near.bias, abs=2 * near.stderr)
    plain = judged(evidence)
    evidence.nearest = replace(near, uniform=near.uniform + 1)  # as if edges were hard
    of_ranks = judged(evidence)
    assert of_ranks.value == pytest.approx(near.uniform + 1)
    assert of_ranks.high >= plain.high + 0.9


def bound(value, stderr=0.02):
    return Estimate("mine", value, stderr, (value - 0.04, value + 0.1), 0.0, 1_000, bound="lower")


def test_a_bound_beside_a_judgement():
    doubtful = Judgement(0.5, 0.4, 0.8, of_value=("a doubt",))
    above = with_critic(doubtful, bound(0.7))  # above the value, within the interval
    assert above.value == 0.7
    assert above.low == pytest.approx(0.65)
    assert above.high == pytest.approx(0.8)
    beyond = with_critic(doubtful, bound(1.2))  # above the interval
    assert beyond.value == 1.2
    assert beyond.lower_limit
    assert "a critic finds 1.20 nats" in beyond.warning
    near = with_critic(doubtful, bound(0.48))  # another kind that agrees takes the doubt away
    assert near.value == 0.5
    assert near.warning is None
    far = with_critic(doubtful, bound(0.1))  # a critic that has learnt nothing says nothing
    assert (far.value, far.low, far.high) == (0.5, 0.4, 0.8)
    assert far.warning == "a doubt"


def test_a_fine_pattern_of_a_class_still_grows_with_the_rows():
    """The class is the seventh binary digit of x: ln 2, of which neighbours of 1,000 rows see two
    thirds."""
    x = np.random.default_rng(34).random(1_000)
    found = answer(x, (128 * x).astype(int) % 2)
    assert "grows with the rows" in found.warning
    assert holds(found, math.log(2))


def test_classes_in_no_order_are_told_where_pairs_are_few():
    """y is one of 5 groups of 60 classes, mixed: neighbours of the classes' numbers see nothing."""
    rng = np.random.default_rng(35)
    groups = rng.integers(0, 5, 60)
    x = rng.integers(0, 60, 400)
    evidence = Evidence(x, np.where(rng.random(400) < 0.5, groups[x], rng.integers(0, 5, 400)))
    assert not evidence.sampled_table
    assert "no order" in evidence.screens[-1].what
    assert evidence.screens[-1].p_value < 1e-4
    other = Evidence(x, rng.integers(0, 5, 400))
    assert other.screens[-1].p_value > 0.01


def test_classes_in_no_order_are_counted_beside_other_columns():
    """A table of 8 x 8 classes beside a Gaussian pair: the codes are no numbers, and neighbours do
    not resolve them."""
    rng = np.random.default_rng(38)
    p = rng.dirichlet(np.full(8, 0.8), 8) / 8
    truth = mutual_information(p) - 0.5 * math.log(1 - 0.36)
    cell = rng.choice(64, 3_000, p=p.ravel())
    x, y = rng.standard_normal((2, 3_000))
    y = 0.6 * x + 0.8 * y
    found = answer(np.column_stack([cell // 8, x]), np.column_stack([cell % 8, y]))
    assert "classes in no order" in found.warning
    assert holds(found, truth)
    assert found.interval[0] > 0.8 * truth
    alone = Evidence(
        np.column_stack([cell // 8, x]), np.column_stack([rng.permutation(cell % 8), y])
    )
    assert alone.screens[-1].p_value > 0.01


def test_the_screens_have_a_tenth_of_the_level():
    """p is the smaller of both p-values over their shares of the level, 0.9 and 0.1."""
    evidence = Evidence(*np.random.default_rng(36).standard_normal((2, 60)))
    least = min(hit.p_value for hit in evidence.screens)
    found = {count: evidence.p_value(count) for count in (19, 39)}
    for count, p in found.items():
        by_permutation = p * 0.9 * (count + 1)
        assert p == pytest.approx(min(10 * least, 1.0)) or by_permutation == pytest.approx(
            round(by_permutation)
        )
