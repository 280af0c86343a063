import json
import re
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.data.tokens import EOS, SPECIAL, UNK, Tokenizer, vocabulary
from infolm.errors import InfolmError

# Letters of several scripts, marks, every newline and white space a text may hold, whole words.
ALPHABET = "abcABC _-'’.,!<>éßÉΣσИ中क्षिनİ🙂\n\r\t\v\f\x1c\x1f\x85\xa0\u2028\u3000"
PARTS = st.sampled_from([*ALPHABET, EOS, UNK, " the ", "don't", "\n\n", "<eos", "unk>"])
TEXTS = st.lists(PARTS, max_size=60).map("".join)
WORDS = [EOS, "the", UNK, "don't", "a", "ab", ",", "<", "σ", "क्षि", "_", "<eos", "B", "'", "中"]
CHARACTERS = ["\n", "a", "b", " ", UNK, "é", "🙂", "中", "σ", "\x85", "\r", "'", "<"]
SAMPLE = ["the cat sat on the mat\nthe hat, the bat's hat\n" * 3]


def backend(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer.to_json())


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("pretokenised", [False, True])
@given(text=TEXTS)
@settings(deadline=None, max_examples=60)
def test_words_are_those_the_saved_file_gives(
    text: str, pretokenised: bool, lowercase: bool
) -> None:
    tokenizer = Tokenizer.from_words(WORDS, pretokenised=pretokenised, lowercase=lowercase)
    assert tokenizer.encode(text).tolist() == backend(tokenizer).encode(text).ids


@pytest.mark.parametrize("lowercase", [False, True])
@given(text=TEXTS)
@settings(deadline=None, max_examples=60)
def test_characters_are_those_the_saved_file_gives(text: str, lowercase: bool) -> None:
    tokenizer = Tokenizer.from_characters(CHARACTERS, lowercase=lowercase)
    assert tokenizer.encode(text).tolist() == backend(tokenizer).encode(text).ids


@given(text=st.text(max_size=60) | TEXTS)
@settings(deadline=None, max_examples=60)
def test_bytes_and_byte_pairs_are_those_the_saved_file_gives_and_lose_nothing(text: str) -> None:
    for tokenizer in (Tokenizer.from_bytes(), Tokenizer.from_bpe(SAMPLE, 280)):
        ids = tokenizer.encode(text)
        assert ids.tolist() == backend(tokenizer).encode(text).ids
        assert tokenizer.decode(ids) == text
        assert backend(tokenizer).decode(ids.tolist()) == text
        assert np.count_nonzero(ids == tokenizer.eos) == text.count("\n")


@given(text=st.text(alphabet=[c for c in CHARACTERS if c != UNK]))
def test_known_characters_lose_nothing(text: str) -> None:
    tokenizer = Tokenizer.from_characters(CHARACTERS)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text)
    assert backend(tokenizer).decode(ids.tolist(), skip_special_tokens=False) == text


@given(lines=st.lists(st.lists(st.sampled_from(["a", "the", "don't", UNK])), min_size=1))
def test_words_come_back_joined_by_blanks(lines: list[list[str]]) -> None:
    text = "\n".join(" ".join(line) for line in lines)
    tokenizer = Tokenizer.from_words(WORDS)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(
    text=st.text(alphabet="ab<>xyz \n", max_size=40),
    limit=st.none() | st.integers(3, 8),
)
def test_the_vocabulary_is_by_falling_frequency(text: str, limit: int | None) -> None:
    counts = Counter(text.replace("\n", f" {EOS} ").split())
    words = vocabulary(counts, EOS, counts.total(), limit)
    assert {EOS, UNK} <= set(words)
    assert len(words) == len(set(words)) <= (limit or len(words))
    ids = Tokenizer.from_words(words).encode(text)
    seen = np.bincount(ids, minlength=len(words))
    assert [*zip(-seen, words, strict=True)] == sorted(zip(-seen, words, strict=True))
    if limit is None:
        assert set(words) == {*counts, EOS, UNK}


