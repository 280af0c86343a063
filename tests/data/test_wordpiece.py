"""Word pieces: BERT's own rules, the same from any process, readable by transformers."""

import json
import subprocess
import sys

import pytest

from infolm.data.tokens import SPECIAL, Tokenizer
from infolm.errors import InfolmError

TEXT = (
    "The cat sings, and the cats sang; singing is what a cat does.\n"
    "A dog hears the singing cat <unk> and follows it!\n"
)
SAMPLES = [
    "The cats were singing",
    "Café naïve ÀÉÎ Straße, e\u0301",
    "中文 and 日本語text",
    "don't stop-here... (now) [maybe] $5.00 a_b",
    "tabs\tand\u00a0blanks \u200b zero\x00null",
    "antidisestablishmentarianism" * 5,
    "",
    " ",
    "🙂 emoji",
]


@pytest.fixture(scope="module")
def learnt():
    return Tokenizer.from_wordpiece([TEXT] * 3, 300, lowercase=True)


def bert_folder(folder, lowercase=True):
    """As a checkpoint of BERT has it: vocab.txt, and whether letters are lowered."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEÀÉéïß0123456789.,-'()$_[];!中文日"
    words = ["the", "The", "cat", "sing", "cafe", "Café", "##s", "##ing", "##e", "and", "were"]
    pieces = [*SPECIAL[:1], "[unused0]", *SPECIAL[1:], *words, *letters]
    pieces += ["##" + c for c in letters]
    pieces = list(dict.fromkeys(pieces))
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    return folder


# -- learnt on a text ---------------------------------------------------------------------------


def test_the_special_tokens_are_the_first_and_the_vocabulary_keeps_to_its_size(learnt):
    assert [learnt.token(i) for i in range(5)] == list(SPECIAL)
    assert tuple(learnt.special) == (0, 1, 2, 3, 4)
    assert (learnt.eos, learnt.unk) == (learnt.special.sep, learnt.special.unk)
    assert len(learnt) <= 300
    assert learnt.kind == "wordpiece"
    continues = [learnt.token(i).startswith("##") for i in range(len(learnt))]
    assert learnt.continues.tolist() == continues
    assert any(continues)


def test_a_newline_is_a_sep_and_unk_is_unk_and_neither_teaches_a_piece(learnt):
    special = learnt.special
    ids = learnt.encode("cat\n\ncat <unk>\n").tolist()
    (cat,) = learnt.encode("cat")
    assert ids == [cat, special.sep, special.sep, cat, special.unk, special.sep]
    assert learnt.encode("cat\n").tolist() == [cat, special.sep]
    assert learnt.encode("").tolist() == []
    pieces = {learnt.token(i) for i in range(len(learnt))}
    assert "<" not in pieces
    assert ">" not in pieces
    assert special.unk in learnt.encode("cat § cat")


def test_decoding_joins_pieces_and_breaks_lines(learnt):
    text = "the cat sings , and\nthe cats sang"
    assert learnt.decode(learnt.encode(text)) == text
    assert learnt.decode(learnt.encode("The CAT.\n")) == "the cat .\n"


def test_pieces_say_where_they_stand_in_the_text(learnt):
    text = "The cats,  SINGING"
    ids, offsets = learnt.pieces(text)
    assert ids.tolist() == learnt.encode(text).tolist()
    for number, (first, end) in zip(ids, offsets, strict=True):
        assert learnt.token(number).removeprefix("##") == text[first:end].lower()
    empty, nowhere = learnt.pieces("")
    assert empty.shape == (0,)
    assert nowhere.shape == (0, 2)


LEARN = """
import sys
from infolm.data.tokens import Tokenizer
print(Tokenizer.from_wordpiece([sys.argv[1]] * 3, 300, lowercase=True).to_json())
"""


def test_another_process_learns_the_same(learnt):
    for seed in ("1", "2"):
        command = [sys.executable, "-c", LEARN, TEXT]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            encoding="utf-8",
            env={"PYTHONHASHSEED": seed},
        )
        assert done.stdout.strip() == learnt.to_json()


def test_the_saved_file_is_the_same_tokenizer_here_and_in_transformers(learnt, tmp_path):
    from transformers import PreTrainedTokenizerFast

    path = tmp_path / "tokenizer.json"
    learnt.save(path)
    again = Tokenizer.load(path)
    assert again.to_json() == learnt.to_json()
    assert again.encode(TEXT).tolist() == learnt.encode(TEXT).tolist()
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path))
    special = learnt.special
    for text in SAMPLES:
        own = learnt.encode(text).tolist()
        assert theirs(text)["input_ids"] == [special.cls, *own, special.sep]
    pair = theirs("the cat", "a dog", return_token_type_ids=True)["token_type_ids"]
    second = len(learnt.encode("a dog")) + 1
    assert pair == [0] * (len(pair) - second) + [1] * second


# -- a checkpoint's -----------------------------------------------------------------------------


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_vocabulary_of_a_bert_gives_its_tokens(tmp_path, lowercase):
    from transformers import BertTokenizer

    folder = bert_folder(tmp_path, lowercase)
    ours = Tokenizer.from_bert(folder)
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    theirs = BertTokenizer(vocab=numbers, do_lower_case=lowercase)
    assert ours.lowercase == lowercase
    assert ours.special.unk == numbers["[UNK]"] == 2
    for text in SAMPLES:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text).tolist() == expected, text
    assert ours.encode("cat\ncat").tolist() == [numbers["cat"], numbers["[SEP]"], numbers["cat"]]


def test_a_folder_that_infolm_saved_is_read_from_its_file(learnt, tmp_path):
    learnt.save(tmp_path / "tokenizer.json")
    assert Tokenizer.from_bert(tmp_path).to_json() == learnt.to_json()


def test_what_is_no_bert_is_refused(tmp_path):
    with pytest.raises(InfolmError, match=r"no vocabulary that can be read .* vocab\.txt"):
        Tokenizer.from_bert(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\nthe\n")
    with pytest.raises(InfolmError, match=r"lacks \[CLS\], \[SEP\], \[MASK\]"):
        Tokenizer.from_bert(tmp_path)
    Tokenizer.from_bytes().save(tmp_path / "tokenizer.json")
    with pytest.raises(InfolmError, match="no vocabulary of word pieces"):
        Tokenizer.from_bert(tmp_path)
