"""Critics: all pairs at once are each pair alone, and known densities come out as they should."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from infolm.errors import InfolmError
from infolm.information.critics import (
    FLOOR,
    Bilinear,
    Concatenated,
    ConditionalGaussian,
    FiveWay,
    GaussianRatio,
    SegmentCritic,
    SegmentEncoder,
    Separable,
)

EXACT = {"rtol": 0, "atol": 1e-9}
TYPES, LENGTHS = 7, (4, 3)
RHO = torch.tensor([0.8, 0.3])

CRITICS = {
    "separable": (lambda: Separable(3, 3, rank=4), 3, 3),
    "bilinear": (lambda: Bilinear(3, 2), 3, 2),
    "concatenated": (lambda: Concatenated(2, 3), 2, 3),
    "five-way": (lambda: FiveWay(3, 3), 3, 3),
    "Gaussian": (lambda: GaussianRatio(RHO, Concatenated(2, 3)), 2, 3),
    "conditional": (lambda: ConditionalGaussian(RHO, 2, 3), 2, 3),
    "segments": (lambda: SegmentCritic(TYPES, *LENGTHS, Separable, seed=0), *LENGTHS),
}


def seeded(make, train=False):
    """A critic in double precision; where it shall have been trained, of random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        critic = make().double().eval()
        if train:
            for parameter in critic.parameters():
                nn.init.normal_(parameter, std=0.3)
    return critic


def drawn(name, *shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    if name == "segments":
        return torch.randint(TYPES, shape, generator=generator)
    return torch.randn(shape, generator=generator).double()


# What is true of all


@pytest.mark.parametrize("name", CRITICS)
def test_all_pairs_at_once_are_each_pair_alone(name):
    make, x_size, y_size = CRITICS[name]
    critic = seeded(make, train=True)
    x, y = drawn(name, 4, x_size), drawn(name, 5, y_size, seed=2)
    scores = critic(x, y)
    assert scores.shape == (4, 5)
    assert scores.std() > 0.1
    for i in range(4):
        for j in range(5):
            alone = critic(x[i : i + 1], y[j : j + 1])
            torch.testing.assert_close(alone, scores[i : i + 1, j : j + 1], **EXACT)


@pytest.mark.parametrize("name", CRITICS)
def test_leading_dimensions_are_batches_of_their_own(name):
    make, x_size, y_size = CRITICS[name]
    critic = seeded(make, train=True)
    x, y = drawn(name, 2, 3, 4, x_size), drawn(name, 2, 3, 5, y_size, seed=2)
    scores = critic(x, y)
    assert scores.shape == (2, 3, 4, 5)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(scores[i, j], critic(x[i, j], y[i, j]), **EXACT)


@pytest.mark.parametrize("name", sorted(set(CRITICS) - {"Gaussian", "conditional"}))
def test_a_critic_is_nothing_before_training_and_can_learn(name):
    make, x_size, y_size = CRITICS[name]
    critic = seeded(make)
    scores = critic(drawn(name, 4, x_size), drawn(name, 4, y_size, seed=2))
    assert not scores.any()
    # The gradient is not zero too, else it would stay so.
    scores.diagonal().sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in critic.parameters())


# Features


def layer(first, features):
    """A linear layer of (out, in) weights without a bias."""
    return nn.functional.linear(features, first)


def test_concatenated_is_a_network_on_both():
    critic = seeded(lambda: Concatenated(2, 3), train=True)
    x, y = drawn("", 6, 2), drawn("", 6, 3, seed=2)
    weight = torch.cat([critic.of_x.weight, critic.of_y.weight], 1)
    first = layer(weight, torch.cat([x, y], 1)) + critic.of_x.bias + critic.of_y.bias
    expected = critic.rest(nn.functional.silu(first)).squeeze(1)
    torch.testing.assert_close(critic(x, y).diagonal(), expected, **EXACT)


def test_five_way_is_a_network_on_the_five_features_of_bmi():
    size = 3
    critic = seeded(lambda: FiveWay(size, size), train=True)
    x, y = drawn("", 6, size), drawn("", 6, size, seed=2)
    features = torch.cat([x, y, x - y, (x - y).abs(), x * y], 1)
    # Any weight D of x - y may be taken out of those of x and y.
    hidden = critic.of_x.out_features
    difference = drawn("", hidden, size, seed=3)
    of_x, of_y = critic.of_x.weight - difference, critic.of_y.weight + difference
    weight = torch.cat([of_x, of_y, difference, critic.of_both.weight], 1)
    first = layer(weight, features) + critic.of_x.bias
    out = critic.rest[-1]
    expected = nn.functional.linear(first.relu(), out.weight, out.bias).squeeze(1)
    torch.testing.assert_close(critic(x, y).diagonal(), expected, **EXACT)


def test_five_way_needs_encodings_of_one_size():
    with pytest.raises(InfolmError, match="one size, not 2 and 3"):
        FiveWay(2, 3)


def test_bilinear_is_a_form_of_x_and_one_with_y():
    critic = seeded(lambda: Bilinear(3, 2), train=True)
    x, y = drawn("", 5, 3), drawn("", 5, 2, seed=2)
    weight = torch.cat([critic.weight[0].weight.T, critic.weight[0].bias[None]])  # (x_size + 1, Y)
    one = torch.cat([x, torch.ones(5, 1)], 1)
    expected = torch.einsum("ia,ab,jb->ij", one, weight, y)
    torch.testing.assert_close(critic(x, y), expected, **EXACT)


def test_separable_is_an_inner_product():
    critic = seeded(lambda: Separable(3, 3, rank=4), train=True)
    x, y = drawn("", 5, 3), drawn("", 6, 3, seed=2)
    expected = torch.einsum("ir,jr->ij", critic.g(x), critic.h(y))
    torch.testing.assert_close(critic(x, y), expected, **EXACT)


