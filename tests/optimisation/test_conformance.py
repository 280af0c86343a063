"""What is true of every optimiser and schedule: a new kind is tested here by being registered."""

import json
import typing

import pytest
import torch

from infolm.optimisation.optimisers import OPTIMISERS, load_optimiser
from infolm.optimisation.schedule import Schedule, ScheduleConfig
from infolm.training import checkpoint

SCHEDULES = typing.get_args(ScheduleConfig.model_fields["kind"].annotation)
TARGET = torch.tensor([[1.0, -2.0], [0.5, 3.0]])


@pytest.fixture(params=list(OPTIMISERS))
def build(request):
    def make(parameters, **settings):
        settings = {"kind": request.param, "learning_rate": 0.05, **settings}
        return OPTIMISERS[request.param].model_validate(settings).build(parameters)

    return make


def descend(parameter, optimiser, steps):
    for _ in range(steps):
        optimiser.zero_grad()
        (parameter - TARGET).square().sum().backward()
        optimiser.step()


def zeros():
    return torch.nn.Parameter(torch.zeros(2, 2))


def test_it_finds_the_least_of_a_bowl(build):
    parameter = zeros()
    descend(parameter, build([parameter]), 500)
    torch.testing.assert_close(parameter.data, TARGET, atol=0.02, rtol=0)


def test_a_step_is_as_long_as_the_rate_says(build):
    """From the same start, half the rate is half the step."""
    moved = []
    for rate in (0.02, 0.01):
        parameter = zeros()
        descend(parameter, build([parameter], learning_rate=rate), 1)
        moved.append(parameter.detach().clone())
    torch.testing.assert_close(moved[0], 2 * moved[1])
    assert moved[0].abs().sum() > 0


def test_weight_decay_draws_matrices_to_0(build):
    parameter = torch.nn.Parameter(TARGET.clone())
    optimiser = build([parameter], weight_decay=0.1)
    for _ in range(3):
        parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
    assert (parameter.abs() < TARGET.abs()).all()
    assert (parameter.sign() == TARGET.sign()).all()


@pytest.mark.parametrize("steps", [1, 7])
def test_saved_and_restored_it_goes_on_alike(build, steps, tmp_path):
    parameter = zeros()
    optimiser = build([parameter])
    descend(parameter, optimiser, steps)
    state = {"optimiser": optimiser.state_dict(), "weights": parameter.data}
    checkpoint.save(tmp_path / "state.safetensors", state)
    read = checkpoint.load(tmp_path / "state.safetensors")
    other = torch.nn.Parameter(read["weights"].clone())
    again = build([other])
    load_optimiser(again, read["optimiser"])
    descend(parameter, optimiser, 5)
    descend(other, again, 5)
    assert torch.equal(parameter, other)


# Schedules


@pytest.fixture(params=SCHEDULES)
def schedule(request):
    return lambda: Schedule(ScheduleConfig(kind=request.param, warm_up=3, patience=2))


LOSSES = [5.0, 4.0, 4.5, 4.6, 4.7, 4.8, 4.4, 4.3, 4.9, 5.0]


def course(schedule, losses, first=0):
    """The scale of the rate and the events, a validation after each step."""
    found = []
    for step, loss in enumerate(losses, first + 1):
        scale = schedule.at(step, (step - 1) / len(LOSSES))
        found.append((scale, schedule.validated(loss)))
    return found


def test_the_rate_is_never_raised_above_the_recipes_nor_0_before_the_end(schedule):
    scales = [scale for scale, _ in course(schedule(), LOSSES)]
    assert all(0 < scale <= 1 for scale in scales)


def test_a_lower_rate_is_an_event_unless_it_was_planned(schedule):
    one = schedule()
    found = course(one, LOSSES)
    reduced = [scale for scale, events in found if events]
    if one.config.kind in ("nonmonotone", "plateau"):
        assert reduced
    else:
        assert not reduced


@pytest.mark.parametrize("cut", [0, 3, 5, 9])
def test_a_schedule_that_is_saved_and_restored_goes_on_alike(schedule, cut):
    one = schedule()
    course(one, LOSSES[:cut])
    other = schedule()
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert course(one, LOSSES[cut:], cut) == course(other, LOSSES[cut:], cut)
