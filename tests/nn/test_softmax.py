"""The lean softmax and its mixtures equal the plain sums of probabilities, values and gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from largest_tensor import LargestTensor
from torch.nn import functional

from infolm.nn import softmax
from infolm.nn.dropout import Rates, mask
from infolm.nn.softmax import (
    KEPT,
    LARGEST_BLOCK,
    ROUNDED_BLOCK,
    SMALLEST_BLOCK,
    Softmax,
    block_elements,
)

INPUTS, SIZE = 6, 5


def make(vocabulary=13, inputs=SIZE, tied=True, experts=1, seed=0):
    torch.manual_seed(seed)
    head = Softmax(vocabulary, inputs, SIZE, tied, experts, bound=1.0).double()
    return head, torch.randn(vocabulary, SIZE, dtype=torch.double, requires_grad=True)


def make_input(*shape):
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def probabilities(head, x, embedding):
    """p(. | x) as the equations have it, each expert by itself: x (..., H) -> (..., V)."""
    weight = embedding if head.weight is None else head.weight
    if head.prior is None:
        y = x if head.projection is None else x @ head.projection.t()
        return (y @ weight.t() + head.bias).softmax(-1)
    pi = (x @ head.prior.t()).softmax(-1)
    total = 0
    for k in range(head.experts):
        rows = slice(k * SIZE, (k + 1) * SIZE)
        y = torch.tanh(x @ head.projection[rows].t() + head.projection_bias[rows])
        total = total + pi[..., k, None] * (y @ weight.t() + head.bias).softmax(-1)
    return total


def naive_nll(head, x, targets, embedding, counts=None):
    """The sum over tokens that are not padding of -ln of the samples' mean probability."""
    p = probabilities(head, x, embedding)
    if x.dim() > targets.dim() + 1:
        p = p.mean(-2)
    counted = targets >= 0
    log_p = p[counted].gather(-1, targets[counted][:, None]).log().squeeze(-1)
    return -(log_p if counts is None else counts[counted] * log_p).sum()


def gradients(loss, head, *inputs):
    return torch.autograd.grad(loss, [*inputs, *head.parameters()])


@settings(deadline=None, max_examples=60)
@given(
    tokens=st.integers(1, 40),
    vocabulary=st.integers(2, 30),
    experts=st.integers(1, 4),
    samples=st.integers(0, 3),
    inputs=st.sampled_from([SIZE, INPUTS]),
    tied=st.booleans(),
    block=st.integers(1, 900),
    seed=st.integers(0, 9),
)
def test_loss_and_every_gradient_are_the_naive_ones_for_any_block(
    tokens, vocabulary, experts, samples, inputs, tied, block, seed
):
    """Samples 0 stands for an x without that dimension; targets may be padding."""
    head, embedding = make(vocabulary, inputs, tied, experts, seed)
    x = make_input(tokens, *([samples] if samples else []), inputs)
    y = torch.randint(-1, vocabulary, (tokens,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax, "block_elements", lambda *_: block)
        ours = head.nll_sum(x, y, embedding)
        each = head.log_prob(x, y, embedding)
        whole = head.log_probs(x, embedding)
    torch.testing.assert_close(whole.exp(), probabilities(head, x, embedding))
    theirs = naive_nll(head, x, y, embedding)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(-each.sum(), theirs)
    read = [x, embedding] if tied else [x]
    torch.testing.assert_close(gradients(3 * ours, head, *read), gradients(3 * theirs, head, *read))


@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("samples", [0, 2])
def test_targets_count_as_much_as_they_are_given(experts, samples, monkeypatch):
    monkeypatch.setattr(softmax, "_block_tokens", lambda weight, components: 3)
    head, embedding = make(7, INPUTS, True, experts)
    x = make_input(4, 2, *([samples] if samples else []), INPUTS)
    targets = torch.tensor([[0, 3], [6, -1], [2, 2], [5, 1]])
    counts = torch.tensor([[0.5, 2.0], [0.0, 9.0], [-1.0, 1.0], [0.1, 3.0]]).double()
    ours = head.nll_sum(x, targets, embedding, counts)
    naive = naive_nll(head, x, targets, embedding, counts)
    torch.testing.assert_close(ours, naive)
    for a, b in zip(
        gradients(ours, head, x, embedding), gradients(naive, head, x, embedding), strict=True
    ):
        torch.testing.assert_close(a, b)


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(1, 30),
    vocabulary=st.integers(2, 20),
    experts=st.integers(1, 3),
    inputs=st.sampled_from([SIZE, INPUTS]),
    tied=st.booleans(),
    block=st.integers(1, 400),
    kept=st.sampled_from([0, KEPT]),
)
def test_each_log_likelihood_with_its_own_gradient(
    tokens, vocabulary, experts, inputs, tied, block, kept
):
    """What each counts depends on all of them, as in importance sampling."""
    head, embedding = make(vocabulary, inputs, tied, experts)
    x, y = make_input(tokens, inputs), torch.randint(0, vocabulary, (tokens,))
    p = probabilities(head, x, embedding)
    theirs = p.gather(1, y[:, None]).squeeze(1).log()
    read = [x, embedding] if tied else [x]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax, "block_elements", lambda *_: block)
        patch.setattr(softmax, "KEPT", kept)
        ours = head.log_likelihood(x, y, embedding)
        found = gradients((ours * ours.softmax(0).detach()).sin().sum(), head, *read)
    torch.testing.assert_close(ours, theirs)
    expected = gradients((theirs * theirs.softmax(0).detach()).sin().sum(), head, *read)
    torch.testing.assert_close(found, expected)


