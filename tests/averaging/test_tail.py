"""Averages against a plain mean of saved iterates; the trigger on hand-made curves."""

import pytest
import torch
from torch import nn

from infolm.averaging.base import RAW
from infolm.averaging.tail import (
    MEAN,
    NoAverage,
    Tail,
    TailConfig,
    Triggered,
    TriggeredConfig,
    worse_than_recent,
)


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
    averager = Tail(model, TailConfig(start=start))
    walk(model, averager, 20, saved)
    assert averager.candidates() == (MEAN,)
    for ours, plain in zip(averager.weights(MEAN), mean_of(saved[start:]), strict=True):
        torch.testing.assert_close(ours, plain)


def test_a_tail_that_has_not_begun_answers_with_the_iterate(model):
    averager = Tail(model, TailConfig(start=30))
    walk(model, averager, 20, [])
    assert averager.candidates() == (RAW,)


def test_triggered_averages_from_the_triggering_iterate_on(model):
    saved = []
    averager = Triggered(model, TriggeredConfig(patience=2))
    losses = [5.0, 4.0, 3.0, 3.5, 9.0, 9.0]
    events = walk(model, averager, 24, saved, validate_at=4, losses=losses)
    assert events == [("triggered", 16)]
    for ours, plain in zip(averager.weights(MEAN), mean_of(saved[15:]), strict=True):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize(
    ("losses", "patience", "paper", "released"),
    [
        ([5, 4, 3, 2, 1, 0.5, 0.4], 2, None, None),  # always better: never
        ([5, 4, 3, 3.1], 2, 3, None),  # worse than the best of the last two
        ([5, 4, 3, 3.1, 3.2, 3.3], 2, 3, 5),  # the release looks at all but the last two
        ([1, 2, 3], 5, None, None),  # too few validations
        ([1, 2, 3, 4, 5, 6], 5, None, None),  # t must exceed n: t = 5 here
        ([1, 2, 3, 4, 5, 6, 5.5], 5, 6, 6),
        ([9, 8, 7, 6, 5, 4, 4], 5, None, None),  # equal is not worse
        ([1, 9, 9, 9, 8, 7, 6], 2, None, 3),  # an early dip: the paper's window forgets it
    ],
)
def test_the_criterion_on_hand_made_curves(losses, patience, paper, released):
    def first(criterion):
        fired = [
            t
            for t, loss in enumerate(losses)
            if worse_than_recent(loss, losses[:t], patience, criterion)
        ]
        return fired[0] if fired else None

    assert first("paper") == paper
    assert first("released") == released


def test_it_triggers_at_the_latest_where_asked(model):
    averager = Triggered(model, TriggeredConfig(patience=5, latest=0.5))
    falling = [float(x) for x in range(20, 0, -1)]
    events = walk(model, averager, 20, [], validate_at=1, losses=falling)
    assert events == [("triggered", 10)]


def test_swapping_in_gives_the_mean_and_puts_the_iterate_back_to_the_bit(model):
    averager = Tail(model, TailConfig())
    walk(model, averager, 5, [])
    before = [p.detach().clone() for p in model.parameters()]
    with averager.swapped_in(MEAN):
        for p, mean in zip(model.parameters(), averager.weights(MEAN), strict=True):
            assert torch.equal(p, mean)
    with pytest.raises(KeyboardInterrupt), averager.swapped_in(MEAN):
        raise KeyboardInterrupt
    for p, own in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, own)


def test_every_averager_goes_on_alike_from_its_saved_state(model):
    for make in (
        NoAverage,
        lambda m: Tail(m, TailConfig(start=3)),
        lambda m: Triggered(m, TriggeredConfig(patience=1)),
    ):
        torch.manual_seed(0)
        averager = make(model)
        walk(model, averager, 6, [], validate_at=2, losses=[1.0, 2.0, 3.0])
        other = make(model)
        other.load_state_dict(averager.state_dict())
        assert other.candidates() == averager.candidates()
        for candidate in averager.candidates():
            if candidate != RAW:
                pairs = zip(other.weights(candidate), averager.weights(candidate), strict=True)
                assert all(torch.equal(a, b) for a, b in pairs)
