"""Codes of three kinds: each is the distribution it says, and gradients go where they should."""

import itertools
import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn import functional

from infolm.models.codes.base import CODES
from infolm.models.codes.categorical import CategoricalConfig, Categories
from infolm.models.codes.gaussian import GaussianConfig, Posterior
from infolm.models.codes.quantised import IDLE, Quantised, QuantisedConfig

INPUTS, BATCH = 4, 3


def latent(config, inputs=INPUTS):
    torch.manual_seed(0)
    return config.build(inputs).double()


def encoded(rows=BATCH):
    torch.manual_seed(1)
    return torch.randn(rows, INPUTS, dtype=torch.double, requires_grad=True)


# -- Gaussian ---------------------------------------------------------------------------------


def test_a_gaussian_code_has_its_densities_and_its_moments():
    posterior = latent(GaussianConfig(size=5))(encoded())
    q, p = Normal(posterior.mean, (posterior.log_variance / 2).exp()), Normal(0.0, 1.0)
    torch.manual_seed(2)
    z = posterior.sample(20_000)
    assert z.shape == (20_000, BATCH, 5)
    torch.testing.assert_close(posterior.log_density(z), q.log_prob(z).sum(-1))
    torch.testing.assert_close(posterior.log_prior(z), p.log_prob(z).sum(-1))
    torch.testing.assert_close(posterior.kl(), kl_divergence(q, p))
    scaled = ((z - q.mean) / q.stddev).detach()
    assert scaled.mean(0).abs().max() < 4 / math.sqrt(20_000)
    assert (scaled.var(0) - 1).abs().max() < 4 * math.sqrt(2 / 20_000)


def test_a_gaussian_code_is_reparametrised_and_stopped_is_without_gradient():
    posterior = Posterior(*(torch.randn(2, 3, requires_grad=True) for _ in range(2)))
    torch.manual_seed(2)
    z = posterior.sample(4)
    noise = ((z - posterior.mean) / (posterior.log_variance / 2).exp()).detach()
    by_mean, by_log_variance = torch.autograd.grad(z.sum(), posterior)
    torch.testing.assert_close(by_mean, torch.full((2, 3), 4.0))
    expected = 0.5 * (posterior.log_variance / 2).exp() * noise.sum(0)
    torch.testing.assert_close(by_log_variance, expected)
    assert not posterior.stopped().log_density(z.detach()).requires_grad
    assert posterior.stopped().log_density(z).requires_grad


# -- categorical ------------------------------------------------------------------------------


@pytest.fixture
def categories() -> Categories:
    return latent(CategoricalConfig(variables=2, classes=3, embedding=4))(3 * encoded())


def every_code(variables: int, classes: int) -> torch.Tensor:
    """(C^L, 1, L)."""
    return torch.tensor(list(itertools.product(range(classes), repeat=variables)))[:, None]


def test_categorical_codes_by_enumeration(categories):
    z = every_code(2, 3).expand(-1, BATCH, -1)
    log_q, log_p = categories.log_density(z), categories.log_prior(z)
    by_hand = [
        [
            sum(categories.log_probs[b, v, c].item() for v, c in enumerate(code))
            for b in range(BATCH)
        ]
        for code in itertools.product(range(3), repeat=2)
    ]
    torch.testing.assert_close(log_q, torch.tensor(by_hand, dtype=torch.double))
    torch.testing.assert_close(log_q.exp().sum(0), torch.ones(BATCH).double())
    torch.testing.assert_close(log_p, torch.full((9, BATCH), -math.log(9)).double())
    kl = (log_q.exp() * (log_q - log_p)).sum(0)
    torch.testing.assert_close(categories.kl().sum(1), kl)
    uniform = Categories(torch.full((1, 2, 3), -math.log(3)))
    torch.testing.assert_close(uniform.kl(), torch.zeros(1, 2))


def test_categorical_codes_are_drawn_as_often_as_they_are_likely(categories):
    torch.manual_seed(3)
    count = 20_000
    z = categories.sample(count)
    assert z.shape == (count, BATCH, 2)
    assert not z.is_floating_point()
    for b in range(BATCH):
        # Whole codes, so that the variables are seen to be independent.
        seen = torch.bincount(3 * z[:, b, 0] + z[:, b, 1], minlength=9) / count
        p = categories.log_density(every_code(2, 3).expand(-1, BATCH, -1))[:, b].exp()
        assert (seen - p).abs().le(4 * (p * (1 - p) / count).sqrt()).all()


