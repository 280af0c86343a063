"""Training on episodes: resumed to the same bytes, validated sentence by sentence."""

import json

import numpy as np
import pytest
from training_tiny import Silent, quiet, tiny_tree

from infolm.config import Recipe, load_recipe
from infolm.errors import InfolmError
from infolm.evaluation.episodic import episodic_log_probs
from infolm.families.running.run import LanguageRun
from infolm.families.train import train
from infolm.generation.sampling import SamplingSettings
from infolm.generation.text import write

STEPS = 30


def episodic(text, steps=STEPS):
    tree = tiny_tree(text, max_steps=steps, checkpoint_seconds=0)
    tree |= {"feed": {"kind": "episodes", "batch": 16}, "averaging": {"kind": "none"}}
    return Recipe.model_validate(tree)


def test_a_run_stopped_in_the_middle_of_a_pass_goes_on_to_the_same_bytes(tmp_path, small_text):
    alone, resumed = tmp_path / "alone", tmp_path / "resumed"
    train(episodic(small_text), alone, False, Silent(), quiet)
    train(episodic(small_text, 10), resumed, False, Silent(), quiet)
    train(episodic(small_text, 25), resumed, True, Silent(), quiet)  # a pass has 23 steps
    train(episodic(small_text), resumed, True, Silent(), quiet)
    for file in ("model.safetensors", f"checkpoints/step-{STEPS:09d}.safetensors"):
        assert (resumed / file).read_bytes() == (alone / file).read_bytes(), file


def test_validation_counts_every_token_from_a_fresh_state(tmp_path, small_text):
    best = train(episodic(small_text), tmp_path / "run", False, Silent(), quiet)
    run = LanguageRun.open(tmp_path / "run")
    tokens = run.corpus.splits["valid"].tokens
    log_p = episodic_log_probs(run.model, tokens, run.tokenizer.eos)
    assert len(log_p) == len(tokens)
    assert -log_p.mean() == pytest.approx(best, rel=1e-5)
    ends = np.flatnonzero(np.asarray(tokens) == run.tokenizer.eos) + 1
    alone = episodic_log_probs(run.model, tokens[: ends[0]], run.tokenizer.eos)
    assert log_p[: ends[0]] == pytest.approx(alone, rel=1e-4)


COPY = [
    *("data.reverse_copy.length=2", "data.reverse_copy.types=4", "data.reverse_copy.examples=2000"),
    *("data.reverse_copy.held_out=50", "feed.batch=32", "model.parameters=null", "model.hidden=24"),
    *("model.embedding=12", "model.mogrifier.rank=4", "model.mogrifier.rounds=2"),
    *("optimiser.kind=adam", "optimiser.learning_rate=0.02"),
    *("train.validate_every=80", "train.max_steps=80"),
]


@pytest.mark.parametrize("name", ["mogrifier/reverse-copy", "rewired/reverse-copy"])
def test_a_copying_recipe_learns_from_what_follows_the_separator(name, tmp_path):
    """Far below the 2/3 ln 4 = 0.92 nats per token of a decoder that does not know the words."""
    best = train(load_recipe(name, COPY), tmp_path / "run", False, Silent(), quiet)
    assert best < 0.3
    run = LanguageRun.open(tmp_path / "run")
    counts = json.loads((tmp_path / "run" / "corpus.json").read_text())["tokens"]
    assert counts == {"train": 2000 * 6, "valid": 50 * 6, "test": 50 * 6}
    log_p = episodic_log_probs(
        run.model, run.corpus.splits["valid"].tokens, run.tokenizer.eos, run.model.separator
    )
    assert len(log_p) == 50 * 3
    assert -log_p.mean() == pytest.approx(best, rel=1e-5)
    with pytest.raises(InfolmError, match="cannot read or generate running text"):
        write(run.model, run.tokenizer, "1", 3, 2, 1, SamplingSettings())


def test_an_encoder_decoder_refuses_a_running_text(tmp_path):
    recipe = load_recipe("mogrifier/reverse-copy", [*COPY, "feed.kind=stream", "feed.batch=4"])
    with pytest.raises(InfolmError, match=r"feed\.kind=episodes"):
        train(recipe, tmp_path / "run", False, Silent(), quiet)


def test_a_marker_that_is_no_word_of_the_text_is_refused(tmp_path, small_text):
    tree = tiny_tree(small_text) | {"feed": {"kind": "episodes", "after": "<sep>"}}
    with pytest.raises(InfolmError, match=r"feed\.after: '<sep>' is not one token"):
        train(Recipe.model_validate(tree), tmp_path / "run", False, Silent(), quiet)
