"""BabyLM's folder of texts: found by name or by path, joined, and learnt from by its recipe."""

import pytest
from training_tiny import Silent, quiet

from infolm.config import load_recipe
from infolm.data.corpora import load, registry
from infolm.errors import InfolmError
from infolm.families.train import train

RECIPE = "babylm/strict-small"
SMALL = [
    "data.vocabulary=300", "feed.batch=4", "feed.bptt=16", "model.hidden=12", "model.layers=1",
    "model.heads=2", "train.epochs=2", "train.exposure=[100, 1k]",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small stand-in of the same layout, three lines of a source in each split."""
    monkeypatch.setenv("INFOLM_DATA", str(tmp_path))
    for i, name in enumerate(registry()["babylm-10m"].files):
        path = tmp_path / "babylm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"*MOT:\tlook at {path.stem} number {k + i} ." for k in range(30)]
        path.write_text("\n".join(lines) + "\n" * (i % 2))  # some lack the last line's end
    return tmp_path / "babylm"


def splits(*overrides):
    corpus = load(load_recipe(RECIPE, [*SMALL, *overrides]).data)
    return {name: split.tokens.tolist() for name, split in corpus.splits.items()}, corpus


def test_every_file_is_read_once_in_order(folder):
    _, corpus = splits()
    for split, place in {"train": "train_10M", "valid": "dev", "test": "test"}.items():
        files = sorted((folder / place).iterdir())
        lines = [line for path in files for line in path.read_text().splitlines()]
        assert len(files) == 6
        text = corpus.tokenizer.decode(corpus.splits[split].tokens)
        assert text.split("\n")[: len(lines)] == lines
        assert corpus.splits[split].words == sum(len(line.split()) for line in lines)
        assert corpus.splits[split].lines == len(lines)


def test_by_path_it_is_the_same_text(folder):
    assert splits(f"data.path={folder}")[0] == splits()[0]


def test_the_recipe_learns_and_keeps_what_the_challenge_asks_for(folder, tmp_path):
    train(load_recipe(RECIPE, SMALL), tmp_path / "run", False, Silent(), quiet)
    kept = sorted(path.stem for path in (tmp_path / "run" / "exposure").iterdir())
    assert kept == ["chck_100", "chck_1k"]
    asked = [*range(1, 10), *range(10, 101, 10)]
    assert [n // 10**6 for n in load_recipe(RECIPE).train.exposure] == asked


def test_what_is_missing_is_said(folder, tmp_path):
    (folder / "dev" / "childes.dev").unlink()
    with pytest.raises(InfolmError, match=r"babylm-10m is not downloaded: unpack .*train_10M"):
        splits()
    for path in (folder / "dev").iterdir():
        path.unlink()
    with pytest.raises(InfolmError, match="files named train and none named valid"):
        splits(f"data.path={folder}")
