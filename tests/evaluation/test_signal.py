"""The signal-to-noise of gradients against a plain loop; whose weights are whose; one call."""

import math

import numpy as np
import pytest
import torch

from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.evaluation.signal import floor, sides, signal_to_noise
from infolm.models.codes.categorical import CategoricalConfig
from infolm.models.codes.gaussian import GaussianConfig
from infolm.models.recurrent import DropoutConfig
from infolm.models.sentence import CoderConfig, SentenceConfig, SentenceModel
from infolm.models.symbol import SymbolConfig, SymbolModel
from infolm.objectives.monte_carlo import MonteCarlo, MonteCarloConfig
from infolm.training.loop import tensors

GAUSSIAN = GaussianConfig(size=2)
CATEGORICAL = CategoricalConfig(variables=2, classes=3, embedding=4)


def symbols(latent=GAUSSIAN):
    torch.manual_seed(1)
    return SymbolModel(SymbolConfig(hidden=8, latent=latent), 7)


def sentences(latent=GAUSSIAN, **rest):
    torch.manual_seed(1)
    coder = CoderConfig(hidden=5, dropout=DropoutConfig(input=0.5, locked=False))
    config = SentenceConfig(embedding=3, latent=latent, encoder=coder, decoder=coder, **rest)
    return SentenceModel(config, 7)


def batch_of(*lines):
    return tensors(Lines.of(lines, 0).packed(np.arange(len(lines))), torch.device("cpu"))


SYMBOLS = batch_of([2], [3], [4], [6])


def test_it_is_the_mean_and_the_deviation_of_gradients():
    """As a loop finds them that keeps all gradients."""
    model, config = symbols().eval(), MonteCarloConfig(estimator="dreg", samples=2)
    (found,) = signal_to_noise(model, SYMBOLS, [config], draws=20, seed=5)
    torch.manual_seed(5)
    objective = MonteCarlo(config)
    objective(model, SYMBOLS, None)
    rows = []
    for _ in range(20):
        model.zero_grad()
        objective(model, SYMBOLS, None).loss.backward()
        weights = [*model.decoder.parameters(), *model.softmax.parameters()]
        rows.append(torch.cat([weight.grad.flatten() for weight in weights]))
    gradients = torch.stack(rows).double()
    mean, variance = gradients.mean(0), gradients.var(0)
    assert found.decoder.noise == pytest.approx(variance.sum().item())
    signal = mean.square().sum().item() - variance.sum().item() / 20
    assert found.decoder.signal == pytest.approx(signal)
    told = (mean.abs() / variance.sqrt())[variance > 0].mean().item()
    assert found.decoder.ratio == pytest.approx(told)
    noises = [part.var(0).sum().item() for part in gradients.chunk(4)]
    assert found.decoder.noise_stderr == pytest.approx(np.std(noises, ddof=1) / 2)


def test_the_ratio_without_signal():
    """|mean| / deviation of N numbers with mean 0 is sqrt(2 / (pi N)) in the mean."""
    numbers = torch.randn(400, 20_000, generator=torch.Generator().manual_seed(0))
    ratio = (numbers.mean(0).abs() / numbers.std(0)).mean().item()
    spread = math.sqrt((1 - 2 / math.pi) / 400 / 20_000)
    assert ratio == pytest.approx(floor(400), abs=4 * spread)


@pytest.mark.parametrize("latent", [GAUSSIAN, CATEGORICAL], ids=["gaussian", "categorical"])
@pytest.mark.parametrize("make", [symbols, lambda latent: sentences(latent, bidirectional=True)])
def test_whose_weights_are_whose(make, latent):
    """What is read on the way to q, and what on the way from a code: no weight but the embedding's
    is missing or in both."""
    model = make(latent)
    encoder, decoder = sides(model)
    assert {*encoder}.isdisjoint(decoder)
    assert {*encoder, *decoder, model.embedding} == {*model.parameters()}
    batch = batch_of([2], [3])
    proposal = model.encode(batch.read, batch.sizes)
    z = proposal.sample(1).detach()
    of_code = torch.autograd.grad(
        model.log_likelihood(z, batch).sum(), [*encoder, *decoder], allow_unused=True
    )
    assert [grad is not None for grad in of_code] == [False] * len(encoder) + [True] * len(decoder)


def test_a_weight_that_is_never_learnt_is_not_counted():
    model = sentences(GaussianConfig(size=2, batch_norm=0.6))
    encoder, decoder = sides(model)
    assert not any(weight is model.latent.norm.weight for weight in (*encoder, *decoder))


def test_dropout_is_off_and_all_is_left_as_it_was():
    """One draw is like another but for its code: with a code of no variance there is no noise."""
    model = sentences(GaussianConfig(size=2, least_log_variance=-200.0)).train()
    with torch.no_grad():
        model.latent.log_variance.weight.zero_()
        model.latent.log_variance.bias.fill_(-100.0)
    before = torch.get_rng_state()
    batch = batch_of([2, 3], [4])
    (found,) = signal_to_noise(model, batch, [MonteCarloConfig(estimator="elbo")], draws=8)
    assert found.decoder.noise < 1e-12 * found.decoder.signal
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())
    torch.testing.assert_close(torch.get_rng_state(), before)


def test_the_seed_decides_whatever_else_is_measured():
    model = symbols()
    iwae, dreg = (MonteCarloConfig(estimator=e, samples=2) for e in ("iwae", "dreg"))
    both = signal_to_noise(model, SYMBOLS, [iwae, dreg], draws=8)
    assert signal_to_noise(model, SYMBOLS, [dreg], draws=8) == both[1:]
    assert signal_to_noise(model, SYMBOLS, [dreg], draws=8, seed=2) != both[1:]


def test_more_samples_help_dreg_and_not_iwae():
    model = symbols().eval()
    configs = [
        MonteCarloConfig(estimator=estimator, samples=samples)
        for estimator in ("iwae", "dreg")
        for samples in (1, 32)
    ]
    iwae, iwae_32, dreg, dreg_32 = (
        found.encoder for found in signal_to_noise(model, SYMBOLS, configs, draws=100)
    )
    for better, worse in ((iwae, iwae_32), (dreg_32, dreg), (dreg_32, iwae_32)):
        error = math.hypot(better.ratio_stderr, worse.ratio_stderr)
        assert better.ratio > worse.ratio + 4 * error


def test_vimco_is_less_noisy_than_reinforce_and_has_the_same_signal():
    model = symbols(CATEGORICAL)
    configs = [
        MonteCarloConfig(estimator=estimator, samples=4, augment="power", alpha=2.0)
        for estimator in ("vimco", "reinforce")
    ]
    vimco, reinforce = (
        found.encoder for found in signal_to_noise(model, SYMBOLS, configs, draws=160)
    )
    error = math.hypot(vimco.noise_stderr, reinforce.noise_stderr)
    assert vimco.noise < reinforce.noise - 4 * error
    assert vimco.ratio > reinforce.ratio


def test_the_progress_is_told():
    told = []
    configs = [MonteCarloConfig(estimator=estimator) for estimator in ("iwae", "stl")]
    signal_to_noise(symbols(), SYMBOLS, configs, 8, report=lambda *done: told.append(done))
    assert told == [(1, 2), (2, 2)]


def test_too_few_draws():
    with pytest.raises(InfolmError, match="7 gradients are too few"):
        signal_to_noise(symbols(), SYMBOLS, [MonteCarloConfig()], draws=7)
