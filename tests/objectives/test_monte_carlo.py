"""`MonteCarlo` on real models against plain formulas, its baseline, its masks, what it refuses."""

import math

import numpy as np
import pytest
import torch
import yaml
from torch.distributions import Categorical, Normal, kl_divergence

from infolm.config import load_recipe
from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.models.codes.categorical import CategoricalConfig
from infolm.models.codes.gaussian import GaussianConfig
from infolm.models.recurrent import DropoutConfig
from infolm.models.sentence import CoderConfig, SentenceConfig, SentenceModel
from infolm.models.symbol import SymbolConfig, SymbolModel
from infolm.objectives.monte_carlo import DECAY, MonteCarlo, MonteCarloConfig
from infolm.training.loop import tensors

GAUSSIAN = GaussianConfig(size=2)
CATEGORICAL = CategoricalConfig(variables=2, classes=3, embedding=4)
WORDS = tensors(Lines.of([[1, 2, 3], [4, 5], [6]], 0).packed(np.arange(3)), torch.device("cpu"))
SYMBOLS = tensors(Lines.of([[2], [3], [6]], 0).packed(np.arange(3)), torch.device("cpu"))


def sentences(latent, **dropout):
    torch.manual_seed(0)
    coder = CoderConfig(hidden=5)
    decoder = CoderConfig(hidden=5, dropout=DropoutConfig(**dropout))
    config = SentenceConfig(
        embedding=3, latent=latent, encoder=coder, decoder=decoder, bidirectional=True
    )
    return SentenceModel(config, 7).double()


def symbols(latent):
    torch.manual_seed(0)
    return SymbolModel(SymbolConfig(hidden=6, latent=latent), 7).double()


WORLDS = {"sentences": (sentences, WORDS), "symbols": (symbols, SYMBOLS)}


@pytest.fixture(params=WORLDS)
def world(request):
    """A function that makes a model, and a batch for it."""
    return WORLDS[request.param]


def run(objective, model, batch, seed=5):
    torch.manual_seed(seed)
    estimate = objective(model, batch, None)
    if isinstance(objective, MonteCarlo):
        objective.stepped(estimate.sums)
    return estimate


def one_by_one(model, z, batch):
    """ln p(x | z_k), (K, B): code by code, from the whole distributions."""
    rows = []
    for codes in z:
        if isinstance(model, SymbolModel):
            hidden = model.decoder(model.latent.read(codes))
            log_probs = model.softmax.log_probs(hidden, model.embedding)
            rows.append(log_probs.gather(-1, batch.targets[:3, None])[:, 0])
            continue
        hidden = model.decode(codes, batch.inputs, batch.sizes)
        log_p = model.log_probs(hidden).gather(1, batch.targets[:, None])[:, 0]
        owner = torch.cat([torch.arange(size) for size in batch.sizes])
        rows.append(torch.stack([log_p[owner == number].sum() for number in range(3)]))
    return torch.stack(rows)


def drawn(model, batch, count, seed=5):
    """The codes that `run` draws, the distributions they come from and their densities (K, B)."""
    torch.manual_seed(seed)
    proposal = model.encode(batch.read, batch.sizes)
    z = proposal.sample(count)
    if isinstance(model.config.latent, GaussianConfig):
        q = Normal(proposal.mean, (proposal.log_variance / 2).exp())
        prior = Normal(0.0, 1.0)
        kl = kl_divergence(q, prior).sum(1)
    else:
        q = Categorical(logits=proposal.log_probs)
        prior = Categorical(logits=torch.zeros_like(proposal.log_probs))
        kl = kl_divergence(q, prior).sum(1)
    return z, q, prior.log_prob(z).sum(-1), kl


def plain(config, log_p, log_ratio, kl):
    """The objective by its formulas, (B,)."""

    def s(count, alpha=1.0):
        if config.estimator == "elbo":
            return alpha * log_p[:count].mean(0) - kl
        return (alpha * log_p + log_ratio)[:count].logsumexp(0) - math.log(count)

    count = config.samples
    many = config.mi_samples or count
    weights = (log_p + log_ratio)[:many].softmax(0)
    bound = s(count) if config.grouping == "likelihood" else s(many)
    match config.augment:
        case "none":
            return s(count)
        case "power":
            return s(count, config.alpha) / config.alpha
        case "kl":
            told = (weights * log_p[:many]).sum(0) - bound
        case "renyi":
            told = (s(many, config.alpha) - config.alpha * bound) / (config.alpha - 1)
    return s(count) + config.weight * told


