"""The reverse copy corpus is what it says, line by line."""

import math
from collections import Counter

import pytest
from pydantic import ValidationError

from infolm.data.corpora import DataConfig, load, registry, types
from infolm.data.reverse_copy import BLOCK, ReverseCopyConfig, splits
from infolm.data.tokens import UNK

SIZES = ReverseCopyConfig(length=6, types=20, examples=3000, held_out=500)


def lines(config, split):
    return "".join(splits(config)[split]).splitlines()


@pytest.mark.parametrize(("split", "count"), [("train", 3000), ("valid", 500), ("test", 500)])
def test_every_line_is_words_a_separator_and_the_words_in_reverse(split, count):
    found = lines(SIZES, split)
    assert len(found) == count
    for line in found:
        first, second = line.split(" <sep> ")
        words = first.split(" ")
        assert len(words) == 6
        assert second.split(" ") == words[::-1]


def test_words_are_uniform_and_independent():
    """Each count within five standard errors; so is the mutual information of neighbours, whose
    plug-in estimate has the mean (types - 1)^2 / 2N and a chi-square's deviation."""
    rows = [line.split(" <sep> ")[0].split(" ") for line in lines(SIZES, "train")]
    words = Counter(word for row in rows for word in row)
    total, p = sum(words.values()), 1 / 20
    assert set(words) == {str(number) for number in range(20)}
    assert all(abs(n - total * p) < 5 * math.sqrt(total * p * (1 - p)) for n in words.values())
    pairs = Counter((row[i], row[i + 1]) for row in rows for i in range(0, 6, 2))
    n = sum(pairs.values())
    first, second = Counter(), Counter()
    for (a, b), count in pairs.items():
        first[a] += count
        second[b] += count
    information = sum(c / n * math.log(c * n / first[a] / second[b]) for (a, b), c in pairs.items())
    freedom = 19**2
    assert abs(2 * n * information - freedom) < 5 * math.sqrt(2 * freedom)


def test_splits_are_samples_of_their_own_and_the_first_lines_of_larger_ones():
    small, large = SIZES, SIZES.model_copy(update={"examples": BLOCK + 7})
    train = lines(large, "train")
    assert len(train) == BLOCK + 7
    assert not set(train) & {*lines(small, "valid"), *lines(small, "test")}  # of 20^6 lines
    assert lines(small, "valid") != lines(small, "test")


def test_the_corpus_is_its_text_token_by_token():
    config = DataConfig(corpus="reverse-copy", reverse_copy=SIZES)
    corpus = load(config)
    tokenizer = corpus.tokenizer
    assert len(tokenizer) == types(config) == 23
    assert tokenizer.decode(corpus.splits["valid"].tokens) == "".join(splits(SIZES)["valid"])
    assert all(split.unknown == 0 for split in corpus.splits.values())
    words = {tokenizer.token(number) for number in range(23)}
    assert words == {*map(str, range(20)), "<sep>", "<eos>", UNK}
    other = SIZES.model_copy(update={"length": 2})
    assert load(DataConfig(corpus="reverse-copy", reverse_copy=other)).source != corpus.source


def test_types_are_known_before_the_text_is():
    assert types(DataConfig(corpus="ptb")) == 10_000
    assert types(DataConfig(corpus="ptb", vocabulary=500)) == 500
    assert types(DataConfig(corpus="reverse-copy")) == registry()["reverse-copy"].types == 1003
    sizes = ReverseCopyConfig(types=10_000)
    assert types(DataConfig(corpus="reverse-copy", reverse_copy=sizes)) == 10_003


def test_other_corpora_have_no_such_sizes():
    with pytest.raises(ValidationError, match="only for the corpus reverse-copy"):
        DataConfig(corpus="ptb", reverse_copy=SIZES)
