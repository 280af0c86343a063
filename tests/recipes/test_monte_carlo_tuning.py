"""The ranges of table 5.2 (Melis 2023) in the recipes of its chapter, and in their variants."""

import shlex

import pytest

from infolm.config import load_recipe, recipe_names
from infolm.studies.tuning.study import check_space, with_values

TABLE = {  # min, max, log
    "optimiser.learning_rate": (0.0001, 0.01, True),
    "objective.lambda": (-0.05, 0.9999, False),
    "objective.alpha": (0.86, 16.0, True),
    "model.decoder.dropout.input": (0.0, 0.9, False),
    "model.decoder.dropout.state": (0.0, 0.8, False),
    "model.decoder.dropout.output": (0.0, 0.95, False),
    "optimiser.weight_decay": (5e-6, 1e-3, True),
    "model.latent.variables": (1, 8, False),
    "model.latent.classes": (2, 20, False),
    "objective.commitment": (0.01, 20.0, True),
    "objective.decay": (0.9, 0.99999, True),
}
NAMES = [name for name in recipe_names() if name.startswith(("monte-carlo/s", "monte-carlo/p"))]
VARIANTS = [(name, variant) for name in NAMES for variant in ["", *load_recipe(name).variants]]


def of(name, variant):
    return load_recipe(name, shlex.split(load_recipe(name).variants.get(variant, "")))


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_ranges_are_those_of_the_table_and_the_recipe_accepts_their_ends(name, variant):
    recipe = of(name, variant)
    check_space(recipe)
    for key, section in recipe.tuning.items():
        assert (section.low, section.high, section.log) == TABLE[key]
        assert section.integer == (key in ("model.latent.variables", "model.latent.classes"))
        for end in section.ends():
            with_values(recipe, {key: end})  # raises where the keys do not go together


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_what_is_tuned(name, variant):
    """The learning rate always; the rest "only apply in specific circumstances"."""
    recipe = of(name, variant)
    wanted = {"optimiser.learning_rate"}
    if recipe.objective.kind == "vq":
        wanted |= {key for key in TABLE if "latent" in key or key.endswith(("ment", "decay"))}
        wanted -= {"optimiser.weight_decay"}
    elif recipe.objective.augment in ("kl", "renyi"):
        wanted |= {"objective.lambda"}
    elif recipe.objective.augment == "power":
        wanted |= {"objective.alpha"}
    if variant == "l2":
        wanted |= {"optimiser.weight_decay"}
    elif name.startswith("monte-carlo/ptb"):
        wanted |= {key for key in TABLE if "dropout" in key}
    assert set(recipe.tuning) == wanted


def test_every_row_of_the_table_is_somewhere():
    assert {key for name, variant in VARIANTS for key in of(name, variant).tuning} == set(TABLE)