AUGMENTED = [
    {},
    {"augment": "kl", "lambda": 0.7},
    {"augment": "kl", "lambda": 0.7, "mi_samples": 1},
    {"augment": "kl", "lambda": 0.7, "mi_samples": 1, "grouping": "information"},
    {"augment": "renyi", "lambda": 0.7, "alpha": 1.6, "mi_samples": 4},
    {"augment": "renyi", "lambda": 0.7, "alpha": 1.6, "mi_samples": 4, "grouping": "information"},
    {"augment": "power", "alpha": 1.6},
]


@pytest.mark.parametrize("augment", AUGMENTED, ids=str)
@pytest.mark.parametrize(
    ("latent", "estimator"),
    [
        (GAUSSIAN, "elbo"),
        (GAUSSIAN, "stl"),
        (GAUSSIAN, "dreg"),
        (GAUSSIAN, "vimco"),
        (CATEGORICAL, "reinforce"),
        (CATEGORICAL, "vimco"),
    ],
)
def test_the_loss_is_the_objective_of_its_own_draws(world, latent, estimator, augment):
    make, batch = world
    model = make(latent)
    config = MonteCarloConfig(estimator=estimator, samples=3, **augment)
    found = run(MonteCarlo(config), model, batch)
    z, q, log_prior, kl = drawn(model, batch, config.settings.drawn)
    log_ratio = log_prior - q.log_prob(z).sum(-1)
    log_p = one_by_one(model, z, batch)
    torch.testing.assert_close(found.loss, -plain(config, log_p, log_ratio, kl).mean())
    tokens = 9 if model.ends else 3
    bound = (log_p + log_ratio)[:3].logsumexp(0) - math.log(3)
    torch.testing.assert_close(found.terms["nll"], -bound.sum() / tokens)
    torch.testing.assert_close(found.terms["kl"], kl.mean())
    if config.augment in ("kl", "renyi"):
        weight = (found.loss - run_without(config, model, batch)) / -config.weight
        torch.testing.assert_close(found.terms["information"], weight)
    assert found.count == tokens
    assert found.per == {"nll": tokens, "information": 3, "kl": 3}


def run_without(config, model, batch):
    """The loss of the same draws without information."""
    unweighted = config.model_copy(update={"weight": 0.0})
    return run(MonteCarlo(unweighted), model, batch).loss


def gradients(model, loss):
    found = torch.autograd.grad(
        loss, list(model.parameters()), retain_graph=True, materialize_grads=True
    )
    return dict(zip(dict(model.named_parameters()), found, strict=True))


@pytest.mark.parametrize("augment", AUGMENTED, ids=str)
@pytest.mark.parametrize("estimator", ["iwae", "elbo"])
def test_the_gradient_of_iwae_and_the_elbo_is_that_of_the_plain_formula(world, estimator, augment):
    make, batch = world
    model = make(GAUSSIAN)
    config = MonteCarloConfig(estimator=estimator, samples=3, **augment)
    ours = gradients(model, run(MonteCarlo(config), model, batch).loss)
    z, q, log_prior, kl = drawn(model, batch, config.settings.drawn)
    log_p = one_by_one(model, z, batch)
    value = plain(config, log_p, log_prior - q.log_prob(z).sum(-1), kl)
    torch.testing.assert_close(ours, gradients(model, -value.mean()))


def test_the_gradient_of_dreg_is_that_of_two_passes(world):
    """sum_k v_k dl_k/dtheta, and sum_k v_k^2 d(l_k + r_k)/dz_k dz_k/dphi (Tucker et al. 2018)."""
    make, batch = world
    model = make(GAUSSIAN)
    ours = gradients(model, run(MonteCarlo(MonteCarloConfig(samples=3)), model, batch).loss)
    z, q, _, _ = drawn(model, batch, 3)
    codes = z.detach().requires_grad_()
    log_p = one_by_one(model, codes, batch)
    fixed = Normal(q.loc.detach(), q.scale.detach())
    log_ratio = (Normal(0.0, 1.0).log_prob(codes) - fixed.log_prob(codes)).sum(-1)
    v = (log_p + log_ratio).softmax(0).detach()
    of_codes = torch.autograd.grad((v**2 * (log_p + log_ratio)).sum(), codes, retain_graph=True)[0]
    of_decoder, of_encoder = (
        gradients(model, each) for each in ((v * log_p).sum(), (of_codes * z).sum())
    )
    both = {name: -(of_decoder[name] + of_encoder[name]) / 3 for name in ours}
    torch.testing.assert_close(ours, both)


