"""Word vectors: neighbours, analogies, word2vec's file, and words that are not there."""

import numpy as np
import pytest
from training_tiny import Silent, quiet, tiny_recipe

from infolm.errors import InfolmError
from infolm.families.train import train
from infolm.word_vectors import WordVectors

WORDS = ["man", "king", "woman", "queen", "river", "##ing"]
ROWS = np.array(
    [[1, 0, 0], [1, 1, 0.1], [0.9, 0, 1], [0.9, 1.1, 1], [-1, 0.1, -2], [0, 0, 0]], np.float32
)


@pytest.fixture
def vectors() -> WordVectors:
    return WordVectors(WORDS, ROWS)


def test_neighbours_are_ordered_by_the_cosine(vectors):
    found = vectors.neighbours("woman", 4)
    unit = ROWS[:5] / np.linalg.norm(ROWS[:5], axis=1, keepdims=True)
    cosines = unit @ unit[2]
    order = [n for n in np.argsort(-cosines) if n != 2]
    assert [word for word, _ in found[:3]] == [WORDS[n] for n in order[:3]]
    assert found[0][1] == pytest.approx(float(cosines[order[0]]), rel=1e-5)
    assert vectors.neighbours("woman", 100)[-1][0] == "river"
    assert len(vectors.neighbours("woman", 100)) == 5


def test_king_is_to_man_as_queen_to_woman(vectors):
    assert vectors.analogy("man", "king", "woman")[0][0] == "queen"
    assert not {"man", "king", "woman"} & {
        word for word, _ in vectors.analogy("man", "king", "woman")
    }


def test_a_word_in_capitals_is_found_in_small_letters(vectors):
    np.testing.assert_array_equal(vectors.vector("River"), ROWS[4])


def test_an_unknown_word_is_refused_with_the_nearest(vectors):
    with pytest.raises(InfolmError, match=r"'rivers' is not a word .*, did you mean 'river'\?"):
        vectors.neighbours("rivers")


def test_the_file_gives_the_same_numbers_back(vectors, tmp_path):
    vectors.vectors[0] = np.array([1 / 3, 1e-30, -12345.678], np.float32)
    vectors.save(tmp_path / "vectors.txt")
    header, *rows = (tmp_path / "vectors.txt").read_text(encoding="utf-8").splitlines()
    assert header == "6 3"
    assert [row.split(" ")[0] for row in rows] == WORDS
    numbers = np.array([row.split(" ")[1:] for row in rows], np.float32)
    np.testing.assert_array_equal(numbers, vectors.vectors)


def test_a_language_model_has_none_to_look_at(small_text, tmp_path):
    train(tiny_recipe(small_text, max_steps=5), tmp_path / "run", False, Silent(), quiet)
    with pytest.raises(InfolmError, match="is not an encoder"):
        WordVectors.open(tmp_path / "run")