def test_a_newline_is_an_end_of_sentence_and_nothing_else_is() -> None:
    for tokenizer in (
        Tokenizer.from_words(["a", "b", EOS, UNK]),
        Tokenizer.from_characters(["a", "b", "\n", UNK]),
        Tokenizer.from_bytes(),
        Tokenizer.from_bpe(SAMPLE, 260),
    ):
        eos = tokenizer.eos
        assert [i == eos for i in tokenizer.encode("a\nb")] == [False, True, False]
        assert tokenizer.encode("\n\n").tolist() == [eos, eos]
        assert tokenizer.encode("").tolist() == []
        assert tokenizer.encode("").dtype == np.int64
        assert tokenizer.token(eos) == EOS


def test_punctuation_is_split_off_but_an_apostrophe_inside_a_word() -> None:
    words = [*"“”,-().", "don't", "she", "said", "well", "known", "snake_case", "हिन्दी"]
    tokenizer = Tokenizer.from_words([EOS, UNK, *words], pretokenised=False)
    tokens = tokenizer.encode("“don't”, she said: well-known snake_case() हिन्दी.\n")
    assert [tokenizer.token(i) for i in tokens] == [
        *("“", "don't", "”", ",", "she", "said", UNK, "well", "-", "known"),
        *("snake_case", "(", ")", "हिन्दी", ".", EOS),
    ]


def test_unknown_names_what_the_vocabulary_lacks() -> None:
    words = Tokenizer.from_words(["the", EOS, UNK])
    assert words.unknown("the cat\nthe dog cat <unk>") == ["cat", "dog"]
    assert Tokenizer.from_characters(["a", "\n", UNK]).unknown("abcab\n") == ["b", "c"]
    assert Tokenizer.from_words(["the", EOS, UNK], lowercase=True).unknown("The END") == ["end"]
    assert Tokenizer.from_bytes().unknown("é") == []


def test_a_printable_token_for_every_number() -> None:
    for tokenizer in (Tokenizer.from_bytes(), Tokenizer.from_bpe(SAMPLE, 300)):
        names = [tokenizer.token(i) for i in range(len(tokenizer))]
        assert all(name.isprintable() for name in names)
        assert len(set(names)) == len(names)


