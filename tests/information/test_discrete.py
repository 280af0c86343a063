"""Information of counts: tables whose entropies are known, and what a small sample does to them."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.errors import InfolmError
from infolm.information.discrete import (
    MillerMadow,
    PlugIn,
    Table,
    miller_madow_entropy,
    plug_in_entropy,
)

untimed = settings(deadline=None, max_examples=50)
ESTIMATORS = [PlugIn(), MillerMadow()]


def samples_of(table, samples, seed):
    table = np.asarray(table)
    cells = np.random.default_rng(seed).choice(table.size, samples, p=table.ravel())
    return np.divmod(cells, table.shape[1])


def truth_of(table):
    table = np.asarray(table)
    return plug_in_entropy(table.sum(1)) + plug_in_entropy(table.sum(0)) - plug_in_entropy(table)


def leaning(symbols, weight):
    """y = x with this probability, else anything."""
    return weight * np.eye(symbols) / symbols + (1 - weight) / symbols**2


def slow_information(xs, ys):
    """The plug-in over dictionaries, with exact probabilities."""
    samples = len(xs)
    x, y, both = Counter(xs), Counter(ys), Counter(zip(xs, ys, strict=True))
    return sum(
        Fraction(c, samples) * Fraction(math.log(Fraction(c * samples, x[a] * y[b])))
        for (a, b), c in both.items()
    )


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([5], 0.0),
        ([1, 1], math.log(2)),
        ([2, 2, 0, 4], 1.5 * math.log(2)),
        ([[1, 1], [1, 1]], math.log(4)),
    ],
)
def test_entropies_of_tables_made_by_hand(counts, expected):
    assert plug_in_entropy(counts) == pytest.approx(expected, abs=1e-12)
    symbols, total = np.count_nonzero(counts), np.sum(counts)
    corrected = expected + (symbols - 1) / (2 * total)
    assert miller_madow_entropy(counts) == pytest.approx(corrected, abs=1e-12)


pairs_of_symbols = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=60
).filter(lambda pairs: all(len(set(side)) > 1 for side in zip(*pairs, strict=True)))


@given(pairs_of_symbols)
@untimed
def test_plug_in_against_dictionaries_and_the_entropies(pairs):
    x, y = (np.array(side) for side in zip(*pairs, strict=True))
    table = Table.of(x[:, None], y[:, None])
    expected = float(slow_information(x.tolist(), y.tolist()))
    assert table.plug_in() == pytest.approx(expected, abs=1e-12)
    for entropy, value in (
        (plug_in_entropy, PlugIn().estimate(x, y).value),
        (miller_madow_entropy, MillerMadow().estimate(x, y).value),
    ):
        of_counts = entropy(table.counts_x) + entropy(table.counts_y) - entropy(table.counts_both)
        assert value == pytest.approx(of_counts, abs=1e-12)


@given(pairs_of_symbols)
@untimed
def test_names_of_symbols_and_the_order_of_the_sides_do_not_matter(pairs):
    x, y = (np.array(side) for side in zip(*pairs, strict=True))
    value = PlugIn().estimate(x, y).value
    assert PlugIn().estimate(y, x).value == pytest.approx(value, abs=1e-12)
    renamed = np.array([0.5, -7.0, 2.0**40, 3.0])[x]
    if len(set(renamed)) <= 0.9 * len(x):
        assert PlugIn().estimate(renamed, y).value == pytest.approx(value, abs=1e-12)


def test_a_row_is_one_symbol():
    x = np.array([[0, 1], [1, 0], [0, 1], [1, 1]] * 5)
    codes = x @ [1, 2]
    y = np.array([0, 1, 0, 0] * 5)
    assert PlugIn().estimate(x, y).value == PlugIn().estimate(codes, y).value
    assert PlugIn().estimate(codes, codes).value == pytest.approx(plug_in_entropy([10, 5, 5]))


@pytest.mark.parametrize("symbols", [2, 3, 6])
def test_the_first_order_bias_at_independence(symbols):
    samples, runs = 300, 200
    table = np.full((symbols, symbols), 1 / symbols**2)
    plain, corrected = np.array(
        [
            (
                Table.of(x[:, None], y[:, None]).plug_in(),
                Table.of(x[:, None], y[:, None]).miller_madow(),
            )
            for x, y in (samples_of(table, samples, seed) for seed in range(runs))
        ]
    ).T
    error = plain.std() / math.sqrt(runs)
    assert plain.mean() == pytest.approx((symbols - 1) ** 2 / (2 * samples), abs=4 * error + 1e-4)
    assert corrected.mean() == pytest.approx(0, abs=4 * error + 1e-4)


def test_miller_madow_entropy_of_a_known_table_is_nearly_unbiased():
    p = np.array([0.4, 0.3, 0.2, 0.1])
    runs = np.random.default_rng(0).multinomial(100, p, size=2000)
    values = np.array([miller_madow_entropy(counts) for counts in runs])
    plain = np.array([plug_in_entropy(counts) for counts in runs])
    error = values.std() / math.sqrt(len(values))
    assert values.mean() == pytest.approx(plug_in_entropy(p), abs=4 * error)
    assert plain.mean() < plug_in_entropy(p) - 4 * error


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
@pytest.mark.parametrize(
    ("symbols", "weight", "samples"),
    [(2, 0.0, 100), (2, 0.2, 100), (3, 0.7, 300), (3, 1.0, 200), (10, 0.2, 500)],
)
def test_intervals_cover_the_truth(estimator, symbols, weight, samples):
    table, runs = leaning(symbols, weight), 60
    truth = truth_of(table)
    estimates = [estimator.estimate(*samples_of(table, samples, seed)) for seed in range(runs)]
    covered = sum(low - 1e-12 <= truth <= high for low, high in (e.interval for e in estimates))
    assert covered >= 0.95 * runs - 3 * math.sqrt(0.95 * 0.05 * runs)


def test_the_error_is_the_true_spread():
    table = leaning(3, 0.5)
    estimates = [PlugIn().estimate(*samples_of(table, 500, seed)) for seed in range(150)]
    spread = np.std([e.value for e in estimates])
    assert np.mean([e.stderr for e in estimates]) == pytest.approx(spread, rel=0.2)


def test_undersampling_is_told():
    x, y = np.random.default_rng(0).integers(0, 50, (2, 500))
    estimate = PlugIn().estimate(x, y)
    assert "undersampled: 500 pairs fall into" in estimate.warning
    assert estimate.interval[0] < 0.1 < 1 < estimate.value
    assert PlugIn().estimate(x % 2, y % 2).warning is None


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
def test_shuffled_pairs_share_nothing_but_the_bias(estimator):
    x = np.random.default_rng(1).integers(0, 4, 2000)
    estimate = estimator.estimate(x, x)
    assert estimate.value == pytest.approx(math.log(4), abs=0.01)
    assert abs(estimate.permuted) < 0.01
    assert estimate == estimator.estimate(x, x)


# Bad input

GOOD = np.tile([[0, 1], [1, 0], [1, 1]], (10, 1))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.where(np.arange(60).reshape(30, 2) == 7, np.nan, GOOD), GOOD, "x is not a finite"),
        (GOOD, np.where(np.arange(60).reshape(30, 2) == 7, np.inf, GOOD), "y is not a finite"),
        (GOOD, np.ones(30), "constant"),
        (GOOD, GOOD[:20], "30 rows and y has 20"),
        (GOOD[None], GOOD, "shape"),
        (np.array(["a", "b", "c"] * 10), GOOD, "numbers"),
        (GOOD, np.random.default_rng(0).random(30), "30 rows of y are distinct.*use ksg"),
    ],
)
def test_bad_input_is_told_in_a_sentence(estimator, x, y, words):
    with pytest.raises(InfolmError, match=words):
        estimator.estimate(x, y)
