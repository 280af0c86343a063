"""What is exported appears whole, and anyone may read it."""

import os

import pytest

from infolm.errors import InfolmError
from infolm.exports.base import export, whole


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_files_are_for_anyone_to_read(tmp_path):
    for out in ("file", "folder"):
        with whole(tmp_path / out) as making:
            if out == "folder":
                (making / "within").mkdir(parents=True)
            written = making / "within" / "weights" if out == "folder" else making
            written.write_text("new")
            written.chmod(0o600)
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(found) == 2
    assert {path.stat().st_mode & 0o777 for path in found} == {0o644}


def test_what_fails_leaves_nothing(tmp_path):
    def fails():
        with whole(tmp_path / "out") as making:
            making.write_text("half")
            raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        fails()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="needs locks")
def test_an_export_that_is_there_is_rid_of_what_a_dead_one_left_beside_it(tmp_path):
    out, left = tmp_path / "out", tmp_path / ".out.abcdefgh.writing"
    for folder in (out, left):
        folder.mkdir()
    with pytest.raises(InfolmError, match="exists already"):
        export(None, None, out)
    assert out.exists()
    assert not left.exists()
