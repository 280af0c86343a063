"""A layer between a command and its files: it counts operations, and lets one of them fail.

`Layer(root, fault).install()` replaces `open`, `os.open`, `os.write`, `os.fsync`, `os.replace` and
their kin in this process, for good: it is meant for a process that was forked for one command. Only
operations on paths below `root` count. The fault names one of them by its number, from 0 on:

- `ENOSPC`: it fails, a write after half of its bytes, and so does all that follows and needs room.
- `EIO`, `EACCES`: it fails, and it alone.
- `short`: a write takes half of its bytes and says so. That is no error, and nothing may be lost.
- `kill`: the process ends just before it, in a write after half of its bytes.
- `power-data`, `power-all`, `power-some`: as `kill`, and what was not flushed to the disk is lost:
  only the data, all names too (of new, renamed and removed files), or in each folder the names
  after a random moment.

What native code writes is not seen. Weights are written by safetensors' own code, which is replaced
by one with the same bytes; NumPy and shutil are kept from handing a descriptor to the system.
SQLite's files, and what other processes write, are left alone.
"""

import builtins
import errno
import io
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

KILLED = 137
POWER = ("power-data", "power-all", "power-some")
ROOM = frozenset({"create", "write", "mkdir", "fsync", "truncate"})
"""Operations that a full disk refuses."""
NAMED = frozenset({"open", "create", "mkdir", "rename", "unlink", "rmdir", "list", "chmod"})
"""Operations that take a name, which an account may not have the right to."""
CHANGES = ROOM | {"rename", "unlink", "rmdir", "chmod"}
"""Operations before which it matters that a process ends; others leave the disk as it is."""


class Operation(NamedTuple):
    kind: str
    path: str


class Fault(NamedTuple):
    """draw: another one leaves other names behind `power-some`."""

    kind: str
    at: int
    draw: int = 0


def applies(fault: str, operation: str) -> bool:
    """Whether an operation of this kind can have this fault."""
    if fault in ("kill", *POWER):
        return operation in CHANGES
    allowed = {"ENOSPC": ROOM, "EACCES": NAMED, "short": {"write"}}
    return operation in allowed.get(fault, {operation})