def test_weights_of_log_likelihoods_may_be_zero_or_negative(monkeypatch):
    monkeypatch.setattr(softmax, "_block_tokens", lambda weight, components: 2)
    head, embedding = make(7, SIZE, True, 2)
    x, y = make_input(5, SIZE), torch.tensor([0, 3, 6, 1, 1])
    weights = torch.tensor([0.0, -2.0, 0.5, 0.0, 3.0]).double()
    ours = (weights * head.log_likelihood(x, y, embedding)).sum()
    found = gradients(ours, head, x, embedding)
    expected = gradients(-naive_nll(head, x, y, embedding, weights), head, x, embedding)
    torch.testing.assert_close(found, expected)
    assert not found[0][weights == 0].any()


@pytest.mark.parametrize("experts", [1, 3])
def test_gradients_by_finite_differences(experts):
    head, embedding = make(inputs=INPUTS, experts=experts)
    x = make_input(4, 2, INPUTS)
    y = torch.tensor([3, -1, 12, 0])
    # The head's own parameters are perturbed in place, so the function need not read them.
    everything = (x, embedding, *head.parameters())
    assert torch.autograd.gradcheck(lambda a, b, *_: head.nll_sum(a, y, b), everything)


def test_one_expert_is_a_softmax():
    head, embedding = make()
    x, y = make_input(7, SIZE), torch.randint(0, 13, (7,))
    logits = functional.linear(x, embedding, head.bias)
    cross_entropy = functional.cross_entropy(logits, y, reduction="sum")
    torch.testing.assert_close(head.nll_sum(x, y, embedding), cross_entropy)
    torch.testing.assert_close(head.log_probs(x, embedding), logits.log_softmax(-1))


def test_experts_that_agree_are_one_softmax_of_the_latent():
    head, embedding = make(inputs=INPUTS, experts=3)
    with torch.no_grad():
        head.projection.copy_(head.projection[:SIZE].repeat(3, 1))
        head.projection_bias.copy_(head.projection_bias[:SIZE].repeat(3))
    x, y = make_input(7, INPUTS), torch.randint(0, 13, (7,))
    latent = torch.tanh(x @ head.projection[:SIZE].t() + head.projection_bias[:SIZE])
    logits = functional.linear(latent, embedding, head.bias)
    torch.testing.assert_close(
        head.nll_sum(x, y, embedding), functional.cross_entropy(logits, y, reduction="sum")
    )


@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("samples", [1, 4])
def test_equal_dropout_samples_are_one_sample(experts, samples):
    head, embedding = make(experts=experts)
    x, y = make_input(2, 3, SIZE), torch.randint(0, 13, (2, 3))
    one = head.nll_sum(x, y, embedding)
    many = head.nll_sum(x[..., None, :].expand(2, 3, samples, SIZE), y, embedding)
    torch.testing.assert_close(many, one)
    torch.testing.assert_close(
        gradients(many, head, x, embedding), gradients(one, head, x, embedding)
    )