def test_a_saved_vocabulary_is_the_same_one(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    text = "The cat, the\tKat’s\n é"
    for tokenizer in (
        Tokenizer.from_words([EOS, UNK, "the", "Kat", "kat’s"], pretokenised=False, lowercase=True),
        Tokenizer.from_words([EOS, UNK, "cat,", "the"]),
        Tokenizer.from_characters(["\n", UNK, "a", "t"], lowercase=True),
        Tokenizer.from_bytes(),
        Tokenizer.from_bpe(SAMPLE, 270),
    ):
        tokenizer.save(path)
        again = Tokenizer.load(path)
        assert (again.kind, again.eos, again.unk) == (tokenizer.kind, tokenizer.eos, tokenizer.unk)
        assert len(again) == len(tokenizer)
        ids = again.encode(text).tolist()
        assert ids == tokenizer.encode(text).tolist()
        assert ids == tokenizers.Tokenizer.from_file(str(path)).encode(text).ids


def test_byte_pairs_are_learnt_alike_each_time() -> None:
    assert Tokenizer.from_bpe(SAMPLE, 300).to_json() == Tokenizer.from_bpe(SAMPLE, 300).to_json()


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": {"vocab": {}}}', "\xff"])
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(InfolmError, match=re.escape(str(path))):
        Tokenizer.load(path)
    with pytest.raises(InfolmError, match="No such file"):
        Tokenizer.load(tmp_path / "missing.json")


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    Tokenizer.from_words([EOS, UNK, "é"]).save(tmp_path / "tokenizer.json")
    saved = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    assert saved["model"]["type"] == "WordLevel"
    assert saved["model"]["vocab"] == {EOS: 0, UNK: 1, "é": 2}


def test_raw_text_in_the_words_of_a_pretokenised_vocabulary():
    words = ["<eos>", "<unk>", "fell", ".", "the", "mr.", "U.S.", "Bank"]
    tokenizer = Tokenizer.from_words(words, pretokenised=True)
    adapted = tokenizer.adapted
    assert adapted("The U.S. bank fell.") == "the U.S. bank fell ."
    assert adapted("Mr. Bank fell") == "mr. Bank fell"
    assert adapted("Zebra, fell.") == "Zebra , fell ."
    assert adapted("  the\tfell ") == "  the\tfell "
    cuts = Tokenizer.from_words(["<eos>", "<unk>", "fell", "."], pretokenised=False)
    assert cuts.adapted("Fell.") == "Fell."
    assert Tokenizer.from_characters(["a", "b"]).adapted("AB.") == "AB."


LOCATED = {
    "word": Tokenizer.from_words(["<eos>", "<unk>", "the", "cat", ".", "it's"], pretokenised=False),
    "low": Tokenizer.from_words(
        ["<eos>", "<unk>", "the", "cat", "."], pretokenised=False, lowercase=True
    ),
    "pretokenised": Tokenizer.from_words(["<eos>", "<unk>", "the", "cat", "cat.", "N", "n't"]),
    "char": Tokenizer.from_characters(["\n", "<unk>", *" abcthe."]),
    "lower characters": Tokenizer.from_characters(["\n", "<unk>", *" abcthei."], lowercase=True),
    "byte": Tokenizer.from_bytes(),
    "bpe": Tokenizer.from_bpe(["the cat sat on the mat. the cat!"] * 3, 280),
    "wordpiece": Tokenizer._of_pieces([*SPECIAL, "the", "c", "##at", "."], lowercase=True),
}


@pytest.mark.parametrize("kind", LOCATED)
@given(
    st.text(
        st.one_of(st.sampled_from("the cat. THE CAT.'İ\u00a0\t"), st.characters(codec="utf-8"))
    ).filter(lambda text: "\n" not in text)
)
def test_a_line_is_located_as_it_is_encoded(kind, text):
    tokenizer = LOCATED[kind]
    ids, spans = tokenizer.located(text)
    assert ids.tolist() == tokenizer.encode(tokenizer.adapted(text)).tolist()
    assert spans.shape == (len(ids), 2)
    assert (np.diff(spans[:, 0]) >= 0).all()
    assert ((spans[:, 0] >= 0) & (spans[:, 0] < spans[:, 1]) & (spans[:, 1] <= len(text))).all()


def test_places_are_those_of_the_line_as_written():
    tokenizer = LOCATED["pretokenised"]
    ids, spans = tokenizer.located(" The cat, cat. N")
    written = [" The cat, cat. N"[a:b] for a, b in spans]
    assert written == ["The", "cat", ",", "cat.", "N"]
    assert [tokenizer.token(i) for i in ids] == ["the", "cat", "<unk>", "cat.", "N"]


def test_which_tokens_say_that_a_word_has_ended():
    assert LOCATED["word"].begins.all()
    characters = LOCATED["char"]
    assert [characters.token(i) for i in np.flatnonzero(characters.begins)] == ["<eos>", " "]
    assert np.flatnonzero(LOCATED["byte"].begins).tolist() == [9, 10, 11, 12, 13, 32]
    pieces = LOCATED["wordpiece"]
    assert [pieces.token(i) for i in np.flatnonzero(~pieces.begins)] == ["##at"]
    pairs = LOCATED["bpe"]
    begins = {pairs.token(i) for i in np.flatnonzero(pairs.begins)}
    assert {" cat", " ", "<eos>"} <= begins
    assert all(token[0] in " <\\" for token in begins)


@pytest.mark.parametrize("kind", ["word", "wordpiece"])
def test_a_token_adds_the_end_of_what_both_decode_to(kind):
    tokenizer = LOCATED[kind]
    for before, token in product(range(len(tokenizer)), repeat=2):
        both = tokenizer.decode([before]) + tokenizer.following(token, before)
        assert both == tokenizer.decode([before, token])
