"""A file operation of a command fails, or is the last before the process or the power ends.

A sample of what `tests/support/inject.py` does; `make faults` does it all.
"""

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from faulty_files import KILLED, POWER, Fault, Layer, applies
from whole import WHOLE

from infolm import files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks into /proc")
SUPPORT = Path(__file__).parents[1] / "support"


def forked(root, fault, work):
    """The exit code of `work` in a process of its own with this fault; the error's number if so."""
    shadow = root.with_name("shadow")
    shutil.rmtree(shadow, ignore_errors=True)
    shadow.mkdir()
    pid = os.fork()
    if not pid:
        try:
            Layer(root, fault, shadow).install()
            work()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
        finally:
            os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def carelessly(path):
    """As one must not: what is renamed is not on the disk."""
    path.with_suffix(".new").write_text("new" * 9)
    os.replace(path.with_suffix(".new"), path)


def carefully(path):
    files.replace(path, lambda to: to.write_text("new" * 9))


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "file").write_text("old")
    return folder


def operations(root, work):
    """What `work` asks for, by kind, when nothing fails."""
    note = root.with_name("operations")
    pid = os.fork()
    if not pid:
        layer = Layer(root)
        layer.install()
        work()
        note.write_text(" ".join(each.kind for each in layer.operations))
        os._exit(0)
    os.waitpid(pid, 0)
    return note.read_text().split()


def faults(root, work, *kinds):
    """All that can befall `work`."""
    found = list(enumerate(operations(root, work)))
    return [Fault(kind, at) for kind in kinds for at, each in found if applies(kind, each)]


def some(found):
    """A third of them, the last among them; `make faults` has them all."""
    return found if WHOLE else found[::-3]


KINDS = ["ENOSPC", "short", "kill", *POWER, *(["EIO", "EACCES"] if WHOLE else [])]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_replaced_is_old_or_new_whatever_fails(root, kind):
    path = root / "file"
    codes = set()
    for fault in faults(root, lambda: carefully(path), kind):
        path.write_text("old")
        codes.add(forked(root, fault, lambda: carefully(path)))
        assert path.read_text() in ("old", "new" * 9)
        files.sweep(root)
        assert os.listdir(root) == ["file"]
    ends = {"short": {0}, "kill": {KILLED}} | {each: {KILLED} for each in POWER}
    wanted = ends.get(kind, {getattr(errno, kind, 0)})
    assert wanted <= codes <= wanted | {0}  # that litter cannot be removed is no failure


def test_a_careless_writer_is_found_when_the_power_fails(root):
    path = root / "file"

    def write():
        carelessly(path)
        os.mkdir(root / "next")

    # Its operations: the new file is made, written and renamed, then there is the next thing.
    assert operations(root, write) == ["create", "write", "rename", "mkdir"]
    path.write_text("old")
    (root / "next").rmdir()
    assert forked(root, Fault("kill", 3), write) == KILLED
    assert path.read_text() == "new" * 9
    assert forked(root, Fault("power-data", 3), write) == KILLED
    assert path.read_bytes() in (b"", bytes(27))


def test_names_that_were_not_flushed_are_lost(root):
    path = root / "file"

    def write():
        files.replace(path, lambda to: to.write_text("new"))
        (root / "another").write_text("")
        path.unlink()
        (root / "last").write_text("")

    count = len(operations(root, write))
    path.write_text("old")
    for made in ("another", "last"):
        (root / made).unlink()
    assert forked(root, Fault("power-all", count - 1), write) == KILLED
    assert os.listdir(root) == ["file"]
    assert path.read_text() == "new"  # `replace` flushed its folder


def test_a_new_folder_is_on_the_disk_with_those_above_it(root):
    path = root / "a" / "b" / "file"

    def write():
        files.make_folder(path.parent)
        files.make_folder(path.parent)  # as a second command would
        files.replace(path, lambda to: to.write_text("new"))
        (root / "last").write_text("")

    count = len(operations(root, write))
    shutil.rmtree(root / "a")
    (root / "last").unlink()
    assert forked(root, Fault("power-all", count - 1), write) == KILLED
    assert path.read_text() == "new"
    assert not (root / "last").exists()