def test_there_is_no_gradient_through_a_category_and_one_through_its_probability(categories):
    z = categories.sample(2)
    assert not z.requires_grad
    assert categories.log_density(z).requires_grad
    assert categories.kl().requires_grad
    assert not categories.stopped().log_density(z).requires_grad


@pytest.mark.parametrize("shape", [(BATCH, 5), (2, BATCH, 5)])
def test_the_decoder_reads_the_sum_of_the_classes_embeddings(shape):
    made = latent(CategoricalConfig(variables=5, classes=3, embedding=4))
    z = torch.randint(0, 3, shape)
    found = made.read(z)
    rows = z.reshape(-1, 5).tolist()
    slow = torch.stack([sum(made.embedding[3 * v + c] for v, c in enumerate(r)) for r in rows])
    torch.testing.assert_close(found, slow.view(*shape[:-1], 4))
    weights = torch.randn_like(found)
    (ours,) = torch.autograd.grad((found * weights).sum(), made.embedding)
    (theirs,) = torch.autograd.grad((slow * weights.reshape(-1, 4)).sum(), made.embedding)
    torch.testing.assert_close(ours, theirs)
    # Codes that lie otherwise in memory, as those of several samples side by side do.
    turned = z.transpose(0, -2).contiguous().transpose(0, -2)
    torch.testing.assert_close(made.read(turned), found)


# -- quantised --------------------------------------------------------------------------------

QUANTISED = QuantisedConfig(variables=2, classes=5, embedding=3)


def test_the_code_is_the_nearest_entry():
    made = latent(QUANTISED)
    found = made(encoded(20))
    for b, variable in itertools.product(range(20), range(2)):
        v = found.vectors[b, variable]
        distances = [(v - entry).norm().item() for entry in made.codebook[variable]]
        nearest = distances.index(min(distances))
        assert found.codes[b, variable] == nearest
        assert torch.equal(found.entries[b, variable], made.codebook[variable, nearest])
    z = found.sample(3)
    torch.testing.assert_close(z, found.entries.flatten(1).expand(3, -1, -1))
    assert not found.log_density(z).any()
    torch.testing.assert_close(found.log_prior(z), torch.full((3, 20), -2 * math.log(5)).double())
    torch.testing.assert_close(found.kl().sum(1), -found.log_prior(z)[0])
    assert made.read(z) is z


def test_the_gradient_goes_straight_through():
    made = latent(QUANTISED)
    found = made(encoded())
    found.vectors.retain_grad()
    z = found.sample(2)
    z.retain_grad()
    (z.sin() * torch.tensor([1.0, -3.0])[:, None, None]).sum().backward()
    torch.testing.assert_close(found.vectors.grad, z.grad.sum(0).view(BATCH, 2, 3))
    assert not found.stopped().sample(1).requires_grad
    assert {name for name, _ in made.named_parameters()} == {"vectors.weight", "vectors.bias"}


def settled(made):
    """A codebook that some batches have moved: no entry is idle."""
    torch.manual_seed(5)
    made.codebook.normal_()
    made.count.uniform_(3, 5)
    made.total.copy_(made.codebook * made.count[..., None])
    return made


def test_entries_are_running_means_of_the_vectors_that_chose_them():
    """Van den Oord et al. 2017, appendix A.1, a vector at a time."""
    made, decay = settled(latent(QUANTISED)), 0.9
    n, m = made.count.tolist(), [[row.clone() for row in rows] for rows in made.total]
    for seed in range(4):
        torch.manual_seed(seed)
        found = made(torch.randn(6, INPUTS, dtype=torch.double))
        made.follow(found, decay)
        for variable, c in itertools.product(range(2), range(5)):
            own = [b for b in range(6) if found.codes[b, variable] == c]
            n[variable][c] = decay * n[variable][c] + (1 - decay) * len(own)
            total = sum((found.vectors[b, variable].detach() for b in own), torch.zeros(3))
            m[variable][c] = decay * m[variable][c] + (1 - decay) * total
            torch.testing.assert_close(made.codebook[variable, c], m[variable][c] / n[variable][c])
    assert not made.codebook.requires_grad


def chosen_alone(made, entry=0, rows=6) -> Quantised:
    """Vectors that all choose one entry of each codebook."""
    vectors = torch.randn(rows, 2, 3, dtype=torch.double)
    codes = torch.full((rows, 2), entry)
    return Quantised(vectors, codes, made.codebook[torch.arange(2), codes], 5)


