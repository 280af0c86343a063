"""The loop learns, takes the step it should, stops when it should, and never saves a NaN."""

import json
import math
import os
import platform
from pathlib import Path

import numpy as np
import pytest
import torch
from training_tiny import Silent, quiet, tiny_recipe, tiny_tree

from infolm.config import Recipe
from infolm.errors import InfolmError, RunError
from infolm.families.running.family import RunningFamily
from infolm.families.running.run import LanguageRun
from infolm.families.train import train
from infolm.objectives.base import Estimate
from infolm.optimisation.schedule import Schedule, ScheduleConfig
from infolm.training import checkpoint
from infolm.training.device import multiplies_bfloat16
from infolm.training.loop import Loop, Validation


def run(recipe, out, resume=False, watcher=None):
    return train(recipe, out, resume, watcher or Silent(), quiet)


def changed(recipe: Recipe, **sections) -> Recipe:
    tree = recipe.model_dump(mode="json")
    for section, values in sections.items():
        if isinstance(values, dict):
            tree[section].update(values)
        else:
            tree[section] = values
    return Recipe.model_validate(tree)


def records(out, kind):
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def test_it_learns_and_the_best_weights_are_those_kept(tmp_path, small_text):
    recipe = changed(
        tiny_recipe(small_text, max_steps=150, validate_every=25),
        optimiser={"kind": "adam", "learning_rate": 0.03},
    )
    best = run(recipe, tmp_path / "run")
    losses = [record["loss"] for record in records(tmp_path / "run", "validation")]
    assert len(losses) == 6
    assert best == min(losses) < losses[0] - 0.5
    opened = LanguageRun.open(tmp_path / "run")
    from infolm.evaluation.likelihood import parallel_log_probs

    tokens = opened.corpus.splits["valid"].tokens
    again = -parallel_log_probs(opened.model, tokens, 3, 70, recipe.feed.bptt).mean()
    assert again == pytest.approx(best, abs=1e-6)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path, small_text):
    recipe = tiny_recipe(small_text, max_steps=6)
    weights = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(changed(recipe, seed=seed), tmp_path / name)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_the_seed_draws_the_weights_and_the_masks_too(tmp_path, small_text):
    """With cuts of one length the feed draws nothing: what differs is the model's own."""
    recipe = changed(tiny_recipe(small_text, max_steps=1), feed={"variable": False})
    for seed in (1, 2):
        run(changed(recipe, seed=seed), tmp_path / str(seed))
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in "12")
    assert first != second


def test_adam_resumed_ends_with_the_same_bytes(tmp_path, small_text, monkeypatch):
    recipe = changed(
        tiny_recipe(small_text, max_steps=12, checkpoint_seconds=0),
        optimiser={"kind": "adam", "learning_rate": 0.01},
    )
    run(recipe, tmp_path / "alone")
    original = Loop._take_step

    def failing(self):
        if self.step == 7:
            raise OSError("the lights went out")
        return original(self)

    monkeypatch.setattr(Loop, "_take_step", failing)
    with pytest.raises(OSError, match="lights"):
        run(recipe, tmp_path / "broken")
    monkeypatch.undo()
    run(recipe, tmp_path / "broken", resume=True)
    for file in ("model.safetensors", "checkpoints/step-000000012.safetensors"):
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "broken" / file).read_bytes()


def test_one_step_is_clipped_decayed_and_scaled_sgd(tmp_path, small_text, monkeypatch):
    """w' = w - rate (length/bptt) (clip(g) + decay w), recomputed from the gradient itself."""
    seen = {}
    original = Loop._take_step

    def spy(self):
        before = [p.detach().clone() for p in self.model.parameters()]
        gradients = []
        clip = self.fabric.clip_gradients

        def spying_clip(*arguments, **keywords):
            gradients.extend(p.grad.clone() for p in self.model.parameters())
            return clip(*arguments, **keywords)

        monkeypatch.setattr(self.fabric, "clip_gradients", spying_clip)
        feed = self.terms[0].feed
        start = feed._position
        estimate = original(self)
        seen.update(before=before, gradients=gradients, loop=self, length=feed._position - start)
        return estimate

    monkeypatch.setattr(Loop, "_take_step", spy)
    recipe = changed(
        tiny_recipe(small_text, max_steps=1), optimiser={"weight_decay": 0.1, "clip": 0.01}
    )
    run(recipe, tmp_path / "run")
    norm = math.sqrt(sum(float(g.square().sum()) for g in seen["gradients"]))
    assert norm > 0.01
    rate = 5 * seen["length"] / 8
    after = list(seen["loop"].model.parameters())
    for w, g, new in zip(seen["before"], seen["gradients"], after, strict=True):
        torch.testing.assert_close(new.detach(), w - rate * (g * 0.01 / norm + 0.1 * w))


