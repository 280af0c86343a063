"""What all tests share: the same examples every time, a cache of their own, small corpora."""

import gc
import random
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

gc.disable()  # until all tests are found

# A busy machine is no fault of the code: nothing here may depend on the clock.
settings.register_profile(
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "fuzz",
    settings.get_profile("repeatable"),
    derandomize=False,
    database=DirectoryBasedExampleDatabase(Path(__file__).parent / ".found"),
)
settings.load_profile("repeatable")  # `pytest --hypothesis-profile fuzz`, of `make fuzz`, is later


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """A test that draws without a seed of its own has the same numbers whatever ran before it."""
    random.seed(0)
    torch.manual_seed(0)


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


def pytest_collection_finish() -> None:
    """What is imported by then stays: the garbage collector need not go through it."""
    gc.enable()
    gc.collect()
    gc.freeze()
