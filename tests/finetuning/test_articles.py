"""Pairs of sentences of the same article, and of two."""

from collections import Counter
from pathlib import Path

import pytest
from encoder_tiny import tiny_encoder

from infolm.errors import InfolmError
from infolm.finetuning import articles
from infolm.finetuning.articles import MOST, read_articles
from infolm.finetuning.problems import Options, read_problem


def sentence(*words: object) -> str:
    """Of ten words; the first says where it comes from."""
    return " ".join([str(word) for word in words] + ["x"] * (9 - len(words)) + ["."])


def wikitext(folder: Path, paragraphs: dict[str, int], prefix: str = "") -> Path:
    """Articles of so many paragraphs of two sentences, each with a table after the first."""
    folder.mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        lines = [""]
        for title, count in paragraphs.items():
            lines += [f" = {prefix}{title} = ", ""]
            for n in range(count):
                where = f"{split}/{title}/{n}"
                lines += [f" {sentence(where)} Too short . {sentence(where)} ", ""]
                lines += [" Key : Pld ", " = Played , W = ", ""] * (n == 0)
            lines += [" = = Notes = = ", ""]
        (folder / f"wiki.{split}.tokens").write_text("\n".join(lines))
    return folder


def test_pairs_are_of_one_article_or_of_two(tmp_path):
    found = read_articles(wikitext(tmp_path, {"a": 9, "b": 40, "c": 3, "d": 16, "e": 33, "f": 16}))
    for split, examples in (("train", found.train), ("dev", found.dev["dev"])):
        whence = [
            (each.text.split()[0].split("/"), each.pair.split()[0].split("/")) for each in examples
        ]
        for each, (first, second) in zip(examples, whence, strict=True):
            assert each.label == (first[:2] == second[:2])
            assert first != second
        assert 2 * sum(each.label for each in examples) == len(examples)
        sentences = [tuple(part) for pair in whence for part in pair]
        assert len(set(sentences)) == len(sentences)
        used = Counter(part[:2] for part in sentences)
        assert all(count <= MOST for count in used.values())
        splits = {part[0] for part in sentences}
        assert splits == ({"train"} if split == "train" else {"valid", "test"})
    # of 9, 40, 3, 16, 33 and 16 paragraphs 8, 32, 0, 16, 32 and 16 give a sentence
    assert len(found.train) == (8 + 32 + 16 + 32 + 16) / 2
    assert found == read_articles(tmp_path)


def test_a_title_stands_between_empty_lines():
    lines = [
        " = A = ",
        "",
        f" {sentence('one')} ",
        " = Played , W = ",
        " = = Part = = ",
        f"{sentence('two')} {sentence('three')}",
        "",
        " = B = ",
    ]
    empty, first, second = articles.articles(lines)
    assert (empty, second) == ([], [])
    assert first == [[sentence("one")], [sentence("two"), sentence("three")]]


def test_too_few_articles_are_refused(tmp_path):
    with pytest.raises(InfolmError, match=r"cannot be read: give the folder of WikiText's files"):
        read_articles(tmp_path)
    # one article has more than half of all, so that its sentences would meet each other
    with pytest.raises(InfolmError, match="too few articles"):
        read_articles(wikitext(tmp_path, {"a": 30, "b": 4, "c": 4}))


def test_it_is_a_task_of_pairs(tmp_path):
    folder = wikitext(tmp_path, {"a": 8, "b": 8, "c": 8})
    problem = read_problem("same-article", folder, tiny_encoder(), Options(share=0.5))
    assert problem.counts["train"]["examples"] == 6
    assert problem.majority == {"dev": {"accuracy": 0.5}}
    assert problem.train.second.max() < problem.train.lengths.max()
