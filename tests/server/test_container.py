"""The container's recipe: linted, and without rights."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"


def test_hadolint_has_nothing_to_say():
    hadolint = shutil.which("hadolint") or shutil.which(
        "hadolint", path=Path(sys.executable).parent
    )
    if hadolint is None:
        pytest.skip("there is no hadolint")
    found = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


def test_it_serves_as_a_user_without_rights():
    lines = DOCKERFILE.read_text().splitlines()
    assert "USER 10001" in lines
    last = max(i for i, line in enumerate(lines) if line.startswith(("RUN", "COPY")))
    assert last < lines.index("USER 10001")  # nothing is installed by that user, nor owned by it
    assert not any("--chown" in line for line in lines)
