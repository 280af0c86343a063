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
from infolm.errors import InfolmError
from infolm.evaluation.usage import tensors
from infolm.families.train import parameters
from infolm.models.codes.categorical import CategoricalConfig
from infolm.models.codes.gaussian import GaussianConfig, Posterior, log_prior
from infolm.models.codes.quantised import QuantisedConfig
from infolm.models.recurrent import DropoutConfig, SoftmaxConfig
from infolm.models.sentence import CoderConfig, SentenceConfig, SentenceModel, turned
from infolm.nn.recurrence import native
from infolm.nn.recurrence.driver import use
from infolm.training.checkpoint import restore_weights

CELLS = ["gru", "lstm", "elman", "rewired", "multiplicative"]


def model(cell="gru", vocabulary=4, layers=1, size=2, **config) -> SentenceModel:
    torch.manual_seed(0)
    coder = CoderConfig(cell=cell, hidden=5, layers=layers)
    given = {"embedding": 3, "latent": GaussianConfig(size=size), "encoder": coder}
    made = SentenceModel(SentenceConfig(**{**given, "decoder": coder, **config}), vocabulary)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(4)  # far from uniform
    return made.double().eval()


def rows(batch):
    return (torch.from_numpy(x) for x in batch[:3])


def begun(**config) -> SentenceModel:
    torch.manual_seed(1)
    coder = {"hidden": 5}
    return SentenceModel(SentenceConfig(embedding=64, encoder=coder, decoder=coder, **config), 2000)


@pytest.mark.parametrize("tied", [False, True])
def test_words_begin_uniform_unless_the_recipe_says_otherwise(tied):
    made = begun(tied=tied)
    torch.manual_seed(1)
    expected = torch.empty(2000, 64).uniform_(-0.1, 0.1)
    assert torch.equal(made.embedding, expected)
    words = torch.arange(7)
    assert torch.equal(made.scaled(made.embedding[words]), made.embedding[words])


@pytest.mark.parametrize("tied", [False, True])
def test_words_are_read_as_normal_at_the_start(tied):
    """Of 128,000 values: mean 0, variance 1, fourth moment 3, within four standard errors."""
    made = begun(tied=tied, embedding_start="normal")
    read = made.scaled(made.embedding).detach().double()
    count = read.numel()
    assert abs(read.mean()) < 4 / math.sqrt(count)
    assert abs(read.square().mean() - 1) < 4 * math.sqrt(2 / count)
    assert abs(read.pow(4).mean() - 3) < 4 * math.sqrt(96 / count)


def test_a_tied_softmax_reads_the_words_by_a_unit_of_length():
    """Not sqrt(E) times as wide: a row of W has length 1, and 0.46 where it begins uniform."""
    lengths = begun(tied=True, embedding_start="normal").embedding.detach().norm(dim=1)
    assert abs(lengths.square().mean() - 1) < 4 * math.sqrt(2 / 128_000)
    untied = begun(tied=False, embedding_start="normal")
    assert untied.softmax.weight.abs().max() <= 1 / math.sqrt(5)


def test_words_that_are_scaled_are_so_on_both_sides():
    """A tied model that scales is one whose softmax has a smaller matrix of its own."""
    made = begun(tied=True, embedding_start="normal").double().eval()
    plain = begun(tied=False).double().eval()
    weights = {k: v for k, v in made.state_dict().items() if k != "softmax.projection"}
    own = made.embedding.detach() @ made.softmax.projection.detach()
    weights |= {"softmax.weight": own, "embedding": 8 * made.embedding.detach()}
    plain.load_state_dict(weights)
    lines = Lines.of([[5, 6, 7, 1999], [3], [9, 9]], 0)
    ((_, batch),) = lines.batches()
    read, inputs, targets = rows(batch)
    of_both = [each.encode(read, batch.sizes) for each in (made, plain)]
    torch.testing.assert_close(*(each.mean for each in of_both))
    z = of_both[0].mean
    log_p = [e.log_prob(e.decode(z, inputs, batch.sizes), targets) for e in (made, plain)]
    torch.testing.assert_close(*log_p)
    words, state = torch.tensor([4, 5, 6]), made.initial_state(z)
    steps = [each.step(words, z, state)[0] for each in (made, plain)]
    torch.testing.assert_close(*steps)


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
    made = model(vocabulary=6, size=3)
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
    mean = h[0] @ made.latent.mean.weight.T + made.latent.mean.bias
    log_variance = h[0] @ made.latent.log_variance.weight.T + made.latent.log_variance.bias
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
    made = model(size=2)
    with torch.no_grad():
        made.latent.log_variance.bias.copy_(torch.tensor([-1000.0, 0.0]))
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
        latent=GaussianConfig(size=2, batch_norm=0.6),
        encoder=CoderConfig(hidden=5),
        decoder=CoderConfig(hidden=5),
    )
    made = SentenceModel(config, 30).double()
    with torch.no_grad():
        # So that what batch normalisation adds to variances is little.
        made.latent.mean.weight.mul_(100)
    batch = Lines.of([[w, w + 1] for w in range(1, 20)], 0).packed(np.arange(19))
    read, _, _ = rows(batch)
    posterior = made.train().encode(read, batch.sizes)
    torch.testing.assert_close(
        posterior.mean.std(0, correction=0), torch.full((2,), 0.6).double(), rtol=0.02, atol=0
    )
    assert not made.latent.norm.weight.requires_grad
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


