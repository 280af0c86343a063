"""What a cell's step is written down as: no product in the loop that could be outside of it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from infolm.models.recurrent import (
    DropoutConfig,
    MogrifierConfig,
    RecurrentConfig,
    build_cell,
    rates,
)
from infolm.nn.cells.base import Cell
from infolm.nn.dropout import Rates
from infolm.nn.recurrence import native
from infolm.nn.recurrence.driver import use
from infolm.nn.recurrence.machine import Machine
from infolm.nn.recurrence.program import trace

E, H = 5, 7


def program(name, masked=False, **options):
    config = RecurrentConfig(cell=name, **options)
    cell = build_cell(config, E, H, rates(config))
    gates = cell.mogrifier.factors() if cell.mogrifier else ()
    weights = (*cell.weights(), *gates)
    return trace(cell._step, E, H, cell.remembered, weights, masked)


def products(procedure):
    return sum(node.operation == "linear" for node in procedure.body)


@pytest.mark.parametrize(
    ("name", "recurrent"),
    [("lstm", 1), ("elman", 1), ("gru", 2), ("multiplicative", 2), ("rewired", 4)],
)
def test_the_input_is_multiplied_before_the_loop_the_state_in_it(name, recurrent):
    traced = program(name)
    assert len(traced.hoisted) == 1
    assert products(traced.forward) == recurrent
    assert products(traced.backward) == recurrent
    assert traced.gradient_x is None  # it comes from the hoisted map alone


def test_a_mogrifier_needs_its_input_step_by_step():
    traced = program("lstm", mogrifier=MogrifierConfig(rounds=5, rank=2))
    assert not traced.hoisted
    assert products(traced.forward) == 2 + 10
    assert products(traced.backward) == 2 + 10
    assert len(traced.products) == 2 + 10


def test_without_zigzag_the_gates_of_h_read_the_input_alone():
    traced = program("lstm", mogrifier=MogrifierConfig(rounds=4, zigzag=False))
    assert len(traced.hoisted) == 2


def test_only_what_is_dear_is_saved():
    """Of the capped LSTM: four gates, tanh c; i's cap and the sums are computed again."""
    traced = program("lstm", capped=True)
    assert sorted(node.operation for node in traced.saved) == ["sigmoid"] * 3 + ["tanh"] * 2
    assert all(node.size == H for node in traced.saved)


def test_without_gradient_only_the_outputs_are_stored():
    traced = program("rewired", mogrifier=MogrifierConfig(rounds=2))
    assert traced.inference.outputs == traced.after
    assert Machine(traced).passing.stored == traced.after[:1]


def test_scratch_memory_is_used_again():
    """Two values of one size, of the many, are needed at once in each of the five rounds."""
    layout = Machine(program("lstm", mogrifier=MogrifierConfig(rounds=5))).passing
    scratch = {b for b, _, _ in layout.operands if b.size == H and b.when == native.FIXED}
    values = [n for n in layout.procedure.body if n.size == H and n.operation != "slice"]
    assert len(scratch) < len(values) / 3


def test_the_same_expression_is_computed_once():
    traced = program("rewired", masked=True)
    operations = [
        (n.operation, n.inputs, n.alpha, n.beta, n.weight, n.start) for n in traced.forward.body
    ]
    assert len(set(operations)) == len(operations)


