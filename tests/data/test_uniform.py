"""The corpus of single symbols: every one once, in every split."""

import numpy as np
import pytest
from pydantic import ValidationError

from infolm.data.corpora import DataConfig, load, types
from infolm.data.sentences import lines
from infolm.data.uniform import NAME, UniformConfig, splits


def test_every_split_has_every_symbol_once():
    found = splits(UniformConfig(symbols=11))
    assert list(found) == ["train", "valid", "test"]
    for text in found.values():
        assert text.splitlines() == [str(number) for number in range(11)]


def test_as_a_corpus_it_is_so_many_lines_of_one_word():
    config = DataConfig.model_validate({"corpus": NAME, "uniform": {"symbols": 7}})
    corpus = load(config)
    assert len(corpus.tokenizer) == config.uniform.vocabulary == types(config) == 9
    for split in corpus.splits.values():
        text = lines(split.tokens, corpus.tokenizer.eos)
        assert (text.lengths == 1).all()
        assert len(text) == len({int(line[0]) for line in text}) == 7
        assert split.unknown == 0
    symbols, counts = np.unique(corpus.splits["train"].tokens, return_counts=True)
    share = counts[symbols != corpus.tokenizer.eos] / 7
    assert -(share * np.log(share)).sum() == pytest.approx(np.log(7))  # its entropy


def test_sizes_have_names_of_their_own():
    assert UniformConfig(symbols=7).name != UniformConfig(symbols=8).name
    assert UniformConfig().symbols == 10_000  # the thesis's


@pytest.mark.parametrize("data", [{"corpus": NAME, "uniform": {"symbols": 1}}])
def test_one_symbol_is_no_task(data):
    with pytest.raises(ValidationError):
        DataConfig.model_validate(data)


def test_its_size_is_no_other_corpus():
    with pytest.raises(ValidationError, match="only for the corpus uniform"):
        DataConfig.model_validate({"corpus": "python-docs", "uniform": {"symbols": 7}})
