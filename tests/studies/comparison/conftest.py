"""Runs' folders: made up, with the results one wants, and really trained."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import infolm
from training_tiny import tiny_file, tiny_tree

import infolm as library
from infolm.config import Recipe

__all__ = ["infolm"]

MadeUp = Callable[..., Path]


@pytest.fixture
def made_up(tmp_path: Path, small_text: Path) -> MadeUp:
    """A run's folder with a recipe and results, but no weights."""

    def make(name: str, loss: float, seed: int = 1, *, measured=(), text="0" * 64, **model) -> Path:
        tree = tiny_tree(small_text)
        tree["model"] |= model
        recipe = Recipe.model_validate(tree | {"seed": seed})
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "recipe.yaml").write_text(recipe.as_yaml())
        (folder / "tokenizer.json").write_text("{}")
        (folder / "corpus.json").write_text(json.dumps({"name": "small", "sha256": text}))
        records = [
            {"kind": "validation", "step": 10 * i, "epoch": 0, "loss": loss + 1 / i}
            for i in range(1, 20)
        ]
        records.append({"kind": "validation", "step": 200, "epoch": 1, "loss": loss})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        if measured:
            (folder / "measurements.json").write_text(json.dumps(list(measured)))
        return folder

    return make


@pytest.fixture(scope="session")
def trained_pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Two seeds of an LSTM, and of a GRU that has hardly learnt; for reading only."""
    folder = tmp_path_factory.mktemp("pair")
    words = ["the", "a", "cat", "dog", "sees", "hears", "bird", "and", "then", "sleeps"]
    lines = [" ".join(words[(i * k + k * k) % 10] for k in range(1, 8)) for i in range(2600)]
    text = folder / "text.txt"
    text.write_text("\n".join(lines) + "\n")
    recipe = tiny_file(folder, text, max_steps=60, validate_every=20)
    runs: dict[str, list[Path]] = {"lstm": [], "gru": []}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        for cell, steps in (("lstm", 60), ("gru", 20)):
            for seed in (1, 2):
                out = folder / f"{cell}-{seed}"
                changes = [f"model.cell={cell}", f"seed={seed}", f"train.max_steps={steps}"]
                library.train(recipe, *changes, out=out)
                runs[cell].append(out)
    return runs
