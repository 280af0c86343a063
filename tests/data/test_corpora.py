import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from infolm.data import corpora, sources
from infolm.data import registry as registered
from infolm.data.corpora import Corpus, DataConfig, load, read_text, registry
from infolm.data.tokens import EOS, UNK, Tokenizer
from infolm.errors import InfolmError, RunError

LINES = [f"the {i:02} cat, sat on a mat.\n" for i in range(100)]


def own(path: Path, **settings: object) -> Corpus:
    return load(DataConfig.model_validate({"path": path, **settings}))


def text_of(corpus: Corpus) -> dict[str, str]:
    return {name: corpus.tokenizer.decode(split.tokens) for name, split in corpus.splits.items()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.txt").write_text("".join(LINES), encoding="utf-8")
    return tmp_path / "mine.txt"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "mine"
    path.mkdir()
    (path / "train.txt").write_text("a b b\nc\n")
    (path / "dev").write_text("a d\n")
    (path / "wiki.test.tokens").write_text("b\n")
    return path


def test_a_file_is_split_at_line_ends_in_its_order(file: Path) -> None:
    corpus = own(file, tokens="char")
    texts = text_of(corpus)
    assert "".join(texts.values()) == "".join(LINES)
    assert all(text.endswith("\n") for text in texts.values())
    assert [split.lines for split in corpus.splits.values()] == [90, 5, 5]
    assert list(texts) == ["train", "valid", "test"]
    assert corpus.name == "mine"


def test_a_folder_has_its_splits(folder: Path) -> None:
    corpus = own(folder)
    assert text_of(corpus) == {"train": "a b b\nc\n", "valid": f"a {UNK}\n", "test": "b\n"}
    assert corpus.splits["valid"].unknown == 1
    assert [corpus.tokenizer.token(i) for i in range(len(corpus.tokenizer))] == [
        *(EOS, "b", "a", "c", UNK)
    ]


def test_punctuation_is_split_off_ones_own_text_unless_it_is_pretokenised(file: Path) -> None:
    assert own(file).tokenizer.unknown("cat , mat .") == []
    assert own(file, pretokenised=True).tokenizer.unknown("cat, mat .") == ["mat", "."]


def test_settings_are_obeyed(file: Path) -> None:
    file.write_text(file.read_text().replace("the", "The"))
    assert own(file, lowercase=True).tokenizer.unknown("THE the") == []
    assert len(own(file, vocabulary=5).tokenizer) == 5
    assert own(file, vocabulary=5).splits["valid"].unknown > 0
    assert len(own(file, tokens="byte").tokenizer) == 256
    bpe = own(file, tokens="bpe", vocabulary=260)
    assert len(bpe.tokenizer) == 260
    assert "".join(text_of(bpe).values()) == file.read_text()


def test_a_given_vocabulary_is_used(file: Path, folder: Path) -> None:
    given = own(file).tokenizer
    corpus = load(DataConfig(path=folder), tokenizer=given)
    assert corpus.tokenizer.to_json() == given.to_json()
    assert text_of(corpus)["train"] == f"a {UNK} {UNK}\n{UNK}\n"
    assert corpus.fingerprint != own(folder).fingerprint


def test_the_fingerprint_is_of_text_and_settings(file: Path, tmp_path: Path) -> None:
    first = own(file).fingerprint
    assert own(file).fingerprint == first
    assert own(file, lowercase=True).fingerprint != first
    copy = tmp_path / "copy"
    copy.write_bytes(file.read_bytes())
    assert own(copy).fingerprint == first
    file.write_text("".join(LINES[::-1]))
    assert own(file).fingerprint != first


def test_the_text_is_tokenised_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = text_of(own(file))
    monkeypatch.setattr(corpora, "_tokenise", None)
    assert text_of(own(file)) == first


@pytest.mark.parametrize("name", ["train.tokens", "valid.tokens", "tokenizer.json"])
@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:-3] + b"\0\0\0"])
def test_damaged_tokens_are_made_anew_with_a_sentence(
    file: Path,
    name: str,
    damage: Callable[[bytes], bytes],
    folders: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    corpus = own(file)
    first = text_of(corpus)
    damaged = folders / "cache" / corpus.fingerprint / name
    damaged.write_bytes(damage(damaged.read_bytes()))
    assert text_of(own(file)) == first
    assert "tokenising the text again" in capsys.readouterr().err
    assert text_of(own(file)) == first
    assert not capsys.readouterr().err


def test_the_tokens_of_a_split_are_checked_when_it_is_first_asked_for(
    file: Path, folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("infolm.data.store.BLOCK", 8)
    first = text_of(own(file))
    path = folders / "cache" / own(file).fingerprint / "train.tokens"
    path.write_bytes(path.read_bytes()[:-12] + bytes(12))  # valid tokens, and others
    corpus = own(file)
    assert len(corpus.splits["valid"].tokens)
    assert capsys.readouterr().err == ""  # who reads the validation split pays for that alone
    assert text_of(corpus) == first
    assert "does not match its checksum from byte" in capsys.readouterr().err
    assert text_of(own(file)) == first


def test_a_half_made_folder_is_completed(file: Path, folders: Path) -> None:
    corpus = own(file)
    (folders / "cache" / corpus.fingerprint / "test.tokens").unlink()
    assert len(own(file).splits["test"].tokens) == len(corpus.splits["test"].tokens)
    assert [path.name for path in (folders / "cache").iterdir()] == [corpus.fingerprint]


def test_two_processes_at_once_do_no_harm(file: Path) -> None:
    program = (
        "import sys, pathlib; from infolm.data.corpora import DataConfig, load;"
        "print(load(DataConfig(path=pathlib.Path(sys.argv[1]))).splits['train'].tokens.sum())"
    )
    run = [sys.executable, "-c", program, str(file)]
    started = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    results = {process.communicate(timeout=60)[0].strip() for process in started}
    assert results == {str(own(file).splits["train"].tokens.sum())}


def test_the_digest_of_a_large_file_is_remembered_until_it_changes(
    file: Path, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders / "cache").mkdir()
    monkeypatch.setattr(sources, "_LARGE", 0)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert sources.digest(file) == digest
    with monkeypatch.context() as patch:
        patch.setattr(sources, "sha256", None)
        assert sources.digest(file) == digest
    file.write_text("other\n")
    assert sources.digest(file) != digest


# Bad input


def refused(match: str, path: Path, **settings: object) -> None:
    with pytest.raises(InfolmError, match=match) as caught:
        own(path, **settings)
    assert "\n" not in str(caught.value)


def test_bad_texts_are_refused_in_a_sentence(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "bad.txt"
    refused(r"bad\.txt does not exist", path)
    path.write_bytes(b"")
    refused(r"bad\.txt is empty", path)
    path.write_bytes(b"one line only\n")
    refused("too few lines", path)
    path.write_bytes(b"a\n" * 100 + b"\xff\n" + b"a\n" * 100)
    refused(r"bad\.txt is not UTF-8 text: byte 200 ", path)
    refused(r"bad\.txt is not UTF-8 text: byte 200 ", path, tokens="char")
    refused(r"bad\.txt is not UTF-8 text: byte 200 ", path, tokens="bpe", vocabulary=300)
    (folder / "wiki.test.tokens").write_text("  ")
    refused(r"test split of .* has no token", folder)
    (folder / "wiki.test.tokens").write_text("")
    refused(r"wiki\.test\.tokens is empty", folder)
    (folder / "wiki.test.tokens").unlink()
    refused(r"has files named train and none named test: name one", folder)


def test_nothing_is_left_of_a_refused_text(tmp_path: Path, folders: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"a\n" * 300 + b"\xff\n")
    refused("not UTF-8", tmp_path / "bad.txt")
    assert list((folders / "cache").iterdir()) == []


def test_bad_settings_are_refused() -> None:
    for settings, match in [
        ({"vocabulary": 0}, "greater than or equal to 3"),
        ({"vocabulary": -5}, "greater than or equal to 3"),
        ({"tokens": "bpe"}, "bpe needs a vocabulary"),
        ({"tokens": "bpe", "vocabulary": 100}, "at least 256"),
        ({"tokens": "byte", "vocabulary": 256}, "always has 256 types"),
        ({"tokens": "letters"}, "'word', 'char', 'byte', 'bpe' or 'wordpiece'"),
        ({"vocab": 100}, "no key 'vocab', did you mean 'vocabulary'"),
    ]:
        with pytest.raises(ValidationError, match=match):
            DataConfig.model_validate(settings)
    assert all(field.description for field in DataConfig.model_fields.values())


def test_an_unknown_corpus_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InfolmError, match=r"did you mean 'wikitext-2'\?.*there are ptb, "):
        load(DataConfig(corpus="wikitext2"))
    with pytest.raises(InfolmError, match=r"data\.path"):
        load(DataConfig())


def test_a_cache_that_cannot_be_written_is_one_sentence(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFOLM_CACHE", str(file / "inside a file"))
    with pytest.raises(RunError, match="INFOLM_CACHE"):
        own(file)


# Registered corpora


def test_the_registry_is_complete() -> None:
    known = registry()
    assert list(known) == [
        *("ptb", "ptb-char", "wikitext-2", "wikitext-103", "enwik8", "text8"),
        *("mwc-en", "mwc-fi", "yelp", "xquad", "babylm-10m"),
        *("python-docs", "markov", "hmm", "grammar", "reverse-copy", "uniform"),
    ]
    for info in known.values():
        assert info.title
        assert info.licence
        assert info.source.startswith(("http", "infolm."))
        assert len(info.files) in ({1} if info.sizes else {0, 1, 3, 4, 18})
        for download in info.downloads:
            assert int(download.sha256, 16)
            assert len(download.sha256) == 64


@pytest.mark.parametrize("tokens", ["byte", "char"])
def test_a_corpus_of_one_file_is_cut_at_fixed_bytes(
    tokens: str, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = registered.CorpusInfo(
        *("tiny", "", "", "", "byte", 256), False, folder="tiny", files=("tiny",), sizes=(9, 4, 4)
    )
    monkeypatch.setattr(registered, "_REGISTRY", (info,))
    (folders / "data" / "tiny").mkdir(parents=True)
    (folders / "data" / "tiny" / "tiny").write_text("abcdefghéijklmno")  # é is bytes 8 and 9
    corpus = load(DataConfig.model_validate({"corpus": "tiny", "tokens": tokens}))
    sizes = [split.bytes for split in corpus.splits.values()]
    assert sizes == ([9, 4, 4] if tokens == "byte" else [10, 3, 4])


@pytest.mark.parametrize("language", ["en", "fi"])
def test_wikipedia_articles_of_two_languages_are_read_as_they_are_published(
    language: str, folders: Path
) -> None:
    texts = {"tr": "= Äiti =\nAn e\u0301tude .\n", "va": "ä b\n", "te": "Ö\n"}
    folder = folders / "data" / "mwc" / f"wiki_{language}" / "ptb_format_large"
    folder.mkdir(parents=True)
    for part, text in texts.items():
        (folder / f"wiki_{language}.{part}.raw.unk").write_text(text, encoding="utf-8")
        (folder / f"wiki_{language}.{part}").write_text("lower case, for words\n")
    corpus = load(DataConfig(corpus=f"mwc-{language}", tokens="char"))
    assert text_of(corpus)["train"] == texts["tr"]
    sizes = {name: len(split.tokens) for name, split in corpus.splits.items()}
    assert sizes == {"train": len(texts["tr"]), "valid": len(texts["va"]), "test": len(texts["te"])}


def test_a_corpus_that_is_not_downloaded_says_where_its_files_go(folders: Path) -> None:
    with pytest.raises(InfolmError, match=r"mwc/wiki_fi/ptb_format_large/wiki_fi\.tr\.raw\.unk"):
        load(DataConfig(corpus="mwc-fi", tokens="char"))


def test_the_users_folder_is_looked_at_after_the_data_folder(folders: Path) -> None:
    for root, word in (("user", "later"), ("data", "sooner")):
        (folders / root / "ptb").mkdir(parents=True)
        for split in sources.SPLITS:
            (folders / root / "ptb" / f"ptb.{split}.txt").write_text(f"{word}\n")
        assert text_of(load(DataConfig(corpus="ptb")))["train"] == f"{word}\n"


def test_python_docs_is_english_prose(folders: Path) -> None:
    corpus = load(DataConfig(corpus="python-docs"))
    assert 0.8 < len(corpus.tokenizer) / registry()["python-docs"].types < 1.25
    words = {name: split.words for name, split in corpus.splits.items()}
    assert 200_000 < sum(words.values()) < 500_000
    assert 0.85 < words["train"] / sum(words.values()) < 0.95
    assert min(words.values()) > 0.03 * sum(words.values())
    texts = [
        path.read_text(encoding="utf-8") for path in (folders / "cache" / "texts").rglob("*.txt")
    ]
    lines = [line for text in texts for line in text.splitlines()]
    assert len(lines) == len(set(lines))
    assert not any(line.startswith(">>>") or "::=" in line for line in lines)
    common = Counter(word for line in lines for word in line.split()).most_common(5)
    assert common[0][0] == "the"


@pytest.mark.data
def test_penn_treebank_has_the_known_counts(real: Callable[[str], None]) -> None:
    real("ptb")
    corpus = load(DataConfig(corpus="ptb"))
    assert [len(s.tokens) for s in corpus.splits.values()] == [929_589, 73_760, 82_430]
    assert [s.lines for s in corpus.splits.values()] == [42_068, 3_370, 3_761]
    assert [s.unknown for s in corpus.splits.values()] == [0, 0, 0]
    assert len(corpus.tokenizer) == registry()["ptb"].types == 10_000
    assert [corpus.tokenizer.token(i) for i in range(5)] == ["the", UNK, EOS, "N", "of"]
    for split in corpus.splits.values():
        assert split.tokens.dtype == np.uint16
        assert len(split.tokens) == split.words + split.lines


@pytest.mark.data
def test_penn_treebank_in_characters_has_the_known_counts(real: Callable[[str], None]) -> None:
    real("ptb")
    corpus = load(DataConfig(corpus="ptb-char", tokens="char"))
    assert [len(s.tokens) for s in corpus.splits.values()] == [5_017_482, 393_042, 442_423]
    assert len(corpus.tokenizer) == registry()["ptb-char"].types == 50 + 1  # and <unk>
    assert corpus.tokenizer.decode(corpus.splits["valid"].tokens[:13]) == "consumers_may"
    counts = np.bincount(corpus.splits["train"].tokens, minlength=51)
    assert np.flatnonzero(counts == 0).tolist() == [corpus.tokenizer.unk]


def test_bad_and_good_reviews_are_mixed_evenly(folders: Path) -> None:
    folder = folders / "data" / "yelp"
    folder.mkdir(parents=True)
    for name, words in (("test.0", "ab"), ("test.1", "cdef"), ("dev.0", "gh"), ("dev.1", "ijk")):
        (folder / f"sentiment.{name}").write_text("\n".join(words))  # without a last newline
    texts = sources.known_texts(registry()["yelp"], "word", lambda *_: None)
    lines = {split: text.path.read_text().splitlines() for split, text in texts.items()}
    assert lines == {"train": list("cadebf"), "valid": ["g", "i"], "test": ["j", "h", "k"]}
    # What is made is made anew when a file changes.
    (folder / "sentiment.dev.0").write_text("l\nm\n")
    again = sources.known_texts(registry()["yelp"], "word", lambda *_: None)
    assert again["valid"].path.read_text() == "l\ni\n"


@pytest.mark.data
def test_yelp_has_the_known_counts(real: Callable[[str], None]) -> None:
    real("yelp")
    corpus = load(DataConfig(corpus="yelp"))
    lines = [split.lines for split in corpus.splits.values()]
    assert lines == [50_278 + 76_392, 12_639 + 19_102, 12_639 + 19_103]
    assert sum(lines) == 190_153
    assert sum(len(s.tokens) for s in corpus.splits.values()) == 1_696_614 + 190_153
    assert len(corpus.tokenizer) == registry()["yelp"].types == 9_081 + 2  # and <unk>, <eos>
    assert corpus.splits["train"].unknown == 0
    assert corpus.tokenizer.decode(corpus.splits["valid"].tokens[:12]).startswith("staff behind")


@pytest.mark.data
def test_wikitext_2_has_the_known_counts(real: Callable[[str], None]) -> None:
    real("wikitext-2")
    corpus = load(DataConfig(corpus="wikitext-2"))
    assert [len(s.tokens) for s in corpus.splits.values()] == [2_088_628, 217_646, 245_569]
    assert corpus.splits["train"].lines == 36_718
    assert len(corpus.tokenizer) == registry()["wikitext-2"].types == 33_278


def test_the_first_lines_of_the_training_split_alone(tmp_path: Path) -> None:
    """As if the rest of them were not there: the same tokens and vocabulary; other splits whole."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder, lines in ((whole, LINES), (cut, LINES[:7])):
        folder.mkdir()
        (folder / "train.txt").write_text("".join(lines))
        for split in ("valid", "test"):
            (folder / f"{split}.txt").write_text("".join(LINES[:20]))
    found, expected = own(whole, train_lines=7), own(cut)
    assert text_of(found) == text_of(expected)
    assert found.tokenizer.to_json() == expected.tokenizer.to_json()
    assert found.fingerprint != own(whole).fingerprint
    assert text_of(own(whole, train_lines=100)) == text_of(own(whole))


def test_lines_of_a_single_file_are_those_of_its_training_part(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("".join(LINES))
    assert text_of(own(path, train_lines=90)) == text_of(own(path))
    with pytest.raises(InfolmError, match=r"train_lines is 91, .* has 90 lines"):
        own(path, train_lines=91)


def test_another_text_in_a_vocabulary(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The cat, sat\nthe dög")
    words = Tokenizer.from_words(["<eos>", "<unk>", "the", "cat", ","])
    split = read_text(path, words)
    assert words.decode(split.tokens) == "the cat , <unk>\nthe <unk>\n"
    assert (split.lines, split.words, split.characters, split.bytes) == (2, 5, 21, 22)
    assert split.unknown == 2
    path.write_bytes(b"\xff\n")
    assert read_text(path, Tokenizer.from_bytes()).tokens.tolist() == [255, 10]
    with pytest.raises(InfolmError, match="not UTF-8"):
        read_text(path, words)