@pytest.mark.parametrize("latent", [GAUSSIAN, CATEGORICAL], ids=["gaussian", "categorical"])
@pytest.mark.parametrize("augment", [*AUGMENTED[:2], AUGMENTED[-1]], ids=str)
def test_the_gradient_of_vimco_is_that_of_a_loop(world, latent, augment):
    """sum_k (O - O_k) d ln q(z_k)/dphi + dO, with O_k of the others alone and their mean."""
    make, batch = world
    model = make(latent)
    config = MonteCarloConfig(estimator="vimco", samples=3, **augment)
    ours = gradients(model, run(MonteCarlo(config), model, batch).loss)
    z, q, log_prior, kl = drawn(model, batch, 3)
    z, log_prior = z.detach(), log_prior.detach()
    log_q = q.log_prob(z).sum(-1)
    log_p, log_ratio = one_by_one(model, z, batch), log_prior - log_q
    value = plain(config, log_p, log_ratio, kl)
    surrogate = value.sum()
    for k in range(3):
        others = [j for j in range(3) if j != k]
        mean = [torch.cat([x[others], x[others].mean(0)[None]]) for x in (log_p, log_ratio)]
        without = plain(config, *mean, kl)
        surrogate = surrogate + ((value - without).detach() * log_q[k]).sum()
    torch.testing.assert_close(ours, gradients(model, -surrogate / 3))


# -- the baseline ---------------------------------------------------------------------------


MEAN = MonteCarloConfig(estimator="reinforce", baseline="mean")


def test_reinforce_has_no_baseline():
    """What it heard before changes nothing: "assuming a zero baseline, we recover REINFORCE 1"."""
    model = sentences(CATEGORICAL)
    objective = MonteCarlo(MonteCarloConfig(estimator="reinforce"))
    first = gradients(model, run(objective, model, WORDS).loss)
    assert objective._baseline(torch.tensor([4.0, 3.0, 2.0])).tolist() == [0, 0, 0]
    torch.testing.assert_close(first, gradients(model, run(objective, model, WORDS).loss))
    z, q, log_prior, _ = drawn(model, WORDS, 1)
    log_q, log_p = q.log_prob(z).sum(-1), one_by_one(model, z, WORDS)
    value = log_p + log_prior - log_q
    surrogate = -(value + value.detach() * log_q).sum() / 3
    torch.testing.assert_close(first, gradients(model, surrogate))


def test_the_mean_is_a_running_one_per_token():
    """0 at the first batch; then of the batches before, with the bias of its start taken out."""
    model, objective = sentences(CATEGORICAL), MonteCarlo(MEAN)
    lengths = torch.tensor([4.0, 3.0, 2.0])
    assert objective._baseline(lengths).tolist() == [0, 0, 0]
    per_token = [-run(objective, model, WORDS, seed).loss.item() * 3 / 9 for seed in range(3)]
    weights = np.array([DECAY**2, DECAY, 1.0])
    mean = (weights * per_token).sum() / weights.sum()
    assert objective._baseline(lengths).tolist() == pytest.approx([4 * mean, 3 * mean, 2 * mean])


def test_the_mean_is_in_the_gradient_and_can_be_resumed():
    model = sentences(CATEGORICAL)
    config = MEAN.model_copy(update={"samples": 2})
    objective = MonteCarlo(config)
    first = gradients(model, run(objective, model, WORDS).loss)
    resumed = MonteCarlo(config)
    resumed.load_state_dict(objective.state_dict())
    baseline = objective._baseline(torch.tensor([4.0, 3.0, 2.0]))
    second = gradients(model, run(objective, model, WORDS).loss)
    torch.testing.assert_close(second, gradients(model, run(resumed, model, WORDS).loss))
    z, q, _, _ = drawn(model, WORDS, 2)
    lower = (baseline * q.log_prob(z).sum(-1)).sum() / 3
    difference = torch.autograd.grad(lower, model.latent.logits.weight)[0]
    name = "latent.logits.weight"
    torch.testing.assert_close(second[name], first[name] + difference)
    assert objective.state_dict() == resumed.state_dict()


def test_lines_of_one_symbol_have_one_token():
    model, objective = symbols(CATEGORICAL), MonteCarlo(MEAN)
    loss = run(objective, model, SYMBOLS).loss.item()
    assert objective._baseline(torch.ones(3)).tolist() == pytest.approx([-loss] * 3)


def test_an_old_run_keeps_its_grouping_and_its_baseline(tmp_path):
    """Both keys came later: a run that lacks them did what it did."""
    tree = load_recipe(RECIPE).model_dump(mode="json")
    for key in ("grouping", "baseline"):
        del tree["objective"][key]
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    new = load_recipe(str(path)).objective
    assert (new.grouping, new.baseline) == ("likelihood", "none")
    (tmp_path / "corpus.json").write_text("{}")  # a run's
    old = load_recipe(str(path)).objective
    assert (old.grouping, old.baseline) == ("information", "mean")
    assert old.settings.grouping == "information"