def test_more_samples_tighten_the_bound():
    """The mean of -ln p over samples is at least -ln of their mean p (Jensen)."""
    head, embedding = make()
    x, y = make_input(50, 8, SIZE), torch.randint(0, 13, (50,))
    together = head.nll_sum(x, y, embedding)
    apart = head.nll_sum(x, y[:, None].expand(50, 8), embedding) / 8
    assert together < apart


@pytest.mark.parametrize("experts", [1, 3])
def test_padding_costs_nothing_and_gets_no_gradient(experts):
    head, embedding = make(experts=experts)
    x, y = make_input(4, 3, SIZE), torch.randint(0, 13, (4, 3))
    padded = y.clone()
    padded[1:, 2] = -1
    counted = padded >= 0
    loss = head.nll_sum(x, padded, embedding)
    torch.testing.assert_close(loss, head.nll_sum(x[counted], y[counted], embedding))
    (grad,) = torch.autograd.grad(loss, x)
    assert not grad[~counted].any()
    assert grad[counted].abs().sum(-1).all()
    each = head.log_prob(x, padded, embedding)
    assert not each[~counted].any()
    torch.testing.assert_close(each[counted], head.log_prob(x, y, embedding)[counted])


@pytest.mark.parametrize("experts", [1, 3])
def test_a_batch_of_padding_alone_has_loss_and_gradient_zero(experts):
    head, embedding = make(experts=experts)
    x, y = make_input(2, SIZE), torch.full((2,), -1)
    loss = head.nll_sum(x, y, embedding)
    loss.backward()
    assert loss.item() == 0
    assert not x.grad.any()
    assert not embedding.grad.any()
    assert not head.log_prob(x, y, embedding).any()


def test_shapes_and_names_of_the_parameters():
    def shapes(**arguments):
        return {n: tuple(p.shape) for n, p in make(**arguments)[0].named_parameters()}

    assert shapes() == {"bias": (13,)}
    assert shapes(tied=False) == {"bias": (13,), "weight": (13, SIZE)}
    assert shapes(inputs=INPUTS) == {"bias": (13,), "projection": (SIZE, INPUTS)}
    assert shapes(inputs=INPUTS, tied=False) == {"bias": (13,), "weight": (13, INPUTS)}
    mixture = {"projection": (3 * SIZE, INPUTS), "projection_bias": (3 * SIZE,)}
    mixture |= {"bias": (13,), "prior": (3, INPUTS)}
    assert shapes(inputs=INPUTS, experts=3) == mixture
    assert shapes(inputs=INPUTS, experts=3, tied=False) == mixture | {"weight": (13, SIZE)}


def test_an_untied_weight_is_used_and_trained():
    head, embedding = make(tied=False)
    x, y = torch.randn(4, 5, dtype=torch.double), torch.randint(0, 13, (4,))
    head.nll_sum(x, y, embedding).backward()
    assert embedding.grad is None or not embedding.grad.any()
    assert head.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("experts", [1, 3])
def test_temperature_is_a_power_of_the_whole_mixture(experts, temperature):
    head, embedding = make(inputs=INPUTS, experts=experts)
    x, y = make_input(3, 2, INPUTS), torch.randint(0, 13, (3, 2))
    power = probabilities(head, x, embedding) ** (1 / temperature)
    expected = (power / power.sum(-1, keepdim=True)).log()
    with torch.inference_mode():
        whole = head.log_probs(x, embedding, temperature)
        chosen = head.log_prob(x, y, embedding, temperature)
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(chosen, expected.gather(-1, y[..., None]).squeeze(-1))
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(3, 2, dtype=torch.double))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("experts", [1, 3])
def test_temperature_within_each_expert(experts, temperature):
    """The mixture summed out by hand, over every word."""
    head, embedding = make(inputs=INPUTS, experts=experts)
    x = make_input(4, INPUTS)
    with torch.no_grad():
        if experts == 1:
            priors, latents = torch.ones(4, 1).double(), (x @ head.projection.T)[:, None]
        else:
            priors = (x @ head.prior.T).softmax(1)
            latents = (x @ head.projection.T + head.projection_bias).tanh().view(4, experts, -1)
        logits = latents @ embedding.T + head.bias
        expected = (priors[..., None] * (logits / temperature).softmax(2)).sum(1)
    words = torch.arange(13).expand(4, -1)
    wide = x[:, None].expand(-1, 13, -1)
    found = head.log_prob(wide, words, embedding, temperature, "expert").exp()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(1), torch.ones(4, dtype=torch.double))
    whole = head.log_prob(wide, words, embedding, temperature).exp()
    same = experts == 1 or temperature == 1
    assert torch.allclose(whole, found) == same


