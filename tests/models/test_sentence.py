"""The sentence model: its distribution sums to one, and batches change nothing."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn.utils.rnn import pack_sequence

from infolm.config import load_recipe
from infolm.data.sentences import Lines
from infolm.experiment import parameters
from infolm.models.recurrent import DropoutConfig, SoftmaxConfig
from infolm.models.sentence import (
    CoderConfig,
    LatentConfig,
    Posterior,
    SentenceConfig,
    SentenceModel,
    log_prior,
)

CELLS = ["gru", "lstm", "elman", "rewired", "multiplicative"]


def model(cell="gru", vocabulary=4, layers=1, latent=2, **config) -> SentenceModel:
    torch.manual_seed(0)
    coder = CoderConfig(cell=cell, hidden=5, layers=layers)
    given = {"embedding": 3, "latent": LatentConfig(size=latent), "encoder": coder}
    made = SentenceModel(SentenceConfig(**{**given, "decoder": coder, **config}), vocabulary)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(4)  # far from uniform
    return made.double().eval()


def rows(batch):
    return (torch.from_numpy(x) for x in batch[:3])


@pytest.mark.parametrize("cell", CELLS)
def test_sentences_given_a_code_sum_to_one(cell):
    """All that end within `longest` steps, and all beginnings of those that do not."""
    made, longest, eos = model(cell), 4, 0
    z = torch.tensor([[0.7, -1.2]], dtype=torch.double)
    words = range(1, 4)
    ended = [s for n in range(longest) for s in itertools.product(words, repeat=n)]
    going_on = list(itertools.product(words, repeat=longest))
    text = Lines.of([*ended, *going_on], eos)
    order = np.argsort(-text.lengths, kind="stable")
    _, inputs, targets = rows(batch := text.packed(order))
    hidden = made.decode(z.expand(len(text), -1), inputs, batch.sizes)
    log_p = made.log_prob(hidden, targets)
    owner = torch.cat([torch.arange(size) for size in batch.sizes])
    sums = torch.zeros(len(text), dtype=torch.double).index_add(0, owner, log_p)
    eos_of_long = torch.zeros_like(sums).index_add(0, owner, log_p.where(targets == eos, 0.0))
    long = torch.from_numpy(text.lengths[order] == longest)
    total = sums[~long].exp().sum() + (sums - eos_of_long)[long].exp().sum()
    assert total.item() == pytest.approx(1, abs=1e-12)


sentences = st.lists(st.lists(st.integers(1, 3), max_size=6), min_size=1, max_size=7)


@settings(max_examples=40, deadline=None)
@given(sentences, st.sampled_from(CELLS), st.integers(1, 2))
def test_a_sentence_is_read_and_written_the_same_in_any_company(found, cell, layers):
    made = model(cell, layers=layers)
    text = Lines.of(found, 0)
    order = np.argsort(-text.lengths, kind="stable")
    batch = text.packed(order)
    read, inputs, _ = rows(batch)
    together = made(read, inputs, batch.sizes, lambda q: q.at(torch.ones_like(q.mean)))
    owner = torch.cat([torch.arange(size) for size in batch.sizes])
    for place, number in enumerate(order):
        alone = text.packed(np.array([number]))
        read, inputs, _ = rows(alone)
        one = made(read, inputs, alone.sizes, lambda q: q.at(torch.ones_like(q.mean)))
        for a, b in zip(one.posterior, together.posterior, strict=True):
            torch.testing.assert_close(a[0], b[place])
        torch.testing.assert_close(one.z[0], together.z[place])
        torch.testing.assert_close(one.hidden, together.hidden[owner == place])


def test_it_is_two_gru_networks_and_two_linear_maps():
    """An independent implementation, from PyTorch's own layers."""
    made = model(vocabulary=6, latent=3)
    found = [[1, 2, 3], [4], [5, 1]]
    text = Lines.of(found, 0)
    batch = text.packed(np.array([0, 2, 1]))
    read, inputs, targets = rows(batch)
    posterior, _, hidden = made(read, inputs, batch.sizes, lambda q: q.mean)

    def network(cell) -> nn.GRU:
        gru = nn.GRU(cell.inputs, cell.hidden).double()
        names = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0"}
        names |= {"bias_ih": "bias_ih_l0", "bias_hh": "bias_hh_l0"}
        gru.load_state_dict({new: cell.state_dict()[old] for old, new in names.items()})
        return gru

    ordered = [found[0], found[2], found[1]]
    embedded = [made.embedding[torch.tensor([0, *s[::-1]])] for s in ordered]
    _, h = network(made.encoder.cells[0])(pack_sequence(embedded))
    mean = h[0] @ made.mean.weight.T + made.mean.bias
    log_variance = h[0] @ made.log_variance.weight.T + made.log_variance.bias
    torch.testing.assert_close(posterior.mean, mean)
    torch.testing.assert_close(posterior.log_variance, log_variance.clamp(min=-10))
    steps = [
        torch.cat([made.embedding[torch.tensor([0, *s])], code.expand(len(s) + 1, -1)], 1)
        for s, code in zip(ordered, mean, strict=True)
    ]
    start = mean @ made.start.weight.T + made.start.bias
    outputs, _ = network(made.decoder.cells[0])(pack_sequence(steps), start[None])
    torch.testing.assert_close(hidden, outputs.data)
    logits = outputs.data @ made.softmax.weight.T + made.softmax.bias
    expected = nn.functional.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(made.nll_sum(hidden, targets), expected)