def test_the_power_of_a_command_is_that_of_its_workers(root):
    """One that went on would write while the disk is set back."""

    def write():
        if not os.fork():
            time.sleep(0.3)
            (root.parent / "late").write_text("")
            os._exit(0)
        (root / "file").write_text("new")

    at = len(operations(root, lambda: (root / "file").write_text("new"))) - 1
    assert forked(root, Fault("power-all", at), write) == KILLED
    time.sleep(0.6)
    assert not (root.parent / "late").exists()


def test_weights_are_written_through_the_layer_with_the_same_bytes(root):
    import torch
    from safetensors.torch import save_file

    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.int64)}
    save_file(tensors, root / "native", {"k": "v"})

    def write():
        from safetensors import torch as weights

        weights.save_file(tensors, root / "ours", {"k": "v"})

    assert forked(root, Fault("EIO", 1), write) == errno.EIO
    assert forked(root, None, write) == 0
    assert (root / "ours").read_bytes() == (root / "native").read_bytes()


def test_what_is_exported_is_on_the_disk_before_it_is_named(root):
    from infolm.exports.base import whole

    def export():
        with whole(root / "out") as making:
            (making / "within").mkdir(parents=True)
            (making / "within" / "weights").write_text("new" * 9)
        (root / "after").write_text("")

    ended = set()
    for fault in some(faults(root, export, *POWER)):
        shutil.rmtree(root)
        root.mkdir()
        (root / "file").write_text("old")
        forked(root, fault, export)
        files.sweep(root)
        if (root / "out").exists():
            assert (root / "out" / "within" / "weights").read_text() == "new" * 9
        ended.add((root / "out").exists())
    assert ended == {True, False}


def test_a_fine_tuned_model_is_replaced_when_the_new_one_is_on_the_disk(root, monkeypatch):
    from infolm.finetuning import search

    def save(network, tokenizer, length, folder):
        folder.mkdir()
        (folder / "weights").write_text("new" * 9)

    monkeypatch.setattr(search.networks, "save", save)
    found, encoder = SimpleNamespace(network=None, files={}), SimpleNamespace(tokenizer=None)

    def write():
        search.write(root / "out", found, encoder, 8, {"told": 1})

    def begin():
        shutil.rmtree(root)
        (root / "out").mkdir(parents=True)
        (root / "file").write_text("old")
        (root / "out" / "weights").write_text("old")
        (root / "out" / search.RESULTS).write_text("{}")

    begin()
    tried = faults(root, write, "power-data", "power-all")
    begin()
    renames = [at for at, kind in enumerate(operations(root, write)) if kind == "rename"]
    # Which names a cut takes is a matter of luck.
    by_luck = [Fault("power-some", at, draw) for at in renames for draw in range(20)]
    for fault in [*some(tried), *by_luck]:
        begin()
        forked(root, fault, write)
        search.check_target(root / "out")
        assert (root / "out" / "weights").read_text() in ("old", "new" * 9), fault
        assert (root / "out" / search.RESULTS).read_text()


def test_a_folder_that_may_not_be_read_is_not_an_empty_one(root):
    from infolm.training import checkpoint

    (root / "step-000000001.safetensors").write_text("")
    assert forked(root, Fault("EACCES", 0), lambda: checkpoint.checkpoints(root)) == errno.EACCES
    assert checkpoint.checkpoints(root) == [root / "step-000000001.safetensors"]
    assert checkpoint.checkpoints(root / "none") == []


@pytest.mark.skipif(not WHOLE, reason="minutes: of `make faults`")
def test_a_sample_of_faults_in_commands():
    command = [sys.executable, "-W", "ignore", str(SUPPORT / "inject.py"), "--seed", "3"]
    commands = ["train", "resume", "report", "export-page", "finetune-again"]
    done = subprocess.run(
        [*command, "--most", "3", "--only", *commands], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert '"tried": 15' in done.stdout
