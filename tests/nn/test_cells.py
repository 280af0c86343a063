"""Every cell follows its equations; what they have in common holds for all of them."""

import itertools

import pytest
import torch
from torch import nn

from infolm.models.recurrent import (
    DropoutConfig,
    MogrifierConfig,
    RecurrentConfig,
    build_cell,
    rates,
)
from infolm.nn.cells.base import chrono_bias
from infolm.nn.cells.mogrifier import Mogrifier
from infolm.nn.dropout import mask

CELLS = ["lstm", "gru", "elman", "rewired", "multiplicative"]
MOGRIFIERS = [
    MogrifierConfig(),
    MogrifierConfig(rounds=1),
    MogrifierConfig(rounds=5, rank=2),
    MogrifierConfig(rounds=4, rank=2, zigzag=False),
    MogrifierConfig(rounds=5, rank=2, gate="affine"),
    MogrifierConfig(rounds=3, gate="affine"),
    MogrifierConfig(rounds=5, gate="constant"),
]
EVERY = list(itertools.product(CELLS, MOGRIFIERS))
E, H, B, T = 5, 7, 3, 6


def cell(name, mogrifier=MOGRIFIERS[0], **options):
    torch.manual_seed(0)
    config = RecurrentConfig(cell=name, mogrifier=mogrifier, **options)
    layer = build_cell(config, E, H, rates(config)).double()
    for key, weight in layer.named_parameters():
        if "gates" in key and key.endswith("bias"):  # they begin at 0
            torch.nn.init.normal_(weight)
    return layer


def inputs():
    torch.manual_seed(1)
    return torch.randn(T, B, E, dtype=torch.double)


def random_state(layer):
    torch.manual_seed(2)
    return tuple(torch.randn_like(s).tanh() for s in layer.initial_state(B))


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


# The equations of the thesis, one at a time, written out a second time.


