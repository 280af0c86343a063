"""Sequences of a text, in part hidden: nothing lost, nothing invented, the same after a resume."""

import numpy as np
import pytest

from infolm.data import masking
from infolm.data.sequences import SequenceFeed, SequencesConfig
from infolm.data.tokens import SPECIAL, Tokenizer
from infolm.errors import InfolmError

MASKINGS = ["tokens", "spans", "order"]
PIECES = 200


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Of 5 special tokens, 100 words and 95 pieces that go on a word."""
    folder = tmp_path_factory.mktemp("bert")
    words = [f"w{i}" for i in range(100)]
    rest = [f"##r{i}" for i in range(PIECES - 105)]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *words, *rest]) + "\n")
    return Tokenizer.from_bert(folder)


def text(tokenizer, size=2_000, seed=0):
    """Random pieces, with line ends and unknown words among them."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, PIECES, size).astype(np.uint16)
    special = rng.random(size)
    tokens[special < 0.05] = tokenizer.special.sep
    tokens[special > 0.97] = tokenizer.special.unk
    return tokens


def feed(tokenizer, tokens=None, **config):
    tokens = text(tokenizer) if tokens is None else tokens
    config = {"batch": 4, "length": 32, **config}
    return SequenceFeed(tokens, SequencesConfig(**config), 7, tokenizer)


def uncovered(batch):
    """The sequences with what was hidden put back."""
    whole = np.array(batch.tokens)
    whole.reshape(-1)[batch.places] = batch.words
    return whole


def starts_in(tokens, rows):
    """Where each row stands in the text."""
    windows = np.lib.stride_tricks.sliding_window_view(tokens, rows.shape[1])
    return [int(np.flatnonzero((windows == row).all(1))[0]) for row in rows]


def a_pass(source):
    epoch, batches = source.epoch, []
    while source.epoch == epoch:
        batches.append(source.next())
    return batches


@pytest.mark.parametrize("masking", MASKINGS)
def test_a_pass_is_the_text_without_gaps_or_repeats(tokenizer, masking):
    tokens = text(tokenizer)
    source, firsts = feed(tokenizer, tokens, masking=masking), []
    for _ in range(3):
        rows = np.concatenate([uncovered(batch) for batch in a_pass(source)])
        assert (rows[:, 0] == tokenizer.special.cls).all()
        assert (rows[:, -1] == tokenizer.special.sep).all()
        starts = starts_in(tokens, rows[:, 1:-1])
        assert starts != sorted(starts)
        first = min(start % 30 for start in starts)
        assert {start % 30 for start in starts} == {first}
        assert len(set(starts)) == len(starts) == (len(tokens) - first) // 30 // 4 * 4
        firsts.append(first)
    assert len(set(firsts)) > 1  # the cuts lie elsewhere in another pass


@pytest.mark.parametrize("masking", MASKINGS)
def test_a_resumed_feed_gives_the_same_batches(tokenizer, masking):
    source = feed(tokenizer, masking=masking)
    for _ in range(18):  # into the second pass
        source.next()
    other = feed(tokenizer, masking=masking)
    other.load_state_dict(source.state_dict())
    assert (other.epoch, other.fraction()) == (source.epoch, source.fraction())
    for _ in range(30):
        for one, two in zip(source.next(), other.next(), strict=True):
            np.testing.assert_equal(one, two)


def test_what_is_hidden_is_drawn_anew_each_pass(tokenizer):
    source = feed(tokenizer, text(tokenizer, 150))  # one batch a pass
    places = [source.next().places.tolist() for _ in range(4)]
    assert source.epoch == 4
    assert len({tuple(each) for each in places}) == 4


