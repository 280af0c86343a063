"""Writing files and folders atomically: complete, flushed to disk, under unpredictable temporary
names.

A writer creates a temporary folder beside the target. Its random name ends in `.writing` and must
not exist yet, so no planted link is followed or overwritten. The writer flushes what it makes there
to disk and renames it, and holds a lock on the folder meanwhile. A temporary folder without a lock,
or a file of earlier releases, was left by a process that died, and is removed.
"""

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from infolm.errors import InfolmError, RunError

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".writing"
PATIENCE = 60
"""Seconds to wait for another process to write a small file."""
ABANDONED = 24 * 3600.0
"""Seconds after which leftovers of an earlier release, which held no locks, count as dead."""

_OURS = re.compile(r".+\.[a-z0-9_]{8}\.writing")
_FORMER = re.compile(r"\..+\.writing|metrics\.writing|making-[a-z0-9_]{8}")
_HALF_MADE = re.compile(r"\..+[.-][a-z0-9_]{8}")
_PARTS = {"recipe.yaml", "tokenizer.json", "corpus.json", "new"}
"""The name of the marker in a folder that an earlier release was creating."""


def _claim(descriptor: int) -> bool:
    """Lock a new file; False if a sweeper locked it first."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nothing is swept there either
        return True
    return os.fstat(descriptor).st_nlink > 0


@contextmanager
def scratch_folder(folder: Path, name: str) -> Iterator[Path]:
    """A new folder in `folder`, locked; removed with all in it unless it was renamed."""
    while True:
        made = Path(tempfile.mkdtemp(SUFFIX, f"{name}.", folder))
        if os.name != "posix":
            descriptor = None
            break
        try:
            descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        if _claim(descriptor):
            break
        os.close(descriptor)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def scratch_file(folder: Path, name: str) -> Iterator[Path]:
    """Where to write a new file, in a scratch folder of its own in `folder`: some writers, such as
    safetensors', make a temporary file beside it and rename that. Removed unless renamed."""
    with scratch_folder(folder, f".{name}") as scratch:
        yield scratch / name


def matching(folder: Path, pattern: str) -> list[Path]:
    """The files in `folder` whose names match, sorted; empty if there is no such folder.

    `Path.glob` treats an unreadable folder as empty: counts would be left out, and a run would
    start again as if it had no checkpoints. Here an unreadable folder is an error.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(folder / name for name in names if fnmatchcase(name, pattern))


def flush(path: Path) -> None:
    """Flush a file to disk; a link is refused."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(path: Path) -> None:
    """Flush a folder's directory entries to disk."""
    if os.name == "posix":  # elsewhere a folder cannot be opened, and need not be flushed
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder, with those above it, and flush the names of the new ones to disk: a power cut
    would else take a folder with all that was flushed in it."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        flush_folder(each.parent)


def flush_tree(path: Path) -> None:
    """Flush a file to disk, or a folder with everything in it."""
    if not path.is_dir():
        flush(path)
        return
    for each in path.iterdir():
        flush_tree(each)
    flush_folder(path)


def replace(
    path: Path, write: Callable[[Path], object], before: Callable[[Path], object] | None = None
) -> None:
    """Call `write(temporary path)`, flush to disk and rename to `path`; on failure leave no trace.

    Leftovers of dead writers of the same file are removed: they may lie in a person's own folder,
    where nothing else would look for them.

    before: called with the flushed temporary path, just before it is renamed.
    """
    sweep(path.parent, path.name)
    with scratch_file(path.parent, path.name) as temporary:
        write(temporary)
        temporary.chmod(0o644)
        flush(temporary)
        if before:
            before(temporary)
        os.replace(temporary, path)
    flush_folder(path.parent)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """A lock: inside, no other process that takes it changes the file `path`."""
    from filelock import FileLock, Timeout  # not needed to read a run

    lock = path.with_name(f".{path.name}.lock")
    try:
        refuse_link(lock)
        with FileLock(lock, timeout=PATIENCE):
            yield
    except Timeout:
        raise RunError(
            f"{path} has been held by another process for {PATIENCE} seconds: wait for it to end, "
            "and try again"
        ) from None
    except OSError as error:
        raise RunError(f"{path} could not be written ({error}): nothing is lost") from error


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """A lock: inside, no other process that takes it works on `path`. Waits without limit.

    The system frees the lock of a process that dies. The lock file is removed at the end.
    """
    lock = path.with_name(f".{path.name}.lock")
    if fcntl is None:
        from filelock import FileLock

        with FileLock(lock):
            yield
        return
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with suppress(OSError):  # without locks the work may be done twice, which does no harm
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # the process we waited for removed it
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        os.close(descriptor)


def sweep(folder: Path, name: str = "") -> None:
    """Remove what dead writers left in `folder`; with `name`, only the leftovers of that file or
    folder.

    Files that a living writer holds stay.
    """
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        bare = entry.name.removeprefix(".")
        if name and not bare.startswith((f"{name}.", f"{name}-")):
            continue
        ours = bool(_OURS.fullmatch(entry.name))
        with suppress(OSError):
            if ours or _FORMER.fullmatch(entry.name) or (name and _half_made(entry)):
                _sweep(Path(entry.path), locked=ours)


def _half_made(entry: "os.DirEntry[str]") -> bool:
    """Whether an earlier release was creating a run or a fine-tuned model there."""
    if not _HALF_MADE.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
        return False
    return _PARTS.issuperset(os.listdir(entry.path))


def _sweep(path: Path, locked: bool) -> None:
    if path.is_symlink():
        path.unlink()  # remove the link itself: no writer creates links
        return
    with taken(path) as free:
        if not free or not (locked or time.time() - _newest(path) > ABANDONED):
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def taken(path: Path) -> Iterator[bool]:
    """Lock a dead writer's leftover inside the block; False if a living writer may hold it."""
    if fcntl is None:
        yield False
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:
            free = False
        yield free
    finally:
        os.close(descriptor)


def _newest(path: Path) -> float:
    """When something in `path` was last written."""
    return max(each.lstat().st_mtime for each in (path, *path.rglob("*")))


def refuse_links(folder: Path) -> None:
    """Refuse a folder that contains anything but plain files and plain folders.

    Through a link we would read, overwrite or delete files elsewhere. The folder itself may be a
    link.
    """
    for entry in list(os.scandir(folder)):
        state = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(state.st_mode):
            refuse_links(Path(entry.path))
        elif not stat.S_ISREG(state.st_mode):
            refuse_link(Path(entry.path))


def refuse_link(path: Path) -> None:
    """Refuse an existing path that is neither a plain file nor a plain folder."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise InfolmError(
            f"{path} is a symbolic link to {os.readlink(path)}, and a run's folder must hold its "
            "own files: put what it points to in its place, or delete the link (the run's whole "
            "folder may be a link)"
        )
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise InfolmError(f"{path} is neither a file nor a folder: delete it")
