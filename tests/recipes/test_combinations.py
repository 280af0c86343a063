"""Any averager, cell, softmax, objective and evaluation goes with any other."""

import itertools

import pytest
from training_tiny import Silent, quiet, tiny_tree
from whole import WHOLE

from infolm.config import Recipe
from infolm.evaluation.dynamic import DynamicSettings, gradient_statistics
from infolm.evaluation.method import Method, measure
from infolm.evaluation.monte_carlo import MonteCarloSettings
from infolm.evaluation.neural_cache import CacheSettings
from infolm.families.running.run import LanguageRun
from infolm.families.train import train

AVERAGERS = {
    "none": {},
    "polyak": {},
    "tail": {"start": 1},
    "triggered": {"latest": 0.5},
    "ema": {},
    "swa": {"start": 1, "every": 1},
    "two-tailed": {},
}
CELLS = ["lstm", "gru", "elman", "rewired", "multiplicative"]
ROUNDS, EXPERTS, SAMPLES = (0, 3), (1, 3), (1, 2)
CONNECTIONS = ("stacked", "residual")
WALKS = itertools.product(
    (None, DynamicSettings(rate=1e-3, decay=1e-2, segment=5)), (None, MonteCarloSettings(2, span=5))
)
METHODS = [
    [
        Method(dynamic, samples, temperature, cache)
        for temperature in (1.0, 0.9)
        for cache in (None, CacheSettings(window=5))
    ]
    for dynamic, samples in WALKS
]


def recipe(small_text, averager, cell, rounds, experts, samples, connections) -> Recipe:
    # Many short streams: validating is then a few steps long.
    tree = tiny_tree(small_text, max_steps=2, validate_every=1, validation_streams=100)
    tree["feed"] = {"batch": 2, "bptt": 3, "variable": False}
    tree["model"] |= {
        "cell": cell,
        "mogrifier": {"rounds": rounds, "rank": 3},
        "connections": connections,
        "softmax": {"experts": experts},
        "capped": True,
        "chrono": 10,
    }
    tree["model"]["dropout"]["state"] = 0.2
    tree["objective"]["dropout_samples"] = samples
    tree["averaging"] = {"kind": averager, **AVERAGERS[averager]}
    tree["optimiser"] = {"kind": "radam", "learning_rate": 0.01, "clip": 10}
    return Recipe.model_validate(tree)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("averager", AVERAGERS)
def test_the_cross_product_trains_two_steps(tmp_path, small_text, averager, cell):
    """An eighth of it for each cell and averager, another eighth for their neighbours; `make
    faults` has the whole."""
    first = (list(CELLS).index(cell) + list(AVERAGERS).index(averager)) % 8
    product = list(itertools.product(ROUNDS, EXPERTS, SAMPLES, CONNECTIONS))
    for i, rest in enumerate(product if WHOLE else product[first::8]):
        combined = recipe(small_text, averager, cell, *rest)
        best = train(combined, tmp_path / str(i), False, Silent(), quiet)
        assert 2 < best < 6, rest  # a guess among 40 words is 3.7


@pytest.mark.parametrize("cell", CELLS)
def test_every_model_is_measured_by_every_combination_of_methods(tmp_path, small_text, cell):
    product = list(itertools.product(ROUNDS, EXPERTS, CONNECTIONS))
    first = CELLS.index(cell) % 4
    for i, (rounds, experts, connections) in enumerate(product if WHOLE else product[first::4]):
        out = tmp_path / str(i)
        combined = recipe(small_text, "two-tailed", cell, rounds, experts, 1, connections)
        train(combined, out, False, Silent(), quiet)
        opened = LanguageRun.open(out)
        splits = opened.corpus.splits
        statistics = gradient_statistics(opened.model, splits["train"].tokens[:50])
        for methods in METHODS:
            read = measure(opened.model, splits["valid"].tokens[:11], methods, 5, statistics)
            nll = [-reading.log_probs.mean() for reading in read]
            assert all(1 < each < 6 for each in nll)
            assert len(set(nll)) == len(nll)  # each method does something