def test_a_loss_that_is_not_finite_stops_the_run_and_the_checkpoint_stays_good(
    tmp_path, small_text, monkeypatch
):
    recipe = tiny_recipe(small_text, max_steps=50, checkpoint_seconds=0)
    original = Loop._take_step

    def poisoned(self):
        if self.step == 7:
            with torch.no_grad():
                self.model.embedding.fill_(math.nan)
        return original(self)

    monkeypatch.setattr(Loop, "_take_step", poisoned)
    with pytest.raises(RunError, match=r"no longer a finite number at step 8.*learning_rate"):
        run(recipe, tmp_path / "run")
    monkeypatch.undo()
    state = checkpoint.load(checkpoint.checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert state["step"] == 7
    assert all(torch.isfinite(w).all() for w in state["model"].values())
    run(changed(recipe, train={"max_steps": 9}), tmp_path / "run", resume=True)


def poison_at(monkeypatch, *steps):
    """The weights turn to NaN before the steps named, once each."""
    original, left = Loop._take_step, list(steps)

    def poisoned(self):
        if self.step in left:
            left.remove(self.step)
            with torch.no_grad():
                self.model.embedding.fill_(math.nan)
        return original(self)

    monkeypatch.setattr(Loop, "_take_step", poisoned)


def recovering(small_text, **train):
    settings = {"recover": True, "max_steps": 20, "validate_every": 5, **train}
    tree = tiny_tree(small_text, **settings)
    tree["optimiser"] = {"kind": "radam", "learning_rate": 0.01}
    tree["averaging"] = {"kind": "none"}
    return Recipe.model_validate(tree)


def test_after_a_divergence_training_goes_on_from_the_best_validation(
    tmp_path, small_text, monkeypatch
):
    poison_at(monkeypatch, 12, 17)
    seen = {}
    original = Loop._recover

    def spy(self, log, why):
        original(self, log, why)
        best = checkpoint.load(self.run_folder.best)
        seen[self.step] = (
            all(torch.equal(w, best["model"][n]) for n, w in self.model.state_dict().items()),
            self.optimiser.state_dict()["state"][0]["step"].item(),
        )

    monkeypatch.setattr(Loop, "_recover", spy)
    watcher = Silent()
    run(recovering(small_text), tmp_path / "run", watcher=watcher)
    # Back at the validations of steps 10 and 15, with the optimiser's own count of steps; the
    # second time two of its steps after 10 are undone too, and three since.
    assert seen == {12: (True, 10.0), 17: (True, 13.0)}
    assert [r["step"] for r in records(tmp_path / "run", "event")] == [12, 17]
    assert "0.81 times the recipe's" in " ".join(watcher.said)
    state = checkpoint.load(checkpoint.checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert state["step"] == 20
    assert state["recoveries"] == 2
    assert state["optimiser"]["param_groups"][0]["lr"] <= 0.01 * 0.81 * 1.5
    assert all(torch.isfinite(w).all() for w in state["model"].values())


def test_a_divergence_before_the_first_validation_goes_back_to_the_start(
    tmp_path, small_text, monkeypatch
):
    poison_at(monkeypatch, 3)
    best = run(recovering(small_text, max_steps=10), tmp_path / "run")
    assert math.isfinite(best)


def test_a_validation_loss_that_blew_up_is_a_divergence(tmp_path, small_text, monkeypatch):
    recipe = recovering(small_text)
    original = Loop._take_step

    def jolted(self):
        if self.step == 11 and not self.recoveries:
            with torch.no_grad():
                self.model.softmax.bias.add_(30 * torch.randn_like(self.model.softmax.bias))
        return original(self)

    monkeypatch.setattr(Loop, "_take_step", jolted)
    best = run(recipe, tmp_path / "run")
    assert [(r["step"], r["name"]) for r in records(tmp_path / "run", "event")] == [
        (15, "diverged")
    ]
    assert [r["step"] for r in records(tmp_path / "run", "validation")] == [5, 10, 20]
    assert best < 5


def test_a_run_that_recovered_and_was_cut_ends_with_the_same_bytes(
    tmp_path, small_text, monkeypatch
):
    recipe = recovering(small_text, checkpoint_seconds=0)
    poison_at(monkeypatch, 12)
    run(recipe, tmp_path / "alone")
    monkeypatch.undo()
    poison_at(monkeypatch, 12)
    with pytest.raises(OSError, match="lights"):
        run(recipe, tmp_path / "cut", watcher=Quitting(15))
    run(recipe, tmp_path / "cut", resume=True)
    file = "checkpoints/step-000000020.safetensors"
    assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "cut" / file).read_bytes()


class Quitting(Silent):
    """Ends the training at the validation of a step."""

    def __init__(self, step):
        super().__init__()
        self.at = step

    def validated(self, step, progress, loss):
        if step == self.at:
            raise OSError("the lights went out")


def test_a_training_that_diverges_again_and_again_ends_with_a_sentence(
    tmp_path, small_text, monkeypatch
):
    monkeypatch.setattr("infolm.training.loop.RECOVERIES", 3)
    monkeypatch.setattr(Loop, "_take_step", lambda self: None)
    with pytest.raises(RunError, match=r"has diverged 4 times, last at step 0.*learning_rate"):
        run(recovering(small_text), tmp_path / "run")


def test_epochs_end_it_and_each_is_validated(tmp_path, small_text):
    recipe = changed(tiny_recipe(small_text, epochs=2), train={"validate_every": None})
    run(recipe, tmp_path / "run")
    validations = records(tmp_path / "run", "validation")
    assert [record["epoch"] for record in validations] == [1, 2]


def test_a_finished_run_is_left_as_it_is(tmp_path, small_text):
    recipe = tiny_recipe(small_text, max_steps=5)
    run(recipe, tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    watcher = Silent()
    run(recipe, tmp_path / "run", resume=True, watcher=watcher)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    (validation,) = records(tmp_path / "run", "validation")
    told = watcher.said[-1]
    assert "is finished, and nothing was trained: 5 steps" in told
    assert f"best validation {validation['loss']:.4f} nats per token" in told
    assert told.endswith(f"infolm train {tmp_path / 'run'} --resume train.max_steps=10")
    run(changed(recipe, train={"max_steps": 10}), tmp_path / "run", resume=True)  # as it says
    assert [record["step"] for record in records(tmp_path / "run", "validation")] == [5, 10]


@pytest.mark.parametrize("instructions", [True, False])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_bfloat16_without_instructions_for_it_is_said_to_be_slow(
    tmp_path, small_text, monkeypatch, instructions, precision
):
    monkeypatch.setattr("infolm.families.train.multiplies_bfloat16", lambda: instructions)
    recipe = changed(tiny_recipe(small_text, max_steps=1), train={"precision": precision})
    watcher = Silent()
    run(recipe, tmp_path / "run", watcher=watcher)
    told = any(
        said.endswith("slower here than single precision: train.precision=32-true")
        for said in watcher.said
    )
    assert told == (precision == "bf16-mixed" and not instructions)


def test_instructions_for_bfloat16_are_those_that_the_system_names():
    flags = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not flags.exists():
        pytest.skip("looks at Linux's list of an x86 processor's instructions")
    named = flags.read_text().split()
    assert multiplies_bfloat16() == ("avx512_bf16" in named or "amx_tile" in named)


def test_old_checkpoints_that_a_kill_left_are_removed_on_resuming(tmp_path, small_text):
    recipe = tiny_recipe(small_text, max_steps=5)
    run(recipe, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    newest = checkpoint.checkpoints(folder)[-1]
    for step in (1, 2):
        (folder / f"step-{step:09d}.safetensors").write_bytes(newest.read_bytes())
    run(recipe, tmp_path / "run", resume=True)
    kept = checkpoint.checkpoints(folder)
    assert len(kept) == 2
    assert kept[-1] == newest


def test_a_run_that_was_stopped_can_be_given_more_patience(tmp_path, small_text, monkeypatch):
    losses = iter([3.0, 2.0, 4.0, 1.5, 1.0])
    monkeypatch.setattr(RunningFamily, "validation", lambda *_: lambda: Validation(next(losses)))
    recipe = tiny_recipe(small_text, epochs=1000, validate_every=2, stop_patience=1)
    run(recipe, tmp_path / "run")
    assert len(records(tmp_path / "run", "validation")) == 3
    watcher = Silent()
    run(recipe, tmp_path / "run", resume=True, watcher=watcher)
    assert watcher.said[-1].endswith("--resume train.stop_patience=null")
    longer = changed(recipe, train={"stop_patience": None, "max_steps": 10})
    assert run(longer, tmp_path / "run", resume=True) == 1.0


def test_averaging_that_began_with_the_last_validation_is_not_said_never_to_have(
    tmp_path, small_text
):
    """The tiny recipe triggers at 0.4 of training, and here that is where it is validated last."""
    recipe = tiny_recipe(small_text, max_steps=5)
    watcher = Silent()
    run(recipe, tmp_path / "run", watcher=watcher)
    assert [r["name"] for r in records(tmp_path / "run", "event")] == ["triggered"]
    told = watcher.said[-1]
    assert told.startswith("averaging was triggered by the last validation, with no step left")
    assert not any("not triggered" in said for said in watcher.said)
    assert recipe.averaging.unused(["triggered"]) == told  # what the report says


def test_a_folder_that_exists_is_refused_and_untouched(tmp_path, small_text):
    out = tmp_path / "run"
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    with pytest.raises(InfolmError, match="exists already"):
        run(tiny_recipe(small_text, max_steps=1), out)
    with pytest.raises(InfolmError, match="not a run's folder"):
        run(tiny_recipe(small_text, max_steps=1), out, resume=True)
    assert [p.name for p in out.iterdir()] == ["precious.txt"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path, small_text):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match="choose another --out"):
        run(tiny_recipe(small_text, max_steps=1), tmp_path / "file" / "run")


def test_a_cache_tuned_before_training_went_on_is_tuned_anew(tmp_path, small_text):
    recipe = tiny_recipe(small_text, max_steps=5)
    run(recipe, tmp_path / "run")
    opened = LanguageRun.open(tmp_path / "run")
    stored = opened.folder.cache
    stored.write_text('{"window": 7, "weight": 0.5, "flatness": 0.0}')
    assert opened.cache_settings("tuned", 50, quiet).window == 7
    os.utime(stored, ns=(0, 0))
    assert opened.cache_settings("tuned", 50, quiet).window != 7


def test_resuming_with_another_recipe_is_refused_and_the_difference_named(tmp_path, small_text):
    recipe = tiny_recipe(small_text, max_steps=5)
    run(recipe, tmp_path / "run")
    other = changed(recipe, model={"hidden": 13})
    with pytest.raises(InfolmError, match=r"model\.hidden was 12 and is now 13"):
        run(other, tmp_path / "run", resume=True)


def test_a_checkpoint_of_another_model_is_refused(tmp_path, small_text):
    recipe = tiny_recipe(small_text, max_steps=5)
    run(recipe, tmp_path / "a")
    run(changed(recipe, model={"hidden": 13}), tmp_path / "b")
    for old in (tmp_path / "a" / "checkpoints").iterdir():
        old.unlink()
    foreign = checkpoint.checkpoints(tmp_path / "b" / "checkpoints")[-1]
    (tmp_path / "a" / "checkpoints" / foreign.name).write_bytes(foreign.read_bytes())
    with pytest.raises(InfolmError, match="belongs to another model"):
        run(recipe, tmp_path / "a", resume=True)


def test_a_text_that_changed_is_refused_for_resuming_and_for_measuring(tmp_path, small_text):
    recipe = tiny_recipe(small_text, max_steps=5)
    run(recipe, tmp_path / "run")
    small_text.write_text(small_text.read_text().replace("cat", "cow"))
    with pytest.raises(InfolmError, match="no longer the one"):
        run(recipe, tmp_path / "run", resume=True)
    with pytest.raises(InfolmError, match="no longer the one"):
        _ = LanguageRun.open(tmp_path / "run").corpus


def test_a_run_in_use_is_locked(tmp_path, small_text):
    from infolm.training.run import RunFolder

    recipe = tiny_recipe(small_text, max_steps=5)
    run(recipe, tmp_path / "run")
    with (
        RunFolder(tmp_path / "run").locked(),
        pytest.raises(InfolmError, match="another process is training"),
    ):
        run(recipe, tmp_path / "run", resume=True)


def test_fine_tuning_starts_from_the_weights_of_a_run_and_averages_from_there(tmp_path, small_text):
    recipe = tiny_recipe(small_text, max_steps=40)
    run(recipe, tmp_path / "first")
    tree = recipe.model_dump(mode="json")
    tree["start_from"] = str(tmp_path / "first")
    tree["averaging"] = {"kind": "tail", "start": 0}
    tree["train"].update(max_steps=400, stop_patience=2)
    run(Recipe.model_validate(tree), tmp_path / "fine")
    validations = records(tmp_path / "fine", "validation")
    assert all(record["answer"] == "mean" for record in validations)
    first = min(record["loss"] for record in records(tmp_path / "first", "validation"))
    assert abs(validations[0]["loss"] - first) < 0.3  # goes on from there, not from scratch
    assert records(tmp_path / "fine", "event")[-1]["name"] == "stopped"
    assert validations[-1]["step"] < 400


def test_fine_tuning_of_another_vocabulary_is_refused(tmp_path, small_text):
    recipe = tiny_recipe(small_text, max_steps=5)
    run(recipe, tmp_path / "first")
    tree = recipe.model_dump(mode="json")
    tree["start_from"] = str(tmp_path / "first")
    tree["data"]["vocabulary"] = 10
    with pytest.raises(InfolmError, match="another vocabulary"):
        run(Recipe.model_validate(tree), tmp_path / "fine")
    assert not (tmp_path / "fine").exists()


def test_the_schedule_halves_at_each_non_improvement_and_starts_its_history_anew():
    schedule = Schedule(ScheduleConfig(kind="nonmonotone", factor=0.5, patience=1))
    scales = []
    for loss in [3.0, 2.0, 2.5, 9.0, 1.0, 1.5, 0.5]:
        schedule.validated(loss)
        scales.append(schedule.scale)
    assert scales == [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]
    constant = Schedule(ScheduleConfig())
    assert [constant.validated(x) for x in (1.0, 2.0, 3.0)] == [[], [], []]
    assert constant.scale == 1


def test_the_schedule_waits_on_a_plateau():
    schedule = Schedule(ScheduleConfig(kind="plateau", factor=0.25, patience=2))
    scales = []
    for loss in [3.0, 2.0, 2.5, 1.9, 2.0, 1.9, 1.95, 1.91, 1.8]:
        events = schedule.validated(loss)
        assert events == (["rate reduced"] if scales and schedule.scale < scales[-1] else [])
        scales.append(schedule.scale)
    assert scales == [1, 1, 1, 1, 1, 0.25, 0.25, 0.0625, 0.0625]
    resumed = Schedule(schedule.config)
    resumed.load_state_dict(schedule.state_dict())
    assert (resumed.best, resumed.waited, resumed.scale) == (1.8, 0, 0.0625)


def test_a_record_weighs_a_term_by_what_it_is_a_mean_over():
    loop = object.__new__(Loop)
    loop.window = {}
    for nll, kl, tokens, sentences in ((1.0, 2.0, 10, 1), (3.0, 5.0, 30, 2)):
        terms = {"nll": torch.tensor(nll), "kl": torch.tensor(kl)}
        loop._add_up("mim", Estimate(torch.tensor(0.0), terms, tokens, per={"kl": sentences}))
    sums = loop.window["mim"]
    assert sums["nll"] / sums["nll count"] == (10 + 90) / 40
    assert sums["kl"] / sums["kl count"] == (2 + 10) / 3


def test_tensorboard_has_the_same_numbers(tmp_path, small_text):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tiny_recipe(small_text, max_steps=10), tmp_path / "run")
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    shown = [event.value for event in board.Scalars("validation/loss")]
    told = [record["loss"] for record in records(tmp_path / "run", "validation")]
    np.testing.assert_allclose(shown, told, rtol=1e-6)
