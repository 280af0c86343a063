"""A recipe under one of its variants' names, and on another text than its own."""

import shlex

import pytest
import yaml

from infolm.config import load_recipe, recipe_names
from infolm.errors import InfolmError

SAID = {"title", "expected"}


def settings(*arguments):
    """All of a recipe but what it says of itself."""
    return load_recipe(*arguments).model_dump(exclude=SAID)


@pytest.mark.parametrize("name", [name for name in recipe_names() if load_recipe(name).variants])
def test_a_variant_is_the_overrides_of_its_name(name):
    recipe = load_recipe(name)
    for variant, changes in recipe.variants.items():
        assert settings(name, [], [variant]) == settings(name, shlex.split(changes))
        assert (settings(name, [], [variant]) != settings(name)) == bool(changes)
        changed = load_recipe(name, [], [variant])
        assert changed.title == f"{recipe.title}, variant {variant}"
        assert changed.expected == (None if changes else recipe.expected)


def test_overrides_win_over_the_variant_and_later_variants_over_earlier():
    rounds = ["model.mogrifier.rounds=3"]
    assert load_recipe("mogrifier/ptb", rounds, ["LSTM"]).model.mogrifier.rounds == 3
    lengths = ["length 100", "length 200"]
    recipe = load_recipe("mogrifier/reverse-copy", [], ["LSTM", *lengths])
    assert recipe.data.reverse_copy.length == 200
    assert recipe.model.mogrifier.rounds == 0
    assert recipe.title.endswith(", variant LSTM and length 100 and length 200")
    assert load_recipe("mogrifier/ptb", ["title=Mine"], ["LSTM"]).title == "Mine"


@pytest.mark.parametrize(
    ("name", "variant", "sentence"),
    [
        ("mogrifier/ptb", "lstm", r"no variant 'lstm', did you mean 'LSTM'\? \(there are LSTM, "),
        ("mogrifier/ptb", "xyz", r"no variant 'xyz' \(there are LSTM, full rank, no zigzag, mLSTM"),
        ("awd-lstm/demo", "lstm", "awd-lstm/demo has no variants"),
    ],
)
def test_a_name_that_is_not_there(name, variant, sentence):
    with pytest.raises(InfolmError, match=sentence):
        load_recipe(name, [], [variant])


def test_values_of_a_variant_are_quoted_as_in_a_shell(tmp_path):
    tree = load_recipe("bmi/demo").model_dump(mode="json")
    ends = '[".", "?"]'
    tree["variants"] = {"ends": f"regularisers.bmi.ends='{ends}' seed=2", "bad": "title='x"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree))
    recipe = load_recipe(str(tmp_path / "mine.yaml"), [], ["ends"])
    assert (recipe.regularisers.bmi.ends, recipe.seed) == ([".", "?"], 2)
    with pytest.raises(InfolmError, match=r"variants\.bad: No closing quotation"):
        load_recipe(str(tmp_path / "mine.yaml"), [], ["bad"])


@pytest.mark.parametrize(
    ("change", "text"),
    [("data.path=book.txt", "book.txt"), ("data.corpus=wikitext-2", "wikitext-2")],
)
def test_another_text_has_another_title_and_nothing_is_expected_of_it(change, text):
    own = load_recipe("awd-lstm/ptb")
    assert own.expected
    assert load_recipe("awd-lstm/ptb", ["seed=2", "data.corpus=ptb"]).expected == own.expected
    moved = load_recipe("awd-lstm/ptb", [change])
    assert (moved.title, moved.expected) == (f"awd-lstm/ptb on {text}", None)
    assert moved.paper == own.paper
    assert load_recipe("awd-lstm/ptb", [change, "title=Mine"]).title == "Mine"
    both = load_recipe("mogrifier/ptb", [change], ["LSTM"])
    assert both.title == f"mogrifier/ptb on {text}, variant LSTM"


def test_a_run_that_kept_what_is_expected_of_its_recipes_corpus_is_read_without(tmp_path):
    tree = load_recipe("awd-lstm/ptb").model_dump(mode="json")
    run = tmp_path / "novel"
    run.mkdir()
    (run / "corpus.json").write_text("{}")
    for path, title, expects in [
        (None, tree["title"], True),
        ("book.txt", "novel on book.txt", False),
    ]:
        tree["data"]["path"] = path
        (run / "recipe.yaml").write_text(yaml.safe_dump(tree))
        recipe = load_recipe(str(run / "recipe.yaml"))
        assert (recipe.title, bool(recipe.expected)) == (title, expects)
