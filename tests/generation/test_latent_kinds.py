"""Codes of classes, and single symbols: ways and distances between codes, and what is written."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from infolm.data.sentences import Lines, SentencesConfig
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation.latent import encoded
from infolm.generation.latent import (
    GREEDY,
    MEAN,
    SAMPLE,
    SentenceWriter,
    between,
    decode,
    drawn,
    nearest,
    of_prior,
)
from infolm.generation.sampling import SamplingSettings
from infolm.models.codes.categorical import Categories
from infolm.models.sentence import SentenceConfig, SentenceModel
from infolm.models.symbol import SymbolConfig, SymbolModel

EOS = 0
WORDS = ["<eos>", "<unk>", "?", "the", "a", "cat", "dog", "sees", "hears"]
LATENTS = {
    "gaussian": {"kind": "gaussian", "size": 3},
    "categorical": {"kind": "categorical", "variables": 4, "classes": 3, "embedding": 5},
    "quantised": {"kind": "quantised", "variables": 4, "classes": 3, "embedding": 2},
}
CLASSES = ["categorical", "quantised"]
SENTENCES = ["the cat sees a dog", "a dog hears", "the dog", "cat", "a cat sees the cat"]
codes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8)


def make(kind, symbols=False):
    torch.manual_seed(0)
    latent = LATENTS[kind]
    if symbols:
        model = SymbolModel(SymbolConfig(hidden=6, latent=latent), len(WORDS))
    else:
        coder = {"hidden": 6}
        config = SentenceConfig(embedding=5, latent=latent, encoder=coder, decoder=coder)
        model = SentenceModel(config, len(WORDS))
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 3
    return model.double().eval()


def writer(kind, symbols=False, **settings):
    tokenizer = Tokenizer.from_words(WORDS)
    return SentenceWriter(make(kind, symbols), tokenizer, SentencesConfig(), longest=9, **settings)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


# -- between codes --------------------------------------------------------------------------


@given(codes, st.integers(2, 12))
def test_classes_change_one_after_the_other(pairs, steps):
    a, b = torch.tensor(pairs).unbind(1)
    way = between(a, b, steps)
    assert way.shape == (steps, len(a))
    assert (way[0] == a).all()
    assert (way[-1] == b).all()
    changed = (way != a).sum(1)
    shares = torch.linspace(0, int((a != b).sum()), steps)
    assert ((changed - shares).abs() <= 0.5 + 1e-4).all()
    assert ((way[1:] == b) >= (way[:-1] == b)).all()  # what has changed stays
    assert ((way == a) | (way == b)).all()


@given(codes, codes)
def test_the_distance_of_classes_is_how_many_differ(one, other):
    size = min(len(one), len(other))
    queries, found = (torch.tensor(pairs[:size]) for pairs in (one, other))
    distances, numbers = nearest(queries, found, 3)
    for query, row, picked in zip(queries, distances, numbers, strict=True):
        expected = sorted(
            (sum(map(int, query != code)), number) for number, code in enumerate(found)
        )
        assert list(zip(row.tolist(), picked.tolist(), strict=True)) == expected[:3]


# -- codes ----------------------------------------------------------------------------------


def test_the_likeliest_classes_and_a_draw():
    log_probs = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log().expand(2000, 2, 3)
    q = Categories(log_probs)
    assert (drawn(q, MEAN, generator()) == 1).all()
    z = drawn(q, SAMPLE, generator())
    counts = torch.bincount(z.flatten(), minlength=3).numpy()
    expected = 4000 * np.array([0.2, 0.5, 0.3])
    assert chi2.sf(((counts - expected) ** 2 / expected).sum(), 2) > 1e-3
    first = Categories(log_probs[:7])
    assert (drawn(first, SAMPLE, generator()) == z[:7]).all()  # whatever is drawn beside them


@pytest.mark.parametrize("kind", list(LATENTS))
def test_codes_of_the_prior(kind):
    latent = make(kind).latent
    found = of_prior(latent, 900, 2.0, generator())
    torch.testing.assert_close(of_prior(latent, 5, 2.0, generator()), found[:5])
    if kind == "gaussian":
        assert found.std().item() == pytest.approx(2, rel=0.1)
        return
    if kind == "quantised":  # back to the numbers of its entries
        parts = found.view(900, 4, 1, 2)
        found = (parts == latent.codebook).all(-1).int().argmax(-1)
    counts = torch.stack([torch.bincount(one, minlength=3) for one in found.unbind(1)]).numpy()
    assert chi2.sf(((counts - 300) ** 2 / 300).sum(), 4 * 2) > 1e-3


@pytest.mark.parametrize("kind", list(LATENTS))
def test_places_lead_back_to_codes(kind):
    model = make(kind)
    q = encoded(model, writer(kind).read(SENTENCES))
    torch.testing.assert_close(model.latent.code(q.places), q.centre)


# -- sentences ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(LATENTS))
def test_a_way_begins_and_ends_with_what_comes_back_from_both(kind):
    writing = writer(kind)
    way = writing.interpolate(SENTENCES[0], SENTENCES[1], 6)
    ends = writing.reconstruct(writing.read(SENTENCES[:2]), [MEAN])
    assert [way[0], way[-1]] == [each.written[0] for each in ends]
    assert len(way) == 6


@pytest.mark.parametrize("kind", CLASSES)
def test_neighbours_share_classes(kind):
    writing = writer(kind)
    lines = writing.read([*SENTENCES, SENTENCES[0]])
    (found,) = writing.neighbours([SENTENCES[0]], lines, 10)
    assert found[0] == (SENTENCES[0], 0)
    assert len(found) == len(SENTENCES)  # the repeat is left out
    own = encoded(writing.model, lines).places
    distance = {text: int((own[i] != own[0]).sum()) for i, text in enumerate(SENTENCES)}
    assert dict(found) == distance


@pytest.mark.parametrize("kind", CLASSES)
def test_samples_are_of_the_prior_or_of_sentences(kind):
    writing = writer(kind, seed=3)
    assert writing.sample(2) == writing.sample(4)[:2]
    lines = writing.read(SENTENCES)
    found = writing.sample_aggregated(lines, 4)
    assert found[:2] == writing.sample_aggregated(lines, 2)
    if kind == "quantised":  # whose sentences have one code each
        anew = {each.written[0] for each in writing.reconstruct(lines, [MEAN])}
        assert set(found) <= anew


@pytest.mark.parametrize("kind", CLASSES)
def test_answers_need_no_vectors_but_perturbing_does(kind):
    writing = writer(kind)
    assert [each.words for each in writing.answer("the cat")] == [5, 10, 15]
    with pytest.raises(InfolmError, match="needs Gaussian codes"):
        writing.perturb("the cat", 2)


# -- single symbols -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(LATENTS))
def test_symbols_have_the_models_probabilities(kind):
    model, num = make(kind, symbols=True), 3000
    z = encoded(model, Lines.of([[5]], EOS)).centre
    found = decode(model, z.expand(num, -1), SamplingSettings(), 1, EOS, generator())
    with torch.no_grad():
        hidden = model.decoder(model.latent.read(z))
        p = model.softmax.log_probs(hidden, model.embedding)[0].exp().numpy()
    assert all(len(word) == (word != EOS).sum() <= 1 for word in found)
    words = [int(word[0]) if len(word) else EOS for word in found]
    counts = np.bincount(words, minlength=len(p))
    likely = num * p > 1
    statistic = ((counts - num * p) ** 2 / (num * p))[likely].sum()
    assert chi2.sf(statistic, likely.sum() - 1) > 1e-3
    (best,) = decode(model, z, GREEDY, 9, EOS, generator())
    assert best.tolist() == [int(p.argmax())][: int(p.argmax() != EOS)]


@pytest.mark.parametrize("kind", list(LATENTS))
def test_symbols_can_be_gone_between(kind):
    writing = writer(kind, symbols=True)
    assert len(writing.interpolate("cat", "dog", 5)) == 5
    (found,) = writing.neighbours(["cat"], Lines.of([[4], [5], [6]], EOS), 3)
    assert ("cat", 0) in found
    assert all(len(text.split()) <= 1 for text in writing.sample(5))


def test_sentences_are_no_symbols():
    writing = writer("gaussian", symbols=True)
    with pytest.raises(InfolmError, match=r"sentence 2 has 2 words.*single symbols: give one"):
        writing.read(["cat", "the cat"])
    with pytest.raises(InfolmError, match="cannot answer questions"):
        writing.answer("cat")
