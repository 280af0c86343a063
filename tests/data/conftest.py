"""Every test here has its own cache and data folder; real corpora only where a test asks."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

REAL = os.environ.get("INFOLM_DATA")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder and cache; the user's own are out of reach."""
    monkeypatch.setenv("INFOLM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("INFOLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("infolm.data.sources._user_folder", lambda: tmp_path / "user")
    return tmp_path


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Call it with the folder of a corpus: the test is skipped where that is not at hand."""

    def need(folder: str) -> None:
        if REAL is None or not (Path(REAL) / folder).is_dir():
            pytest.skip(f"{folder} is not in $INFOLM_DATA")
        monkeypatch.setenv("INFOLM_DATA", REAL)

    return need