def mogrified(module, h, x, rounds, zigzag=True):
    values = {-1: x, 0: h}
    for i in range(1, rounds + 1):
        factors = list(module.gates[i - 1].factors)
        matrix = factors[1] @ factors[0] if len(factors) == 2 else (factors or [None])[0]
        read = values[i - 1] if zigzag else (h if i % 2 else x)
        inside = read @ matrix.T if factors else 0
        if module.gates[i - 1].bias is not None:
            inside = inside + module.gates[i - 1].bias
        values[i] = 2 * sigmoid(inside) * values[i - 2]
    return values[2 * (rounds // 2)], values[2 * ((rounds + 1) // 2) - 1]


def lstm_equations(p, x, h, c, capped):
    a = x @ p["weight_ih"].T + p["bias_ih"] + p["bias_hh"] + h @ p["weight_hh"].T
    return lstm_gates(a, c, capped)


def lstm_gates(a, c, capped):
    i, f, g, o = (a[:, k * H : (k + 1) * H] for k in range(4))
    i, f = sigmoid(i), sigmoid(f)
    if capped:
        i = torch.minimum(i, 1 - f)
    c = f * c + i * torch.tanh(g)
    return sigmoid(o) * torch.tanh(c), c


def multiplicative_equations(p, x, h, c, capped):
    m = (x @ p["weight_ih"][4 * H :].T) * (h @ p["weight_mh"].T)
    a = x @ p["weight_ih"][: 4 * H].T + m @ p["weight_hh"].T + p["bias"]
    return lstm_gates(a, c, capped)


def rewired_equations(p, x, h, c, keep):
    w_i, w_j = p["weight_ih"].split(H)
    u_i, u_j, u_f = p["weight_hh"].split(H)
    b_i, b_j, b_f = p["bias"].split(H)
    i = sigmoid(x @ w_i.T + h @ u_i.T + b_i)
    j = torch.tanh(x @ w_j.T + h @ u_j.T + b_j)
    f = sigmoid((i * j) @ p["weight_fu"].T + h @ u_f.T + b_f)
    c = f * c + torch.minimum(i, 1 - f) * j
    o = sigmoid((c * keep) @ p["weight_oc"].T + p["bias_o"])
    return o * torch.tanh(c), c


@pytest.mark.parametrize("options", MOGRIFIERS, ids=str)
@pytest.mark.parametrize("name", ["lstm", "multiplicative", "rewired", "elman"])
def test_a_layer_is_its_equations_with_dropped_state_and_mogrifier(name, options):
    layer = cell(
        name, options, capped=True, weight_drop=0.4, dropout=DropoutConfig(state=0.5)
    ).train()
    x, state = inputs(), random_state(layer)
    torch.manual_seed(3)
    outputs, after = layer(x, state)
    torch.manual_seed(3)
    p = dict(layer.named_parameters())
    for weight in ("weight_mh", "weight_hh") if name == "multiplicative" else ("weight_hh",):
        p[weight] = p[weight] * mask(p[weight].shape, 0.4, p[weight])
    keep = mask((B, H), 0.5, x)
    assert 0 < (keep == 0).double().mean() < 1
    h, *rest = (s[0] for s in state)
    for t in range(T):
        read, x_t = h * keep, x[t]
        if options.rounds:
            read, x_t = mogrified(layer.mogrifier, read, x_t, options.rounds, options.zigzag)
        if name == "lstm":
            h, *rest = lstm_equations(p, x_t, read, *rest, capped=True)
        elif name == "multiplicative":
            h, *rest = multiplicative_equations(p, x_t, read, *rest, capped=True)
        elif name == "rewired":
            h, *rest = rewired_equations(p, x_t, read, *rest, keep)
        else:
            h = torch.tanh(x_t @ p["weight_ih"].T + p["bias"] + read @ p["weight_hh"].T)
        torch.testing.assert_close(outputs[t], h)
    torch.testing.assert_close(after, tuple(s[None] for s in (h, *rest)))


def test_a_gru_is_nn_gru():
    layer = cell("gru")
    twin = nn.GRU(E, H).double()
    twin.load_state_dict({f"{name}_l0": value for name, value in layer.state_dict().items()})
    x, state = inputs(), random_state(layer)
    outputs, (h,) = layer(x, state)
    torch.testing.assert_close((outputs, h), twin(x, state[0]))


def test_an_elman_layer_is_nn_rnn():
    layer = cell("elman")
    twin = nn.RNN(E, H).double()
    own = layer.state_dict()
    own |= {"bias_ih": own["bias"], "bias_hh": torch.zeros(H).double()}
    del own["bias"]
    twin.load_state_dict({f"{name}_l0": value for name, value in own.items()})
    x, state = inputs(), random_state(layer)
    outputs, (h,) = layer(x, state)
    torch.testing.assert_close((outputs, h), twin(x, state[0]))


def test_the_gru_remembers_its_state_itself_whatever_the_dropout():
    """With the update gate open wide, h passes through a step unchanged, dropped units too."""
    layer = cell("gru", dropout=DropoutConfig(state=0.5)).train()
    with torch.no_grad():
        layer.bias_ih[H : 2 * H] = 1e4
    state = random_state(layer)
    _, (h,) = layer(inputs(), state)
    torch.testing.assert_close(h, state[0])


def test_an_lstm_in_the_plain_loop_is_the_fused_one():
    plain, fused = cell("lstm", MogrifierConfig(rounds=1)), cell("lstm")
    fused.load_state_dict({k: v for k, v in plain.state_dict().items() if "mogrifier" not in k})
    with torch.no_grad():
        plain.mogrifier.gates[0].factors[0].zero_()  # 2 sigmoid(0) = 1: the identity
    x, state = inputs(), random_state(plain)
    torch.testing.assert_close(plain(x, state), fused(x, state))


def test_no_rounds_are_the_identity_and_small_weights_nearly_so():
    h, x = torch.randn(B, H), torch.randn(B, E)
    assert all(a is b for a, b in zip(Mogrifier(E, H, 0, 0, True)(h, x), (h, x), strict=True))
    module = Mogrifier(E, H, 5, 2, True)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1e-4)
    torch.testing.assert_close(module(h, x), (h, x), rtol=1e-5, atol=0)


def test_low_rank_is_full_rank_with_the_product_of_the_factors():
    torch.manual_seed(0)
    low, full = Mogrifier(E, H, 5, 2, True), Mogrifier(E, H, 5, 0, True)
    with torch.no_grad():
        for a, b in zip(low.gates, full.gates, strict=True):
            b.factors[0].copy_(a.factors[1] @ a.factors[0])
    h, x = torch.randn(B, H), torch.randn(B, E)
    torch.testing.assert_close(low(h, x), full(h, x))


def test_zigzag_matters_from_the_second_round_on():
    torch.manual_seed(0)
    h, x = torch.randn(B, H), torch.randn(B, E)
    for rounds in (1, 2, 3):
        zigzag, direct = Mogrifier(E, H, rounds, 0, True), Mogrifier(E, H, rounds, 0, False)
        direct.load_state_dict(zigzag.state_dict())
        same = all(torch.equal(a, b) for a, b in zip(zigzag(h, x), direct(h, x), strict=True))
        assert same == (rounds == 1)


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_chunks_and_columns_change_nothing(name, options):
    layer = cell(name, options, capped=True).eval()
    x, state = inputs(), random_state(layer)
    whole, after = layer(x, state)
    first, between = layer(x[:2], state)
    second, end = layer(x[2:], between)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(end, after)
    alone, _ = layer(x[:, 1:2], tuple(s[:, 1:2] for s in state))
    torch.testing.assert_close(alone, whole[:, 1:2])


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_gradients_reach_every_weight_and_are_right(name, options):
    layer = cell(name, options, capped=True).train()
    x, state = inputs()[:2], random_state(layer)
    names, weights = zip(*layer.named_parameters(), strict=True)

    def outputs(*values):
        out, after = torch.func.functional_call(
            layer, dict(zip(names, values, strict=True)), (x, state)
        )
        return out, *after

    torch.autograd.gradcheck(outputs, weights)
    for gradient in torch.autograd.grad(sum(o.square().sum() for o in outputs(*weights)), weights):
        assert gradient.abs().max() > 0


@pytest.mark.parametrize("name", ["lstm", "multiplicative", "rewired"])
def test_the_cap_keeps_the_memory_within_one(name):
    layer = cell(name, capped=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(20)
    x = 10 * torch.randn(60, B, E, dtype=torch.double)
    _, (_, c) = layer(x, layer.initial_state(B))
    assert c.abs().max() <= 1
    if name == "lstm":
        free = cell(name)
        free.load_state_dict(layer.state_dict())
        _, (_, c) = free(x, free.initial_state(B))
        assert c.abs().max() > 1


@pytest.mark.parametrize("name", CELLS)
def test_state_dropout_acts_in_training_only_with_one_mask_over_time(name):
    layer = cell(name, dropout=DropoutConfig(state=0.5))
    x, state = inputs(), random_state(layer)
    a, b = layer.train()(x, state)[0], layer(x, state)[0]
    assert not torch.equal(a, b)
    a, b = layer.eval()(x, state)[0], layer(x, state)[0]
    assert torch.equal(a, b)


def test_chrono_biases_are_those_of_memories_up_to_t_max():
    torch.manual_seed(0)
    bias = chrono_bias(100_000, 20.0)
    assert bias.min() >= 0
    assert bias.max() <= torch.log(torch.tensor(19.0))
    # exp(bias) ~ U(1, 19): mean 10, deviation 18 / sqrt(12), so the error of the mean is 0.0164.
    assert bias.exp().mean().item() == pytest.approx(10, abs=4 * 0.0164)


@pytest.mark.parametrize("name", CELLS)
def test_chrono_sets_the_gate_that_keeps_and_no_other_bias(name):
    plain, kept = cell(name), cell(name, chrono=50.0)
    where = {
        "lstm": {"bias_ih": slice(H, 2 * H), "bias_hh": slice(H, 2 * H)},
        "gru": {"bias_ih": slice(H, 2 * H), "bias_hh": slice(H, 2 * H)},
        "multiplicative": {"bias": slice(H, 2 * H)},
        "rewired": {"bias": slice(2 * H, 3 * H)},
        "elman": {},
    }[name]
    for key, before in plain.state_dict().items():
        after, changed = kept.state_dict()[key], torch.zeros(before.shape, dtype=torch.bool)
        if key in where:
            changed[where[key]] = True
            assert (after[changed] >= 0).all()
        assert torch.equal(after[~changed], before[~changed])
    if where:
        first, *others = (kept.state_dict()[key][part] for key, part in where.items())
        assert first.max() > 0.5
        assert all((other == 0).all() for other in others)


@pytest.mark.parametrize("name", CELLS)
def test_a_forget_bias_is_added_to_the_gate_that_keeps_and_to_no_other_bias(name):
    plain, kept = cell(name), cell(name, forget_bias=1.0)
    key, part = {
        "lstm": ("bias_ih", slice(H, 2 * H)),
        "gru": ("bias_ih", slice(H, 2 * H)),
        "multiplicative": ("bias", slice(H, 2 * H)),
        "rewired": ("bias", slice(2 * H, 3 * H)),
        "elman": ("", slice(0)),
    }[name]
    for each, before in plain.state_dict().items():
        expected = before.clone()
        if each == key:
            expected[part] += 1
        torch.testing.assert_close(kept.state_dict()[each], expected)


def test_chrono_and_a_forget_bias_exclude_each_other():
    with pytest.raises(ValueError, match=r"both start the forget gate: set chrono=null"):
        RecurrentConfig(chrono=20.0, forget_bias=1.0)