# -- the encoder in both directions ----------------------------------------------------------


@given(sentences)
def test_turned_rows_are_the_sentences_forwards(found):
    text = Lines.of(found, 0)
    batch = text.packed(np.argsort(-text.lengths, kind="stable"))
    read, inputs, _ = rows(batch)
    places = turned(batch.sizes, torch.device("cpu"))
    # <eos> w_1 ... w_n is what the decoder reads.
    assert torch.equal(read[places], inputs)
    assert sorted(places.tolist()) == list(range(batch.tokens))


@pytest.mark.parametrize("start", ["code", "zeros"])
def test_a_bidirectional_encoder_is_the_mean_of_two_lstm_networks(start):
    made = model("lstm", 6, bidirectional=True, start=start)
    found = [[1, 2, 3], [5, 1], [4], []]
    batch = Lines.of(found, 0).packed(np.arange(4))
    read, inputs, _ = rows(batch)
    posterior, z, hidden = made(read, inputs, batch.sizes, lambda q: q.mean)

    def network(cell) -> nn.LSTM:
        lstm = nn.LSTM(cell.inputs, cell.hidden).double()
        lstm.load_state_dict({f"{name}_l0": w for name, w in cell.state_dict().items()})
        return lstm

    backwards, forwards, decoder = (
        network(stack.cells[0]) for stack in (made.encoder, made.forwards, made.decoder)
    )
    for b, sentence in enumerate(found):
        _, one = backwards(made.embedding[torch.tensor([0, *sentence[::-1]])][:, None])
        _, other = forwards(made.embedding[torch.tensor([0, *sentence])][:, None])
        h = torch.cat([(x + y) / 2 for x, y in zip(one, other, strict=True)], 2)[0, 0]
        expected = made.latent.mean.weight @ h + made.latent.mean.bias
        torch.testing.assert_close(posterior.mean[b], expected)
        words = made.embedding[torch.tensor([0, *sentence])]
        state = None
        if start == "code":
            state = (made.start.weight @ z[b] + made.start.bias).view(2, 1, 1, 5).unbind(0)
        outputs, _ = decoder(torch.cat([words, z[b].expand(len(words), -1)], 1)[:, None], state)
        owner = torch.cat([torch.arange(size) for size in batch.sizes])
        torch.testing.assert_close(hidden[owner == b], outputs[:, 0])
    assert (made.start is None) == (start == "zeros")


# -- several codes of a sentence -------------------------------------------------------------

CODES = [
    GaussianConfig(size=2),
    CategoricalConfig(variables=2, classes=3, embedding=4),
    QuantisedConfig(variables=2, classes=3, embedding=2),
]


def as_tensors(text: Lines):
    batch = text.packed(np.argsort(-text.lengths, kind="stable"))
    return tensors(batch, torch.device("cpu"))


@pytest.mark.parametrize("codes", CODES, ids=lambda config: config.kind)
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_several_codes_at_once_are_so_many_passes(codes, cell):
    made = model(cell, layers=2, latent=codes)
    batch = as_tensors(Lines.of([[1, 2, 3], [3, 3], [2], []], 0))
    torch.manual_seed(1)
    q = made.encode(batch.read, batch.sizes)
    z = q.sample(3)
    together = made.log_likelihood(z, batch)
    owner = torch.cat([torch.arange(size) for size in batch.sizes])
    for k in range(3):
        hidden = made.decode(z[k], batch.inputs, batch.sizes)
        log_p = made.log_probs(hidden).gather(1, batch.targets[:, None]).squeeze(1)
        sums = [log_p[owner == b].sum() for b in range(4)]
        torch.testing.assert_close(together[k], torch.stack(sums))
    weights = torch.randn(3, 4, dtype=torch.double)
    read = [p for p in made.parameters() if p.requires_grad]
    ours = torch.autograd.grad(
        (together * weights).sum(), read, retain_graph=True, allow_unused=True
    )
    apart = torch.stack([made.log_likelihood(z[k : k + 1], batch)[0] for k in range(3)])
    theirs = torch.autograd.grad((apart * weights).sum(), read, allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("codes", CODES, ids=lambda config: config.kind)
def test_sentences_given_any_kind_of_code_sum_to_one(codes):
    """Within three steps: all that have ended are p, what goes on is the rest."""
    made = model("lstm", latent=codes, start="zeros")
    short = [list(s) for n in range(3) for s in itertools.product(range(1, 4), repeat=n)]
    batch = as_tensors(Lines.of(short, 0))
    torch.manual_seed(2)
    z = made.encode(batch.read, batch.sizes).sample(2)[:, :1].expand(-1, len(short), -1)
    ended = made.log_likelihood(z, batch).exp().sum(1)
    assert (ended < 1).all()
    long = as_tensors(Lines.of([list(s) for s in itertools.product(range(1, 4), repeat=3)], 0))
    for k in range(2):
        code = z[k, :1].expand(27, -1)
        hidden = made.decode(code, long.inputs, long.sizes)
        log_p = made.log_prob(hidden, long.targets).view(4, 27)
        going_on = log_p[:3].sum(0).exp().sum()
        assert (ended[k] + going_on).item() == pytest.approx(1, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 3), min_size=2, max_size=2), min_size=2, max_size=6),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
)
def test_the_order_of_sentences_changes_their_order_alone(found, kind, random):
    made = model("lstm", latent=CODES[kind], bidirectional=True)
    order = list(range(len(found)))
    random.shuffle(order)
    one, other = (as_tensors(Lines.of(text, 0)) for text in (found, [found[i] for i in order]))
    torch.manual_seed(3)
    z = made.encode(one.read, one.sizes).sample(2)
    q = made.encode(other.read, other.sizes)
    log_p = made.log_likelihood(z, one)
    torch.testing.assert_close(made.log_likelihood(z[:, order], other), log_p[:, order])
    first = made.encode(one.read, one.sizes)
    torch.testing.assert_close(q.log_density(z[:, order]), first.log_density(z)[:, order])
    torch.testing.assert_close(q.kl(), first.kl()[order])


