"""InfoNCE over words: the three kinds of B against slow double loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from infolm.nn import contrast
from infolm.nn.nce import Noise
from infolm.objectives.words import Table, among, among_batch, among_samples, among_vocabulary

TYPES, SIZE = 6, 3


def table(bias=True):
    torch.manual_seed(1)
    vectors = torch.randn(TYPES, SIZE, dtype=torch.double, requires_grad=True)
    return Table(vectors, torch.randn(TYPES).double().requires_grad_() if bias else None)


def anchors_of(words):
    torch.manual_seed(2)
    return torch.randn(len(words), SIZE, dtype=torch.double, requires_grad=True)


def slow(anchors, words, others, table):
    """f - ln(sum over the word and `others[i]`) + ln |B|, one score after another."""
    bias = torch.zeros(TYPES).double() if table.bias is None else table.bias

    def score(i, word):
        return sum(a * b for a, b in zip(anchors[i], table.vectors[word], strict=True)) + bias[word]

    values = []
    for i, word in enumerate(words):
        terms = [score(i, word).exp()] + [score(i, other).exp() for other in others[i]]
        values.append(score(i, word) - sum(terms).log() + math.log(len(terms)))
    return torch.stack(values)


def check(found, expected, anchors, table):
    """The value, the bound and the gradients."""
    torch.testing.assert_close(found.value, expected)
    assert (found.value <= found.size + 1e-12).all()
    by = [x for x in (anchors, *table) if x is not None]
    torch.testing.assert_close(
        torch.autograd.grad(found.estimate().loss, by),
        torch.autograd.grad(-expected.mean(), by, allow_unused=True, materialize_grads=True),
    )


# Words with the number of their sequence: collisions, sequences of one word, and without any.
batches = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, TYPES - 1)), min_size=1, max_size=9
).map(sorted)


@settings(deadline=None, max_examples=40)
@given(batches, st.booleans(), st.sampled_from([None, 1, 7]))
def test_among_the_batch_are_all_words_of_other_sequences(pairs, bias, block):
    groups, words = map(list, zip(*pairs, strict=True))
    others = [[w for h, w in pairs if h != g] for g in groups]
    anchors, looked_up = anchors_of(words), table(bias)
    with pytest.MonkeyPatch.context() as patch:
        if block:
            patch.setattr(contrast, "block_elements", lambda device, itemsize: block)
        found = among_batch(anchors, torch.tensor(words), looked_up, torch.tensor(groups))
        check(found, slow(anchors, words, others, looked_up), anchors, looked_up)
    sizes = [math.log(len(rest) + 1) for rest in others]
    torch.testing.assert_close(found.size, torch.tensor(sizes).double())


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.integers(0, TYPES - 1), min_size=1, max_size=5),
    st.lists(st.integers(0, TYPES - 1), min_size=1, max_size=9),
    st.booleans(),
)
def test_among_samples_is_the_true_word_and_every_drawn_one(words, drawn, bias):
    anchors, looked_up = anchors_of(words), table(bias)
    found = among_samples(anchors, torch.tensor(words), looked_up, torch.tensor(drawn))
    expected = slow(anchors, words, [drawn] * len(words), looked_up)
    check(found, expected, anchors, looked_up)


@pytest.mark.parametrize("bias", [False, True])
def test_among_the_vocabulary_is_cross_entropy_and_a_constant(bias):
    words = [0, 5, 5, 2]
    anchors, looked_up = anchors_of(words), table(bias)
    found = among_vocabulary(anchors, torch.tensor(words), looked_up)
    others = [[w for w in range(TYPES) if w != word] for word in words]
    check(found, slow(anchors, words, others, looked_up), anchors, looked_up)
    logits = functional.linear(anchors, looked_up.vectors, looked_up.bias)
    estimate = found.estimate()
    entropy = functional.cross_entropy(logits, torch.tensor(words))
    torch.testing.assert_close(estimate.loss, entropy)
    torch.testing.assert_close(estimate.terms["nll"], entropy.detach())
    torch.testing.assert_close(estimate.terms["information"], math.log(TYPES) - entropy.detach())
    assert estimate.count == 4
    assert not any(term.requires_grad for term in estimate.terms.values())


def test_a_lonely_sequence_teaches_nothing_and_spoils_nothing():
    """All hidden words in one sequence: B has one member, the loss is 0, and so is its gradient."""
    words, looked_up = torch.tensor([1, 1, 4]), table()
    anchors = anchors_of(words)
    estimate = among_batch(anchors, words, looked_up, torch.tensor([3, 3, 3])).estimate()
    estimate.loss.backward()
    assert estimate.loss == 0
    for tensor in (anchors, *looked_up):
        assert (tensor.grad == 0).all()


def test_perfect_scores_reach_the_logarithm_of_the_set():
    words, groups = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2])
    vectors = 100 * torch.eye(3)
    found = among_batch(torch.eye(3), words, Table(vectors), groups)
    torch.testing.assert_close(found.value, torch.full((3,), math.log(3)))


def test_a_recipe_s_names_are_these_three():
    words, groups, looked_up = torch.tensor([1, 2, 3]), torch.tensor([0, 0, 1]), table()
    anchors, noise = anchors_of(words), Noise(torch.arange(TYPES))

    def value(negatives):
        torch.manual_seed(0)
        return among(negatives, noise, 7)(anchors, words, looked_up, groups).value

    torch.manual_seed(0)
    drawn = noise.draw(7)
    for negatives, expected in {
        "vocabulary": among_vocabulary(anchors, words, looked_up),
        "unigram": among_samples(anchors, words, looked_up, drawn),
        "batch": among_batch(anchors, words, looked_up, groups),
    }.items():
        assert value(negatives).tolist() == expected.value.tolist()
