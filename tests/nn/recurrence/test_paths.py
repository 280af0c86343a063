"""Every path over time gives the plain loop's numbers, whatever the cell and its shapes."""

import gc
import linecache
import shutil
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from infolm.errors import InfolmError
from infolm.models.recurrent import (
    DropoutConfig,
    MogrifierConfig,
    RecurrentConfig,
    build_cell,
    rates,
)
from infolm.nn.recurrence import driver, native
from infolm.nn.recurrence.driver import choose, use

CELLS = ["lstm", "gru", "elman", "rewired", "multiplicative"]
FAST = ["fused", "native"]
needs_compiler = pytest.mark.skipif(not native.available(), reason="no C++ compiler")


@dataclass
class Case:
    """A layer, its input (a sentence a row) and its first state."""

    cell: nn.Module
    sentences: list[torch.Tensor]
    state: tuple[torch.Tensor, ...]

    def numbers(self, path: str, packed: bool) -> list[torch.Tensor]:
        """Outputs, last state, and gradients of a loss that reads both, by all that is given."""
        inputs = [s.clone().requires_grad_() for s in self.sentences]
        state = tuple(s.clone().requires_grad_() for s in self.state)
        x = pack_sequence(inputs, enforce_sorted=False) if packed else torch.stack(inputs, 1)
        torch.manual_seed(7)  # the same masks on every path
        with use(path):
            outputs, after = self.cell(x, state)
        rows = outputs.data if packed else outputs
        weights = torch.linspace(-1, 1, rows.numel(), dtype=rows.dtype).view_as(rows)
        loss = (weights * rows).sum() + sum((k + 2) * s.square().sum() for k, s in enumerate(after))
        gradients = torch.autograd.grad(loss, [*inputs, *state, *self.cell.parameters()])
        return [rows, *after, *gradients]

    def outputs_without_gradient(self, path: str, packed: bool) -> list[torch.Tensor]:
        x = self.sentences
        x = pack_sequence(x, enforce_sorted=False) if packed else torch.stack(x, 1)
        torch.manual_seed(7)
        with use(path), torch.no_grad():
            outputs, after = self.cell(x, self.state)
        return [outputs.data if packed else outputs, *after]


def make(config, inputs, hidden, lengths, dtype=torch.double):
    torch.manual_seed(0)
    cell = build_cell(config, inputs, hidden, rates(config)).to(dtype).train()
    for key, weight in cell.named_parameters():
        if "gates" in key and key.endswith("bias"):  # they begin at 0
            nn.init.normal_(weight)
    sentences = [torch.randn(length, inputs, dtype=dtype) for length in lengths]
    state = tuple(torch.randn_like(s).tanh() for s in cell.initial_state(len(lengths)))
    return Case(cell, sentences, state)


@st.composite
def cases(draw):
    small = st.integers(1, 6)
    inputs, hidden = draw(small), draw(st.integers(1, 9))
    rank = draw(st.integers(0, min(inputs, hidden, 3)))
    mogrifier = MogrifierConfig(
        rounds=draw(st.integers(0, 5)),
        rank=rank,
        zigzag=draw(st.booleans()),
        gate=draw(st.sampled_from(["linear", "affine", "constant"])),
    )
    config = RecurrentConfig(
        cell=draw(st.sampled_from(CELLS)),
        mogrifier=mogrifier,
        capped=draw(st.booleans()),
        weight_drop=draw(st.sampled_from([0.0, 0.4])),
        dropout=DropoutConfig(state=draw(st.sampled_from([0.0, 0.5]))),
    )
    packed = draw(st.booleans())
    if packed:
        lengths = draw(st.lists(small, min_size=1, max_size=7))
    else:
        lengths = [draw(small)] * draw(st.integers(1, 7))
    return make(config, inputs, hidden, lengths), packed


@pytest.mark.parametrize("path", ["fused", pytest.param("native", marks=needs_compiler)])
@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_outputs_states_and_gradients_are_those_of_the_plain_loop(path, case):
    case, packed = case
    expected = case.numbers("plain", packed)
    torch.testing.assert_close(case.numbers(path, packed), expected, rtol=0, atol=1e-10)
    without = case.outputs_without_gradient(path, packed)
    torch.testing.assert_close(without, expected[: len(without)], rtol=0, atol=1e-10)


@pytest.mark.parametrize("path", ["plain", "fused", pytest.param("native", marks=needs_compiler)])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_packed_sentences_are_those_of_pytorch(name, path):
    case = make(RecurrentConfig(cell=name), 5, 7, [3, 6, 1, 6, 2])
    twin = (nn.LSTM if name == "lstm" else nn.GRU)(5, 7).double()
    twin.load_state_dict({f"{key}_l0": value for key, value in case.cell.state_dict().items()})
    x = pack_sequence(case.sentences, enforce_sorted=False)
    with use(path):
        outputs, after = case.cell(x, case.state)
    expected, last = twin(x, case.state if name == "lstm" else case.state[0])
    torch.testing.assert_close(pad_packed_sequence(outputs), pad_packed_sequence(expected))
    torch.testing.assert_close(after, last if name == "lstm" else (last,))


@pytest.mark.parametrize("path", ["fused", pytest.param("native", marks=needs_compiler)])
@pytest.mark.parametrize("name", CELLS)
def test_single_precision_is_double_precision_but_for_rounding(name, path):
    config = RecurrentConfig(cell=name, mogrifier=MogrifierConfig(rounds=3, rank=4), capped=True)
    case = make(config, 33, 50, [20] * 9)
    exact = case.numbers("plain", packed=False)
    single = make(config, 33, 50, [20] * 9)
    single.cell.float()
    single.sentences = [s.float() for s in single.sentences]
    single.state = tuple(s.float() for s in single.state)
    for ours, truth in zip(single.numbers(path, packed=False), exact, strict=True):
        error = (ours.double() - truth).norm() / truth.norm()
        assert error < 2e-6  # a few units of 2^-24 = 6e-8 for each of the sums along the way


