"""Permutation language modelling: who sees whom, by enumeration, by leaks and by the chain rule."""

from itertools import permutations

import numpy as np
import pytest
import torch

from infolm.data import masking
from infolm.data.sequences import SequenceBatch
from infolm.models.encoder import Encoder, EncoderConfig
from infolm.objectives.permutation import Permutation, hidden_from, target_rows

TYPES, LENGTH = 20, 7


@pytest.fixture(scope="module")
def model() -> Encoder:
    config = EncoderConfig(
        architecture="xlnet", layers=3, hidden=16, heads=2, dropout=0.1, length=8
    )
    torch.manual_seed(0)
    made = Encoder(config, TYPES).eval()
    with torch.no_grad():
        for parameter in made.parameters():  # beginnings of 0.02 would hide what is seen
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def ranks(order: list[int]) -> torch.Tensor:
    """(1, L), of an order of places."""
    return torch.tensor(order).argsort()[None]


def test_the_order_of_the_paper():
    """3, 1, 5, 2, 4: x1 sees x3 alone, x5 sees x1 and x3, x3 nothing."""
    hidden = hidden_from(ranks([2, 0, 4, 1, 3]), torch.ones(1, 5, dtype=torch.bool))[0]
    sees = {i + 1: (np.flatnonzero(row == 0) + 1).tolist() for i, row in enumerate(hidden.numpy())}
    assert sees == {3: [], 1: [3], 5: [1, 3], 2: [1, 3, 5], 4: [1, 2, 3, 5]}


def test_every_order_of_a_short_sequence():
    """A target sees what comes before it in the order and not itself; what is only read sees all
    that is only read."""
    for order in permutations(range(5)):
        for cut in range(5):
            read, targets = order[:cut], order[cut:]
            flags = torch.zeros(1, 5, dtype=torch.bool)
            flags[0, list(targets)] = True
            hidden = hidden_from(ranks(list(order)), flags)[0]
            for i in range(5):
                before = set(order[: order.index(i)]) if i in targets else set(read)
                assert set(np.flatnonzero(hidden[i] == 0).tolist()) == before


def test_targets_in_rows():
    rows, chosen = target_rows(torch.tensor([2, 4, 5, 11]), 3, 5)
    assert rows.shape == (3, 2, 5)
    assert rows.nonzero().tolist() == [[0, 0, 2], [0, 1, 4], [1, 0, 0], [2, 0, 1]]
    assert chosen.tolist() == [0, 1, 2, 4]


def batch(share: float, seed: int = 1, sequences: int = 1) -> SequenceBatch:
    """[CLS] five words [SEP], in an order of their own each; [SEP] once in the middle too."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, TYPES, (sequences, LENGTH))
    tokens[:, 0], tokens[:, -1] = 2, 3
    tokens[1:2, 3] = 3
    free = tokens > 4
    drawn = [masking.order(row, share, rng) for row in free]
    places = np.concatenate([n * LENGTH + place for n, (_, place) in enumerate(drawn)])
    rank = np.stack([rank for rank, _ in drawn])
    arrays = (tokens, places, tokens.ravel()[places])
    return SequenceBatch(*(torch.from_numpy(x) for x in arrays), rank=torch.from_numpy(rank))


def queries(model: Encoder, given: SequenceBatch) -> torch.Tensor:
    """The last layer of the query stream at the targets, (N, D)."""
    target = torch.zeros_like(given.tokens, dtype=torch.bool)
    target.view(-1)[given.places] = True
    rows, chosen = target_rows(given.places, *given.tokens.shape)
    mask = hidden_from(given.rank, target)
    with torch.no_grad():
        return model(given.tokens, hidden_from=mask, targets=rows).flatten(0, 1)[chosen]


@pytest.mark.parametrize("share", [0.15, 0.5, 0.99])
def test_nothing_leaks_through_any_layer(model, share):
    """A change of a word reaches the targets behind it, or all if it is only read, and no other."""
    given = batch(share)
    before, rank = queries(model, given), given.rank[0]
    targets = given.places.tolist()
    for place in range(LENGTH):
        tokens = given.tokens.clone()
        tokens[0, place] = (tokens[0, place] - 4) % (TYPES - 5) + 5
        after = queries(model, given._replace(tokens=tokens))
        for number, target in enumerate(targets):
            seen = place not in targets or rank[place] < rank[target]
            assert torch.equal(before[number], after[number]) == (not seen)


def test_all_words_as_targets_give_the_probability_of_the_sequence(model):
    """Word by word, each from a fresh reading in which it and all behind it are other words."""
    given = batch(0.99, seed=4)
    assert len(given.places) == LENGTH - 2
    with torch.no_grad():
        estimate = Permutation()(model, given, None)
    order = sorted(given.places.tolist(), key=lambda place: given.rank[0, place])
    total = torch.zeros(())
    for number, place in enumerate(order):
        blotted = given.tokens.clone()
        blotted[0, order[number:]] = 5
        alone = given._replace(tokens=blotted)
        row = queries(model, alone)[given.places.tolist().index(place)]
        with torch.no_grad():
            logits = model.embedding @ model.head(row) + model.head.bias
        total -= logits.log_softmax(0)[given.tokens[0, place]]
    torch.testing.assert_close(estimate.loss * len(order), total)
    torch.testing.assert_close(estimate.terms["information"], np.log(TYPES) - estimate.terms["nll"])


def test_sequences_with_fewer_targets_are_as_by_themselves(model):
    given = batch(0.99, seed=2, sequences=3)
    counts = torch.bincount(given.places // LENGTH)
    assert counts.tolist() == [5, 4, 5]
    with torch.no_grad():
        together = Permutation()(model, given, None)
        total = 0.0
        for n in range(3):
            own = given.places // LENGTH == n
            alone = SequenceBatch(
                given.tokens[n : n + 1],
                given.places[own] - n * LENGTH,
                given.words[own],
                rank=given.rank[n : n + 1],
            )
            total += Permutation()(model, alone, None).loss * int(counts[n])
    assert together.count == 14
    torch.testing.assert_close(together.loss * 14, total)
