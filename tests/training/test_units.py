"""L2 penalty and clip of a loss that is summed over time are those of ours, over the window."""

import math

import pytest
import torch
from training_tiny import Silent, quiet, tiny_tree

from infolm.config import Recipe, load_recipe, recipe_names
from infolm.data.corpora import load
from infolm.data.stream import StreamConfig
from infolm.experiment import build_feed, train
from infolm.models.build import build_model
from infolm.training import checkpoint
from infolm.training.loop import tensors

STEPS = 8  # of a window, T
L2 = 0.3
RATE = 0.5


def of_the_thesis(recipe, clip):
    """The step that a program takes whose loss is summed over time and averaged over the batch:
    w - rate clip(gradient of that loss + l2/2 sum w^2)."""
    corpus = load(recipe.data, quiet)
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, len(corpus.tokenizer), corpus.tokenizer)
    batch = tensors(build_feed(recipe, corpus).next(), torch.device("cpu"))
    assert len(batch.tokens) == STEPS
    log_p = model.log_probs(model(batch.tokens, model.initial_state(4)).hidden)
    nll = -log_p.gather(2, batch.targets[..., None]).squeeze(2)
    penalty = sum(w.square().sum() for w in model.parameters()) / 2
    loss = nll.sum(0).mean() + L2 * penalty
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    scale = min(1.0, clip / norm)
    names = [name for name, _ in model.named_parameters()]
    after = [
        w.detach() - RATE * scale * g for w, g in zip(model.parameters(), gradients, strict=True)
    ]
    return dict(zip(names, after, strict=True)), norm


@pytest.mark.parametrize("acts", [False, True])
def test_a_step_is_that_of_the_summed_loss(acts, tmp_path, small_text):
    tree = tiny_tree(small_text, max_steps=1, checkpoint_seconds=0)
    tree["feed"] |= {"bptt": STEPS, "variable": False}
    tree["model"] = {"embedding": 8, "hidden": 12, "layers": 2}
    tree["objective"] = {}
    tree["averaging"] = {"kind": "none"}
    clip = 2.0 if acts else 1e6
    ours = {"l2_penalty": L2 / STEPS, "clip": clip / STEPS, "learning_rate": RATE * STEPS}
    tree["optimiser"] = {"kind": "sgd", **ours}
    recipe = Recipe.model_validate(tree)
    expected, norm = of_the_thesis(recipe, clip)
    assert (norm > clip) == acts
    train(recipe, tmp_path / "run", False, Silent(), quiet)
    state = checkpoint.load(checkpoint.checkpoints(tmp_path / "run" / "checkpoints")[-1])
    for name, weight in expected.items():
        torch.testing.assert_close(state["model"][name], weight, rtol=1e-4, atol=1e-6)


OF_THE_THESIS = [
    name
    for name in recipe_names()
    if name.startswith(("mogrifier/", "rewired/"))
    and isinstance(load_recipe(name).feed, StreamConfig)
    and not name.endswith(("small", "demo"))
]


def test_there_are_recipes_of_the_thesis():
    assert len(OF_THE_THESIS) == 18


@pytest.mark.parametrize("name", OF_THE_THESIS)
def test_recipes_have_the_thesis_numbers_over_the_length_of_the_window(name):
    recipe = load_recipe(name)
    steps = recipe.feed.bptt
    # There the gradients of the two halves of a batch are added, which doubles them.
    clip = 5 if name == "mogrifier/enwik8-96m-chapter-2" else 10
    assert recipe.optimiser.clip * steps == pytest.approx(clip, rel=1e-4)
    assert 5e-6 < recipe.optimiser.l2_penalty * steps < 1e-3
    assert recipe.optimiser.weight_decay == 0
    space = recipe.tuning["optimiser.l2_penalty"]
    assert space.low * steps == pytest.approx(5e-6, rel=0.01)
    assert space.high * steps == pytest.approx(1e-3, rel=0.01)
