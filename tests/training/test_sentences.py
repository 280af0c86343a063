"""Training sentence models: they learn, are validated by their bound, and can be resumed."""

import json
import re

import numpy as np
import pytest
import torch
from training_tiny import Silent, quiet, tiny_sentences

from infolm.config import Recipe
from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.evaluation.validation import sentence_validation
from infolm.families.base import open_run
from infolm.families.recorded import corpus_of
from infolm.families.running.run import LanguageRun
from infolm.families.train import train
from infolm.models.codes.gaussian import log_prior
from infolm.objectives.mim import Mim
from infolm.objectives.sentence import Ae
from infolm.objectives.vae import KlConfig, Vae, VaeConfig
from infolm.training.loop import Loop

CLASSES = {"kind": "categorical", "variables": 2, "classes": 3, "embedding": 4}


def recipe(text, objective=None, **sections) -> Recipe:
    tree = tiny_sentences(text, max_steps=sections.pop("steps", 40), checkpoint_seconds=0)
    tree["objective"] = objective or {"kind": "mim"}
    for key, value in sections.items():
        tree[key] = {**tree.get(key, {}), **value}
    return Recipe.model_validate(tree)


def records(out, kind):
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [record for record in found if record["kind"] == kind]


@pytest.mark.parametrize("kind", ["mim", "vae", "ae"])
def test_it_learns_to_tell_sentences_apart(kind, tmp_path):
    """Eight sentences of four words, all equally frequent: who knows nothing of the code comes to
    ln 8 / 5 = 0.42 nats per token, and a code tells at most ln 8 = 2.08 nats."""
    words = ["sun", "moon", "star", "sky", "sea", "rain", "wind", "snow"]
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{words[i % 8]} " * 4 + "\n" for i in range(640)))
    watcher = Silent()
    config = {"kind": kind} | ({"kl": {"weight": 0.1}} if kind == "vae" else {})
    course = {"validate_every": 60, "checkpoint_seconds": 300}
    steps = 600 if kind == "mim" else 180  # its means are drawn to zero until sigma is small
    found = recipe(text, config, steps=steps, train=course, optimiser={"learning_rate": 0.01})
    train(found, tmp_path / "run", False, watcher, quiet)
    last = records(tmp_path / "run", "validation")[-1]
    assert last["nll"] < 0.1
    assert 1.8 < last["information"] < np.log(8) + 1e-6
    step = records(tmp_path / "run", "step")[-1]
    assert {f"{kind}/nll", f"{kind}/kl", f"{kind}/loss"} <= set(step)
    assert any("information" in line and "perplexity" not in line for line in watcher.said)


@pytest.mark.parametrize(
    ("objective", "model"),
    [
        ({"kind": "mim"}, {}),
        ({"kind": "ae"}, {"encoder": {"cell": "lstm", "hidden": 9}}),
        ({"kind": "vae", "kl": {"schedule": "linear", "steps": 50}}, {}),
        ({"kind": "vae", "lagging": True}, {"latent": {"size": 2, "batch_norm": 0.6}}),
        # whose baseline is of the batches before
        (
            {"kind": "monte-carlo", "estimator": "reinforce", "baseline": "mean", "samples": 2},
            {"latent": CLASSES},
        ),
        ({"kind": "vq"}, {"latent": {**CLASSES, "kind": "quantised"}}),
    ],
)
def test_a_run_that_was_cut_ends_with_the_same_bytes(
    objective, model, tmp_path, small_text, monkeypatch
):
    feed = {"encoder_unknown": 0.2, "decoder_unknown": 0.1}
    found = recipe(small_text, objective, model=model, feed=feed)
    train(found, tmp_path / "alone", False, Silent(), quiet)
    original = Loop._take_step

    def failing(self):
        if self.step == 17:
            raise OSError("the lights went out")
        return original(self)

    monkeypatch.setattr(Loop, "_take_step", failing)
    with pytest.raises(OSError, match="lights"):
        train(found, tmp_path / "broken", False, Silent(), quiet)
    monkeypatch.undo()
    train(found, tmp_path / "broken", True, Silent(), quiet)
    for file in ("model.safetensors", "checkpoints/step-000000040.safetensors"):
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "broken" / file).read_bytes()


