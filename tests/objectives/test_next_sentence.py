"""Next sentence prediction: both forms by hand, what their scores converge to, padding."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from infolm.data.sentence_pairs import SentencePairBatch
from infolm.models.encoder import Encoder, EncoderConfig
from infolm.objectives.next_sentence import (
    NextSentence,
    NextSentenceConfig,
    global_form,
    local_form,
)


def test_the_forms_by_hand():
    scores = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]])
    local, whole = local_form(scores), global_form(scores)
    true = -functional.logsigmoid(scores[:, 0]).mean()
    drawn = -functional.logsigmoid(-scores[:, 1:]).mean()
    torch.testing.assert_close(local.loss, (true + drawn) / 2)
    torch.testing.assert_close(whole.loss, -scores.log_softmax(1)[:, 0].mean())
    torch.testing.assert_close(whole.terms["information"], math.log(3) - whole.loss)
    bound = 1 + scores[:, 0].mean() - scores[:, 1:].exp().mean()
    torch.testing.assert_close(local.terms["information"], bound)
    assert local.count == whole.count == 2


def test_knowing_nothing_costs_the_logarithm_of_the_choices():
    scores = torch.zeros(5, 4)
    assert local_form(scores).loss.item() == pytest.approx(math.log(2))
    assert global_form(scores).loss.item() == pytest.approx(math.log(4))
    assert local_form(scores).terms["information"].item() == pytest.approx(0, abs=1e-6)
    assert global_form(scores).terms["information"].item() == pytest.approx(0, abs=1e-6)


def exact_batch(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows (a, b, b'), each as often as n(a, b) n(b') says: expectations without chance."""
    a, b = np.nonzero(counts)
    pairs = np.repeat(np.stack([a, b], 1), counts[a, b], 0)
    drawn = np.repeat(np.arange(len(counts)), counts.sum(0))
    first = np.repeat(pairs, len(drawn), 0)
    return first[:, 0], np.stack([first[:, 1], np.tile(drawn, len(pairs))], 1)


@pytest.mark.parametrize("form", [local_form, global_form])
def test_the_best_scores_are_pointwise_mutual_information(form):
    counts = np.array([[5, 1, 2], [1, 4, 1], [2, 2, 3]])
    p = counts / counts.sum()
    wanted = torch.from_numpy(np.log(p / (p.sum(1, keepdims=True) * p.sum(0))))
    a, candidates = (torch.from_numpy(x) for x in exact_batch(counts))
    table = torch.zeros(3, 3, dtype=torch.double, requires_grad=True)
    optimiser = torch.optim.LBFGS([table], max_iter=500, tolerance_grad=1e-12)

    def loss():
        optimiser.zero_grad()
        value = form(table[a[:, None], candidates]).loss
        value.backward()
        return value

    optimiser.step(loss)
    found = table.detach()
    if form is global_form:  # but for c(a)
        found, wanted = (x - x.mean(1, keepdim=True) for x in (found, wanted))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
    if form is local_form:  # then the bound is the mutual information
        estimate = local_form(table.detach()[a[:, None], candidates])
        information = float((torch.from_numpy(p) * wanted).sum())
        assert estimate.terms["information"].item() == pytest.approx(information, abs=1e-4)


@pytest.mark.parametrize("architecture", ["bert", "xlnet"])
def test_pairs_are_read_together_and_padding_changes_nothing(architecture):
    torch.manual_seed(0)
    config = EncoderConfig(
        architecture=architecture, layers=1, hidden=8, heads=2, length=16, head="next"
    )
    model = Encoder(config, 20).double().eval()
    with torch.no_grad():
        model.psi.normal_()
    sizes = torch.tensor([[6, 8], [7, 5], [8, 8]])
    step = torch.arange(8)
    mask = (step < sizes[..., None]).long()
    tokens = torch.randint(5, 20, (3, 2, 8)) * mask
    segments = (step > 3).long() * mask
    objective = NextSentence(NextSentenceConfig(form="global"))
    with torch.no_grad():
        estimate = objective(model, SentencePairBatch(tokens, mask, segments), None)
        scores = torch.stack(
            [
                torch.stack(
                    [
                        model(tokens[b, k, :n][None], None, segments[b, k, :n][None])[0, 0]
                        @ model.psi
                        for k, n in enumerate(row)
                    ]
                )
                for b, row in enumerate(sizes.tolist())
            ]
        )
    torch.testing.assert_close(estimate.loss, global_form(scores).loss, rtol=1e-6, atol=1e-9)
    right = (scores[:, 0] > scores[:, 1]).float().mean()
    assert estimate.terms["accuracy"] == right


@pytest.mark.parametrize("candidates", [2, 4])
def test_an_encoder_whose_scores_are_all_alike_tells_by_chance(candidates):
    config = EncoderConfig(layers=1, hidden=8, heads=2, length=16, head="next")
    model = Encoder(config, 20).eval()
    with torch.no_grad():
        model.psi.zero_()
    tokens = torch.randint(5, 20, (3, candidates, 8))
    batch = SentencePairBatch(tokens, torch.ones_like(tokens), torch.zeros_like(tokens))
    for form in ("local", "global"):
        terms = NextSentence(NextSentenceConfig(form=form))(model, batch, None).terms
        assert float(terms["accuracy"]) == pytest.approx(1 / candidates)
        assert float(terms["ties"]) == 1
