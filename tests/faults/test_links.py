"""A stranger's run folder leads nowhere else: no link in it is followed, read or written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from one_sentence import one_sentence

from infolm import files
from infolm.errors import InfolmError
from infolm.finetuning import search
from infolm.training import checkpoint
from infolm.training.run import RunFolder

PRECIOUS = "the owner's key\n"

WRITERS = {
    "report": ("report",),
    "evaluate": ("evaluate", "--split", "valid"),
    "tuned settings": ("evaluate", "--split", "valid", "--temperature", "tune"),
    "resume": ("train", "--resume", "train.max_steps=62"),
}
PLACES = [
    ".report.html.writing",
    ".measurements.json.writing",
    ".measurements.json.lock",
    ".temperature.json.writing",
    ".model.safetensors.writing",
    ".manifest.json.writing",
    ".lock",
    "metrics.writing",
    "metrics.jsonl",
    "recipe.yaml",
    "report.html",
    "measurements.json",
    "checkpoints/.best.safetensors.writing",
    "checkpoints/step-000000001.safetensors",
    "finetuned",
    "tensorboard",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_planted_link_is_refused_and_its_target_untouched(infolm, run, tmp_path, place):
    target = tmp_path / "precious"
    precious = (run / place).read_text() if place == "recipe.yaml" else PRECIOUS
    target.write_text(precious)
    if (run / place).is_dir():
        (run / place).rename(tmp_path / "moved")
    (run / place).unlink(missing_ok=True)
    (run / place).symlink_to(target)
    for command, *rest in WRITERS.values():
        one_sentence(infolm(command, run, *rest), "symbolic link", str(run / place))
    assert target.read_text() == precious
    assert (run / place).is_symlink()


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "finetuned"])
def test_a_linked_sub_folder_is_refused_and_nothing_in_it_deleted(infolm, run, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for step in range(4):
        (elsewhere / f"step-{step:09d}.safetensors").write_text(PRECIOUS)
    if (run / name).exists():
        (run / name).rename(tmp_path / "moved")
    (run / name).symlink_to(elsewhere)
    for command, *rest in WRITERS.values():
        one_sentence(infolm(command, run, *rest), "symbolic link", name)
    assert len(list(elsewhere.iterdir())) == 4
    with pytest.raises(InfolmError, match="symbolic link"):
        files.refuse_link(run / name)


def test_checkpoints_are_never_deleted_through_a_link(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for step in range(4):
        (elsewhere / f"step-{step:09d}.safetensors").write_text(PRECIOUS)
    (tmp_path / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(InfolmError, match="symbolic link"):
        checkpoint.save_step(tmp_path / "checkpoints", 9, {"step": 9})
    assert len(list(elsewhere.iterdir())) == 4


def test_the_runs_own_folder_may_be_a_link(infolm, run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    assert infolm("report", tmp_path / "link").code == 0
    assert (run / "report.html").is_file()


def test_a_pipe_in_the_folder_is_refused_and_does_not_hang(infolm, run):
    (run / "cache.json").unlink(missing_ok=True)
    os.mkfifo(run / "cache.json")
    one_sentence(infolm("evaluate", run, "--cache"), "neither a file nor a folder")


def test_a_writer_follows_no_link_whatever_its_name(tmp_path):
    """The name is new: one that exists, even as a link to nowhere, is never taken."""
    target = tmp_path / "precious"
    target.write_text(PRECIOUS)
    (tmp_path / "x").symlink_to(target)
    checkpoint.atomically(tmp_path / "x", lambda path: path.write_text("ours"))
    assert target.read_text() == PRECIOUS
    assert not (tmp_path / "x").is_symlink()
    assert (tmp_path / "x").read_text() == "ours"


def test_every_writer_passes_through_the_one_mechanism():
    """No other module opens a file for writing beside another and renames it."""
    source = Path(files.__file__).parent
    allowed = {
        "files.py",
        "data/store.py",
        "data/corpora.py",
        "exports/base.py",
        "families/train.py",
    }
    allowed |= {"repair.py"}  # which moves what is damaged aside
    for path in source.rglob("*.py"):
        text, name = path.read_text(), str(path.relative_to(source))
        for word in ("mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryDirectory"):
            assert word not in text or name in {"files.py", *SCRATCH_ELSEWHERE}, (name, word)
        assert "os.replace(" not in text or name in allowed, name


SCRATCH_ELSEWHERE = {
    "cli/__init__.py",  # the log of what nobody foresaw, in the system's temporary folder
    "nn/recurrence/native.py",  # a temporary folder where the cache cannot be written
    "evaluation/generated.py",  # a text of its own, in the system's temporary folder
    "evaluation/reverse.py",  # a run of its own, there too
    "studies/tables/measures/rank.py",  # questions of one part, there too
    "exports/graphs/exporter.py",  # graphs on their way through onnxruntime, there too
}


# -- what dead writers leave ----------------------------------------------------------------


WRITE_FOR_EVER = """
import sys, time
from pathlib import Path
from infolm import files
folder = Path(sys.argv[1])
with files.scratch_file(folder, "report.html"), files.scratch_folder(folder, ".x"):
    print("writing", flush=True)
    time.sleep(600)
