"""Random recipes and command lines end with a sentence: see `fuzz_commands.py`."""

import pytest
from fuzz_commands import fuzz


@pytest.mark.filterwarnings("ignore")
def test_strange_values_are_refused_and_none_gives_a_stack_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = fuzz(120)
    assert found["findings"] == []
    assert found["codes"][2] > 60
    assert list(tmp_path.iterdir()) == []
