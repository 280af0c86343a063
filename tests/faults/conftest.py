"""The command, a run that it may read, and a copy of it that may be damaged."""

import shutil
from pathlib import Path

import pytest
from commands import infolm, trained

__all__ = ["infolm", "run", "trained"]


@pytest.fixture
def run(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trained run of its own."""
    monkeypatch.setenv("INFOLM_CACHE", str(trained.parent / "tokenised"))
    shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("tensorboard"))
    return tmp_path / "run"