# -- dropout --------------------------------------------------------------------------------


@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize("masks", ["sentence", "sample"])
def test_masks_are_a_sentences_or_a_samples(masks, locked, monkeypatch):
    """Of a code that does not vary, the samples of a sentence differ by their masks alone."""
    still = GaussianConfig(size=2, least_log_variance=-200.0)
    model = sentences(still, input=0.5, output=0.5, locked=locked).train()
    with torch.no_grad():
        model.latent.log_variance.weight.zero_()
        model.latent.log_variance.bias.fill_(-100.0)
    found = []
    original = model.log_likelihood
    monkeypatch.setattr(
        model, "log_likelihood", lambda *given: found.append(original(*given)) or found[-1]
    )
    objective = MonteCarlo(MonteCarloConfig(samples=4, masks=masks))
    first, second = (run(objective, model, WORDS, seed).loss for seed in (1, 2))
    spread = found[0].std(0)
    assert (spread < 1e-9).all() if masks == "sentence" else (spread > 1e-3).all()
    assert first != second  # dropout is on


# -- what is refused ------------------------------------------------------------------------

RECIPE = "monte-carlo/synthetic-continuous-small"
PLAIN = ["objective.kind=vq", "objective.kind=monte-carlo"]
"""Overrides that leave nothing of the recipe's own objective."""


@pytest.mark.parametrize(
    ("overrides", "reason", "remedy"),
    [
        (
            ["objective.estimator=vimco", "objective.samples=1"],
            "compares each sample with the others, and there is one",
            "raise samples, or choose reinforce",
        ),
        (["objective.alpha=1"], "divides by alpha - 1", "choose augment kl, or another alpha"),
        ([*PLAIN, "objective.lambda=0.5"], "augment is none", "alpha = 1 / (1 - lambda)"),
        (
            [*PLAIN, "objective.augment=power", "objective.lambda=0.5"],
            "augment is power",
            "set lambda=0",
        ),
        (
            [*PLAIN, "objective.augment=power", "objective.mi_samples=1"],
            "mi_samples are for kl and renyi",
            "set mi_samples=null",
        ),
        (
            ["objective.augment=kl", "objective.alpha=2"],
            "alpha is the power of renyi and power",
            "set alpha=1",
        ),
        (["objective.lambda=1"], "objective.lambda", "less than 1"),
        (["objective.alpha=0"], "objective.alpha", "greater than 0"),
        (["objective.samples=0"], "objective.samples", "greater than or equal to 1"),
        (["objective.estimator=drag"], "'drag' is not one of elbo, iwae", "dreg"),
        (
            ["model.latent.kind=categorical"],
            "dreg sends its gradient through the code, and a categorical code has no gradient",
            "choose vimco, or with one sample reinforce",
        ),
        (
            ["objective.kind=vq", "model.latent.kind=gaussian"],
            "objective.kind vq needs other settings",
            "set model.latent.kind to quantised (it is gaussian)",
        ),
        (
            ["model.latent.kind=quantised"],
            "objective.kind monte-carlo needs other settings",
            "set model.latent.kind to gaussian or categorical (it is quantised)",
        ),
        (
            ["objective.kind=mim"],
            "objective.kind mim needs other settings",
            "set model.kind to sentence (it is symbol)",
        ),
        (
            ["objective.kind=mim", "model.kind=sentence", "model.latent.kind=categorical"],
            "objective.kind mim needs other settings",
            "set model.latent.kind to gaussian (it is categorical)",
        ),
        (
            ["model.kind=recurrent"],
            "objective.kind monte-carlo needs other settings",
            "set model.kind to sentence or symbol (it is recurrent)",
        ),
    ],
)
def test_refusals_say_the_reason_and_the_alternative(overrides, reason, remedy):
    with pytest.raises(InfolmError) as refused:
        load_recipe(RECIPE, overrides)
    said = str(refused.value)
    assert reason in said
    assert remedy in said
    assert "\n" not in said
    assert ". " not in said  # one sentence


@pytest.mark.parametrize(
    "overrides",
    [
        ["objective.estimator=vimco", "objective.samples=1", "objective.mi_samples=4"],
        ["objective.estimator=reinforce", "model.latent.kind=categorical", "objective.samples=1"],
        ["objective.kind=vq", "model.latent.kind=quantised"],
        ["objective.lambda=-2"],
    ],
)
def test_what_is_not_refused(overrides):
    assert load_recipe(RECIPE, overrides) != load_recipe(RECIPE)
