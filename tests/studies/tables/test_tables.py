"""The tables that come with infolm, and what a table must be."""

import json
from pathlib import Path

import pytest

from infolm.errors import InfolmError
from infolm.studies.tables import listing, pages
from infolm.studies.tables.table import load, names, recipe_of

from .conftest import written

RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize("name", names())
def test_every_table_is_sound(name):
    """It loads, its recipes resolve at each scale, and no two arms of it are the same."""
    table = load(name)
    assert table.scales["small"].minutes
    for scale in table.scales:
        arms = [recipe_of(table, scale, arm, 1, []).model_dump_json() for arm in table.arms]
        assert len(set(arms)) == len(arms) or any(arm.start for arm in table.arms.values())
        assert all(recipe_of(table, scale, arm, 2, []).seed == 2 for arm in table.arms)
    for tuning in table.tuning:
        for change in map(tuning.change, tuning.values):
            recipe_of(table, "small", tuning.arm, 11, [], change.split())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"comparisons": [{"claim": "a", "lower": "lov", "higher": "high"}]}, "did you mean 'low'"),
        ({"arms": {"A b": {"label": "a"}}}, "folder's name"),
        ({"arms": {"a": {"label": "a", "start": "b"}}}, "not an arm without a start"),
        ({"arms": {"a": {"label": "a", "paper": {"perplexty": 1}}}}, "'perplexity'"),
        ({"tuning": [{"with": "lo", "key": "seed", "values": [1, 2]}]}, "did you mean 'low'"),
        ({"arms": {"a": {"label": "a", "sweep": {"seed": [1]}}}}, "single trainings"),
        ({"scales": {"paper": {"recipe": "awd-lstm/ptb"}}}, "small is missing"),
        ({"measure": {"kind": "evalute", "figures": {}}}, "did you mean 'evaluate'"),
    ],
)
def test_a_table_that_is_wrong(tmp_path, changes, words):
    with pytest.raises(InfolmError, match=words):
        load(written(tmp_path, **changes))


def test_what_cannot_be_measured_is_refused_before_training(tmp_path):
    measure = {"options": {"codes": 5}, "figures": {"a": {"label": "a"}}}
    arms = {"low": {"label": "low"}, "high": {"label": "high"}}
    only = [{"claim": "a", "lower": "low", "higher": "high"}]
    table = load(written(tmp_path, measure=measure, arms=arms, comparisons=only))
    with pytest.raises(InfolmError, match="arm low: --codes"):
        recipe_of(table, "small", "low", 1, [])


def test_the_ledger_is_up_to_date():
    """What stands in results/ is what `infolm reproduce --ledger --out results` writes."""
    works = listing.opened(RESULTS, "small")
    beside = [path.name for path in RESULTS.glob("*.md")]
    assert (RESULTS / "README.md").read_text() == pages.ledger(works, beside)
    for records in works:
        if records.path.exists():
            assert records.arms, f"{records.path} was measured otherwise than its table says"
            assert json.loads(records.path.read_text()) == records.to_json()
            page = records.path.with_name(records.path.name.replace(".json", ".md"))
            picture = page.name.replace(".md", ".png")
            assert page.read_text() == pages.page(records, picture)
        else:  # nothing is measured, so there is nothing to draw
            assert "![" not in pages.page(records, "picture.png")