@pytest.mark.parametrize("cell", CELLS)
def test_word_by_word_is_the_same_as_at_once(cell):
    made = model(cell, layers=2)
    z = torch.randn(3, 2, dtype=torch.double)
    batch = Lines.of([[1, 2, 3], [3, 3, 1], [2, 1, 2]], 0).packed(np.arange(3))
    _, inputs, _ = rows(batch)
    expected = made.decode(z, inputs, batch.sizes).unflatten(0, (4, 3))
    state = made.initial_state(z)
    for words, hidden in zip(inputs.view(4, 3), expected, strict=True):
        found, state = made.step(words, z, state)
        torch.testing.assert_close(found, hidden)


def test_the_posterior_is_a_gaussian():
    torch.manual_seed(1)
    posterior = Posterior(torch.randn(4, 3), torch.randn(4, 3))
    q = Normal(posterior.mean, (posterior.log_variance / 2).exp())
    z = torch.randn(5, 4, 3)
    torch.testing.assert_close(posterior.log_density(z), q.log_prob(z).sum(-1))
    torch.testing.assert_close(posterior.kl(), kl_divergence(q, Normal(0.0, 1.0)))
    torch.testing.assert_close(log_prior(z), Normal(0.0, 1.0).log_prob(z).sum(-1))
    noise = torch.randn(5, 4, 3)
    torch.testing.assert_close(posterior.at(noise), q.mean + q.stddev * noise)


def test_the_variance_has_a_floor():
    made = model(latent=2)
    with torch.no_grad():
        made.log_variance.bias.copy_(torch.tensor([-1000.0, 0.0]))
    batch = Lines.of([[1, 2], [3]], 0).packed(np.arange(2))
    read, _, _ = rows(batch)
    log_variance = made.encode(read, batch.sizes).log_variance
    assert (log_variance[:, 0] == -10).all()
    assert (log_variance[:, 1] > -10).all()


def test_batch_normalised_means_keep_their_deviation_in_training():
    """Zhu et al. 2020: each dimension has mean `shift` and deviation gamma over the batch, so the
    mean KL is at least Z (gamma^2 + shift^2) / 2 whatever the encoder."""
    torch.manual_seed(0)
    config = SentenceConfig(
        embedding=3,
        latent=LatentConfig(size=2, batch_norm=0.6),
        encoder=CoderConfig(hidden=5),
        decoder=CoderConfig(hidden=5),
    )
    made = SentenceModel(config, 30).double()
    with torch.no_grad():
        made.mean.weight.mul_(100)  # so that what batch normalisation adds to variances is little
    batch = Lines.of([[w, w + 1] for w in range(1, 20)], 0).packed(np.arange(19))
    read, _, _ = rows(batch)
    posterior = made.train().encode(read, batch.sizes)
    torch.testing.assert_close(
        posterior.mean.std(0, correction=0), torch.full((2,), 0.6).double(), rtol=0.02, atol=0
    )
    assert not made.norm.weight.requires_grad
    assert posterior.kl().sum(1).mean() >= 0.98 * 2 * 0.36 / 2
    for _ in range(200):
        made.encode(read, batch.sizes)  # the running averages settle
    after = made.eval().encode(read, batch.sizes).mean.std(0)
    torch.testing.assert_close(after, torch.full((2,), 0.6).double(), rtol=0.05, atol=0)


def test_each_side_has_its_own_dropout():
    dropped = CoderConfig(hidden=5, dropout=DropoutConfig(input=0.5))
    kept = CoderConfig(hidden=5)
    batch = Lines.of([[1, 2, 3]], 0).packed(np.arange(1))
    read, inputs, _ = rows(batch)
    for encoder, decoder in ((dropped, kept), (kept, dropped)):
        made = model(encoder=encoder, decoder=decoder).train()
        means = [made.encode(read, batch.sizes).mean for _ in range(2)]
        outputs = [made.decode(means[0], inputs, batch.sizes) for _ in range(2)]
        assert torch.equal(*means) == (encoder is kept)
        assert torch.equal(*outputs) == (decoder is kept)


def test_softmaxes_of_language_models_serve_sentences_too():
    made = model(tied=True, softmax=SoftmaxConfig(experts=3))
    batch = Lines.of([[1, 2, 3]], 0).packed(np.arange(1))
    _, inputs, targets = rows(batch)
    hidden = made.decode(torch.zeros(1, 2, dtype=torch.double), inputs, batch.sizes)
    whole = made.log_probs(hidden)
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(4, dtype=torch.double))
    torch.testing.assert_close(
        whole.gather(1, targets[:, None])[:, 0], made.log_prob(hidden, targets)
    )


@pytest.mark.parametrize(("size", "millions"), [(16, 11), (128, 11), (512, 12)])
def test_models_have_the_papers_size(size, millions):
    """Table 2, rounded: 11M, 11M and 12M weights; table 5: 153M."""
    found = parameters(load_recipe(f"sentence-mim/ptb-{size}")) / 1e6
    assert math.floor(found + 0.5) == millions
    large = parameters(load_recipe("sentence-mim/wikitext-103"))
    assert large == pytest.approx(153e6, rel=0.01)
