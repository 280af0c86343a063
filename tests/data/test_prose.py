"""Words of prose, and prose from words: one is the inverse of the other."""

import contextlib
import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infolm.data.prose import join
from infolm.data.sentence_splitter import split
from infolm.data.tokens import EOS, UNK, Tokenizer, splitter, word_pattern


def words(text: str) -> list[str]:
    cut = splitter(word_pattern(False, contractions=True))
    return [word for part in text.split() for word in cut(part)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Prince's", "Prince 's"),
        ("won't can't DON'T", "wo n't ca n't DO N'T"),
        ("don’t it’s", "do n’t it ’s"),
        ("I'm they'd've we'll you're", "I 'm they 'd 've we 'll you 're"),
        ("O'Brien's l'homme y'all", "O'Brien 's l'homme y'all"),
        ("the dogs' tails", "the dogs ' tails"),
        ("1,000.50 at 10:30, 3rd.", "1,000.50 at 10:30 , 3rd ."),
        ("the U.S. and e.g. this.", "the U.S. and e.g. this ."),
        ("well-known and/or", "well - known and / or"),
        ("我喜欢猫。", "我 喜 欢 猫 。"),
        ("カタカナとひらがな", "カ タ カ ナ と ひ ら が な"),
        ("ฉันชอบ", "ฉั น ช อ บ"),
        ("हिन्दी में लिखा है।", "हिन्दी में लिखा है ।"),
        ("Ελληνικά, русский; العربية؟", "Ελληνικά , русский ; العربية ؟"),
        ("snake_case n't 's '", "snake_case n't 's '"),
    ],
)
def test_words_of_prose(text, expected):
    assert words(text) == expected.split()


@given(st.text(max_size=40))
@example("won't Prince's 我's U.S.A. 1.5's n't'nt")
@example("ก'd'ก'll't")
def test_no_character_is_lost_and_the_file_says_the_same(text):
    found = words(text)
    assert "".join(found) == "".join(text.split())
    types = list(dict.fromkeys([EOS, UNK, *found]))
    tokenizer = Tokenizer.from_words(types, pretokenised=False, contractions=True)
    theirs = tokenizer._backend.encode(text.replace("\n", " ")).tokens
    assert theirs == found


NAMES = st.sampled_from(["Anna", "the Prince", "Zoë", "O'Brien", "Mr. Fox", "U.S.", "Москва"])
NOUNS = st.sampled_from(["cat", "well-known dog", "café", "men's room", "$3.50", "1,000", "50%"])
VERBS = st.sampled_from(["won't see", "didn't hear", "sees", "'s", "’ll have", "can’t"])


@st.composite
def sentences(draw):
    """Ordinary prose: quotation marks in pairs, hyphens inside words, dashes without blanks."""
    name, verb, noun = draw(NAMES), draw(VERBS), draw(NOUNS)
    blank = "" if verb[0] in "'’" else " "
    clause = f"{name}{blank}{verb} the {noun}"
    middle = draw(st.sampled_from([", ", "; ", "—", ": ", " (or not) ", " and ", '... "so" ']))
    end = draw(st.sampled_from([".", "!", "?", "...", "."]))
    sentence = f"{clause}{middle}{draw(NOUNS)}{end}"
    marks = ["{}", "“{}”", "({})", "‘{}’", *([] if '"' in sentence else ['"{}"'])]
    quoted = draw(st.sampled_from(marks))
    return quoted.format(sentence)


@given(st.lists(sentences(), min_size=1, max_size=4).map(" ".join))
def test_prose_comes_back_as_it_was(text):
    assert join(words(text)) == text


def test_scripts_without_blanks_come_back():
    for text in ("我喜欢猫。他说：「好」。", "ฉันชอบแมว", "これは本です。それも、本です。"):
        assert join(words(text)) == text


def real_prose() -> list[str]:
    """The Zen of Python, and sentences with dialogue as novels print it."""
    with contextlib.redirect_stdout(io.StringIO()) as zen:
        import this  # noqa: F401
    novel = [
        "Well, Prince, so Genoa and Lucca are now just family estates of the Buonapartes.",
        "“But how do you do? I see I have frightened you—sit down and tell me all the news.”",
        "It was in July, 1805, and the speaker was the well-known Anna Pávlovna Schérer.",
        "“Can one be well while suffering morally?” she said. “You’re staying, I hope?”",
        "“And the fete at the English ambassador’s? Today is Wednesday,” said the prince.",
        "Prince Vasíli wouldn’t, and couldn’t, answer: he'd been told (twice) not to.",
        "One of the guests—a short, stout man of about 50—didn't believe a word of it.",
    ]
    return [line for line in zen.getvalue().splitlines() if line and "--" not in line] + novel


@pytest.mark.parametrize("line", real_prose())
def test_real_prose_comes_back(line):
    assert join(words(line)) == line


@pytest.mark.data
def test_sentences_of_wikipedia_come_back_but_for_spaced_dashes_and_the_like(real):
    real("xquad")
    tree = json.loads((Path(os.environ["INFOLM_DATA"]) / "xquad" / "xquad.en.json").read_text())
    texts = [p["context"] for d in tree["data"] for p in d["paragraphs"]]
    lines = [sentence for text in texts for sentence in split(text)]
    same = sum(join(words(line)) == line for line in lines) / len(lines)
    assert same > 0.94  # the others have formulas, footnotes or spaced dashes


def test_corpora_in_treebank_style_read_as_prose():
    assert join("mr. smith 's dog did n't bark , he said .".split()) == (
        "mr. smith's dog didn't bark, he said."
    )


def test_a_tokenizer_writes_prose_line_by_line():
    text = "It won't do.\n“No,” he said."
    types = list(dict.fromkeys([EOS, UNK, *words(text)]))
    tokenizer = Tokenizer.from_words(types, pretokenised=False, contractions=True)
    assert tokenizer.prose(tokenizer.encode(text)) == text
    assert Tokenizer.from_bytes().prose(list(b"a  b .")) == "a  b ."