@pytest.mark.parametrize(
    "objective", [Mim(), Ae(), Vae(VaeConfig(kl=KlConfig(weight=0.5, schedule="linear")))]
)
def test_the_validation_loss_is_the_bound_on_every_token(objective, tmp_path, small_text):
    """Sentence by sentence, from the model's own distributions and the same codes."""
    train(recipe(small_text, steps=10), tmp_path / "run", False, Silent(), quiet)
    model = open_run(tmp_path / "run").model
    text = Lines.of([[3, 4, 5], [6], [7, 8, 3, 3, 4], [9, 10]], 1)
    found = sentence_validation(model, objective, text)
    noise = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    total = nll = kl = 0.0
    tokens = 3 + 1 + 5 + 2 + 4
    for number, own in enumerate(noise):
        batch = text.packed(np.array([number]))
        read, inputs, targets = (torch.from_numpy(x) for x in batch[:3])
        with torch.no_grad():
            q = model.encode(read, batch.sizes)
            z = q.mean if isinstance(objective, Ae) else q.at(own)
            log_p = model.log_prob(model.decode(z, inputs, batch.sizes), targets).sum().item()
            penalty = 0.0
            if isinstance(objective, Mim):
                penalty = -0.5 * (q.log_density(z) + log_prior(z)).item()
            elif isinstance(objective, Vae):
                penalty = 0.5 * q.kl().sum().item()
        total, nll, kl = total - log_p + penalty, nll - log_p, kl + q.kl().sum().item()
    assert found.loss == pytest.approx(total / tokens, rel=1e-5)
    assert found.terms["nll"] == pytest.approx(nll / tokens, rel=1e-5)
    assert found.terms["kl"] == pytest.approx(kl / 4, rel=1e-5)


def test_sentences_that_are_too_long_are_refused_or_cut(tmp_path, small_text):
    short = {"longest": 5}
    with pytest.raises(InfolmError, match=r"sentence 1 of the train split has 7 tokens"):
        train(recipe(small_text, feed=short), tmp_path / "run", False, Silent(), quiet)
    assert not (tmp_path / "run").exists()
    cut = recipe(small_text, feed={**short, "beyond": "cut"}, steps=4)
    train(cut, tmp_path / "run", False, Silent(), quiet)
    opened = open_run(tmp_path / "run")
    text = cut.feed.lines(corpus_of(opened.folder, cut), "valid")
    assert set(text.lengths) == {5}


@pytest.mark.parametrize(
    ("split", "text", "said"),
    [
        ("valid", "a\n\n\n", "validation split needs at least two non-empty sentences"),
        ("valid", "a b\na b c d e f\n", "sentence 2 of the valid split has 6 tokens"),
        ("test", "a b c d e f\n", "sentence 1 of the test split has 6 tokens"),
    ],
)
def test_held_out_sentences_are_looked_at_before_anything_is_written(split, text, said, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for each in ("train", "valid", "test"):
        (folder / f"{each}.txt").write_text(text if each == split else "a b\nb a\n" * 20)
    with pytest.raises(InfolmError, match=said):
        train(recipe(folder, feed={"longest": 5}), tmp_path / "run", False, Silent(), quiet)
    assert not (tmp_path / "run").exists()


def test_a_language_models_methods_refuse_it(tmp_path, small_text):
    train(recipe(small_text, steps=4), tmp_path / "run", False, Silent(), quiet)
    with pytest.raises(InfolmError, match="model of single sentences with a latent code"):
        LanguageRun.open(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": {"kind": "recurrent"}}, "set model.kind to sentence (it is recurrent)"),
        ({"feed": {"kind": "stream"}}, "set feed.kind to sentences (it is stream)"),
        ({"objective": {"kind": "likelihood"}}, "set objective.kind to ae or mim or monte-carlo"),
    ],
)
def test_a_sentence_model_is_one_all_through(change, said, small_text):
    tree = tiny_sentences(small_text) | change
    with pytest.raises(ValueError, match=re.escape(said)):
        Recipe.model_validate(tree)
    bmi = tiny_sentences(small_text) | {"regularisers": {"bmi": {"weight": 0.1}}}
    with pytest.raises(ValueError, match="read a running text"):
        Recipe.model_validate(bmi)
