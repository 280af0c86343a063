"""Every recipe loads, has the paper's size and trains a few steps; mistakes get a sentence."""

import re
import shlex

import pytest
import torch
import yaml
from small_recipes import small
from training_tiny import Silent, quiet, tiny_tree

from infolm.config import Recipe, load_recipe, recipe_names
from infolm.data.corpora import types
from infolm.errors import InfolmError
from infolm.families.train import parameters, train
from infolm.metrics import EVENT, known
from infolm.models.encoder_decoder import EncoderDecoder
from infolm.objectives.likelihood import LikelihoodConfig
from infolm.training.run import read_metrics

VARIANTS = [
    (name, variant) for name in recipe_names() for variant in ["", *load_recipe(name).variants]
]


def test_the_recipes_of_the_paper_are_there():
    assert {
        "awd-lstm/ptb",
        "awd-lstm/ptb-finetune",
        "awd-lstm/ptb-small",
        "awd-lstm/wikitext-2",
        "awd-lstm/wikitext-2-finetune",
        "awd-lstm/demo",
    } <= set(recipe_names())


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("awd-lstm/ptb", 24.2e6),
        ("awd-lstm/wikitext-2", 33.6e6),
        ("infoword/base", 110e6),
        ("infoword/large", 335e6),  # "340 million" with the pooler and a third segment's vectors
    ],
)
def test_models_have_the_papers_size(name, size):
    assert parameters(load_recipe(name)) == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize(("embedding", "hidden"), [(498, 787), (493, 790)])
def test_ten_million_weights_for_reverse_copy_come_to_the_thesis_sizes(embedding, hidden):
    """Section 2.3.3, the LSTM: untied and projected to the embedding's size."""
    ratio = ["model.mogrifier.rounds=0", f"model.embedding_ratio={embedding / hidden}"]
    recipe = load_recipe("mogrifier/reverse-copy", ratio)
    with torch.device("meta"):
        model = EncoderDecoder(recipe.model, types(recipe.data), 1)
    assert (model.config.embedding, model.config.hidden) == (embedding, hidden)
    assert parameters(recipe) == pytest.approx(9.99e6, rel=0.001)


def test_table_4_has_eight_ablations_for_each_corpus():
    for name in ("awd-lstm/ptb", "awd-lstm/wikitext-2"):
        assert len(load_recipe(name).variants) == 8


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_every_recipe_and_variant_trains_a_few_steps(name, variant, tmp_path, small_text):
    """Its own settings but for the text, the sizes of the network and the length of training."""
    changes = shlex.split(load_recipe(name).variants.get(variant, ""))
    overrides = small(load_recipe(name, changes), variant, small_text)
    overrides[:0] = ["feed.batch=4", "train.max_steps=4", "train.validate_every=2", *changes]
    if load_recipe(name).start_from:
        first = load_recipe(name.removesuffix("-finetune"), overrides)
        train(first, tmp_path / "first", False, Silent(), quiet)
        overrides.append(f"start_from={tmp_path / 'first'}")
    changed = load_recipe(name, overrides)
    best = train(changed, tmp_path / "run", False, Silent(), quiet)
    # The loss of mim falls with the variance, without end; the code of a VQ-VAE has a fixed cost;
    # skip-gram begins at ln of 1,025 words.
    lowest, highest = {"mim": (-1, 6), "vq": (1, 40), "skip-gram": (0, 7)}.get(
        changed.objective.kind, (0, 6)
    )
    assert lowest < best < highest
    for record in read_metrics(tmp_path / "run/metrics.jsonl"):
        for key in record.keys() - {"kind", "step", "answer", "name"}:
            assert known(key, changed.model.capability), f"{key} is not described"
        assert record["kind"] != "event" or known(record["name"], EVENT), record


def test_a_resolved_recipe_can_be_read_back(tmp_path):
    for name in recipe_names():
        recipe = load_recipe(name)
        (tmp_path / "r.yaml").write_text(recipe.as_yaml())
        assert load_recipe(str(tmp_path / "r.yaml")) == recipe


