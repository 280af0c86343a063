"""Commands run in this process, with their exit code and output."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from training_tiny import Silent, quiet, tiny_file

from infolm.cli import main
from infolm.config import load_recipe
from infolm.families.train import train


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def infolm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """`infolm("train", ...)` as typed in a shell."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["infolm", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)

    return run


Command = Callable[..., Done]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained for a few steps on a small text, for reading only."""
    folder = tmp_path_factory.mktemp("trained")
    words = ["the", "a", "cat", "dog", "sees", "hears", "bird", "and", "then", "sleeps"]
    lines = [" ".join(words[(i * k + k) % 10] for k in range(1, 8)) for i in range(600)]
    text = folder / "text.txt"
    text.write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        recipe = load_recipe(str(tiny_file(folder, text, max_steps=60, validate_every=20)))
        train(recipe, folder / "run", False, Silent(), quiet)
    return folder / "run"
