"""The mutual information of passages of a text."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from infolm.data import synthetic
from infolm.errors import InfolmError
from infolm.evaluation import generated
from infolm.evaluation.generated import (
    BOUNDS,
    TokenText,
    check_text,
    exact,
    information_measurements,
    least_tokens,
    read_text,
    text_information,
)
from infolm.information.languages import HiddenMarkov, MarkovChain
from infolm.information.registry import ESTIMATORS
from infolm.information.segments import Segments


def drawn_from(language, tokens=6000):
    drawn = language.sample(tokens, np.random.default_rng(2))
    return TokenText("drawn", None, "word", drawn, language.types, language)


@pytest.fixture(scope="module")
def chain():
    """Three tokens, each followed by itself or the next: neighbours share 0.45 nats."""
    return MarkovChain(np.array([[0.7, 0.3, 0], [0, 0.7, 0.3], [0.3, 0, 0.7]]))


def test_a_chain_is_measured_beside_the_truth(chain):
    found = text_information(drawn_from(chain), length=2, gap=0, folds=2, steps=150)
    (estimate,) = found.estimates
    assert found.exact == pytest.approx(chain.segment_information(2, 0, 2))
    assert (found.stride, found.pairs) == (1, 5997)
    assert estimate.samples == 1500
    assert 0.8 * found.exact < estimate.value < found.exact + 3 * estimate.stderr


def test_a_hidden_markov_model_is_measured_below_the_truth():
    """Two states that last, of which a token tells little: neighbours share what they tell."""
    language = HiddenMarkov([[0.95, 0.05], [0.05, 0.95]], [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    found = text_information(drawn_from(language, 12000), length=3, gap=1, folds=2, steps=150)
    (estimate,) = found.estimates
    assert found.exact == pytest.approx(language.segment_information(3, 1, 3))
    assert 0.6 * found.exact < estimate.value < found.exact + 3 * estimate.stderr
    assert abs(estimate.permuted) < 3 * math.sqrt(2) * estimate.stderr  # of one fold, not two


def test_segments_far_apart_share_nothing(chain):
    found = text_information(drawn_from(chain), length=2, gap=60, folds=2, steps=100)
    assert found.exact < 1e-9
    assert found.estimates[0].interval[0] <= 3 * found.estimates[0].stderr


def test_bits_for_the_truth_and_every_estimate(chain):
    nats = text_information(drawn_from(chain), ["mine", "infonce"], 2, 0, folds=2, steps=2)
    bits = nats.to("bits")
    assert bits.unit == "bits"
    assert bits.exact == pytest.approx(nats.exact / math.log(2))
    assert [each.unit for each in bits.estimates] == ["bits", "bits"]
    assert bits.to("nats").exact == pytest.approx(nats.exact)
    assert nats.to("nats") == nats


def test_the_stride(chain, monkeypatch):
    """By default it is a sixth of a pair, a segment at most, and a long text is not used up."""

    def pairs(length=6, gap=1, **settings):
        found = text_information(text, length=length, gap=gap, folds=2, steps=2, **settings)
        return found.stride, found.pairs, found.estimates[0].samples

    text = drawn_from(chain, 2000)
    assert pairs() == (2, (2000 - 13) // 2 + 1, math.ceil(994 / 7))  # every 14 tokens
    assert pairs(length=1, gap=0) == (1, 1999, 1000)
    assert pairs(length=2, gap=20) == (2, (2000 - 24) // 2 + 1, math.ceil(989 / 12))
    assert pairs(stride=3) == (3, 663, math.ceil(663 / 5))
    assert pairs(stride=13) == (13, 153, 153)
    monkeypatch.setattr(generated, "MOST_READ", 90)
    assert pairs() == (2, 994, 83)  # one in 12
    assert pairs(stride=3) == (3, 663, 133)
    monkeypatch.setattr(generated, "MOST_PAIRS", 100)
    monkeypatch.setattr(generated, "MOST_READ", 100)
    assert pairs() == (20, 100, 100)


@pytest.mark.parametrize(("stride", "overlap"), [(8, 0), (7, 1), (4, 1), (3, 2), (None, 7)])
def test_rows_that_share_tokens_are_kept_apart(chain, monkeypatch, stride, overlap):
    made = []

    def recorded(*arguments, **settings):
        made.append(settings["overlap"])
        return Segments(*arguments, **settings)

    monkeypatch.setattr(generated, "Segments", recorded)
    text = drawn_from(chain, 1200)
    text_information(text, length=3, gap=2, stride=stride, folds=2, steps=1)
    assert made == [overlap]
    starts = np.arange(0, 100, stride or 1)
    assert overlap == np.count_nonzero(starts < 8) - 1


def test_where_the_truth_is_known():
    assert exact(None, 2, 0) is None
    assert exact(synthetic.language("grammar"), 2, 0) is None
    hmm = synthetic.language("hmm")
    assert exact(hmm, 1, 0) == hmm.segment_information(1, 0, 1)
    assert exact(hmm, 40, 10) is None  # too many blocks to enumerate
    assert exact(synthetic.language("markov"), 40, 10) > 0


def test_the_bounds_of_text_are_the_neural_ones_that_score_tokens():
    assert set(BOUNDS) == {n for n, e in ESTIMATORS.items() if e.neural} - {"club"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"length": 0}, "at least one token"),
        ({"gap": -1}, "0 tokens or more"),
        ({"stride": 0}, "1 token or more"),
        ({"bounds": ["ksg"]}, "rows of numbers"),
        ({"bounds": ["club"]}, "rows of numbers"),
        ({"bounds": ["mime"]}, "did you mean 'mine'"),
    ],
)
def test_what_is_refused_before_a_text_is_read(settings, words):
    with pytest.raises(InfolmError, match=words):
        check_text(**settings)


def test_a_file_has_its_own_vocabulary(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text('"Yes," she said.\nIt \'s <unk>\n' * 3)
    text = read_text(str(path))
    assert text.kind == "word"
    assert len(text.tokens) == 3 * 13
    assert text.tokens.max() < text.types
    assert len(read_text(str(path), pretokenised=True).tokens) == 3 * 8
    assert len(read_text(str(path), tokens="byte").tokens) == path.stat().st_size
    small = read_text(str(path), vocabulary=3)
    assert small.types == 3
    assert len(small.tokens) == len(text.tokens)


def test_a_corpus_is_read_as_its_results_count_it(monkeypatch):
    monkeypatch.setattr(synthetic, "SIZES", {"train": 300, "valid": 200, "test": 100})
    monkeypatch.setattr(synthetic, "VERSION", "tiny")
    text = read_text("markov")
    assert (text.split, text.kind, len(text.tokens)) == ("train", "word", 300)
    assert text.language is synthetic.language("markov")
    assert len(read_text("markov", split="test").tokens) == 100
    characters = read_text("markov", tokens="char")
    assert characters.kind == "char"
    assert characters.language is None


def test_no_pair_is_of_two_rows(monkeypatch):
    """The rows of (S, T) are texts of their own: here each says its own number."""
    made = []

    class Recorded:
        def __init__(self, *arguments, **settings):
            pass

        def estimate(self, x, y, apart):
            made.append((x, y, apart))

    monkeypatch.setattr(generated, "Segments", Recorded)
    rows = np.repeat(np.arange(7)[:, None], 29, axis=1)
    text_information(TokenText("rows", None, "word", rows, 7), length=4, gap=2)
    ((x, y, apart),) = made
    assert x.shape == y.shape == (7 * 20, 4)
    assert apart.tolist() == [20 * row + at for row in range(7) for at in (0, 10)]
    assert (x == x[:, :1]).all()
    assert (x == y).all()


def test_measurements_of_a_text_and_of_its_shuffled_pairs(chain, monkeypatch):
    short = partial(text_information, length=2, gap=0, steps=150)
    monkeypatch.setattr(generated, "FOLDS", 2)
    monkeypatch.setattr(generated, "text_information", short)
    drawn = drawn_from(chain)
    rows = replace(drawn, tokens=drawn.tokens.reshape(10, -1))
    results, warning = information_measurements(rows, "generated", "a text", 3)
    itself, shuffled = results
    truth = chain.segment_information(2, 0, 2)
    assert 0.8 * truth < itself.value < truth + 3 * itself.stderr
    assert abs(shuffled.value) < 3 * itself.stderr  # of as many pairs, so about as uncertain
    assert (itself.metric, shuffled.metric) == (
        "mutual_information",
        "mutual_information_shuffled",
    )
    for each in results:
        assert (each.unit, each.split, each.tokens) == ("nats", "generated", 6000)
        assert each.method == "js-dv, 1,500 pairs of segments of a text"
        assert "a pair every 1 tokens to learn from" in each.convention
    assert warning == "2 of 2 critics were still improving after 150 steps"


@pytest.mark.parametrize("rows", [1, 100, 300])
def test_the_shortest_text_that_can_be_measured(rows):
    """Ten folds need 400 pairs of 90 tokens."""
    length = least_tokens(rows) // rows
    assert rows * (length // 90) >= 400 > rows * ((length - 1) // 90)
    for stride in (7, 60, 90, 200):
        length = least_tokens(rows, stride) // rows
        step = stride * math.ceil(90 / stride)
        read = [rows * len(range(0, tokens - 89, step)) for tokens in (length - 1, length)]
        assert read[0] < 400 <= read[1]
