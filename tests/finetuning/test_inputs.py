"""What an encoder reads of an example: BERT's cutting, padding, batches, shares."""

import numpy as np
from encoder_tiny import tiny_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from infolm.finetuning.inputs import POOL, Inputs, halves, read_examples, share_of
from infolm.finetuning.tasks import Example

counts = st.integers(0, 40)


def test_a_sentence_and_a_pair_as_bert_reads_them():
    tokenizer = tiny_tokenizer()
    special = tokenizer.special
    cat, dog = tokenizer.encode("cat dog")
    single, cut = read_examples([Example("cat dog", None, 0.0)], tokenizer, 8)
    tokens, mask, segments = single.padded(np.array([0]))
    assert tokens.tolist() == [[special.cls, cat, dog, special.sep]]
    assert (mask == 1).all()
    assert (segments == 0).all()
    assert cut == []
    pairs = [Example("cat dog", "dog", 0.0), Example("cat", "dog dog dog dog dog", 0.0, "line 2")]
    both, cut = read_examples(pairs, tokenizer, 7)
    tokens, mask, segments = both.padded(np.array([0, 1]))
    cls, sep, pad = special.cls, special.sep, special.pad
    assert tokens.tolist() == [
        [cls, cat, dog, sep, dog, sep, pad],
        [cls, cat, sep, dog, dog, dog, sep],
    ]
    assert mask.tolist() == [[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1]]
    assert segments.tolist() == [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1]]
    assert cut == ["line 2"]


def inputs(lengths):
    rows = [np.full(length, number) for number, length in enumerate(lengths)]
    return Inputs.of(rows, lengths, pad=-1)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=200), st.integers(1, 40))
def test_an_epoch_has_every_sequence_once(lengths, batch):
    found = inputs(lengths)
    batches = found.drawn(batch, seed=3, epoch=1)
    assert len(batches) == -(-len(lengths) // batch)
    assert max(map(len, batches)) <= batch
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert sorted(np.concatenate(list(found.sorted()))) == list(range(len(lengths)))


def test_an_epoch_is_a_function_of_its_seed_and_pads_little():
    lengths = np.random.default_rng(0).integers(5, 60, POOL * 8)
    found = inputs(lengths)
    one, same, other, later = (
        [numbers.tolist() for numbers in found.drawn(8, seed, epoch)]
        for seed, epoch in ((1, 0), (1, 0), (2, 0), (1, 1))
    )
    assert one == same
    assert other != one != later
    places = sum(len(numbers) * lengths[numbers].max() for numbers in one)
    assert places < 1.05 * lengths.sum()
    # The batches are not in the order of their lengths.
    longest = [lengths[numbers].max() for numbers in one]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.5


@given(st.integers(1, 500), st.floats(0.001, 1), st.floats(0.001, 1))
def test_a_smaller_share_lies_within_a_larger_one(count, a, b):
    small, large = (set(share_of(count, share).tolist()) for share in sorted((a, b)))
    assert small <= large <= set(range(count))
    assert len(large) == max(1, round(max(a, b) * count))


def test_the_whole_is_in_its_order():
    assert share_of(7, 1.0).tolist() == list(range(7))


@given(st.lists(st.integers(0, 9), min_size=2, max_size=60), st.integers(1, 3))
def test_halves_are_disjoint_whole_and_keep_groups_and_proportions(groups, classes):
    groups = np.array(groups)
    strata = groups % classes
    first, second = halves(groups, strata)
    assert sorted([*first, *second]) == list(range(len(groups)))
    assert not set(groups[first]) & set(groups[second])
    for stratum in set(strata):
        inside = set(groups[strata == stratum])
        assert len(inside & set(groups[first])) == len(inside) // 2
    for one, two in zip(halves(groups, strata), (first, second), strict=True):
        assert one.tolist() == two.tolist()


def test_halves_do_not_follow_the_order_of_the_file():
    first, _ = halves(np.arange(1000), np.zeros(1000))
    # The mean of 500 of them, drawn without putting back: 499.5, standard error 9.1.
    assert len(first) == 500
    assert abs(first.mean() - 499.5) < 4 * 9.1
