"""What is true of every averager that a recipe can name."""

import pytest
import torch
from torch import nn
from training_tiny import Silent, quiet, tiny_tree

from infolm.averaging.base import AVERAGERS, RAW
from infolm.config import Recipe
from infolm.families.train import train
from infolm.training import checkpoint
from infolm.training.run import read_metrics

SETTINGS = {  # such that each comes into use within a few validations
    "tail": {"start": 3},
    "triggered": {"patience": 1},
    "ema": {"beta": 0.7},
    "swa": {"start": 2, "every": 3},
    "two-tailed": {"patience": 2},
}
CONFIGS = {
    kind: config.model_validate({"kind": kind, **SETTINGS.get(kind, {})})
    for kind, config in AVERAGERS.items()
}
CONFIGS["two-tailed by the training loss"] = CONFIGS["two-tailed"].model_copy(
    update={"switch_on": "train"}
)
EVERY = 4  # steps between validations


@pytest.fixture(params=CONFIGS)
def kind(request):
    return request.param


class Walk:
    """A random walk of a small model, an averager that looks on, and what it told."""

    def __init__(self, kind):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 3).double()
        for p in self.model.parameters():
            p.data *= 50  # from afar: at first the iterate is better than any mean
        recipe = Recipe.model_construct(averaging=CONFIGS[kind])
        self.averager = recipe.averaging.build(self.model)
        self.step = 0
        self.iterates = [self.weights()]
        self.told = []

    def weights(self):
        return [p.detach().clone() for p in self.model.parameters()]

    def go(self, steps):
        for _ in range(steps):
            self.step += 1
            generator = torch.Generator().manual_seed(self.step)
            with torch.no_grad():
                for p in self.model.parameters():
                    p.mul_(0.9).add_(torch.randn(p.shape, generator=generator).double())
            self.averager.update(self.step)
            self.iterates.append(self.weights())
            if self.step % EVERY == 0:
                self.validate()

    def losses(self):
        """The squared norm with each candidate swapped in."""
        measured = {}
        for candidate in self.averager.candidates():
            with self.averager.swapped_in(candidate):
                measured[candidate] = sum(float(p.square().sum()) for p in self.weights())
        return measured

    def validate(self):
        losses = self.losses()
        answer = self.averager.answer(losses)
        events = self.averager.validated(losses, self.step / 100)
        self.told.append((losses, answer, events, self.averager.lengths()))


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_the_answer_is_one_of_the_candidates_and_candidates_are_weights(kind):
    walk = Walk(kind)
    for _ in range(40):
        walk.go(1)
        candidates = walk.averager.candidates()
        assert len(set(candidates)) == len(candidates) >= 1
        assert walk.averager.answer(walk.losses()) in candidates
        for candidate in set(candidates) - {RAW}:
            weights = walk.averager.weights(candidate)
            assert [w.shape for w in weights] == [p.shape for p in walk.model.parameters()]
            # A mean lies among the iterates, element by element.
            for mean, path in zip(weights, zip(*walk.iterates, strict=True), strict=True):
                path = torch.stack(path)
                assert (mean >= path.amin(0) - 1e-12).all()
                assert (mean <= path.amax(0) + 1e-12).all()


def test_every_kind_but_none_comes_to_answer_with_a_mean(kind):
    walk = Walk(kind)
    walk.go(80)
    answers = {answer for _, answer, _, _ in walk.told}
    assert (answers == {RAW}) == (kind == "none")
    assert walk.averager.unused() is None


def test_asking_changes_nothing(kind):
    asked, left = Walk(kind), Walk(kind)
    for _ in range(30):
        asked.go(1)
        for _ in range(2):
            asked.averager.answer(asked.losses())
            asked.averager.lengths()
            asked.averager.unused()
            asked.averager.state_dict()
        left.go(1)
    assert asked.told == left.told


def test_a_mean_is_no_view_of_the_model(kind):
    walk = Walk(kind)
    walk.go(18)
    for candidate in set(walk.averager.candidates()) - {RAW}:
        before = [w.clone() for w in walk.averager.weights(candidate)]
        with torch.no_grad():
            for p in walk.model.parameters():
                p += 1
        assert same(walk.averager.weights(candidate), before)


def test_swapping_in_gives_the_candidate_and_puts_the_iterate_back_to_the_bit(kind):
    walk = Walk(kind)
    walk.go(18)
    before = walk.weights()
    for candidate in walk.averager.candidates():
        with walk.averager.swapped_in(candidate):
            expected = before if candidate == RAW else walk.averager.weights(candidate)
            assert same(walk.weights(), expected)
        assert same(walk.weights(), before)
        with pytest.raises(KeyboardInterrupt), walk.averager.swapped_in(candidate):
            raise KeyboardInterrupt
        assert same(walk.weights(), before)


@pytest.mark.parametrize("at", [0, 2, 7, 8, 30])
def test_from_its_state_on_disk_it_goes_on_to_the_same_bits(kind, at, tmp_path):
    whole, first, second = Walk(kind), Walk(kind), Walk(kind)
    whole.go(60)
    first.go(at)
    checkpoint.save(tmp_path / "state", {"a": first.averager.state_dict(), "w": first.weights()})
    state = checkpoint.load(tmp_path / "state")
    second.step = at
    with torch.no_grad():
        for p, saved in zip(second.model.parameters(), state["w"], strict=True):
            p.copy_(saved)
    second.averager.load_state_dict(state["a"])
    second.go(60 - at)
    assert first.told + second.told == whole.told
    for candidate in set(whole.averager.candidates()) - {RAW}:
        assert same(whole.averager.weights(candidate), second.averager.weights(candidate))


def test_it_keeps_two_means_at_most(kind):
    walk = Walk(kind)
    size = sum(p.numel() for p in walk.model.parameters())

    def tensors(node):
        if isinstance(node, torch.Tensor):
            return node.numel()
        children = node.values() if isinstance(node, dict) else node
        return sum(tensors(c) for c in children if isinstance(c, torch.Tensor | dict | list))

    for _ in range(40):
        walk.go(1)
        assert tensors(walk.averager.state_dict()) <= 2 * size


def test_weights_that_are_not_trained_are_not_averaged(kind):
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    averager = CONFIGS[kind].build(model)
    assert [p is model.weight for p in averager.parameters] == [True]


def test_a_run_killed_half_way_ends_with_the_same_bytes(kind, tmp_path, small_text):
    tree = tiny_tree(small_text, validate_every=3, max_steps=12)
    tree["averaging"] = CONFIGS[kind].model_dump()
    tree["model"] |= {"layers": 1}
    recipe = Recipe.model_validate(tree)
    train(recipe, tmp_path / "whole", False, Silent(), quiet)
    for steps in (6, 12):
        tree["train"]["max_steps"] = steps
        train(Recipe.model_validate(tree), tmp_path / "halves", steps == 12, Silent(), quiet)
    files = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "halves")]
    assert files[0] == files[1]
    validations = [
        [r for r in read_metrics(tmp_path / run / "metrics.jsonl") if r["kind"] == "validation"]
        for run in ("whole", "halves")
    ]
    assert validations[0] == validations[1]
