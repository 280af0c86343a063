"""What is exported appears whole, and anyone may read it."""

import os

import pytest

from infolm.exports.base import whole


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