@pytest.mark.parametrize("path", ["fused", pytest.param("native", marks=needs_compiler)])
def test_a_diverged_model_is_seen_to_be_one(path):
    case = make(RecurrentConfig(cell="rewired"), 4, 5, [6, 6])
    case.sentences[0][2, 1] = torch.nan
    with use(path):
        outputs, _ = case.cell(torch.stack(case.sentences, 1), case.state)
    assert not outputs[:2].isnan().any()
    assert outputs[2:, 0].isnan().all()
    assert not outputs[:, 1].isnan().any()  # the other row has nothing to do with it


@pytest.mark.parametrize("path", ["fused", pytest.param("native", marks=needs_compiler)])
def test_gradients_are_only_taken_of_what_asks_for_them(path):
    case = make(RecurrentConfig(cell="rewired"), 4, 5, [6, 6])
    for parameter in case.cell.parameters():
        parameter.requires_grad_(False)
    case.cell.weight_oc.requires_grad_()
    with use(path):
        outputs, _ = case.cell(torch.stack(case.sentences, 1), case.state)
        outputs.sum().backward()
    assert [name for name, p in case.cell.named_parameters() if p.grad is not None] == ["weight_oc"]


@needs_compiler
def test_the_number_of_threads_changes_no_bit():
    case = make(
        RecurrentConfig(cell="rewired", mogrifier=MogrifierConfig(rounds=2)), 17, 33, [9] * 13
    )
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(case.outputs_without_gradient("native", packed=False))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_compiled_steps_are_the_plain_ones_and_serve_any_length():
    config = RecurrentConfig(cell="elman", mogrifier=MogrifierConfig(rounds=2))
    first, longer, uneven = (
        make(config, 4, 5, sizes) for sizes in ([4] * 3, [7] * 3, [5, 5, 3, 3])
    )
    counts = torch._dynamo.utils.counters["stats"]
    for case in (first, longer, uneven):
        case.cell = first.cell
        compiled = counts["unique_graphs"]
        expected = case.numbers("plain", packed=True)
        ours = case.numbers("compiled", packed=True)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
        assert (counts["unique_graphs"] > compiled) == (case is first)


def test_the_path_is_native_where_it_can_be_and_pays(monkeypatch):
    monkeypatch.delenv("INFOLM_CELLS", raising=False)
    x = torch.zeros(4, 3)
    monkeypatch.setattr(driver.native, "available", lambda: True)
    assert choose(x, steps=70) == "native"
    assert choose(x, steps=1) == "fused"
    assert choose(x.half(), steps=70) == "fused"
    monkeypatch.setattr(driver.native, "available", lambda: False)
    assert choose(x, steps=70) == "fused"


def test_a_path_can_be_asked_for_and_a_wrong_one_is_refused(monkeypatch):
    x = torch.zeros(4, 3)
    monkeypatch.setenv("INFOLM_CELLS", "plain")
    assert choose(x, 70) == "plain"
    with use("fused"):
        assert choose(x, 70) == "fused"
    assert choose(x, 70) == "plain"
    monkeypatch.setenv("INFOLM_CELLS", "quick")
    with pytest.raises(InfolmError, match="INFOLM_CELLS is 'quick': set it to one of plain"):
        choose(x, 70)
    monkeypatch.setenv("INFOLM_CELLS", "native")
    monkeypatch.setattr(driver.native, "available", lambda: False)
    monkeypatch.setattr(driver.compiling, "compiler", lambda: [])
    for path in ("native", "compiled"):
        monkeypatch.setenv("INFOLM_CELLS", path)
        with pytest.raises(InfolmError, match=rf"INFOLM_CELLS is {path}, .* C\+\+ compiler"):
            choose(x, 70)


@pytest.mark.parametrize("path", ["fused", pytest.param("native", marks=needs_compiler)])
def test_mixed_precision_rounds_the_products_of_the_native_path_alone(path):
    case = make(RecurrentConfig(cell="rewired"), 4, 5, [6, 6], torch.float)
    expected = case.numbers(path, packed=False)
    with torch.autocast("cpu", torch.bfloat16):
        ours = case.numbers(path, packed=False)
    assert {tensor.dtype for tensor in ours} == {torch.float}
    if path == "fused":
        torch.testing.assert_close(ours, expected)
    else:
        for found, true in zip(ours, expected, strict=True):
            assert 0 < (found - true).norm() < 2**-6 * true.norm()
    rounded = [sentence.bfloat16() for sentence in case.sentences]  # from a layer that was cast
    case.sentences = [sentence.float() for sentence in rounded]
    expected = case.numbers(path, packed=False)[0]
    case.sentences = rounded
    torch.testing.assert_close(case.numbers(path, packed=False)[0], expected)


@pytest.mark.parametrize("path", FAST)
def test_a_cell_that_is_gone_leaves_nothing(path):
    """A server or a notebook opens models for weeks."""

    def opened():
        case = make(RecurrentConfig(cell="rewired"), 3, 4, [2, 2])
        case.numbers(path, packed=False)
        case.outputs_without_gradient("fused", packed=False)

    def objects():
        gc.collect()
        return len(gc.get_objects()), len(linecache.cache)

    for _ in range(3):
        opened()
    before = objects()
    for _ in range(10):
        opened()
    after = objects()
    assert after[1] == before[1]
    assert after[0] - before[0] < 20