# Gaussians


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("x_size", "y_size"), [(1, 1), (2, 2), (3, 2), (2, 4)])
def test_the_gaussian_ratio_is_that_of_the_densities(x_size, y_size, seed):
    generator = np.random.default_rng(seed)
    count = min(x_size, y_size)
    rho = generator.uniform(0, 0.9, count)
    x, y = generator.standard_normal((5, x_size)), generator.standard_normal((4, y_size))
    joint = np.eye(x_size + y_size)
    at = np.arange(count)
    joint[at, x_size + at] = joint[x_size + at, at] = rho
    both = stats.multivariate_normal(cov=joint)
    of_x, of_y = stats.multivariate_normal(cov=np.eye(x_size)), stats.norm()
    expected = [
        [both.logpdf(np.concatenate([a, b])) - of_x.logpdf(a) - of_y.logpdf(b).sum() for b in y]
        for a in x
    ]
    critic = seeded(lambda: GaussianRatio(torch.from_numpy(rho), Separable(x_size, y_size)))
    scores = critic(torch.from_numpy(x), torch.from_numpy(y)).detach()
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-9)


def test_the_correction_is_added_and_the_sum_is_never_below_the_floor():
    critic = seeded(lambda: GaussianRatio(RHO.double(), Concatenated(2, 2)), train=True)
    without = seeded(lambda: GaussianRatio(RHO.double(), Concatenated(2, 2)))
    x, y = drawn("", 5, 2), drawn("", 5, 2, seed=2)
    torch.testing.assert_close(critic(x, y), without(x, y) + critic.correction(x, y), **EXACT)
    far = torch.tensor([[30.0, 0.0]]).double()
    assert without(far, -far).item() == FLOOR
    assert without(far, far).item() > 100


@pytest.mark.parametrize(("x_size", "y_size"), [(2, 2), (3, 2), (2, 4)])
def test_the_conditional_gaussian_is_a_product_of_normal_densities(x_size, y_size):
    rho = torch.tensor([0.9, 0.4])
    x, y = drawn("", 5, x_size), drawn("", 4, y_size, seed=2)
    constant = 0.5 * y_size * math.log(2 * math.pi)
    for train in (False, True):
        critic = seeded(lambda: ConditionalGaussian(rho, x_size, y_size), train=train)
        shift, scale = critic.network(x).detach().numpy().reshape(5, 2, y_size).transpose(1, 0, 2)
        mean, deviation = shift, np.exp(scale)
        mean[:, :2] += x[:, :2].numpy() * rho.numpy()
        deviation[:, :2] *= np.sqrt(1 - rho.numpy() ** 2)
        densities = stats.norm(mean[:, None], deviation[:, None]).logpdf(y.numpy())
        expected = densities.sum(-1) + constant
        np.testing.assert_allclose(critic(x, y).detach(), expected, rtol=1e-6, atol=1e-6)


# Segments


def encoder(near_end, length=6):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return SegmentEncoder(nn.Embedding(TYPES, 2), length, near_end, seed=0).double().eval()


@pytest.mark.parametrize("near_end", [False, True])
def test_an_encoding_is_a_weighted_sum_of_embeddings_a_head(near_end):
    encode = encoder(near_end)
    tokens = torch.randint(TYPES, (3, 6), generator=torch.Generator().manual_seed(0))
    encoded = encode(tokens).detach()
    assert encoded.shape == (3, 2 * SegmentEncoder.HEADS)
    table, weights = encode.embedding.weight.tolist(), encode.weights.tolist()
    for row, segment in enumerate(tokens.tolist()):
        expected = []
        for head in weights:
            for d in range(2):
                parts = zip(head, segment, strict=True)
                expected.append(sum(w * table[token][d] for w, token in parts))
        np.testing.assert_allclose(encoded[row], expected, rtol=0, atol=1e-12)


def test_in_training_some_numbers_are_dropped_and_the_mean_stays():
    encode = encoder(near_end=True)
    tokens = torch.randint(TYPES, (2000, 6), generator=torch.Generator().manual_seed(0))
    plain, dropped = encode(tokens), encode.train()(tokens)
    share = (dropped == 0).double().mean(0)
    error = 4 * math.sqrt(0.25 / len(tokens))
    torch.testing.assert_close(
        share, torch.full_like(share, SegmentEncoder.DROPPED), rtol=0, atol=error
    )
    kept = dropped != 0
    whole = plain / (1 - SegmentEncoder.DROPPED)
    torch.testing.assert_close(dropped[kept], whole[kept], **EXACT)
    assert encoder(near_end=True).train()(tokens).equal(dropped)  # drawn by its own seed


def test_what_is_near_the_other_segment_weighs_most():
    before, after = (encoder(near_end).weights.detach() for near_end in (True, False))
    assert before.equal(after.flip(1))
    assert (after.diff(dim=1) <= 0).all()  # never more for what is farther
    assert (before.diff(dim=1) >= 0).all()
    assert ((before != 0).sum(1) == 1).any()  # a head for the very last token
    assert (before.diff(dim=1) == 0).all(1).any()  # and one for all of them
    torch.testing.assert_close(before.norm(dim=1), torch.ones(len(before)).double())


def test_in_a_pair_the_end_of_x_and_the_start_of_y_are_near():
    critic = seeded(lambda: SegmentCritic(TYPES, *LENGTHS, Separable, seed=0))
    assert (critic.x.weights.diff(dim=1) >= 0).all()
    assert (critic.y.weights.diff(dim=1) <= 0).all()
    assert critic.x.embedding is critic.y.embedding
