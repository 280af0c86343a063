"""How layers are joined, and which dropout stands where."""

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from infolm.nn.cells.base import State
from infolm.nn.cells.elman import Elman
from infolm.nn.dropout import Rates, mask
from infolm.nn.stack import Stack

SIZE = 4


def stack(connections, layers=3, rate=0.0, locked=True):
    torch.manual_seed(0)
    rates = Rates(hidden=rate)
    cells = [Elman(SIZE, SIZE, rates) for _ in range(layers)]
    return Stack(cells, connections, rates, locked).double()


def by_hand(module: Stack, x: Tensor, masks: list[Tensor]) -> Tensor:
    """The docstring's table, every sum written out."""
    raw: list[Tensor] = []
    dropped: list[Tensor] = []
    h = x
    for i, (cell, m) in enumerate(zip(module.cells, masks, strict=True)):
        if i == 0:
            read = x
        elif module.connections == "residual":
            read = torch.stack(dropped).sum(0)
        else:
            read = dropped[-1]
        state: State = cell.initial_state(x.shape[1])
        h, _ = cell(read, state)
        raw.append(h)
        dropped.append(h * m)
    if module.connections == "stacked":
        return h
    return torch.stack(raw if module.connections == "skip-raw" else dropped).sum(0)


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize("connections", ["stacked", "skip", "skip-raw", "residual"])
def test_layers_are_joined_as_said_each_with_its_own_mask(connections, locked, layers):
    module = stack(connections, layers, rate=0.5, locked=locked).train()
    x = torch.randn(5, 3, SIZE, dtype=torch.double)
    torch.manual_seed(1)
    output, each, after = module(x, module.initial_state(3))
    torch.manual_seed(1)
    shape = (1 if locked else 5, 3, SIZE)
    drawn = layers - (connections in ("stacked", "skip-raw"))
    masks = [mask(shape, 0.5, x) for _ in range(drawn)]
    masks += [torch.ones(1).double()] * (layers - drawn)
    torch.testing.assert_close(output, by_hand(module, x, masks))
    assert len(each) == len(after) == layers
    for h, (last,) in zip(each, after, strict=True):
        torch.testing.assert_close(h[-1], last[0])


def test_two_layers_of_skip_and_residual_are_the_same_and_three_are_not():
    x = torch.randn(5, 3, SIZE, dtype=torch.double)
    for layers in (2, 3):
        skip, residual = stack("skip", layers).eval(), stack("residual", layers).eval()
        a, b = (module(x, module.initial_state(3)).output for module in (skip, residual))
        assert torch.equal(a, b) == (layers == 2)


def test_without_dropout_skip_connections_are_the_same_whichever_outputs_they_sum():
    x = torch.randn(5, 3, SIZE, dtype=torch.double)
    for rate in (0.0, 0.5):
        behind, before = stack("skip", 3, rate).train(), stack("skip-raw", 3, rate).train()
        outputs = []
        for module in (behind, before):
            torch.manual_seed(1)
            outputs.append(module(x, module.initial_state(3)).output)
        assert torch.equal(*outputs) == (rate == 0)


def test_a_new_mask_each_step_and_one_mask_over_time():
    x = torch.ones(50, 2, SIZE, dtype=torch.double)
    for locked in (True, False):
        module = stack("skip", 1, rate=0.5, locked=locked).train()
        zero = module(x, module.initial_state(2)).output == 0
        assert bool((zero == zero[0]).all()) == locked


def test_scaled_rates_scale_and_come_back():
    rates = Rates(hidden=0.4, weight=0.2)
    with rates.scaled(0.5):
        assert (rates.hidden, rates.weight, rates.input) == (0.2, 0.1, 0.0)
    assert rates == Rates(hidden=0.4, weight=0.2)


@pytest.mark.parametrize("connections", ["stacked", "skip", "skip-raw", "residual"])
def test_packed_sentences_are_each_read_by_themselves(connections):
    module = stack(connections).eval()
    sentences = [torch.randn(length, SIZE, dtype=torch.double) for length in (2, 5, 1, 5, 3)]
    packed = pack_sequence(sentences, enforce_sorted=False)
    start = [tuple(torch.randn_like(t) for t in layer) for layer in module.initial_state(5)]
    found = module(packed, start)
    for i, sentence in enumerate(sentences):
        alone = module(sentence[:, None], [tuple(t[:, i : i + 1] for t in s) for s in start])
        rows = [found.output, *found.layers]
        for whole, own in zip(rows, [alone.output, *alone.layers], strict=True):
            padded, _ = pad_packed_sequence(packed._replace(data=whole))
            torch.testing.assert_close(padded[: len(sentence), i], own[:, 0])
        for (after,), (own_after,) in zip(found.state, alone.state, strict=True):
            torch.testing.assert_close(after[:, i], own_after[:, 0])
