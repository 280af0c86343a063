"""An override brings along what it needs, unless that was given too; and the plan says so."""

import pytest
from training_tiny import Silent, quiet

from infolm.config import load_recipe
from infolm.errors import InfolmError
from infolm.families.train import train


def test_an_objective_brings_the_feed_and_the_head_it_needs():
    recipe = load_recipe("infoword/demo", ["objective.kind=skip-gram"])
    assert (recipe.feed.kind, recipe.model.head) == ("windows", "context")
    assert recipe.brought == "feed.kind=windows, model.head=context"


def test_what_already_fits_stays_as_it_is():
    recipe = load_recipe("infoword/demo", ["objective.kind=mlm"])
    assert recipe.feed == load_recipe("infoword/demo").feed
    assert recipe.brought == ""
    assert load_recipe("infoword/demo").brought == ""


def test_a_code_of_another_kind_is_brought_too():
    recipe = load_recipe("monte-carlo/ptb-categorical-small", ["objective.kind=vq"])
    assert recipe.model.latent.kind == "quantised"


def test_what_was_given_is_not_changed_but_refused():
    with pytest.raises(InfolmError, match=r"set feed\.kind to windows"):
        load_recipe("infoword/demo", ["objective.kind=skip-gram", "feed.kind=sequences"])


def test_another_model_is_never_brought():
    with pytest.raises(InfolmError, match=r"set model.kind to sentence \(it is recurrent\)"):
        load_recipe("awd-lstm/demo", ["objective.kind=mim"])


def test_a_value_releases_keys_that_mean_nothing_with_it():
    recipe = load_recipe("monte-carlo/demo", ["objective.augment=none"])
    assert (recipe.objective.weight, recipe.objective.alpha) == (0, 1)
    assert "objective.lambda at its default" in recipe.brought
    with pytest.raises(InfolmError, match="lambda is the weight of kl and renyi"):
        load_recipe("monte-carlo/demo", ["objective.augment=none", "objective.lambda=0.5"])


def test_the_plan_says_what_was_brought(tmp_path, small_text):
    watcher = Silent()
    text = [f"data.path={small_text}", "data.vocabulary=200", "train.max_steps=1", "feed.batch=2"]
    text.append("feed.length=8")
    sizes = ["model.hidden=8", "model.heads=2", "model.layers=1"]
    recipe = load_recipe("infoword/demo", ["objective.kind=skip-gram", *text, *sizes])
    train(recipe, tmp_path / "run", False, watcher, quiet)
    assert any("with feed.kind=windows, model.head=context" in line for line in watcher.said)
