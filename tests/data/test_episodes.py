"""Episodes: every token a target once a pass, sentences apart, padding without a trace."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.data import episodes
from infolm.data.episodes import Episodes, EpisodesConfig, cut_long, group, sentence_bounds
from infolm.data.stream import PADDING, Batch
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.models.recurrent import RecurrentConfig, RecurrentModel
from infolm.objectives.likelihood import Likelihood, LikelihoodConfig

EOS = 1


def text(lengths, last_eos=True):
    """Sentences of so many tokens, <eos> included, each token a number of its own but <eos>."""
    tokens = np.arange(2, 2 + sum(lengths), dtype=np.uint16)
    tokens[np.cumsum(lengths) - 1] = EOS
    return tokens if last_eos else tokens[:-1]


def one_epoch(feed):
    epoch, batches = feed.epoch, [feed.next()]
    while feed.epoch == epoch:
        batches.append(feed.next())
    return batches


def columns(batches):
    """(what is read, what is predicted) of each sentence, padding left out."""
    for batch in batches:
        for read, targets in zip(batch.tokens.T, batch.targets.T, strict=True):
            inside = targets != PADDING
            yield read[inside].tolist(), targets[inside].tolist()


LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@settings(deadline=None)
@given(lengths=LENGTHS, batch=st.integers(1, 9), seed=st.integers(0, 3), last_eos=st.booleans())
def test_a_pass_has_every_sentence_once_whole_and_from_eos_on(lengths, batch, seed, last_eos):
    tokens = text([*lengths, 2], last_eos)
    feed = Episodes(tokens, EpisodesConfig(batch=batch), seed, EOS)
    expected = sorted(
        sentence.tolist() for sentence in np.split(tokens, np.cumsum(lengths)) if len(sentence)
    )
    for _ in range(2):
        found = list(columns(one_epoch(feed)))
        assert sorted(targets for _, targets in found) == expected
        assert all(read == [EOS, *targets[:-1]] for read, targets in found)


@settings(deadline=None)
@given(lengths=LENGTHS, batch=st.integers(1, 9), longest=st.integers(1, 12))
def test_cut_sentences_lose_no_token_and_read_the_one_before(lengths, batch, longest):
    tokens = text(lengths)
    feed = Episodes(tokens, EpisodesConfig(batch=batch, longest=longest), 0, EOS)
    found = list(columns(one_epoch(feed)))
    assert max(len(targets) for _, targets in found) <= longest
    before = dict(zip(tokens[1:].tolist(), tokens[:-1].tolist(), strict=True))
    before[int(tokens[0])] = EOS
    for read, targets in found:
        assert read[1:] == targets[:-1]
        assert targets[0] == EOS or read[0] == before[targets[0]]
    assert sorted(t for _, targets in found for t in targets) == sorted(tokens.tolist())


def test_pieces_of_a_sentence_are_nearly_as_long_as_each_other():
    assert np.diff(cut_long(np.array([0, 11, 13]), 5)).tolist() == [3, 4, 4, 2]
    assert np.diff(cut_long(np.array([0, 10]), 5)).tolist() == [5, 5]


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60).map(sorted),
    area=st.integers(1, 300),
)
def test_batches_are_as_large_as_the_area_allows(lengths, area):
    cuts = group(np.array(lengths), area)
    assert cuts[0] == 0
    assert cuts[-1] == len(lengths)
    for start, end in pairwise(cuts):
        assert end == start + 1 or (end - start) * lengths[end - 1] <= area
        assert end == len(lengths) or (end - start + 1) * lengths[end] > area


def test_like_lengths_stand_together_and_batches_are_of_like_size():
    lengths = np.random.default_rng(0).integers(1, 60, 3000).tolist()
    feed = Episodes(text(lengths), EpisodesConfig(batch=20), 0, EOS)
    batches = one_epoch(feed)
    counts = np.array([(b.targets != PADDING).sum() for b in batches])
    padded = sum(b.targets.size for b in batches)
    assert counts.sum() == sum(lengths)
    assert padded < 1.02 * sum(lengths)
    # But for the very shortest, which differ much among themselves, and for what is left over.
    assert np.quantile(counts, 0.1) > 0.9 * counts.max()
    assert all(b.fresh and b.rate_scale == 1 for b in batches)


def test_sentences_of_one_length_are_exactly_batch_many_to_a_batch():
    batches = one_epoch(Episodes(text([7] * 30), EpisodesConfig(batch=8), 0, EOS))
    assert sorted(b.targets.shape for b in batches) == [(7, 6), (7, 8), (7, 8), (7, 8)]


def test_each_pass_has_an_order_of_its_own_by_the_seed():
    tokens = text([5, 6, 7, 8] * 10)

    def passes(seed):
        feed = Episodes(tokens, EpisodesConfig(batch=2), seed, EOS)
        return [[b.targets.tolist() for b in one_epoch(feed)] for _ in range(2)]

    first, second = passes(1)
    assert first != second
    assert passes(1) == [first, second]
    assert passes(2)[0] != first


def test_a_feed_put_back_by_way_of_json_goes_on_alike():
    tokens = text([3, 9, 4, 4, 8] * 8)
    feed = Episodes(tokens, EpisodesConfig(batch=3), 1, EOS)
    for _ in range(20):  # into the second pass
        feed.next()
    assert 0 < feed.fraction() < 1
    other = Episodes(tokens, EpisodesConfig(batch=3), 1, EOS)
    other.load_state_dict(json.loads(json.dumps(feed.state_dict())))
    assert (feed.epoch, feed.fraction()) == (other.epoch, other.fraction())
    for _ in range(40):
        a, b = feed.next(), other.next()
        assert np.array_equal(a.tokens, b.tokens)
        assert np.array_equal(a.targets, b.targets)
    assert feed.epoch == other.epoch > 1


def test_only_what_follows_the_marker_counts_and_such_sentences_are_not_cut():
    sep = 60_000
    tokens = np.array([5, sep, 6, EOS, 7, 8, sep, 9, sep, 4, EOS], np.uint16)
    config = EpisodesConfig(batch=3, longest=3, after="<sep>")
    (batch,) = one_epoch(Episodes(tokens, config, 0, EOS, sep))
    found = dict(zip(batch.tokens[1].tolist(), batch.targets.T.tolist(), strict=True))
    assert found[5] == [PADDING, PADDING, 6, EOS, PADDING, PADDING, PADDING]
    assert found[7] == [PADDING, PADDING, PADDING, 9, sep, 4, EOS]


@pytest.mark.parametrize("tokens", [[5, 9, 6, 1, 7, 1], [5, 9, 6, 1, 7, 9]])
def test_a_sentence_with_nothing_after_the_marker_is_refused(tokens):
    config = EpisodesConfig(after="<sep>")
    with pytest.raises(InfolmError, match="sentence 2 of the training split has nothing after"):
        Episodes(np.array(tokens), config, 0, EOS, 9)


def test_the_marker_is_a_token_of_the_vocabulary():
    tokenizer = Tokenizer.from_words(["<eos>", "<unk>", "<sep>"])
    assert EpisodesConfig().marker(tokenizer) is None
    assert EpisodesConfig(after="<sep>").marker(tokenizer) == 2
    for bad in ("<sp>", "<sep> <sep>", ""):
        with pytest.raises(InfolmError, match=r"feed\.after"):
            EpisodesConfig(after=bad).marker(tokenizer)


def test_sentences_are_found_block_by_block(monkeypatch):
    monkeypatch.setattr(episodes, "BLOCK", 4)
    tokens = text([3, 1, 5, 8], last_eos=False)
    assert sentence_bounds(tokens, EOS).tolist() == [0, 3, 4, 9, 16]
    assert sentence_bounds(text([2, 2]), EOS).tolist() == [0, 2, 4]
    assert sentence_bounds(np.array([5, 6]), EOS).tolist() == [0, 2]


def test_padding_changes_nothing():
    """The loss of a padded batch is the mean over its tokens, sentence by sentence."""
    torch.manual_seed(0)
    model = RecurrentModel(RecurrentConfig(embedding=6, hidden=7, layers=2), 40)
    objective = Likelihood(LikelihoodConfig(ar=1, tar=0))
    feed = Episodes(text([2, 3, 5, 4, 9, 1, 7]), EpisodesConfig(batch=20), 0, EOS)
    (batch,) = one_epoch(feed)
    assert batch.targets.shape == (9, 7)
    whole = objective(
        model, Batch(torch.tensor(batch.tokens), torch.tensor(batch.targets), True, 1.0), None
    )
    total, count = 0.0, 0
    for read, targets in columns([batch]):
        one = Batch(torch.tensor(read)[:, None], torch.tensor(targets)[:, None], True, 1.0)
        total += float(objective(model, one, None).loss.detach()) * len(targets)
        count += len(targets)
    assert whole.count == count
    assert float(whole.loss.detach()) == pytest.approx(total / count, rel=1e-5)
