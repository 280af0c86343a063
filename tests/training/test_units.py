"""L2 penalty and clip of a loss that is summed over time are those of ours, over the window."""

import math

import pytest
import torch
from training_tiny import Silent, quiet, tiny_tree

from infolm.config import Recipe, load_recipe, recipe_names
from infolm.data.corpora import load
from infolm.data.stream import StreamConfig
from infolm.families.train import train
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
    model = recipe.model.build(len(corpus.tokenizer), corpus.tokenizer)
    batch = tensors(recipe.feed.build(corpus, "train", recipe.seed).next(), torch.device("cpu"))
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


PUBLISHED = [  # of each configuration: L2 penalty, learning rate; dropout of input and output
    ("ptb", "", 2.5235e-4, 2.3e-3, 0.72908, 0.71567),
    ("ptb", "LSTM", 2.4908e-4, 3.0369e-3, 0.62756, 0.69017),
    ("wikitext-2", "", 1.8995e-4, 3.2878e-3, 0.54691, 0.34767),
    ("wikitext-2", "LSTM", 2.3064e-4, 3.1839e-3, 0.60910, 0.34846),
    ("ptb-char", "", 2.5558e-4, 3.7396e-3, 0.27860, 0.23474),
    ("enwik8-48m", "", 9.9338e-4, 1.0214e-3, 0.015496, 0.13831),
    ("enwik8-48m", "LSTM", 2.5181e-5, 2.5167e-3, 0.16279, 0.13860),
    ("enwik8-96m", "", 4.4094e-5, 2.2480e-3, 0.015909, 0.28785),
    ("enwik8-96m", "LSTM", 5.8536e-5, 1.9752e-3, 0.12337, 0.24847),
    ("mwc-en", "", 9.2454e-5, 1.4344e-3, 0.22379, 0.0052123),
    ("mwc-en", "LSTM", 7.8253e-6, 3.8051e-3, 0.24803, 0.062009),
    ("mwc-fi", "", 9.6080e-5, 2.0000e-3, 0.069955, 0.22150),
    ("mwc-fi", "LSTM", 3.3590e-5, 3.8728e-3, 4.2783e-4, 0.21673),
]


@pytest.mark.parametrize(("name", "variant", "l2", "rate", "into", "out"), PUBLISHED)
def test_chapter_2_has_the_numbers_of_the_published_configurations(
    name, variant, l2, rate, into, out
):
    name = f"mogrifier/{name}-chapter-2"
    recipe = load_recipe(name, load_recipe(name).variants.get(variant, "").split())
    optimiser, dropout = recipe.optimiser, recipe.model.dropout
    found = (
        optimiser.l2_penalty * recipe.feed.bptt,
        optimiser.learning_rate,
        dropout.input,
        dropout.output,
    )
    assert found == pytest.approx((l2, rate, into, out), rel=1e-3)
    assert bool(recipe.model.mogrifier.rounds) == (variant == "")
    assert recipe.model.softmax.dropout in (0, dropout.output)  # there they are one number
