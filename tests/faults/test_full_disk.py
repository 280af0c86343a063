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


def test_training_stops_with_a_sentence_and_goes_on_when_there_is_room(
    infolm, tmp_path, small_text
):
    recipe = tiny_file(tmp_path, small_text, max_steps=5, checkpoint_seconds=0)
    out = tmp_path / "run"
    first = infolm("train", recipe, "--out", out)
    assert first.code == 0, first.err
    # Once more, so that the tokens in the run's own vocabulary are there: they are not the matter.
    second = infolm("train", out, "train.max_steps=6", "--resume")
    assert second.code == 0, second.err
    before = {path.name: path.read_bytes() for path in (out / "checkpoints").iterdir()}

    more = ("train", str(out), "train.max_steps=9", "--resume")
    full = subprocess.run([sys.executable, "-c", LIMITED, *more], capture_output=True, text=True)
    assert full.returncode == 1, full.stderr
    assert "Traceback" not in full.stderr
    assert "nothing is lost" in full.stderr
    assert {path.name: path.read_bytes() for path in (out / "checkpoints").iterdir()} == before

    again = infolm(*more)
    assert again.code == 0, again.err
    assert "resumed at step 6" in again.err