def test_temperature_of_an_average_over_dropout_samples():
    head, embedding = make(experts=2)
    x, y = make_input(4, 3, SIZE), torch.randint(0, 13, (4,))
    power = probabilities(head, x, embedding).mean(1) ** (1 / 0.7)
    expected = (power / power.sum(-1, keepdim=True)).log().gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(head.log_prob(x, y, embedding, 0.7), expected)


@pytest.mark.parametrize("experts", [1, 3])
def test_limits_of_the_temperature_are_the_mode_and_uniform(experts):
    head, embedding = make(experts=experts)
    x = make_input(4, SIZE)
    mode = head.log_probs(x, embedding).argmax(-1)
    cold = head.log_probs(x, embedding, 1e-6)
    assert torch.equal(cold.exp(), functional.one_hot(mode, 13).double())
    hot = head.log_probs(x, embedding, 1e9)
    torch.testing.assert_close(hot, torch.full_like(hot, -math.log(13)), atol=1e-6, rtol=0)


def test_a_hopeless_target_has_a_finite_loss_in_single_precision():
    head = Softmax(3, 1, 1, True, experts=1, bound=0.0)
    embedding = torch.tensor([[200.0], [0.0], [-200.0]], requires_grad=True)
    loss = head.nll_sum(torch.ones(1, 1), torch.tensor([2]), embedding)
    assert loss.item() == pytest.approx(400)


@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("target", [0, 1, 2])
def test_extreme_logits_are_finite_in_single_precision(experts, target):
    """Logits of +-1e4 and priors as far apart: nothing overflows or turns into nan."""
    torch.manual_seed(0)
    head = Softmax(3, 2, 2, True, experts, bound=1.0)
    embedding = torch.tensor([[1e4, 0.0], [0.0, 0.0], [-1e4, 0.0]], requires_grad=True)
    if experts > 1:
        with torch.no_grad():
            head.prior.mul_(1e4)
    x = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], requires_grad=True)
    y = torch.full((1,), target)
    loss = head.nll_sum(x[None], y, embedding)
    assert torch.isfinite(loss)
    torch.testing.assert_close(-head.log_prob(x[None], y, embedding)[0], loss)
    for grad in gradients(loss, head, x, embedding):
        assert torch.isfinite(grad).all()
    for temperature in (0.1, 1.0, 10.0):
        whole = head.log_probs(x, embedding, temperature)
        torch.testing.assert_close(whole.exp().sum(-1), torch.ones(2))


@pytest.mark.parametrize("experts", [1, 3])
def test_half_precision_inputs_are_taken_in_the_precision_of_the_weights(experts):
    head, embedding = make(experts=experts)
    x, y = make_input(4, SIZE), torch.randint(0, 13, (4,))
    half = x.detach().bfloat16()
    loss = head.nll_sum(half, y, embedding)
    torch.testing.assert_close(loss, head.nll_sum(half.double(), y, embedding))
    torch.testing.assert_close(-head.log_prob(half, y, embedding).sum(), loss.detach())


