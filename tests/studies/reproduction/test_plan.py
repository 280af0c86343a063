"""Reproductions: the points that they consist of, and what is refused."""

import math

import pytest

from infolm.errors import InfolmError
from infolm.studies.reproduction.plan import identity, load_plan, names

from .conftest import TINY, tiny, written


def test_points_have_names_values_and_recipes(tiny_file):
    plan = load_plan(str(tiny_file), TINY)
    assert list(plan.points) == [
        "dreg-1-lambda-0.2",
        "dreg-1-lambda-0.8",
        "dreg-4-kl-lambda-0.2",
        "dreg-4-renyi-lambda-0.2-alpha-1.5",
    ]
    point = plan.points["dreg-4-renyi-lambda-0.2-alpha-1.5"]
    assert point.values == {"dreg-4-renyi": {"objective.lambda": 0.2, "objective.alpha": 1.5}}
    assert point.recipe.objective.weight == 0.2
    assert point.recipe.objective.samples == 4
    assert point.recipe.train.max_steps == 5
    assert point.optimum == math.log(8)


def test_the_entropy_of_ones_own_text_is_not_known(tiny_file):
    plan = load_plan(str(tiny_file), [*TINY, "data.path=words.txt"])
    assert {point.optimum for point in plan.points.values()} == {None}


def test_what_curves_have_in_common_is_one_point(tiny_file):
    plan = load_plan(str(tiny_file), TINY)
    shared = plan.points["dreg-1-lambda-0.8"]
    assert shared.values == {"dreg-1": {"objective.lambda": 0.8}, "same": {}}
    assert plan.of_curve("same") == [shared]


def test_sweeps_are_products(tmp_path):
    tree = tiny()
    tree["curves"]["dreg-4-renyi"]["sweep"]["objective.alpha"] = [1.2, 1.5, 2]
    tree["curves"]["dreg-4-renyi"]["sweep"]["objective.lambda"] = [0.1, 0.00001]
    plan = load_plan(str(written(tmp_path, curves=tree["curves"])))
    found = [point.recipe.objective for point in plan.of_curve("dreg-4-renyi")]
    assert [(each.weight, each.alpha) for each in found] == [
        (a, b) for a in (0.1, 0.00001) for b in (1.2, 1.5, 2)
    ]


def test_a_recipe_is_the_same_however_often_it_is_saved(tiny_file):
    plain, often, longer = (
        load_plan(str(tiny_file), [*TINY, change]).points["dreg-1-lambda-0.2"].recipe
        for change in ("seed=1", "train.checkpoint_seconds=7", "train.epochs=800")
    )
    assert identity(plain) == identity(often) != identity(longer)


@pytest.mark.parametrize("name", names())
def test_those_that_come_with_infolm(name):
    plan = load_plan(name)
    assert plan.reproduction.title
    assert plan.reproduction.paper
    shown = {curve for figure in plan.reproduction.figures.values() for curve in figure.curves}
    assert shown == set(plan.reproduction.curves)
    assert all(len(plan.of_curve(curve)) > 1 for curve in shown)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("figures", "1", "curves"), ["dreg-2"], "no such curve, did you mean 'dreg-1'"),
        (("figures", "1", "split"), "valid", "add it there"),
        (("figures", "1", "colour"), "red", "there is no key 'colour'"),
        (("curves", "dreg-1", "recipe"), "monte-carlo/synthetik", "curve dreg-1: there is no rec"),
        (("curves", "dreg-1", "recipe"), "awd-lstm/ptb", "no latent code"),
        (("curves", "dreg-1", "set"), "objective.samples=0", "curve dreg-1: monte-carlo/"),
        (("curves", "dreg 1"), {"label": "", "recipe": ""}, "'dreg 1' must be part of a file"),
        (("samples",), 0, "samples: input should be greater than or equal to 1, not 0"),
    ],
)
def test_what_is_refused(tmp_path, path, value, words):
    tree = tiny()
    *parents, last = path
    node = tree
    for parent in parents:
        node = node[parent]
    node[last] = value
    if path[-1] == "recipe" and value == "awd-lstm/ptb":
        tree["curves"] = {"dreg-1": {"label": "x", "recipe": value}}
        tree["figures"] = {}
    with pytest.raises(InfolmError, match=words.replace("(", r"\(")):
        load_plan(str(written(tmp_path, **tree)))


def test_a_swept_key_cannot_be_set(tiny_file):
    with pytest.raises(InfolmError, match=r"objective\.lambda is what curve dreg-1 sweeps over"):
        load_plan(str(tiny_file), ["objective.lambda=0.5"])


def test_unknown_names_and_files(tmp_path):
    with pytest.raises(InfolmError, match="did you mean 'monte-carlo/synthetic-small'"):
        load_plan("monte-carlo/synthetic-smal")
    with pytest.raises(InfolmError, match="cannot be read"):
        load_plan(str(tmp_path / "none.yaml"))
    (tmp_path / "list.yaml").write_text("- a")
    with pytest.raises(InfolmError, match="not a reproduction"):
        load_plan(str(tmp_path / "list.yaml"))
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(InfolmError, match="not valid YAML"):
        load_plan(str(tmp_path / "bad.yaml"))
