"""What is true of every estimator of arrays."""

import json
import math
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch

from infolm.errors import InfolmError
from infolm.information.estimate import rows
from infolm.information.nearest import KSG
from infolm.information.registry import ESTIMATORS, RECOMMENDED, describe, entry, estimator, side

NAMES = list(ESTIMATORS)
DISCRETE = {"plug-in", "miller-madow"}
ROWS = 200

every = pytest.mark.parametrize("name", NAMES)


def made(name, steps=50):
    """Quick where it would be slow."""
    return estimator(name, **({"folds": 2, "steps": steps} if entry(name).neural else {}))


def drawn(name, dependent=True, seed=3):
    """x (N, 2) and y (N, 1): tables for the discrete, else Gaussian."""
    rng = np.random.default_rng(seed)
    if name in DISCRETE:
        x = rng.integers(0, 2, (ROWS, 2))
        kept = rng.random((ROWS, 1)) < 0.8 * dependent
        return x, np.where(kept, x[:, :1], rng.integers(0, 3, (ROWS, 1)))
    x = rng.standard_normal((ROWS, 2))
    return x, 1.2 * dependent * x[:, :1] + rng.standard_normal((ROWS, 1))


@cache
def usual(name):
    return made(name).estimate(*drawn(name))


@every
def test_the_fields_hold_together(name):
    estimate = usual(name)
    assert estimate.estimator == name
    assert estimate.unit == "nats"
    assert estimate.samples == ROWS
    assert estimate.bound == entry(name).side
    low, high = estimate.interval
    assert 0 <= low <= high
    assert estimate.bound == "upper" or low <= max(estimate.value, 0) <= high
    assert estimate.stderr > 0
    assert len(estimate.folds) == (2 if entry(name).neural else 0)
    if estimate.folds:
        assert estimate.value == pytest.approx(np.mean(estimate.folds))
    assert estimate.warning is None or estimate.warning.strip()
    for number in (estimate.value, *estimate.interval, estimate.stderr, estimate.permuted):
        assert math.isfinite(number)
        assert type(number) is float


@every
def test_it_sees_the_dependence(name):
    estimate = usual(name)
    assert estimate.value > 3 * max(estimate.permuted, estimate.stderr)


@every
def test_in_bits_every_number_is_scaled(name):
    nats, bits = usual(name), usual(name).to("bits")
    assert bits.unit == "bits"
    for field in ("value", "stderr", "interval", "permuted", "folds"):
        expected = np.asarray(getattr(nats, field)) / math.log(2)
        assert np.asarray(getattr(bits, field)) == pytest.approx(expected)
    assert bits.to("nats").value == pytest.approx(nats.value)


@every
def test_it_is_json(name):
    again = json.loads(json.dumps(usual(name).as_dict(), allow_nan=False))
    assert {*("estimator", "value", "stderr", "interval", "permuted", "unit", "warning")} <= {
        *again
    }
    assert again["interval"] == list(usual(name).interval)


@every
def test_the_same_seed_gives_the_same(name):
    assert made(name).estimate(*drawn(name)) == usual(name)


@every
def test_the_order_of_the_rows_does_not_matter(name):
    """Beyond which fold a row falls into."""
    x, y = drawn(name)
    order = np.random.default_rng(0).permutation(ROWS)
    one, other = (made(name, steps=2).estimate(*rows) for rows in ((x, y), (x[order], y[order])))
    tolerance = 4 * math.hypot(one.stderr, other.stderr) if entry(name).neural else 1e-9
    assert other.value == pytest.approx(one.value, abs=tolerance)


@every
def test_what_is_given_may_be_lists_or_tensors_of_any_precision(name):
    x, y = (side.astype(np.float32) for side in drawn(name))
    expected = made(name, steps=2).estimate(x.astype(np.float64), y.astype(np.float64))
    for given in (
        (x, y[:, 0]),
        (x.tolist(), y.tolist()),
        (torch.tensor(x, requires_grad=True), torch.tensor(y)),
    ):
        found = made(name, steps=2).estimate(*given)
        assert found.value == pytest.approx(expected.value, rel=1e-4)
        assert found.stderr == pytest.approx(expected.stderr, rel=1e-3)


@every
def test_whole_numbers_will_do(name):
    rng = np.random.default_rng(1)
    x = rng.permutation(ROWS) if name not in DISCRETE else rng.integers(0, 4, ROWS)
    y = x // 2 + rng.integers(0, 3, ROWS)
    found = made(name, steps=2).estimate(x, y.astype(np.uint8))
    assert found.value > 3 * max(found.permuted, found.stderr)


@every
def test_independent_data_have_none(name):
    estimate = made(name).estimate(*drawn(name, dependent=False))
    assert estimate.interval[0] == 0 or abs(estimate.value) <= 4 * estimate.stderr
    assert estimate.value < 0.15  # a lower bound may be below 0


