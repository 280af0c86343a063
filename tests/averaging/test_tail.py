"""Averages against a plain mean of saved iterates; the trigger on hand-made curves."""

import copy

import pytest
import torch
from torch import nn

from infolm.averaging.base import MEAN, RAW
from infolm.averaging.tail import (
    PolyakConfig,
    SwaConfig,
    TailConfig,
    Triggered,
    TriggeredConfig,
    worse_than_recent,
)
from infolm.config import load_recipe
from infolm.errors import InfolmError


def walk(model, averager, steps, saved, validate_at=None, losses=None):
    """A random walk of the weights, each iterate saved; validations as asked."""
    events = []
    for step in range(1, steps + 1):
        with torch.no_grad():
            for p in model.parameters():
                p += torch.randn_like(p)
        averager.update(step)
        saved.append([p.detach().clone() for p in model.parameters()])
        if validate_at and step % validate_at == 0:
            measured = dict.fromkeys(averager.candidates(), losses.pop(0))
            new = averager.validated(measured, step / steps)
            events.extend((event, step) for event in new)
    return events


def mean_of(saved):
    return [torch.stack(tensors).mean(0) for tensors in zip(*saved, strict=True)]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Linear(4, 3).double()


@pytest.mark.parametrize("start", [0, 1, 7])
def test_a_tail_is_the_plain_mean_of_the_iterates_from_its_start_on(model, start):
    saved = [[p.detach().clone() for p in model.parameters()]]  # w_0
    averager = TailConfig(start=start).build(model)
    walk(model, averager, 20, saved)
    assert averager.candidates() == (MEAN,)
    for ours, plain in zip(averager.weights(MEAN), mean_of(saved[start:]), strict=True):
        torch.testing.assert_close(ours, plain)


def test_polyak_averages_all_iterates_the_first_included(model):
    saved = [[p.detach().clone() for p in model.parameters()]]
    averager = PolyakConfig().build(model)
    walk(model, averager, 20, saved)
    for ours, plain in zip(averager.weights(MEAN), mean_of(saved), strict=True):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize(("start", "every"), [(0, 1), (0, 4), (5, 3), (20, 7)])
def test_swa_averages_every_so_many_iterates_from_its_start_on(model, start, every):
    saved = [[p.detach().clone() for p in model.parameters()]]
    averager = SwaConfig(start=start, every=every).build(model)
    walk(model, averager, 20, saved)
    for ours, plain in zip(averager.weights(MEAN), mean_of(saved[start::every]), strict=True):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("config", [TailConfig(start=30), SwaConfig(start=30, every=2)])
def test_a_tail_that_has_not_begun_answers_with_the_iterate_and_says_so(model, config):
    averager = config.build(model)
    walk(model, averager, 29, [])
    assert averager.candidates() == (RAW,)
    assert averager.unused() == (
        "averaging never started, as training ended before step 30 (averaging.start), so a single "
        "iterate is kept: lower averaging.start or train longer"
    )
    averager.update(30)
    assert averager.unused() is None


def test_a_trigger_that_never_came_is_said(model):
    averager = Triggered(model, TriggeredConfig(patience=2))
    walk(model, averager, 8, [], validate_at=2, losses=[4.0, 3.0, 2.0, 1.0])
    assert "not triggered before the last validation" in averager.unused()
    assert "fewer than 4 validations" in averager.unused()
    assert averager.validated({RAW: 5.0}, 1.0) == ["triggered"]
    # The mean has not been measured: it came too late, and that it did not come is not true.
    assert averager.unused().startswith("averaging was triggered by the last validation")
    averager.update(9)
    assert averager.unused() is None


def test_a_trigger_that_a_divergence_undid_is_said(model):
    averager = Triggered(model, TriggeredConfig(patience=1))
    before = copy.deepcopy(averager.state_dict())
    losses = [1.0, 2.0, 3.0]
    events = walk(model, averager, 9, [], validate_at=3, losses=list(losses))
    assert [name for name, _ in events] == ["triggered"]
    averager.load_state_dict(before)  # back to the best validation
    assert "diverged and went back to before that" in averager.unused()
    resumed = Triggered(model, TriggeredConfig(patience=1))
    resumed.load_state_dict(averager.state_dict())
    assert resumed.unused() == averager.unused()
    assert averager.unused() == averager.config.unused(["triggered", "diverged"])
    for loss in losses:
        averager.validated({RAW: loss}, 0.5)
    assert averager.unused().startswith("averaging was triggered by the last validation")
    averager.update(10)
    assert averager.unused() is None


def test_triggered_averages_from_the_triggering_iterate_on(model):
    saved = []
    averager = Triggered(model, TriggeredConfig(patience=2))
    losses = [5.0, 4.0, 3.0, 3.5, 9.0, 9.0]
    events = walk(model, averager, 24, saved, validate_at=4, losses=losses)
    assert events == [("triggered", 16)]
    for ours, plain in zip(averager.weights(MEAN), mean_of(saved[15:]), strict=True):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize(
    ("losses", "patience", "paper", "released", "stalled"),
    [
        ([5, 4, 3, 2, 1, 0.5, 0.4], 2, None, None, None),  # always better: never
        ([5, 4, 3, 3.1], 2, 3, None, None),  # worse than the best of the last two
        ([5, 4, 3, 3.1, 3.2, 3.3], 2, 3, 5, 4),  # the release looks at all but the last two
        ([1, 2, 3], 5, None, None, None),  # too few validations
        ([1, 2, 3, 4, 5, 6], 5, None, None, 5),  # t must exceed n but where the best is n old
        ([1, 2, 3, 4, 5, 6, 5.5], 5, 6, 6, 5),
        ([9, 8, 7, 6, 5, 4, 4], 5, None, None, None),  # equal is not worse
        ([1, 9, 9, 9, 8, 7, 6], 2, None, 3, 2),  # an early dip: the paper's window forgets it
    ],
)
def test_the_criterion_on_hand_made_curves(losses, patience, paper, released, stalled):
    def first(criterion):
        fired = [
            t
            for t, loss in enumerate(losses)
            if worse_than_recent(loss, losses[:t], patience, criterion)
        ]
        return fired[0] if fired else None

    assert first("paper") == paper
    assert first("released") == released
    assert first("stalled") == stalled


def test_it_triggers_at_the_latest_where_asked(model):
    averager = Triggered(model, TriggeredConfig(patience=5, latest=0.5))
    falling = [float(x) for x in range(20, 0, -1)]
    events = walk(model, averager, 20, [], validate_at=1, losses=falling)
    assert events == [("triggered", 10)]


@pytest.mark.parametrize("kind", ["tail", "swa"])
def test_a_start_beyond_the_end_is_refused_before_training(kind):
    ask = ["train.max_steps=100", f"averaging.kind={kind}"]
    assert load_recipe("awd-lstm/demo", [*ask, "averaging.start=100"]).averaging.kind == kind
    with pytest.raises(
        InfolmError, match=r"averaging\.start is 101, but training ends after step 100"
    ):
        load_recipe("awd-lstm/demo", [*ask, "averaging.start=101"])
