"""Training encoders: a run that was cut goes on exactly; the rate and the decay are BERT's."""

import pytest
import torch
from encoder_runs import KINDS, recipe
from torch import nn
from training_tiny import Silent, quiet

from infolm.families.train import train
from infolm.optimisation.optimisers import AdamWConfig
from infolm.optimisation.schedule import linear
from infolm.training.loop import Loop


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_cut_ends_with_the_same_bytes(kind, tmp_path, small_text, monkeypatch):
    tree = recipe(small_text, kind).model_dump(mode="json")
    tree["train"] |= {"max_steps": 12, "validate_every": 5, "checkpoint_seconds": 0}
    tree["optimiser"]["schedule"] = {"kind": "linear", "warm_up": 4}
    found = type(recipe(small_text, kind)).model_validate(tree)
    train(found, tmp_path / "alone", False, Silent(), quiet)
    original = Loop._take_step

    def failing(self):
        if self.step == 7:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(Loop, "_take_step", failing)
    with pytest.raises(KeyboardInterrupt):
        train(found, tmp_path / "cut", False, Silent(), quiet)
    monkeypatch.undo()
    train(found, tmp_path / "cut", True, Silent(), quiet)
    alone, cut = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("alone", "cut"))
    assert alone == cut


def test_the_rate_rises_in_steps_and_falls_to_nothing():
    rates = [linear(step, (step - 1) / 10, warm_up=4) for step in range(1, 11)]
    assert rates[:3] == [0.25, 0.5, 0.75]
    assert rates[3:] == pytest.approx([0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert linear(1, 0.0, warm_up=0) == 1


def test_decay_draws_matrices_to_zero_and_nothing_else():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    config = AdamWConfig(learning_rate=0.1, weight_decay=0.5)
    optimiser = config.build(model.parameters())
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimiser.step()
    after = dict(model.named_parameters())
    torch.testing.assert_close(after["0.weight"], before["0.weight"] * (1 - 0.1 * 0.5))
    for name in ("0.bias", "1.weight", "1.bias"):
        torch.testing.assert_close(after[name], before[name])
