"""The reference of a recipe's keys is complete, for the terminal and as a page."""

import json

import pytest

from infolm.config import load_recipe, recipe_names
from infolm.errors import InfolmError
from infolm.keys import as_markdown, as_text, beginning, reference
from infolm.shelf import RECIPES
from infolm.trees import leaves


@pytest.fixture(scope="module")
def groups():
    return reference()


def one(groups, title, key):
    (group,) = (group for group in groups if group.title == title)
    (found,) = (each for each in group.keys if each.key == key)
    return found


def test_the_page_has_a_row_for_every_key_and_no_html(groups):
    rows = [line for line in as_markdown(groups).splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(group.keys) for group in groups)
    assert {row.split("`")[1] for row in rows} == {k.key for group in groups for k in group.keys}
    assert not [row for row in rows if "<unk>" in row or row.replace(r"\|", "").count("|") != 6]


def test_every_key_says_what_it_means(groups):
    assert [key.key for group in groups for key in group.keys if not key.meaning] == []
    assert [group.title for group in groups if not group.about or "strict" in group.about] == []


@pytest.mark.parametrize("name", recipe_names())
def test_every_key_of_a_recipe_is_there(groups, name):
    """Under the kinds that the recipe has, as it is written, and as it is resolved."""
    recipe = load_recipe(name).model_dump(mode="json")
    kinds = {
        section: f"{section} (kind: {tree['kind']})"
        for section, tree in recipe.items()
        if isinstance(tree, dict) and "kind" in tree
    }
    titles = {group.title for group in groups}
    assert set(kinds.values()) <= titles
    known = {
        key.key
        for group in groups
        for key in group.keys
        if kinds.get(group.section, group.title) == group.title
    }
    written = {**recipe, **RECIPES.tree(name)}
    for tree in (recipe, written):
        free = {"variants": tree.pop("variants", {}), "tuning": tree.pop("tuning", {})}
        assert set(free) <= known
        assert {key for key, value in leaves(tree).items() if value != {}} <= known


def test_type_default_range_and_meaning_are_the_fields(groups):
    rate = one(groups, "optimiser (kind: adam)", "optimiser.learning_rate")
    assert (rate.type, rate.usual, rate.range) == ("number", "required", "> 0")
    drop = one(groups, "model (kind: recurrent)", "model.dropout.input")
    assert (drop.default, drop.usual, drop.range) == (0.0, "0", "≥ 0, < 1")
    assert drop.meaning == "the embedded words"
    tokens = one(groups, "data", "data.tokens")
    assert (tokens.type, tokens.range) == ("choice", "word, char, byte, bpe, wordpiece")
    # A kind's default is that of the section, not of the class.
    assert one(groups, "model (kind: transformer)", "model.kind").usual == "recurrent"
    assert one(groups, "optimiser (kind: adam)", "optimiser.kind").required
    one(groups, "objective (kind: monte-carlo)", "objective.lambda")  # as recipes spell it
    one(groups, "model.latent (kind: categorical)", "model.latent.classes")
    one(groups, "tuning.KEY (choices)", "tuning.KEY.choices")


def test_a_part_of_it(groups):
    found = beginning(groups, "model.dropout")
    assert {group.section for group in found} == {"model"}
    assert all(k.key.startswith("model.dropout") for group in found for k in group.keys)
    with pytest.raises(InfolmError, match="did you mean 'optimiser'"):
        beginning(groups, "optimizer")


def test_the_terminal_has_lines_of_its_width(groups):
    lines = as_text(groups, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "    optimiser.clip  number or none; > 0; default none" in lines


def test_the_command(capsys, monkeypatch):
    from infolm import cli

    def infolm(*arguments):
        monkeypatch.setattr("sys.argv", ["infolm", "recipes", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    code, out, _ = infolm("--keys", "train.epochs", "--json")
    (group,) = json.loads(out)
    assert code == 0
    assert group["keys"][0] | {"meaning": ""} == {
        "key": "train.epochs",
        "type": "integer",
        "required": False,
        "default": 750,
        "range": "≥ 1",
        "meaning": "",
    }
    code, _, err = infolm("--markdown")
    assert code == 2
    assert "give --keys too" in err
