"""Are two sentences of the same article? A task that needs no labels but the text's headings.

    read_articles(Path("wikitext-2"))     # WikiText's files: wiki.train.tokens and so on

An article begins with a line " = Title = " between empty ones. Of each at most `MOST` sentences are
drawn, each from another paragraph. Half of them make pairs with each other, and half as many pairs
with sentences of other articles. No sentence is in two pairs, and no article in two splits. So no
answer can be read off one sentence, and each answer is as frequent.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from infolm.errors import InfolmError
from infolm.finetuning.tasks import Example, Labelled, Task

ARTICLES = Task(
    "same-article", "same article", ("first", "second"), "same", ("0", "1"), ("accuracy",)
)
MOST = 32
WORDS = range(8, 41)
"""Those of a sentence."""
SEED = 3
"""Of what is drawn: the same in every run."""

_TITLE = re.compile(r"\s*= [^=]+ =\s*")
_END = re.compile(r"(?<=\s[.?!])\s+")

Article = list[list[str]]
"""The sentences of each paragraph."""


def read_articles(folder: Path) -> Labelled:
    """Pairs of sentences; class 1: of the same article. Dev is of the valid and the test split."""
    return Labelled(
        _pairs(folder, "train"), {"dev": _pairs(folder, "valid") + _pairs(folder, "test")}, {}
    )


def _pairs(folder: Path, split: str) -> list[Example]:
    path = folder / f"wiki.{split}.tokens"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InfolmError(
            f"{path} cannot be read: give the folder of WikiText's files, wiki.train.tokens, "
            "wiki.valid.tokens and wiki.test.tokens"
        ) from error
    made = pairs(list(articles(text.split("\n"))))
    if not made:
        raise InfolmError(
            f"{path} has too few articles of four paragraphs with a sentence of {WORDS[0]} to "
            f"{WORDS[-1]} words: give more of WikiText; an article begins with a line ' = Title = '"
        )
    return [Example(a, b, same, f"pair {n:,} of {path}") for n, (a, b, same) in enumerate(made, 1)]


def articles(lines: Sequence[str]) -> Iterator[Article]:
    """The paragraphs of each article that have a sentence of a fit length, headings left out."""
    article: Article = []
    for before, line, after in zip(["", *lines[:-1]], lines, [*lines[1:], ""], strict=True):
        if _TITLE.fullmatch(line) and not (before + after).strip():  # tables have such lines too
            yield article
            article = []
        elif not line.strip().startswith("="):
            found = [each.strip() for each in _END.split(line) if len(each.split()) in WORDS]
            if found:
                article.append(found)
    yield article


def pairs(articles: Sequence[Article]) -> list[tuple[str, str, int]]:
    """Two sentences and whether they are of one article, half of them so."""
    rng = np.random.default_rng(SEED)
    same: list[tuple[str, str, int]] = []
    left: list[str] = []  # in the order of the articles, two for each pair of `same`
    for article in articles:
        quarter = min(len(article), MOST) // 4
        paragraphs = rng.permutation(len(article))[: 4 * quarter]
        drawn = [article[n][rng.integers(len(article[n]))] for n in paragraphs]
        same += [
            (a, b, 1) for a, b in zip(drawn[:quarter], drawn[quarter : 2 * quarter], strict=True)
        ]
        left += drawn[2 * quarter :]
    half = len(left) // 2
    longest = max((min(len(article), MOST) // 4 for article in articles), default=0)
    if 2 * longest > half:
        return []  # half the list further on may be the same article
    return same + [(a, b, 0) for a, b in zip(left[:half], left[half:], strict=True)]