@pytest.mark.parametrize("available", [True, False])
@pytest.mark.parametrize(("experts", "inputs"), [(1, SIZE), (1, INPUTS), (3, SIZE)])
def test_mixed_precision_rounds_the_products_and_nothing_else(
    experts, inputs, available, monkeypatch
):
    """The loss is that of rounded logits in full precision, its gradients within their rounding:
    with the native machine and without."""
    if not available:
        monkeypatch.setattr(softmax.native, "available", lambda: False)
    head, embedding = make(experts=experts, inputs=inputs)
    head, embedding = head.float(), embedding.detach().float().requires_grad_()
    x, y = make_input(40, inputs).detach().float().requires_grad_(), torch.randint(0, 13, (40,))
    expected = head.nll_sum(x, y, embedding)
    with torch.autocast("cpu", torch.bfloat16):
        loss = head.nll_sum(x, y, embedding)
    assert loss.dtype == torch.float
    assert 0 < abs(loss - expected) < 2**-7 * expected
    pairs = [gradients(each, head, x, embedding) for each in (loss, expected)]
    for ours, true in zip(*pairs, strict=True):
        assert ours.dtype == torch.float
        assert 0 < (ours - true).norm() < 2**-6 * true.norm()


def test_mixed_precision_projects_in_bfloat16():
    """Half of the time of a step's projection; full precision has 16 bits more."""
    head, embedding = make(inputs=INPUTS)
    head, embedding = head.float(), embedding.detach().float()
    x, y = torch.randn(40, INPUTS), torch.randint(0, 13, (40,))
    projected = x.bfloat16() @ head.projection.bfloat16().t()
    narrow = Softmax(13, SIZE, SIZE, tied=True, experts=1, bound=1.0)
    narrow.bias = head.bias
    with torch.autocast("cpu", torch.bfloat16):
        loss, expected = head.nll_sum(x, y, embedding), narrow.nll_sum(projected, y, embedding)
    assert loss.equal(expected)


@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("rounded", [False, True])
def test_kept_logits_and_those_computed_again_give_the_same_bytes(experts, rounded, monkeypatch):
    monkeypatch.setattr(softmax, "_block_tokens", lambda weight, components: 70)
    head, embedding = make(experts=experts, inputs=INPUTS)
    head, embedding = head.float(), embedding.detach().float().requires_grad_()
    x = make_input(150, INPUTS).detach().float().requires_grad_()
    y, weights = torch.randint(0, 13, (150,)), torch.linspace(-1, 2, 150)
    sides, kept = [], []
    for most in (KEPT, 0):
        monkeypatch.setattr(softmax, "KEPT", most)
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            each = head.log_likelihood(x, y, embedding)
        kept.append(len(each.grad_fn.saved_tensors))
        sides.append([each, *gradients((weights * each).sum(), head, x, embedding)])
    assert kept == [5 + 3 * 3, 5]  # three blocks
    assert all(torch.equal(a, b) for a, b in zip(*sides, strict=True))


@pytest.mark.parametrize(("experts", "inputs"), [(1, SIZE), (1, INPUTS), (3, SIZE)])
@pytest.mark.parametrize("tokens", [3, 64, 150])
def test_mixed_precision_rounds_each_log_likelihood_as_their_sum(
    experts, inputs, tokens, monkeypatch
):
    """In blocks of 70 tokens, the last of which finds what the others left in memory."""
    monkeypatch.setattr(softmax, "_block_tokens", lambda weight, components: 70)
    head, embedding = make(experts=experts, inputs=inputs)
    head, embedding = head.float(), embedding.detach().float().requires_grad_()
    x, y = make_input(tokens, inputs), torch.randint(0, 13, (tokens,))
    x = x.detach().float().requires_grad_()
    weights = torch.linspace(-1, 2, tokens)
    full = (weights * head.log_likelihood(x, y, embedding)).sum()
    with torch.autocast("cpu", torch.bfloat16):
        each = head.log_likelihood(x, y, embedding)
        ours = (weights * each).sum()
        summed = -head.nll_sum(x, y, embedding, weights)
    assert each.dtype == torch.float
    torch.testing.assert_close(ours, summed)
    sides = [gradients(loss, head, x, embedding) for loss in (ours, summed, full)]
    for found, same, true in zip(*sides, strict=True):
        torch.testing.assert_close(found, same)
        assert 0 < (found - true).norm() < 2**-6 * true.norm()


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(1, 9),
    words=st.lists(st.integers(0, 12), min_size=1, max_size=20),
    inputs=st.sampled_from([SIZE, INPUTS]),
    tied=st.booleans(),
)
def test_scores_are_chosen_logits_with_their_gradients(tokens, words, inputs, tied):
    head, embedding = make(inputs=inputs, tied=tied)
    x, y, words = make_input(tokens, inputs), torch.randint(0, 13, (tokens,)), torch.tensor(words)
    weight = embedding if tied else head.weight
    latent = x if head.projection is None else x @ head.projection.t()
    logits = latent @ weight.t() + head.bias
    expected = logits.gather(1, y[:, None]).squeeze(1), logits[:, words]
    ours = head.scores(x, y, words, embedding)
    torch.testing.assert_close(ours, expected)
    read = [x, embedding] if tied else [x]
    torch.testing.assert_close(
        gradients(sum(part.sin().sum() for part in ours), head, *read),
        gradients(sum(part.sin().sum() for part in expected), head, *read),
    )


