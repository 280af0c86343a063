"""MLM, MLM-NCE and InfoWord: against transformers' loss, against loops, and each other."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from infolm.data.sequences import SequenceBatch
from infolm.models.encoder import Encoder, EncoderConfig, transformers_config
from infolm.nn import contrast
from infolm.objectives.masked import InfoWord, InfoWordConfig, Masked, ngrams_of_sequences
from infolm.objectives.words import among

TYPES, LENGTH, PAD, CLS, SEP = 23, 12, 0, 2, 3
CONFIG = EncoderConfig(layers=2, hidden=8, heads=2, inner=12, dropout=0.0, length=LENGTH)


def make(seed=0):
    torch.manual_seed(seed)
    model = Encoder(CONFIG, TYPES, PAD)
    with torch.no_grad():
        for parameter in model.parameters():  # far from the start, where nearly all scores are 0
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def batch(seed=1, sequences=3):
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(rng.integers(5, TYPES, (sequences, LENGTH)))
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    places = np.sort(rng.choice(sequences * LENGTH, 7, replace=False))
    ngrams = torch.tensor([[CLS, 7, 8, SEP, PAD], [CLS, 9, SEP, PAD, PAD], [CLS, 7, 11, 12, SEP]])
    return SequenceBatch(
        tokens,
        torch.from_numpy(places),
        torch.from_numpy(rng.integers(5, TYPES, len(places))),
        ngrams=ngrams,
        owners=torch.tensor([0, 0, 2]),
        masked=torch.tensor([True, False, True]),
    )


def infoword(negatives="batch", **config):
    return InfoWord(InfoWordConfig(**config), among(negatives, None, 0), PAD)


def test_mlm_is_the_loss_of_transformers_on_the_same_weights():
    from transformers import BertForMaskedLM

    model, b = make(), batch()
    theirs = BertForMaskedLM(transformers_config(CONFIG, TYPES, PAD))
    weights = {f"bert.{name}": w for name, w in model.transformer.state_dict().items()}
    end = "cls.predictions"
    for name, weight in model.head.dense.state_dict().items():
        weights[f"{end}.transform.dense.{name}"] = weight
    for name, weight in model.head.norm.state_dict().items():
        weights[f"{end}.transform.LayerNorm.{name}"] = weight
    weights[f"{end}.decoder.weight"] = model.embedding
    weights[f"{end}.bias"] = weights[f"{end}.decoder.bias"] = model.head.bias
    theirs.load_state_dict(weights)
    labels = torch.full((3 * LENGTH,), -100)
    labels[b.places] = b.words
    labels = labels.view(3, LENGTH)
    expected = theirs(b.tokens, labels=labels)
    ours = Masked(among("vocabulary", None, 0))(model, b, None)
    torch.testing.assert_close(ours.loss, expected.loss)
    entropy = functional.cross_entropy(expected.logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(ours.loss, entropy)
    torch.testing.assert_close(ours.terms["information"], math.log(TYPES) - entropy.detach())
    assert ours.count == 7
    ours.loss.backward()
    expected.loss.backward()
    torch.testing.assert_close(model.embedding.grad, theirs.bert.get_input_embeddings().weight.grad)
    torch.testing.assert_close(model.head.bias.grad, theirs.cls.predictions.bias.grad)


def test_without_the_n_grams_infoword_is_mlm_nce_to_the_bit():
    b, gradients = batch(), []
    for objective in (Masked(among("batch", None, 0)), infoword(lambda_dim=0.0)):
        model = make()
        estimate = objective(model, b, None)
        estimate.loss.backward()
        gradients.append([p.grad for p in model.parameters()])
        loss, terms = estimate.loss, estimate.terms
        assert estimate.count == 7
        gradients[-1] += [loss.detach(), terms["nll"], terms["information"]]
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_infoword_is_the_weighted_sum_of_its_terms():
    model, b = make(), batch()
    estimate = infoword(lambda_mlm=0.7, lambda_dim=0.4, dim_pairs="all")(model, b, None)
    nce = Masked(among("batch", None, 0))(model, b, None)
    hidden = model(b.tokens)[:, 0]
    # Each n-gram by itself, without padding: what follows it is not seen.
    parts = torch.stack([model(row[row != PAD][None])[0, 0] for row in b.ngrams])
    dim = -slow_ngrams(hidden, parts, b.owners.tolist())[0].mean()
    sizes = torch.tensor([2.0, 2.0, 3.0]).log().mean()  # n-grams of other sequences, and itself
    torch.testing.assert_close(estimate.terms["nll"], nce.terms["nll"])
    torch.testing.assert_close(estimate.terms["dim"], dim)
    torch.testing.assert_close(estimate.terms["dim_information"], sizes - dim)
    torch.testing.assert_close(estimate.loss, 0.7 * nce.loss + 0.4 * dim)
    assert estimate.per == {"dim": 3, "dim_information": 3}
    assert not any(term.requires_grad for term in estimate.terms.values())


def test_a_sequence_finds_the_n_grams_that_it_shows_as_masks():
    model, b = make(), batch()
    estimate = infoword()(model, b, None)
    every = infoword(dim_pairs="all")(model, b, None)
    parts = torch.stack([model(row[row != PAD][None])[0, 0] for row in b.ngrams])
    values, sizes = slow_ngrams(model(b.tokens)[:, 0], parts, b.owners.tolist())
    # The second n-gram is no pair, and still one of those that the third is told from.
    dim = -(values[0] + values[2]) / 2
    assert sizes.tolist() == [2, 2, 3]
    torch.testing.assert_close(estimate.terms["dim"], dim)
    torch.testing.assert_close(
        estimate.terms["dim_information"], (math.log(2) + math.log(3)) / 2 - dim
    )
    torch.testing.assert_close(estimate.loss, estimate.terms["nll"] + 0.4 * dim)
    assert estimate.per == {"dim": 2, "dim_information": 2}
    assert every.per["dim"] == 3
    assert torch.equal(estimate.terms["nll"], every.terms["nll"])  # the words are as they were


def test_a_batch_that_shows_no_span_as_masks_has_the_words_alone():
    model, b = make(), batch()._replace(masked=torch.zeros(3, dtype=torch.bool))
    estimate = infoword()(model, b, None)
    assert set(estimate.terms) == {"nll", "information", "loss"}
    assert torch.equal(estimate.loss, infoword(lambda_dim=0.0)(model, b, None).loss)
    estimate.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# -- n-grams of sequences -----------------------------------------------------------------------


def slow_ngrams(sequences, ngrams, owners):
    """f - ln sum over the n-gram and those of other sequences, and |S|, in double loops."""
    values, sizes = [], []
    for own, ngram in zip(owners, ngrams, strict=True):
        others = [other for whose, other in zip(owners, ngrams, strict=True) if whose != own]
        scores = torch.stack([sequences[own] @ b for b in [ngram, *others]])
        values.append(scores[0] - scores.logsumexp(0))
        sizes.append(len(scores))
    return torch.stack(values), torch.tensor(sizes)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.sampled_from([None, 1, 20]))
def test_n_grams_are_told_from_those_of_other_sequences(owners, block):
    torch.manual_seed(len(owners))
    sequences = torch.randn(5, 3, dtype=torch.double, requires_grad=True)
    ngrams = torch.randn(len(owners), 3, dtype=torch.double, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        if block:
            patch.setattr(contrast, "block_elements", lambda device, itemsize: block)
        found = ngrams_of_sequences(sequences, ngrams, torch.tensor(owners))
        value, sizes = slow_ngrams(sequences, ngrams, owners)
        torch.testing.assert_close(found.size, sizes.double().log())
        torch.testing.assert_close(found.value, value + found.size)
        assert (found.value <= found.size).all()
        torch.testing.assert_close(
            torch.autograd.grad(found.estimate().loss, (sequences, ngrams)),
            torch.autograd.grad(-value.mean(), (sequences, ngrams)),
        )