MISTAKES = {
    "model.weigth_drop=0.5": "model: there is no key 'weigth_drop', did you mean 'weight_drop'?",
    "modle.hidden=3": "there is no key 'modle', did you mean 'model'?",
    "averaging.kind=trigered": (
        "averaging.kind: 'trigered' is not one of ema, none, polyak, swa, tail, triggered, "
        "two-tailed, did you mean 'triggered'?"
    ),
    "averaging.criterion=papr": (
        "averaging.criterion: 'papr' is not one of paper, released, stalled, did you mean 'paper'?"
    ),
    "averaging.patiense=3": "averaging: there is no key 'patiense', did you mean 'patience'?",
    "model.cell=lstn": (
        "model.cell: 'lstn' is not one of elman, gru, lstm, multiplicative, rewired, "
        "did you mean 'lstm'?"
    ),
    "model.hidden=-3": "model.hidden: input should be greater than or equal to 1, not -3",
    "model.hidden=many": "model.hidden: input should be a valid integer",
    "model.dropout.input=1.0": "model.dropout.input: input should be less than 1, not 1.0",
    "data.vocabulary=0": "data.vocabulary: input should be greater than or equal to",
    "data.tokens=words": (
        "data.tokens: 'words' is not one of word, char, byte, bpe, wordpiece, did you mean 'word'?"
    ),
    "seed": "'seed' is not an override: write key=value",
    "seed.x=1": "'seed' is a value, not a section",
    "model=3": "model: input should be a valid dictionary",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistyped_key_or_value_is_refused_with_path_and_help(override):
    with pytest.raises(InfolmError, match=re.escape(MISTAKES[override])):
        load_recipe("awd-lstm/ptb", ["seed=1", override])


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(InfolmError, match="did you mean 'awd-lstm/ptb-small'"):
        load_recipe("awd-lstm/ptb-smal")


def test_a_file_that_is_no_recipe_is_refused(tmp_path):
    path = tmp_path / "r.yaml"
    for text, sentence in (
        ("a: [", "not valid YAML"),
        ("- 1", "not a recipe"),
        ("", "not a recipe"),
    ):
        path.write_text(text)
        with pytest.raises(InfolmError, match=sentence):
            load_recipe(str(path))
    with pytest.raises(InfolmError, match="cannot be read"):
        load_recipe(str(tmp_path / "missing.yaml"))
    path.write_text("seed: 1")
    with pytest.raises(InfolmError, match=r"data: is missing; optimiser: is missing"):
        load_recipe(str(path))


def test_another_kind_has_its_own_keys(small_text):
    tree = tiny_tree(small_text)
    path = small_text.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(tree))
    recipe = load_recipe(str(path), ["averaging.kind=tail", "averaging.start=3"])
    assert recipe.averaging.model_dump() == {"kind": "tail", "start": 3}
    assert isinstance(recipe, Recipe)


def test_naming_the_kind_a_section_has_anyway_changes_nothing(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(
        "data: {corpus: ptb}\nfeed: {batch: 7}\noptimiser: {kind: sgd, learning_rate: 1}"
    )
    overrides = ["feed.kind=stream", "optimiser.kind=sgd"]
    assert load_recipe(str(path), overrides) == load_recipe(str(path))


def test_building_a_model_to_count_it_makes_no_weights():
    before = torch.get_rng_state()
    parameters(load_recipe("awd-lstm/ptb"))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_key_that_an_old_run_lacks_has_its_former_default(tmp_path, monkeypatch):
    # What runs did before the key existed, not what new ones do.
    monkeypatch.setattr(LikelihoodConfig, "former_defaults", {"dropout_samples": 3})
    tree = load_recipe("awd-lstm/demo").model_dump(mode="json")
    del tree["objective"]["dropout_samples"]
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    assert load_recipe(str(path)).objective.dropout_samples == 1  # no run: today's default
    (tmp_path / "corpus.json").write_text("{}")
    assert load_recipe(str(path)).objective.dropout_samples == 3
    assert load_recipe(str(path), ["objective.dropout_samples=2"]).objective.dropout_samples == 2


def test_nce_refuses_dropped_latents(small_text):
    tree = tiny_tree(small_text)
    tree["objective"] = {"kind": "nce"}
    tree["model"]["softmax"] = {"dropout": 0.3}
    with pytest.raises(ValueError, match=r"model\.softmax\.dropout drops them: set that to 0"):
        Recipe.model_validate(tree)