# -- the size of a block ------------------------------------------------------------------------


def fake_memory(monkeypatch, free, total, kept=0):
    """A GPU of `total` bytes; PyTorch holds `kept` of those that are not `free`, unused."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: kept + 7)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 7)


GB = 2**30
GPU = torch.device("cuda", 0)


def test_a_block_on_a_cpu_is_small(monkeypatch):
    fake_memory(monkeypatch, 80 * GB, 80 * GB)
    assert block_elements(torch.device("cpu"), 4) == SMALLEST_BLOCK
    assert block_elements(torch.device("cpu"), 2) == ROUNDED_BLOCK


@pytest.mark.parametrize(
    ("free", "total", "kept", "itemsize", "expected"),
    [
        (15, 16, 0, 4, 2**27),  # 1/32 of the memory
        (7, 8, 0, 4, 2**26),
        (7, 8, 0, 8, 2**25),  # as many bytes in double precision
        (1, 16, 0, 4, 2**26),  # a quarter of what is free
        (0, 16, 1, 4, 2**26),  # as is what PyTorch keeps
        (0, 16, 0, 4, SMALLEST_BLOCK),
        (79, 80, 0, 4, LARGEST_BLOCK),
    ],
)
def test_a_block_on_a_gpu_is_a_share_of_its_memory(
    monkeypatch, free, total, kept, itemsize, expected
):
    fake_memory(monkeypatch, free * GB, total * GB, kept * GB)
    assert block_elements(GPU, itemsize) == expected


@given(free=st.integers(0, 2**37), other=st.integers(0, 2**37), itemsize=st.sampled_from([2, 4, 8]))
def test_more_memory_never_means_smaller_blocks(free, other, itemsize):
    with pytest.MonkeyPatch.context() as patch:
        sizes = []
        for each in sorted((free, other)):
            fake_memory(patch, each, each)
            sizes.append(block_elements(GPU, itemsize))
    assert sizes == sorted(sizes)
    assert all(SMALLEST_BLOCK <= size <= LARGEST_BLOCK for size in sizes)
    assert all(size.bit_count() == 1 for size in sizes)


@pytest.mark.parametrize("experts", [1, 10])
def test_no_tokens_by_vocabulary_tensor_is_made(experts):
    """The largest tensor made in forward and backward holds a block of logits."""
    vocabulary, tokens = 50_000, 500 // experts
    head = Softmax(vocabulary, 4, 4, True, experts, bound=0.1)
    embedding = torch.randn(vocabulary, 4, requires_grad=True)
    x = torch.randn(tokens, 4, requires_grad=True)
    y = torch.randint(0, vocabulary, (tokens,))
    with LargestTensor() as largest:
        head.nll_sum(x, y, embedding).backward()
        head.log_likelihood(x, y, embedding).sin().sum().backward()
        head.log_prob(x, y, embedding)
        head.log_prob(x, y, embedding, 0.7)
        head.log_probs(x[:50], embedding)
    assert largest.elements <= SMALLEST_BLOCK < tokens * experts * vocabulary / 2


# Dropout on the latent vectors

LATENT = 0.4


def make_dropping(experts, locked, inputs=INPUTS, tied=True):
    torch.manual_seed(0)
    rates = Rates(latent=LATENT)
    head = Softmax(
        *(13, inputs, SIZE, tied, experts, 1.0), projected=True, rates=rates, locked=locked
    )
    return head.double().train(), torch.randn(13, SIZE, dtype=torch.double, requires_grad=True)


def dropped_nll(head, x, targets, embedding, masks):
    """x (T, B, D, H), masks (T or 1, B, D, K, E): every token, sample and expert by itself."""
    weight = embedding if head.weight is None else head.weight
    masks = masks.expand(len(x), *masks.shape[1:])
    projection = head.projection.view(head.experts, SIZE, -1)
    loss = torch.zeros((), dtype=torch.double)
    for t, b in (targets >= 0).nonzero().tolist():
        p = torch.zeros((), dtype=torch.double)
        for d in range(x.shape[2]):
            row = x[t, b, d]
            pi = torch.ones(1) if head.prior is None else (head.prior @ row).softmax(0)
            for k in range(head.experts):
                y = projection[k] @ row
                if head.prior is not None:
                    y = torch.tanh(y + head.projection_bias.view(head.experts, SIZE)[k])
                logits = weight @ (masks[t, b, d, k] * y) + head.bias
                p = p + pi[k] * logits.softmax(0)[targets[t, b]] / x.shape[2]
        loss = loss - p.log()
    return loss


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("locked", [True, False])
def test_latents_are_dropped_as_said_in_loss_and_gradients(
    locked, experts, samples, tied, monkeypatch
):
    monkeypatch.setattr(softmax, "block_elements", lambda *_: 60)
    head, embedding = make_dropping(experts, locked, tied=tied)
    x = make_input(4, 3, samples, INPUTS)
    targets = torch.randint(0, 13, (4, 3))
    targets[1, 2] = targets[3, 0] = -1
    torch.manual_seed(5)
    ours = head.nll_sum(x, targets, embedding)
    torch.manual_seed(5)
    each = head.log_prob(x, targets, embedding)
    torch.manual_seed(5)
    width = experts * SIZE
    if locked:
        masks = mask((3, samples, width), LATENT, x)[None]
    else:
        masks = torch.zeros(4, 3, samples, width).double()
        masks[targets >= 0] = mask((10, samples, width), LATENT, x)
    masks = masks.unflatten(-1, (experts, SIZE))
    by_hand = dropped_nll(head, x, targets, embedding, masks)
    torch.testing.assert_close(ours, by_hand)
    torch.testing.assert_close(-each.sum(), by_hand.detach())
    inputs = [x, embedding] if tied else [x]
    for a, b in zip(gradients(ours, head, *inputs), gradients(by_hand, head, *inputs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("experts", [1, 3])
def test_a_latent_rate_of_zero_is_as_before_and_draws_no_random_number(experts):
    head, embedding = make_dropping(experts, True)
    plain = Softmax(13, INPUTS, SIZE, True, experts, 1.0).double()
    plain.load_state_dict(head.state_dict())
    x, targets = make_input(4, 3, INPUTS), torch.randint(0, 13, (4, 3))
    expected = plain.nll_sum(x, targets, embedding)
    before = torch.get_rng_state()
    assert torch.equal(head.eval().nll_sum(x, targets, embedding), expected)
    head.train().rates.latent = 0.0
    assert torch.equal(head.nll_sum(x, targets, embedding), expected)
    assert torch.equal(torch.get_rng_state(), before)
    head.rates.latent = LATENT
    assert not torch.equal(head.nll_sum(x, targets, embedding), expected)


def test_packed_sentences_have_one_mask_of_latents_each():
    """Steps of 3, 2 and 1 rows: the same loss as side by side with padding."""
    head, embedding = make_dropping(3, True)
    x, targets = make_input(3, 3, INPUTS), torch.randint(0, 13, (3, 3))
    targets[1, 2] = targets[2, 1] = targets[2, 2] = -1
    torch.manual_seed(5)
    padded = head.nll_sum(x, targets, embedding)
    rows = targets >= 0
    torch.manual_seed(5)
    packed = head.nll_sum(x[rows], targets[rows], embedding, sizes=torch.tensor([3, 2, 1]))
    torch.testing.assert_close(packed, padded)


def test_where_nothing_is_projected_no_latent_is_dropped():
    head, embedding = make_dropping(1, True, inputs=SIZE)
    assert head.projection is None
    x, targets = make_input(4, 3, SIZE), torch.randint(0, 13, (4, 3))
    torch.testing.assert_close(
        head.nll_sum(x, targets, embedding), naive_nll(head, x, targets, embedding)
    )
