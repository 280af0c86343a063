"""The weight-dropped layer is nn.LSTM with another recurrent matrix, and the mask really acts."""

import torch
from torch import nn

from infolm.nn.cells.lstm import LSTM
from infolm.nn.dropout import Rates, mask


def reference(layer: LSTM, weight_hh: torch.Tensor) -> nn.LSTM:
    """nn.LSTM with the layer's weights, but for the recurrent matrix given."""
    twin = nn.LSTM(layer.inputs, layer.hidden).to(weight_hh.dtype)
    with torch.no_grad():
        twin.weight_ih_l0.copy_(layer.weight_ih)
        twin.weight_hh_l0.copy_(weight_hh)
        twin.bias_ih_l0.copy_(layer.bias_ih)
        twin.bias_hh_l0.copy_(layer.bias_hh)
    return twin


def by_hand(layer, weight_hh, x, h, c):
    """The equations of the docstring, a step at a time."""
    outputs = []
    for x_t in x:
        gates = x_t @ layer.weight_ih.T + layer.bias_ih + h @ weight_hh.T + layer.bias_hh
        i, f, g, o = gates.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs), h, c


def test_a_fixed_mask_gives_nn_lstm_with_the_masked_matrix_values_and_gradients():
    torch.manual_seed(0)
    layer = LSTM(5, 7, Rates(weight=0.5)).double().train()
    x = torch.randn(6, 3, 5, dtype=torch.double, requires_grad=True)
    state = tuple(torch.randn(1, 3, 7, dtype=torch.double) for _ in range(2))
    torch.manual_seed(42)
    outputs, (h, c) = layer(x, state)
    torch.manual_seed(42)
    dropped = mask(layer.weight_hh.shape, 0.5, layer.weight_hh)
    assert 0 < (dropped == 0).float().mean() < 1
    twin = reference(layer, layer.weight_hh * dropped)
    expected, (expected_h, expected_c) = twin(x, state)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close((h, c), (expected_h, expected_c))
    slow = by_hand(layer, layer.weight_hh * dropped, x, state[0][0], state[1][0])
    torch.testing.assert_close((outputs, h[0], c[0]), slow)

    cotangent = torch.randn_like(outputs)
    ours = torch.autograd.grad(outputs, [layer.weight_hh, layer.weight_ih, x], cotangent)
    theirs = torch.autograd.grad(expected, [twin.weight_hh_l0, twin.weight_ih_l0, x], cotangent)
    torch.testing.assert_close(ours[0], theirs[0] * dropped)  # dropped weights get no gradient
    torch.testing.assert_close(ours[1:], theirs[1:])


def test_without_weight_drop_it_is_nn_lstm():
    torch.manual_seed(0)
    layer = LSTM(5, 7, Rates())
    x = torch.randn(6, 3, 5)
    outputs, _ = layer(x, layer.initial_state(3))
    torch.testing.assert_close(outputs, reference(layer, layer.weight_hh)(x)[0])


def test_the_mask_acts_in_training_and_only_there():
    torch.manual_seed(0)
    layer = LSTM(5, 7, Rates(weight=0.5))
    x = torch.randn(6, 3, 5)
    state = layer.initial_state(3)
    first, second = layer(x, state)[0], layer(x, state)[0]
    assert not torch.equal(first, second)
    # The first step has a zero state, which no recurrent weight touches.
    torch.testing.assert_close(first[0], second[0])
    layer.eval()
    assert torch.equal(layer(x, state)[0], layer(x, state)[0])
    torch.testing.assert_close(layer(x, state)[0], reference(layer, layer.weight_hh)(x)[0])


def test_gradients_reach_the_raw_weight_and_state_dict_holds_it_once():
    layer = LSTM(5, 7, Rates(weight=0.5))
    layer(torch.randn(6, 3, 5), layer.initial_state(3))[0].sum().backward()
    assert layer.weight_hh.grad.abs().sum() > 0
    assert list(layer.state_dict()) == ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    assert layer.state_dict()["weight_hh"].data_ptr() == layer.weight_hh.data_ptr()


def test_the_state_carries_over_a_cut():
    torch.manual_seed(0)
    layer = LSTM(5, 7, Rates()).double()
    x = torch.randn(9, 2, 5, dtype=torch.double)
    whole, end = layer(x, layer.initial_state(2))
    first, middle = layer(x[:4], layer.initial_state(2))
    second, cut_end = layer(x[4:], middle)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(cut_end, end)
