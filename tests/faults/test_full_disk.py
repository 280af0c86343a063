"""A disk that takes no more: one sentence, exit code 1, and the last good checkpoint resumes."""

import subprocess
import sys

from training_tiny import tiny_file

# A limit on the size of files makes every write beyond it fail, as on a full disk.
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from infolm.cli import main
main()
"""


def run(*command):
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)


def test_training_stops_with_a_sentence_and_goes_on_when_there_is_room(tmp_path, small_text):
    recipe = tiny_file(tmp_path, small_text, max_steps=5, checkpoint_seconds=0)
    out = tmp_path / "run"
    first = run("-m", "infolm", "train", recipe, "--out", out)
    assert first.returncode == 0, first.stderr
    # Once more, so that the tokens in the run's own vocabulary are there: they are not the matter.
    second = run("-m", "infolm", "train", out, "train.max_steps=6", "--resume")
    assert second.returncode == 0, second.stderr
    before = {path.name: path.read_bytes() for path in (out / "checkpoints").iterdir()}

    more = ("train", out, "train.max_steps=9", "--resume")
    full = run("-c", LIMITED, *more)
    assert full.returncode == 1, full.stderr
    assert "Traceback" not in full.stderr
    assert "nothing that was there is lost" in full.stderr
    assert {path.name: path.read_bytes() for path in (out / "checkpoints").iterdir()} == before

    again = run("-m", "infolm", *more)
    assert again.returncode == 0, again.stderr
    assert "resumed at step 6" in again.stderr