@every
def test_inputs_and_the_worlds_random_numbers_are_left_alone(name):
    x, y = drawn(name)
    kept = x.copy(), y.copy()
    numpy_state, torch_state = np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    threads = torch.get_num_threads()
    made(name, steps=2).estimate(x, y)
    np.testing.assert_array_equal(x, kept[0])
    np.testing.assert_array_equal(y, kept[1])
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state[1])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert torch.get_num_threads() == threads


def holed(array, value):
    array = array.astype(float)
    array[7, 0] = value
    return array


BAD = {
    "nan": (lambda x, y: (holed(x, np.nan), y), "x is not a finite number in row 7"),
    "inf": (lambda x, y: (x, holed(y, np.inf)), "y is not a finite number in row 7"),
    "constant": (lambda x, y: (np.hstack([x, x[:, :1] * 0]), y), "column 2 of x is constant"),
    "lengths": (lambda x, y: (x, y[1:]), "x has 200 rows and y has 199"),
    "few": (lambda x, y: (x[:1], y[:1]), "x|pairs"),
    "three": (lambda x, y: (x[:3], y[:3]), "too few"),
    "none": (lambda x, y: (x[:0], y[:0]), r"shape \(0, 2\)"),
    "words": (lambda x, y: (x, ["a", "b"] * 100), "does not hold numbers"),
    "objects": (lambda x, y: (x.astype(object), y), "does not hold numbers"),
    "cube": (lambda x, y: (x[None], y), r"shape \(1, 200, 2\)"),
}


@every
@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_refused_in_one_sentence(name, fault):
    if fault == "three" and name in DISCRETE:
        pytest.skip("three pairs make a table")
    spoil, words = BAD[fault]
    with pytest.raises(InfolmError, match=words) as caught:
        made(name).estimate(*spoil(*drawn(name)))
    assert "\n" not in str(caught.value)


def test_a_name_nobody_knows():
    with pytest.raises(InfolmError, match="no estimator 'ksgg', did you mean 'ksg'"):
        estimator("ksgg")
    with pytest.raises(InfolmError, match="did you mean 'mine'"):
        estimator("MINE")
    with pytest.raises(InfolmError, match=r"no estimator 'zzz' \(there are mine, nwj"):
        estimator("zzz")


def test_a_setting_it_does_not_have():
    with pytest.raises(InfolmError, match="ksg has no setting 'folds': it takes neighbours, seed"):
        estimator("ksg", folds=3)
    with pytest.raises(InfolmError, match="'bound'"):
        estimator("mine", bound="nwj")
    assert estimator("ksg", neighbours=7).plain == KSG(neighbours=7)


@every
def test_the_name_is_its_own(name):
    assert estimator(name).name == name
    assert "seed" in entry(name).settings


def test_every_estimator_has_its_line():
    lines = describe()
    assert [line[0] for line in lines] == NAMES
    assert lines[0][0] == RECOMMENDED
    assert {line[2] for line in lines} == {"lower bound", "upper bound", "estimate"}
    assert side("upper") == "upper bound"
    assert all(all(line) for line in lines)


def test_only_neural_estimators_import_torch():
    others = [name for name in NAMES if not entry(name).neural]
    script = (
        "import sys; from infolm.information.registry import describe, estimator; describe();"
        f"[estimator(name) for name in {others}]; assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


@pytest.mark.parametrize("library", ["pandas", "pyarrow", "polars"])
def test_data_frames_are_rows_by_the_arrow_interface(library):
    module = pytest.importorskip(library)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((40, 2))
    words = np.where(x[:, 0] > 0, "up", "down")
    made = {"pandas": "DataFrame", "pyarrow": "table", "polars": "DataFrame"}[library]
    frame = getattr(module, made)({"a": x[:, 0], "b": x[:, 1] > 0, "c": words})
    expected = np.column_stack([x[:, 0], x[:, 1] > 0, x[:, 0] > 0])
    np.testing.assert_array_equal(rows(frame, "x"), expected)
    np.testing.assert_array_equal(rows(frame["a"], "x"), x[:, :1])
    np.testing.assert_array_equal(rows(frame["c"], "x"), expected[:, 2:])
    holes = getattr(module, made)({"a": ["u", None, "v"]})
    with pytest.raises(InfolmError, match="column 'a' of x misses values"):
        rows(holes, "x")
    days = getattr(module, made)({"a": np.array(["2020-01-01", "2021-01-01"], "datetime64[ms]")})
    with pytest.raises(InfolmError, match="column 'a' of x does not hold numbers but timestamp"):
        rows(days, "x")


def test_categories_booleans_and_narrow_tensors_are_numbers():
    pandas = pytest.importorskip("pandas")
    words = pandas.Series(["b", "a", "b"]).astype("category")
    np.testing.assert_array_equal(rows(words, "x"), [[1], [0], [1]])
    np.testing.assert_array_equal(rows([True, False, True], "x"), [[1], [0], [1]])
    narrow = torch.tensor([0.5, 1.0, -2.0], dtype=torch.bfloat16, requires_grad=True)
    np.testing.assert_array_equal(rows(narrow, "x"), [[0.5], [1.0], [-2.0]])