"""


def writing(folder: Path) -> list[Path]:
    return list(folder.glob("*.writing"))


def test_a_living_writers_files_stay_and_a_dead_ones_go(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    files.sweep(tmp_path)
    assert len(writing(tmp_path)) == 2
    process.kill()
    process.communicate()
    files.sweep(tmp_path)
    assert writing(tmp_path) == []


WRITE_BESIDE = """
import sys, time
from pathlib import Path
from infolm import files
def write(path):
    path.with_name(".tmpAbCdEf").write_text("half")
    print("writing", flush=True)
    time.sleep(600)
files.replace(Path(sys.argv[1]), write)
"""


def test_what_a_writer_made_beside_its_file_goes_too(tmp_path):
    """As safetensors does: it renames the whole file."""
    path = tmp_path / "model.safetensors"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_BESIDE, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    process.kill()
    process.communicate()
    files.replace(path, lambda to: to.write_text("whole"))
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_written_again_takes_its_dead_writers_litter_along(tmp_path):
    for left in (".plot.svg.abcd1234.writing", ".other.svg.abcd1234.writing"):
        (tmp_path / left).write_text("half")
    files.replace(tmp_path / "plot.svg", lambda path: path.write_text("whole"))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"plot.svg", ".other.svg.abcd1234.writing"}


def test_litter_of_earlier_releases_goes_when_it_is_old(run, tmp_path, monkeypatch):
    old = [run / ".report.html.writing", run / "metrics.writing", run / ".sst2-abcd1234"]
    for path in old[:2]:
        path.write_text("half")
    (old[2] / "new").mkdir(parents=True)
    mine = [run / "notes.writing", run / ".run.settings"]
    for path in mine:
        path.write_text("precious")
    RunFolder.existing(run)
    assert all(path.exists() for path in old)  # it may be an earlier release at work
    monkeypatch.setattr(files, "ABANDONED", -1)
    RunFolder.existing(run)
    files.sweep(run, "sst2")
    files.sweep(run, "run")
    assert not any(path.exists() for path in old)
    assert all(path.read_text() == "precious" for path in mine)


def test_a_fine_tuned_model_moved_aside_by_a_dead_writer_is_finished(tmp_path):
    scratch = tmp_path / ".sst2.abcd1234.writing"
    for name in ("old", "new"):
        (scratch / name).mkdir(parents=True)
        (scratch / name / search.RESULTS).write_text(name)
    search.check_target(tmp_path / "sst2")
    assert (tmp_path / "sst2" / search.RESULTS).read_text() == "new"


def test_a_killed_making_of_a_run_is_swept_at_the_next_start(tmp_path, small_text):
    from training_tiny import tiny_file

    recipe = tiny_file(tmp_path, small_text, max_steps=1)
    script = (
        "import os, signal, sys; from infolm.training.run import RunFolder;"
        "RunFolder.manifest = lambda self: os.kill(os.getpid(), signal.SIGKILL);"
        "from infolm.cli import main; main()"
    )
    command = ["train", str(recipe), "--out", str(tmp_path / "run")]
    killed = subprocess.run([sys.executable, "-c", script, *command], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert len(writing(tmp_path)) == 1
    done = subprocess.run([sys.executable, "-m", "infolm", *command], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert writing(tmp_path) == []