class Layer:
    """See the module. `operations` is what has been asked for so far."""

    def __init__(self, root: Path, fault: Fault | None = None, shadow: Path | None = None) -> None:
        self.operations: list[Operation] = []
        self._root = os.path.join(os.path.realpath(root), "")
        self._fault = fault
        power = fault is not None and fault.kind in POWER
        self._disk = Disk(shadow) if power and shadow is not None else None
        self._full = False

    def leave(self) -> None:
        """From now on nothing counts and nothing fails, as in a process forked from this one."""
        self._root = os.devnull + os.sep

    # -- what an operation meets ------------------------------------------------------------

    def where(self, path: Any, folder: int | None = None) -> str | None:
        """The path below the root that is meant; None for one elsewhere."""
        if isinstance(path, int):
            with suppress(OSError):
                return self.where(os.readlink(f"/proc/self/fd/{path}"))
            return None
        name = os.fsdecode(path)
        if folder is not None and not os.path.isabs(name):
            with suppress(OSError):
                name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
        name = os.path.abspath(name)
        return name if f"{name}{os.sep}".startswith(self._root) else None

    def meet(self, kind: str, path: str | None, half: Callable[[], int] | None = None) -> int:
        """Count an operation, and have it fail if it is the one; bytes written if that is all."""
        if path is None:
            return 0
        number = len(self.operations)
        self.operations.append(Operation(kind, path))
        if self._full and kind in ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        fault = self._fault
        if fault is None or number != fault.at or not applies(fault.kind, kind):
            return 0
        written = half() if half and fault.kind not in ("EIO", "EACCES") else 0
        if fault.kind == "short":
            return written
        if fault.kind in ("kill", *POWER):
            if self._disk:
                _end_children()  # the power is theirs too
                self._disk.lose(fault.kind, random.Random(number + 10**9 * fault.draw))
            os._exit(KILLED)
        self._full = fault.kind == "ENOSPC"
        number = getattr(errno, fault.kind)
        raise OSError(number, os.strerror(number), path)

    # -- the operations ----------------------------------------------------------------------

    def install(self) -> "Layer":
        layer, disk = self, self._disk
        real = {name: getattr(os, name) for name in _REPLACED}

        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            at = layer.where(path, dir_fd)
            new = at is not None and bool(flags & os.O_CREAT) and not os.path.lexists(at)
            layer.meet("create" if new else "open", at)
            descriptor: int = real["open"](path, flags, mode, dir_fd=dir_fd)
            if disk and new and at:
                disk.made(at)
            return descriptor

        def write(descriptor: int, data: Any) -> int:
            at = layer.where(descriptor)
            view = memoryview(data).cast("B")
            offset = os.lseek(descriptor, 0, os.SEEK_CUR) if at else 0

            def put(part: memoryview) -> int:
                written: int = real["write"](descriptor, part)
                if disk and at:
                    disk.wrote(descriptor, offset, written)
                return written

            return layer.meet("write", at, lambda: put(view[: len(view) // 2])) or put(view)

        def fsync(descriptor: int) -> None:
            layer.meet("fsync", at := layer.where(descriptor))
            real["fsync"](descriptor)
            if disk and at:
                disk.flushed(descriptor, at)

        def truncate(path: Any, length: int) -> None:
            layer.meet("truncate", layer.where(path))
            real["truncate"](path, length)

        def renamed(name: str) -> Callable[..., None]:
            def rename(source: Any, target: Any, **folders: Any) -> None:
                came = layer.where(source, folders.get("src_dir_fd"))
                goes = layer.where(target, folders.get("dst_dir_fd"))
                layer.meet("rename", goes)
                undo = disk.renaming(came, goes) if disk and came and goes else None
                real[name](source, target, **folders)
                if disk and undo:
                    disk.pending.append(undo)

            return rename

        def unlink(path: Any, *, dir_fd: int | None = None) -> None:
            layer.meet("unlink", at := layer.where(path, dir_fd))
            undo = disk.unlinking(at) if disk and at else None
            real["unlink"](path, dir_fd=dir_fd)
            if disk and undo:
                disk.pending.append(undo)

        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            layer.meet("mkdir", at := layer.where(path, dir_fd))
            real["mkdir"](path, mode, dir_fd=dir_fd)
            if disk and at:
                disk.made(at)

        def rmdir(path: Any, *, dir_fd: int | None = None) -> None:
            layer.meet("rmdir", at := layer.where(path, dir_fd))
            real["rmdir"](path, dir_fd=dir_fd)
            if disk and at:
                disk.pending.append((os.path.dirname(at), lambda: os.makedirs(at, exist_ok=True)))

        def chmod(path: Any, mode: int, **more: Any) -> None:
            layer.meet("chmod", layer.where(path))
            real["chmod"](path, mode, **more)

        def listed(name: str) -> Callable[..., Any]:
            def look(path: Any = ".") -> Any:
                layer.meet("list", layer.where(path))
                return real[name](path)

            return look

        def open_file(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            """`open` with a raw file of ours at the bottom."""
            at = layer.where(file)
            if at is None:
                text = (encoding, errors, newline)
                return plain(file, mode, buffering, *text, closefd, opener)
            bare = mode.replace("t", "").replace("b", "").replace("U", "")
            if not isinstance(file, int) and opener is None:  # an opener asks `os.open`
                new = "r" not in bare and not os.path.lexists(at)
                layer.meet("create" if new else "open", at)
            else:
                new = False
            raw = _Raw(layer, disk, at, file, bare, closefd, opener)
            if disk and new:
                disk.made(at)
            elif disk and "w" in bare:
                disk.emptied(raw.fileno())
            if "b" in mode and buffering == 0:
                return raw
            size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
            buffer: Any
            if "+" in bare:
                buffer = io.BufferedRandom(raw, size)
            else:
                buffer = (io.BufferedReader if bare == "r" else io.BufferedWriter)(raw, size)
            if "b" in mode:
                return buffer
            lines = buffering == 1 or raw.isatty()
            told = io.text_encoding(encoding)
            wrapped = io.TextIOWrapper(buffer, told, errors, newline, line_buffering=lines)
            wrapped.mode = mode  # type: ignore[misc]
            return wrapped

        plain = builtins.open
        ours = {
            **{"open": opened, "write": write, "fsync": fsync, "fdatasync": fsync},
            **{"truncate": truncate, "ftruncate": truncate, "chmod": chmod, "mkdir": mkdir},
            **{"unlink": unlink, "remove": unlink, "rmdir": rmdir},
            **{name: renamed(name) for name in ("rename", "replace")},
            **{name: listed(name) for name in ("scandir", "listdir")},
        }
        for name in _REPLACED:
            setattr(os, name, ours[name])
        # shutil looks whether these can take a descriptor, by identity.
        for known in (os.supports_dir_fd, os.supports_fd):
            known.update(ours[name] for name in _REPLACED if real[name] in known)
        builtins.open = io.open = open_file  # type: ignore[assignment]
        _keep_from_descriptors()
        return self


_REPLACED = (
    *("open", "write", "fsync", "fdatasync", "truncate", "ftruncate", "rename", "replace"),
    *("unlink", "remove", "mkdir", "rmdir", "chmod", "scandir", "listdir"),
)


WRITERS = ("infolm", "safetensors", "transformers")
"""Packages that may hold safetensors' writer under a name of their own."""


class _Raw(io.FileIO):
    """A file whose reads and writes meet the layer."""

    def __init__(self, layer: Layer, disk: "Disk | None", at: str, file: Any, *how: Any) -> None:
        self._layer, self._disk, self._at = layer, disk, at
        super().__init__(file, *how)

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        offset = os.fstat(self.fileno()).st_size if "a" in self.mode else self.tell()

        def put(part: memoryview) -> int:
            written = super(_Raw, self).write(part)
            if self._disk:
                self._disk.wrote(self.fileno(), offset, written)
            return written

        half = self._layer.meet("write", self._at, lambda: put(view[: len(view) // 2]))
        return half or put(view)

    def truncate(self, size: int | None = None, /) -> int:
        self._layer.meet("truncate", self._at)
        return super().truncate(size)

    def readinto(self, buffer: Any, /) -> int:
        self._layer.meet("read", self._at)
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self._layer.meet("read", self._at)
        return super().readall()


def _keep_from_descriptors() -> None:
    """Have NumPy, shutil and safetensors write through Python's files."""
    import safetensors.torch as weights

    native = weights.save_file

    def save_file(tensors: Any, filename: Any, metadata: Any = None) -> None:
        data = weights.save(tensors, metadata)
        with open(filename, "wb") as file:
            file.write(data)

    for module in [m for name, m in sys.modules.items() if name.startswith(WRITERS)]:
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is native:
                setattr(module, name, save_file)
    shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
    formats: Any = sys.modules.get("numpy.lib._format_impl") or sys.modules["numpy.lib.format"]
    formats.isfileobj = lambda file: False


def _end_children() -> None:
    for thread in os.scandir("/proc/self/task"):
        with open(f"{thread.path}/children") as children:
            pids = [int(pid) for pid in children.read().split()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class Disk:
    """Remembers what was flushed, and takes the rest away.

    pending: (folder, how it is undone) of each change of a name that its folder has not been
    flushed after, oldest first. shadow: a folder beside, where files are kept that were replaced.
    """

    def __init__(self, shadow: Path) -> None:
        self.pending: list[tuple[str, Callable[[], None]]] = []
        self._shadow = str(shadow)
        self._kept = 0
        self._regions: dict[int, list[tuple[int, int]]] = {}
        self._sizes: dict[int, int] = {}
        self._paths: dict[int, int] = {}

    def _know(self, descriptor: int, size: int) -> int:
        node = os.fstat(descriptor).st_ino
        if node not in self._regions:
            self._regions[node], self._sizes[node] = [], size
            self._paths[node] = os.dup(descriptor)
        return node

    def wrote(self, descriptor: int, offset: int, count: int) -> None:
        # A file that we have not seen begin was there before, and its bytes up to here are safe.
        node = self._know(descriptor, offset)
        self._regions[node].append((offset, count))

    def emptied(self, descriptor: int) -> None:
        self._sizes[self._know(descriptor, 0)] = 0

    def flushed(self, descriptor: int, path: str) -> None:
        if os.path.isdir(path):
            self.pending = [each for each in self.pending if each[0] != path]
            return
        node = self._know(descriptor, 0)
        self._regions[node], self._sizes[node] = [], os.fstat(descriptor).st_size

    def made(self, path: str) -> None:
        def undo() -> None:
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

        self.pending.append((os.path.dirname(path), undo))

    def _keep(self, path: str) -> str | None:
        if not os.path.isfile(path):
            return None
        self._kept += 1
        kept = os.path.join(self._shadow, str(self._kept))
        os.link(path, kept)
        return kept

    def renaming(self, came: str, goes: str) -> tuple[str, Callable[[], None]]:
        kept = self._keep(goes)

        def undo() -> None:
            _REAL["replace"](goes, came)
            if kept:
                os.link(kept, goes)

        return os.path.dirname(goes), undo

    def unlinking(self, path: str) -> tuple[str, Callable[[], None]]:
        kept = self._keep(path)

        def undo() -> None:
            if kept and not os.path.lexists(path):
                os.link(kept, path)

        return os.path.dirname(path), undo

    def lose(self, how: str, rng: random.Random) -> None:
        """Leave on the disk what it is sure to hold, and of names as much as `how` says."""
        for name, function in _REAL.items():
            setattr(os, name, function)
        for node, regions in self._regions.items():
            descriptor = self._paths[node]
            with suppress(OSError):
                writable = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
                for offset, count in regions:
                    os.pwrite(writable, bytes(count), offset)
                if rng.random() < 0.5 and regions:
                    os.ftruncate(writable, self._sizes[node])
                os.close(writable)
        if how == "power-data":
            return
        folders = sorted({folder for folder, _ in self.pending})
        total = len(self.pending)
        cuts = {
            folder: rng.randrange(total + 1) if how == "power-some" else 0 for folder in folders
        }
        for number, (folder, undo) in reversed(list(enumerate(self.pending))):
            if number >= cuts[folder]:
                with suppress(OSError):
                    undo()


_REAL = {name: getattr(os, name) for name in _REPLACED}