class MinimalGated(Cell):
    """A cell of somebody else's, with an operation of each kind (Zhou et al. 2016, but capped)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden, Rates(), None)
        self.gate = self._weight(hidden, inputs + hidden)
        self.candidate = self._weight(hidden, inputs + hidden)
        self.bias = self._weight(hidden)

    def weights(self):
        sizes = [self.inputs, self.hidden]
        return *self.gate.split(sizes, 1), *self.candidate.split(sizes, 1), self.bias

    def step(self, x, h, state, weights, keep):
        w_f, u_f, w_h, u_h, b = weights
        f = torch.sigmoid(functional.linear(x, w_f, b) + functional.linear(h, u_f))
        new = torch.tanh(functional.linear(x, w_h) - functional.linear(f * h, u_h))
        new = torch.minimum(new, -(0.5 - f)) + 0.25 * new
        return (h - f * h + f * new,)


@pytest.mark.parametrize("path", ["fused", "native"])
def test_a_new_cell_is_its_weights_and_its_step(path):
    if path == "native" and not native.available():
        pytest.skip("no C++ compiler")
    torch.manual_seed(0)
    cell = MinimalGated(E, H).double()
    x = torch.randn(6, 4, E, dtype=torch.double, requires_grad=True)
    results = []
    for each in ("plain", path):
        with use(each):
            outputs, after = cell(x, cell.initial_state(4))
        loss = outputs.square().sum() + after[0].sum()
        results.append([outputs, *torch.autograd.grad(loss, [x, *cell.parameters()])])
    torch.testing.assert_close(*results, rtol=0, atol=1e-10)


class Written(Cell):
    """A cell whose step is a list: (operation, operands), each on the values made so far.

    No operation makes numbers much larger than 1 of such as are not, so rounding stays rounding.
    """

    remembered = 2

    def __init__(self, lines, outputs) -> None:
        super().__init__(E, H, Rates(), None)
        self.lines, self.outputs = lines, outputs
        self.wide, self.square = self._weight(2 * H, E), self._weight(H, H)
        with torch.no_grad():
            self.wide /= math.sqrt(H)
            self.square /= math.sqrt(H)
        self.bias, self.wide_bias = self._weight(H), self._weight(2 * H)

    def weights(self):
        return self.wide, self.wide_bias, self.square, self.bias

    def step(self, x, h, state, weights, keep):
        wide, wide_bias, square, bias = weights
        values = [*functional.linear(x, wide, wide_bias).chunk(2, 1), *state]
        operations = {
            "add": lambda a, b: 0.5 * (a + b),
            "sub": lambda a, b: 0.5 * (a - b),
            "mul": lambda a, b: 0.9 * (a * b),
            "min": torch.minimum,
            "sigmoid": lambda a, b: a.sigmoid(),
            "tanh": lambda a, b: torch.tanh(a),
            "affine": lambda a, b: 0.4 - 0.6 * a,
            "linear": lambda a, b: functional.linear(a, square),
            "biased": lambda a, b: (functional.linear(a, square, bias) + b).tanh(),
        }
        for name, a, b in self.lines:
            values.append(operations[name](values[a], values[b]))
        return tuple(values[i] for i in self.outputs)


@st.composite
def written(draw):
    names = st.sampled_from("add sub mul min sigmoid tanh affine linear biased".split())
    lines = []
    for count in range(4, 4 + draw(st.integers(0, 9))):
        index = st.integers(0, count - 1)
        lines.append((draw(names), draw(index), draw(index)))
    index = st.integers(0, 3 + len(lines))
    return Written(lines, [draw(index), draw(index)])


@pytest.mark.parametrize("path", ["fused", "native"])
@settings(max_examples=150, deadline=None)
@given(cell=written())
def test_any_step_of_known_operations_has_its_outputs_and_gradients(path, cell):
    if path == "native" and not native.available():
        pytest.skip("no C++ compiler")
    torch.manual_seed(0)
    cell = cell.double()
    x = torch.randn(3, 4, E, dtype=torch.double).tanh().requires_grad_()
    state = tuple(torch.randn_like(s).tanh().requires_grad_() for s in cell.initial_state(4))
    read = [x, *state, *cell.parameters()]
    results = []
    for each in ("plain", path):
        with use(each):
            outputs, after = cell(x, state)
        loss = outputs.sin().sum() + sum(s.cos().sum() for s in after)
        gradients = torch.autograd.grad(loss, read, allow_unused=True, materialize_grads=True)
        results.append([outputs, *after, *gradients])
    torch.testing.assert_close(*results, rtol=0, atol=1e-10)


def test_a_step_that_cannot_be_written_down_says_why():
    class Softplus(MinimalGated):
        def step(self, x, h, state, weights, keep):
            return (functional.softplus(functional.linear(x, weights[0])),)

    cell = Softplus(E, H)
    with pytest.raises(NotImplementedError, match="softplus"), use("fused"):
        cell(torch.zeros(2, 1, E), cell.initial_state(1))


def test_the_mask_of_the_state_reaches_what_reads_the_state():
    traced = program("rewired", masked=True, dropout=DropoutConfig(state=0.5))
    masked = [n for n in traced.forward.body if any(i.operation == "keep" for i in n.inputs)]
    assert len(masked) == 2  # h before the products, c before the output gate
