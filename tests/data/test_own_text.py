"""One's own text: case kept, lines taken for what they are, and all of it said."""

import textwrap

import pytest

from infolm.config import load_recipe
from infolm.data.corpora import DataConfig, load
from infolm.data.own_text import described
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError

PARAGRAPH = (
    "The Prince's cat won't sleep in the old house by the river. Mr. Fox sees it, and calls the "
    "dog. Nobody hears them at night, but the song of the river goes on and on and on. "
) * 4


@pytest.fixture
def book(tmp_path):
    """Paragraphs as Gutenberg prints them."""
    path = tmp_path / "book.txt"
    path.write_text("\n\n".join([textwrap.fill(PARAGRAPH, 70)] * 12) + "\n")
    return path


def test_case_is_kept_unless_a_person_says_otherwise(book):
    assert load_recipe("awd-lstm/demo").data.lowercase
    assert not load_recipe("awd-lstm/demo", [f"data.path={book}"]).data.lowercase
    given = [f"data.path={book}", "data.lowercase=true"]
    assert load_recipe("awd-lstm/demo", given).data.lowercase


def test_a_persons_own_recipe_is_taken_at_its_word(book, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        f"data: {{path: {book}, lowercase: true}}\noptimiser: {{kind: adam, learning_rate: 0.1}}\n"
    )
    assert load_recipe(str(own)).data.lowercase
    assert load_recipe(str(own), [f"data.path={book}"]).data.lowercase


def test_bytes_need_no_second_override():
    recipe = load_recipe("awd-lstm/demo", ["data.tokens=byte"])
    assert (recipe.data.vocabulary, recipe.data.lowercase) == (None, False)
    assert "data.vocabulary at its default" in recipe.brought
    with pytest.raises(InfolmError, match="leave out vocabulary"):
        load_recipe("awd-lstm/demo", ["data.tokens=byte", "data.vocabulary=300"])


def test_words_are_cut_as_in_the_treebank(book):
    tokenizer = load(DataConfig(path=book)).tokenizer
    assert tokenizer.unknown("Prince 's wo n't") == []
    assert "won't" not in tokenizer._ids
    former = load(DataConfig(path=book, contractions=False)).tokenizer
    assert "won't" in former._ids


def test_a_run_of_before_reads_its_text_as_it_did(book, tmp_path):
    """Its recipe lacks the new keys, and its vocabulary has its own rule."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "corpus.json").write_text("{}")
    tree = f"data: {{path: {book}}}\noptimiser: {{kind: adam, learning_rate: 0.1}}\n"
    (run / "recipe.yaml").write_text(tree)
    config = load_recipe(str(run / "recipe.yaml")).data
    assert (config.contractions, config.lines) == (False, "sentences")
    load(config).tokenizer.save(run / "tokenizer.json")
    again = load(DataConfig(path=book), tokenizer=Tokenizer.load(run / "tokenizer.json"))
    assert "won't" in again.tokenizer._ids
    assert again.splits["train"].unknown == 0


def test_corpora_by_name_are_cut_as_before():
    assert load(DataConfig(corpus="python-docs", vocabulary=5000)).fingerprint == (
        load(DataConfig(corpus="python-docs", vocabulary=5000, contractions=False)).fingerprint
    )


def test_wrapped_lines_become_sentences(book):
    corpus = load(DataConfig(path=book, lines="wrapped"))
    text = corpus.tokenizer.prose(corpus.splits["train"].tokens)
    assert text.startswith("The Prince's cat won't sleep in the old house by the river.\nMr. Fox ")
    assert "\n\n" not in text


def test_paragraphs_become_sentences_in_files_and_folders(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(f"{PARAGRAPH}\n" * 3)
    corpus = load(DataConfig(path=folder, lines="paragraphs"))
    assert corpus.splits["valid"].lines == 3 * 12
    (tmp_path / "one.txt").write_text(f"{PARAGRAPH}\n" * 30)
    assert (
        load(DataConfig(path=tmp_path / "one.txt", lines="paragraphs")).splits["train"].lines > 300
    )


def test_what_was_done_is_said(book):
    config = DataConfig(path=book)
    said = described(config, load(config))
    assert said.startswith(f"{book}: case kept, all ")
    assert "(0.0% of the tokens are <unk>), contractions cut (wo n't), lines taken as" in said
    assert "hard-wrapped at 70 characters: data.lines=wrapped joins them" in said
    config = DataConfig(path=book, lowercase=True, vocabulary=10, lines="wrapped")
    corpus = load(config)
    said = described(config, corpus)
    assert "lower-cased, cut to the 10 most frequent words" in said
    splits = corpus.splits.values()
    share = sum(s.unknown for s in splits) / sum(len(s.tokens) for s in splits)
    assert f"({share:.1%} of the tokens are <unk>)" in said
    assert said.endswith("lines joined into paragraphs and those split into sentences")


def test_lines_of_several_sentences_are_noticed(tmp_path):
    path = tmp_path / "paragraphs.txt"
    path.write_text(f"{PARAGRAPH}\n" * 30)
    config = DataConfig(path=path)
    assert "(they have 12.0 each: data.lines=paragraphs splits" in described(config, load(config))


def test_bad_lines_are_refused_with_file_and_line(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"one\ntwo caf\xe9\n" * 20)
    with pytest.raises(InfolmError, match=r"latin\.txt, line 2, is not UTF-8 text"):
        load(DataConfig(path=path, lines="wrapped"))
    with pytest.raises(InfolmError, match="lines: wrapped is for your own text"):
        load_recipe("awd-lstm/demo", ["data.lines=wrapped"])
