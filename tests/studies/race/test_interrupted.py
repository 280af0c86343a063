"""A race that is interrupted leaves its run, and no record."""

import os
import signal

import pytest
import yaml
from race_tiny import race_tree

from infolm.families.base import open_run
from infolm.studies.race import race as races
from infolm.studies.race.record import NAME


@pytest.mark.usefixtures("quick")
def test_an_interrupted_race_can_be_looked_at_and_is_no_record(
    infolm, small_text, tmp_path, monkeypatch
):
    validated = races._Runner.validated

    def interrupt(self, *arguments):
        validated(self, *arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(races._Runner, "validated", interrupt)
    monkeypatch.setattr("infolm.studies.race.clock.process_age", lambda: 0.0)
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(yaml.safe_dump(race_tree(small_text)))
    done = infolm("race", recipe, "--minutes", 30, "--threads", 1, "--out", out)
    assert done.code == 130
    assert "there is no record; what was trained is in" in done.err
    assert open_run(out).recipe.train.max_steps == 24
    assert not (out / NAME).exists()
    again = infolm("race", "--check", out)
    assert (again.code, "stopped early has none" in again.err) == (2, True)
