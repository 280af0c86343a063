"""Sentences as packed rows: nothing lost, nothing padded, the same batches after a resume."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.data.sentences import (
    Lines,
    SentenceBatch,
    SentenceFeed,
    SentencesConfig,
    fitting,
    lines,
)
from infolm.errors import InfolmError

EOS, UNK = 0, 1

texts = st.lists(st.lists(st.integers(2, 9), max_size=7), min_size=1, max_size=12)


def unpacked(rows, sizes) -> list[list[int]]:
    """A column for each sentence, from the rows of packed steps: slow, one by one."""
    columns: list[list[int]] = [[] for _ in range(sizes[0])]
    place = 0
    for size in sizes:
        for column in range(size):
            columns[column].append(int(rows[place]))
            place += 1
    assert place == len(rows)
    return columns


def read_back(batch: SentenceBatch) -> list[list[int]]:
    return [column[:-1] for column in unpacked(batch.targets, batch.sizes)]


@given(texts)
def test_a_batch_is_its_sentences_read_backwards_and_written_forwards(sentences):
    text = Lines.of(sentences, EOS)
    order = np.argsort([-len(s) for s in sentences], kind="stable")
    batch = text.packed(order)
    expected = [sentences[i] for i in order]
    assert unpacked(batch.targets, batch.sizes) == [[*s, EOS] for s in expected]
    assert unpacked(batch.inputs, batch.sizes) == [[EOS, *s] for s in expected]
    assert unpacked(batch.read, batch.sizes) == [[EOS, *s[::-1]] for s in expected]
    assert batch.sentences == len(sentences)
    assert batch.tokens == sum(len(s) + 1 for s in sentences) == len(batch.read)


@given(texts, st.integers(1, 40))
def test_batches_hold_every_sentence_once_with_its_number(sentences, area):
    text = Lines.of(sentences, EOS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infolm.data.sentences.AREA", area)
        found = list(text.batches())
    assert sorted(np.concatenate([n for n, _ in found])) == list(range(len(sentences)))
    for numbers, batch in found:
        assert read_back(batch) == [sentences[i] for i in numbers]
        assert len(numbers) == 1 or batch.tokens <= area


def test_lines_leave_out_empty_ones_and_headings():
    heading = 9
    tokens = np.array([EOS, 2, 3, EOS, EOS, heading, 4, heading, EOS, 5, EOS, 6, 7])
    assert [list(s) for s in lines(tokens, EOS)] == [[2, 3], [9, 4, 9], [5], [6, 7]]
    assert [list(s) for s in lines(tokens, EOS, heading=heading)] == [[2, 3], [5], [6, 7]]


def test_lines_may_hold_several_sentences():
    stop, heading = 8, 9
    tokens = np.array([2, stop, 3, 4, stop, EOS, heading, 5, stop, 6, EOS, 7, stop, stop, EOS, 2])
    found = [list(s) for s in lines(tokens, EOS, [stop], heading)]
    assert found == [[2, stop], [3, 4, stop], [7, stop], [stop], [2]]
    both = [list(s) for s in lines(tokens, EOS, [stop, 7])]
    assert both[3:6] == [[6], [7], [stop]]


def test_what_is_beyond_the_limit_is_cut_or_refused():
    text = Lines.of([[2, 3], [4, 5, 6, 7]], EOS)
    cut = fitting(text, SentencesConfig(longest=3, beyond="cut"), "train")
    assert [list(s) for s in cut] == [[2, 3], [4, 5, 6]]
    with pytest.raises(InfolmError, match="sentence 2 of the train split has 4 tokens"):
        fitting(text, SentencesConfig(longest=3), "train")
    assert len(fitting(text, SentencesConfig(longest=4), "train")) == 2


def feed(sentences, unk=UNK, seed=3, **config) -> SentenceFeed:
    return SentenceFeed(Lines.of(sentences, EOS), SentencesConfig(**config), seed, unk)


def counted(batches: list[list[list[int]]]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(sentence) for batch in batches for sentence in batch)


def random_sentences(count: int, rng=None) -> list[list[int]]:
    rng = rng or np.random.default_rng(0)
    return [rng.integers(2, 9, rng.integers(1, 30)).tolist() for _ in range(count)]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 4))
def test_a_pass_has_every_sentence_once_in_even_batches(count, batch, pool):
    sentences = random_sentences(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infolm.data.sentences.POOL", pool)
        source = feed(sentences, batch=batch)
        passes = []
        for number in (1, 2):
            found = []
            while source.epoch < number:
                assert 0 <= source.fraction() < 1
                found.append(read_back(source.next()))
            passes.append(found)
    for found in passes:
        assert counted(found) == Counter(map(tuple, sentences))
        sizes = {len(each) for each in found}
        assert min(sizes) >= min(batch, count)  # batch normalisation needs two at least
        assert max(sizes) <= max(batch + 1, 2 * batch - 1)
    if count > 12:
        assert passes[0] != passes[1]


def test_little_would_be_padding_if_batches_were_padded():
    rng = np.random.default_rng(0)
    lengths = np.maximum(rng.normal(21, 10, 8000).round().astype(int), 1)  # as PTB's
    source = feed([[2] * n for n in lengths], batch=20)
    padded = tokens = 0
    while source.epoch == 0:
        batch = source.next()
        tokens += batch.tokens
        padded += batch.sentences * len(batch.sizes)
    assert tokens == lengths.sum() + len(lengths)
    assert padded / tokens < 1.05


def test_a_feed_goes_on_where_it_was():
    sentences = random_sentences(50)
    first, second = (feed(sentences, batch=7, encoder_unknown=0.3) for _ in range(2))
    for _ in range(11):
        first.next()
    second.load_state_dict(first.state_dict())
    for _ in range(12):
        for a, b in zip(first.next(), second.next(), strict=True):
            np.testing.assert_array_equal(a, b)
    other = feed(sentences, batch=7, seed=4)
    assert read_back(other.next()) != read_back(feed(sentences, batch=7).next())


def test_a_share_of_the_words_is_read_as_unknown():
    sentences = random_sentences(4000)
    source = feed(sentences, batch=40, encoder_unknown=0.2, decoder_unknown=0.5)
    counts = {"read": [0, 0], "inputs": [0, 0]}
    while source.epoch == 0:
        batch = source.next()
        assert UNK not in batch.targets
        for name, found in counts.items():
            rows = getattr(batch, name)
            found[0] += int((rows == UNK).sum())
            found[1] += int((rows != EOS).sum())
            assert (rows == EOS).sum() == batch.sentences
    for name, share in (("read", 0.2), ("inputs", 0.5)):
        unknown, words = counts[name]
        assert abs(unknown / words - share) < 4 * np.sqrt(share * (1 - share) / words)


def test_no_more_sentences_than_asked_for_are_learnt_from():
    sentences = random_sentences(100)
    source = feed(sentences, batch=10, most=30)
    first = [read_back(source.next()) for _ in range(3)]
    assert source.epoch == 1
    second = [read_back(source.next()) for _ in range(3)]
    assert counted(first) == counted(second)


def test_refusals():
    with pytest.raises(InfolmError, match="has 1 sentence with a word"):
        feed([[2]])
    with pytest.raises(InfolmError, match="this vocabulary has none"):
        feed([[2], [3]], unk=None, encoder_unknown=0.1)
    feed([[2], [3]], unk=None)