@pytest.mark.parametrize("masking", MASKINGS)
def test_places_rise_are_words_and_spend_the_budget(tokenizer, masking):
    source = feed(tokenizer, masking=masking)
    for batch in a_pass(source):
        assert (np.diff(batch.places) > 0).all()
        assert not np.isin(batch.words, tokenizer.special).any()
        counts = np.bincount(batch.places // 32, minlength=4)
        if masking == "spans":
            assert (counts >= round(0.15 * 32)).all()
        else:
            assert (counts == round(0.15 * 32)).all()
        if masking == "order":
            assert (batch.tokens.reshape(-1)[batch.places] == batch.words).all()
            assert (np.sort(batch.rank, 1) == np.arange(32)).all()
            last = np.flatnonzero(batch.rank.reshape(-1) >= 32 - round(0.15 * 32))
            assert last.tolist() == batch.places.tolist()


def test_n_grams_are_the_hidden_spans_of_their_owners(tokenizer):
    special = tokenizer.special
    for batch in a_pass(feed(tokenizer, masking="spans")):
        inside = []
        for row, size in zip(batch.ngrams, batch.sizes, strict=True):
            assert (row[0], row[size - 1]) == (special.cls, special.sep)
            assert (row[size:] == special.pad).all()
            inside.append(row[1 : size - 1])
        assert batch.ngrams.shape[1] == batch.sizes.max()
        # In the order of the text, so together they are all hidden words.
        assert np.concatenate(inside).tolist() == batch.words.tolist()
        owners = np.repeat(batch.owners, [len(ngram) for ngram in inside])
        assert owners.tolist() == (batch.places // 32).tolist()


def test_nothing_of_a_masked_n_gram_is_to_be_seen_by_its_anchor(tokenizer):
    """Four n-grams in five are masked; of the others half are shown as they are."""
    fates, visible = [], []
    for batch in a_pass(feed(tokenizer, text(tokenizer, 60_000), masking="spans")):
        shown = np.split(batch.tokens.reshape(-1)[batch.places], np.cumsum(batch.sizes - 2)[:-1])
        for tokens, row, size, masked in zip(
            shown, batch.ngrams, batch.sizes, batch.masked, strict=True
        ):
            assert masked == (tokens == tokenizer.special.mask).all()
            if masked:
                assert not (tokens == row[1 : size - 1]).any()
            fates.append(masked)
            visible.append((tokens == row[1 : size - 1]).all())
    for found, expected in (
        (fates, masking.MASKED),
        (visible, 1 - masking.MASKED - masking.RANDOM),
    ):
        error = np.sqrt(expected * (1 - expected) / len(found))
        assert abs(np.mean(found) - expected) < 4 * error


def test_most_of_what_is_hidden_is_shown_as_a_mask(tokenizer):
    batches = a_pass(feed(tokenizer, text(tokenizer, 40_000)))
    shown = np.concatenate([batch.tokens.reshape(-1)[batch.places] for batch in batches])
    words = np.concatenate([batch.words for batch in batches])
    error = np.sqrt(masking.MASKED * (1 - masking.MASKED) / len(shown))
    assert abs((shown == tokenizer.special.mask).mean() - masking.MASKED) < 4 * error
    others = shown[shown != tokenizer.special.mask]
    assert not np.isin(others, tokenizer.special).any()
    assert 0.09 < (shown == words).mean() < 0.12


@pytest.mark.parametrize("masking", MASKINGS)
def test_a_text_of_line_ends_is_refused_and_batches_of_them_are_passed_over(tokenizer, masking):
    tokens = np.full(5000, tokenizer.special.sep)
    with pytest.raises(InfolmError, match="no word that could be hidden"):
        feed(tokenizer, tokens, masking=masking)
    tokens[2500:2600] = text(tokenizer, 100)
    fed = feed(tokenizer, tokens, masking=masking)
    for _ in range(20):
        batch = fed.next()
        assert len(batch.places) == len(batch.words) > 0
        assert (masking == "spans") == (batch.ngrams is not None)


def test_a_text_that_fills_no_batch_is_refused(tokenizer):
    feed(tokenizer, text(tokenizer, 120))
    with pytest.raises(InfolmError, match=r"119 tokens, and a batch needs 120: lower feed\.batch"):
        feed(tokenizer, text(tokenizer, 119))


def test_a_vocabulary_without_a_mask_is_refused():
    words = Tokenizer.from_words(["<eos>", "<unk>", "a"])
    with pytest.raises(InfolmError, match=r"data\.tokens=wordpiece"):
        SequenceFeed(np.zeros(500, int), SequencesConfig(batch=2, length=8), 0, words)
