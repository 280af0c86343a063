"""A race over seconds, run once: its record and its folder are for reading only."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from training_tiny import Silent, quiet

from infolm.config import Recipe
from infolm.studies.race import calibration, plan
from infolm.studies.race.clock import Clock
from infolm.studies.race.race import Rules, race
from infolm.studies.race.record import Record


class Raced(NamedTuple):
    record: Record
    out: Path
    recipe: Recipe
    said: list[str]


def race_tree(text: Path) -> dict[str, Any]:
    """A recipe of the track bytes."""
    return {
        "data": {"path": str(text), "tokens": "byte"},
        "feed": {"batch": 4, "bptt": 20, "variable": False},
        "model": {"embedding": 12, "hidden": 12, "layers": 1},
        "optimiser": {
            "kind": "adam",
            "learning_rate": 0.02,
            "schedule": {"kind": "linear", "warm_up": 2},
        },
        "train": {"max_steps": 24},
    }


def make_quick(patch: pytest.MonkeyPatch) -> None:
    """This machine is the reference, and planning takes moments."""
    patch.setattr(calibration, "measure", lambda *_: calibration.REFERENCE)
    patch.setattr(plan, "VALIDATIONS", 3)
    patch.setattr(plan, "PROBE_SHARE", 0.0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


@pytest.fixture(scope="session")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Raced:
    folder = tmp_path_factory.mktemp("race")
    lines = [f"{'ab' * (i % 5)} {'xyz'[: i % 4]} {i * i % 13} and so on" for i in range(1200)]
    text = folder / "text.txt"
    text.write_text("\n".join(lines) + "\n")
    recipe = Recipe.model_validate(race_tree(text))
    watcher = Silent()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFOLM_CACHE", str(folder / "tokenised"))
        make_quick(patch)
        clock = Clock(0.0, age=lambda: 0.0)
        rules = Rules(minutes=30, threads=1)
        record = race(recipe, folder / "run", rules, clock, watcher, quiet)
    return Raced(record, folder / "run", recipe, watcher.said)
