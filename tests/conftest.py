"""What all tests share: no random test order effects, a cache of their own, small corpora."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenised corpora go to a temporary folder, never to the person's own cache."""
    monkeypatch.setenv("INFOLM_CACHE", str(tmp_path_factory.getbasetemp() / "tokenised"))


@pytest.fixture
def small_text(tmp_path: Path) -> Path:
    """A file of 400 short lines over a few dozen words, the same every time."""
    nouns = ["cat", "dog", "bird", "fish", "child", "king", "river", "stone", "tree", "song"]
    verbs = ["sees", "hears", "follows", "finds", "loses", "calls"]
    lines = [
        f"the {nouns[i % 10]} {verbs[i % 6]} a {nouns[(3 * i + i // 7) % 10]} number {i % 13}"
        for i in range(400)
    ]
    path = tmp_path / "small.txt"
    path.write_text("\n".join(lines) + "\n")
    return path