def test_an_entry_that_nothing_chooses_stays_until_it_is_idle_and_then_begins_anew():
    made, decay = settled(latent(QUANTISED)), 0.9
    before = made.codebook.clone()
    stayed = 0
    for _ in range(100):
        found = chosen_alone(made)
        share = (0.9 * made.count / (0.9 * made.count.sum(1, keepdim=True) + 0.1 * 6) * 5)[:, 1:]
        made.follow(found, decay)
        if share.min() < IDLE:
            break
        stayed += 1
        torch.testing.assert_close(made.codebook[:, 1:], before[:, 1:])
    assert 3 < stayed < 100
    at = torch.cdist(made.codebook, found.vectors.transpose(0, 1)).amin(2) < 1e-12
    assert torch.equal(at[:, 1:], share < IDLE)
    assert made.count.min() > 0


def test_thousands_of_steps_without_being_chosen_leave_finite_entries():
    made = latent(QUANTISED).float()
    for _ in range(2_000):
        made.follow(chosen_alone(made)._replace(vectors=torch.ones(6, 2, 3)), 0.9)
    torch.testing.assert_close(made.codebook, torch.ones(2, 5, 3))
    assert (made.count > 0).all()


def test_the_first_batch_brings_all_entries_among_its_vectors():
    made = latent(QuantisedConfig(variables=3, classes=8, embedding=6))
    h = encoded(64)
    used = [len(codes.unique()) for codes in made(h).codes.t()]
    assert min(used) < 8
    made.follow(made(h), 0.99)
    after = made(h)
    assert all(len(codes.unique()) >= 7 for codes in after.codes.t())
    # Within what a codebook can say of 64 vectors; the first ones were as far as nothing is.
    spread = (after.vectors - after.vectors.mean(0)).square().sum()
    assert (after.vectors - after.entries).square().sum() < spread


def test_the_codebook_is_kept_and_goes_on_the_same():
    made, other = settled(latent(QUANTISED)), latent(QUANTISED)
    with torch.no_grad():
        other.vectors.weight.zero_()
    other.load_state_dict(made.state_dict())
    for module in (made, other):
        for seed in range(3):
            torch.manual_seed(seed)
            module.follow(module(torch.randn(6, INPUTS, dtype=torch.double)), 0.5)
    for name, tensor in made.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert {"codebook", "count", "total"} <= made.state_dict().keys()


def test_the_width_is_that_of_what_the_decoder_reads():
    for config in (GaussianConfig(size=3), CategoricalConfig(variables=2, embedding=7), QUANTISED):
        made = latent(config)
        assert made.read(made(encoded()).sample(2)).shape == (2, BATCH, config.width)


def test_categories_are_a_softmax():
    made = latent(CategoricalConfig(variables=2, classes=3))
    h = encoded()
    logits = functional.linear(h, made.logits.weight, made.logits.bias).view(BATCH, 2, 3)
    torch.testing.assert_close(made(h).log_probs.exp(), logits.softmax(2))


# -- every kind -------------------------------------------------------------------------------


@pytest.fixture(params=list(CODES))
def kind(request):
    config = CODES[request.param]()
    return config, latent(config)


def test_every_kind_has_the_columns_that_its_section_says(kind):
    config, module = kind
    proposal = module(encoded())
    assert module.read(proposal.sample(2)).shape == (2, BATCH, config.width)
    assert proposal.places.shape == (BATCH, config.places)
    assert proposal.sentence_vectors.shape == (BATCH, config.vector_size)
    assert proposal.certain == config.certain
    assert (proposal.over_classes is None) == (config.classes == 0)


def test_every_kind_finds_the_code_in_the_middle_by_its_place(kind):
    _, module = kind
    proposal = module(encoded())
    torch.testing.assert_close(module.code(proposal.places), proposal.centre)


def test_every_kind_puts_sentences_into_another_order(kind):
    _, module = kind
    rows, order = encoded(4), torch.tensor([2, 0, 3, 1])
    parts = [module(rows[:1]).stopped(), module(rows[1:]).stopped()]
    by_joining, by_choosing = parts[0].joined(parts, order), module(rows).stopped().rows(order)
    torch.testing.assert_close(by_joining.centre, by_choosing.centre)
    torch.testing.assert_close(by_joining.kl(), by_choosing.kl())


def test_every_kind_measures_its_densities_one_by_one_and_all_at_once(kind):
    _, module = kind
    proposal = module(encoded()).stopped()
    q, z = proposal.with_densities(proposal.drawn(1, torch.Generator().manual_seed(3))[0])
    own = q.log_densities(z).diagonal()
    torch.testing.assert_close(own, q.log_density(z))
    torch.testing.assert_close(proposal.prior.log_density(z), q.log_prior(z))