DROPOUTS = [
    {"input": 0.5},
    {"hidden": 0.5},
    {"state": 0.5},
    {"output": 0.5},
    {"embedding": 0.3, "input": 0.2, "hidden": 0.3, "state": 0.3, "output": 0.4},
]


def dropped(cell, rates, locked):
    dropout = DropoutConfig(**rates, locked=locked)
    decoder = CoderConfig(cell=cell, hidden=5, layers=2, dropout=dropout)
    return model(cell, decoder=decoder).train()


def likelihoods(made, batch, copies, own=False, seed=4):
    """Of the same code for all copies and sentences, (K, B)."""
    torch.manual_seed(seed)
    z = torch.tensor([0.7, -1.2]).double().expand(copies, batch.sentences, -1)
    return made.log_likelihood(z, batch, own)


@pytest.mark.parametrize("path", ["plain", "fused", "native"])
@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize("cell", CELLS)
def test_all_codes_of_a_sentence_have_one_mask(cell, locked, path):
    if path == "native" and not native.available():
        pytest.skip("there is no compiler")
    # Two sentences that are the same, and others that end before.
    batch = as_tensors(Lines.of([[1, 2, 3, 1], [1, 2, 3, 1], [2, 1], [3]], 0))
    for rates in DROPOUTS:
        made = dropped(cell, rates, locked)
        with use(path), torch.no_grad():
            shared = likelihoods(made, batch, 3)
            # As of one code, mask for mask.
            alone = likelihoods(made, batch, 1)
            own = likelihoods(made, batch, 3, own=True)
        torch.testing.assert_close(shared, alone.expand(3, -1))
        assert (shared[:, 0] - shared[:, 1]).abs().min() > 1e-6
        different = (own[0] - own[1]).abs()
        assert (different > 1e-6).sum() >= 3  # a sentence of one word may chance on equal masks
        assert not torch.allclose(likelihoods(made, batch, 3, seed=5), shared)


def test_masks_of_many_sentences_have_the_rate_and_keep_the_mean():
    """The embedding of a word is all that is dropped, one mask per sentence and not per code."""
    made = dropped("gru", {"input": 0.3}, True)
    batch = as_tensors(Lines.of([[1]] * 2000, 0))
    with torch.no_grad():
        made.embedding.fill_(1)
        torch.manual_seed(0)
        x = made._embedded(batch.inputs, batch.sizes, made.config.decoder, made.decoder_rates)
    assert torch.equal(x[:2000], x[2000:])
    p, n = 0.3, x[:2000].numel()
    assert abs(x[:2000].eq(0).double().mean().item() - p) < 4 * math.sqrt(p * (1 - p) / n)
    assert abs(x[:2000].mean().item() - 1) < 4 * math.sqrt(p / (1 - p) / n)


def test_weights_under_their_former_names_are_read(tmp_path):
    latent = GaussianConfig(size=2, batch_norm=0.5)
    made, other = model(latent=latent), model(latent=latent)
    former = {name.removeprefix("latent."): w for name, w in made.state_dict().items()}
    assert {"mean.weight", "log_variance.bias", "norm.running_mean"} <= former.keys()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    restore_weights(tmp_path, other, former)
    for name, weight in made.state_dict().items():
        assert torch.equal(other.state_dict()[name], weight), name
    restore_weights(tmp_path, other, made.state_dict())
    former["mean.bias"] = former["mean.bias"][:1]
    with pytest.raises(InfolmError, match=r"another model: 'latent\.mean\.bias'"):
        restore_weights(tmp_path, other, former)
