"""Programs run by a machine in C++ (`native.cpp`), which also exponentiates logits for a softmax.

A wheel includes it, compiled for several instruction sets. If there is none (an editable
installation), or if it is damaged, a compiler on this computer builds it once.

The machine knows no cell, only instructions on rows of a batch:

    linear                  out = W a (+ c)             W is weights[weight]; may be rounded
    add, sub, mul, min      out = a + b, a - b, a b, min(a, b)
    muladd                  out = a b + c
    below                   out = 1 where a < b, 1/2 where a = b, else 0
    affine                  out = alpha a + beta
    sigmoid, tanh           out = sigmoid(a), tanh(a)
    dsigmoid, dtanh         out = a b (1 - b), a (1 - b^2)

out, a, b and c are operands by their numbers. A pointwise operation is applied to `length` elements
of each row, and `out` may be the memory of one of its inputs; the vector of a linear map may not be
overwritten by it.

If it is neither included nor can be built, `available` is false.
"""

import ctypes
import functools
import hashlib
import json
import logging
import os
import stat
import struct
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from infolm import files
from infolm.nn.recurrence import compiling
from infolm.nn.recurrence.compiling import compiler, sha256

_NAMES = "linear add sub mul muladd min below affine sigmoid tanh dsigmoid dtanh".split()
OPERATIONS = {name: code for code, name in enumerate(_NAMES)}
"""Codes as in native.cpp."""

FIXED, NOW, BEFORE = range(3)
"""When an operand's rows are read at step t: always the same ones; those from n_0 + ... + n_{t-1};
of a state, whose first n_0 rows are the initial ones, those that step t - 1 has left."""

_SOURCE = compiling.SOURCE
_CARRIED = Path(__file__).with_name("carried")
_LOG = logging.getLogger("infolm")
_build: dict[str, str] = {}  # of the library that is loaded


class Instruction(NamedTuple):
    """One operation; -1 is an operand or a weight that it does not have."""

    operation: str
    out: int
    a: int
    b: int = -1
    c: int = -1
    weight: int = -1
    length: int = 0
    alpha: float = 1.0
    beta: float = 0.0


class Code:
    """Instructions as the machine reads them."""

    def __init__(self, instructions: Iterable[Instruction]) -> None:
        listed = list(instructions)
        self.operands = 1 + max((max(i.out, i.a, i.b, i.c) for i in listed), default=-1)
        self.weights = 1 + max((i.weight for i in listed), default=-1)
        self.count = len(listed)
        self.packed = b"".join(struct.pack("=7q2d", OPERATIONS[i[0]], *i[1:]) for i in listed)


def available() -> bool:
    """Whether the machine is available; the first call may have to build it, in a few seconds."""
    return _library() is not None


def run(
    code: Code,
    operands: Sequence[tuple[Tensor, int]],
    weights: Sequence[tuple[Tensor, bool]],
    sizes: Sequence[int],
    reverse: bool,
    threads: int,
    rounded: bool = False,
) -> None:
    """Execute `code` at every step, the last first if `reverse`, in place.

    operands: tensors (rows, F) with unit column stride, or vectors (F,) that stand for each row,
    and when their rows are read (`FIXED`, `NOW`, `BEFORE`). weights: matrices W (outputs, inputs),
    or W^T where the second value is true. sizes: the rows n_0 >= n_1 >= ... of each step. rounded:
    linear maps of float multiply numbers rounded to bfloat16, and sum in float; on processors with
    instructions for it that takes about half the time. The shapes are not checked against the code.
    """
    library = _library()
    if library is None:
        raise RuntimeError("the native machine is not available")
    if len(operands) < code.operands or len(weights) < code.weights:
        raise ValueError("the code has more operands or weights than are given")
    if not sizes or not sizes[0]:
        return
    dtype = operands[0][0].dtype
    if dtype not in (torch.float, torch.double):
        raise ValueError(f"the native machine knows float and double, not {dtype}")
    table = array("q")
    for tensor, when in operands:
        if tensor.dtype != dtype or tensor.stride(-1) != 1:
            raise ValueError("operands are of one dtype, and a row's elements adjoin")
        table.extend((tensor.data_ptr(), tensor.stride(0) if tensor.dim() == 2 else 0, when))
    matrices = array("q")
    for tensor, transposed in weights:
        if tensor.dtype != dtype or tensor.stride(1) != 1:
            raise ValueError("weights are of the operands' dtype, and a row's elements adjoin")
        outputs, inputs = tensor.shape[::-1] if transposed else tensor.shape
        matrices.extend((tensor.data_ptr(), outputs, inputs, tensor.stride(0), transposed))
    rows = array("q", sizes)
    failed = library.execute(
        dtype == torch.double,
        rounded and dtype == torch.float,
        code.packed,
        code.count,
        table.buffer_info()[0],
        matrices.buffer_info()[0],
        len(weights),
        rows.buffer_info()[0],
        len(rows),
        reverse,
        threads,
        _team(),
    )
    if failed:
        raise MemoryError("no memory for the packed weights")


def exponentiate(logits: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Overwrites logits (n, V), in bfloat16, by e - Z onehot(t), where e = exp(x - max x) with
    x = logits + bias and Z = sum_w e_w; bias (V,), in float, and targets t (n, 1).

    Gives ln softmax(x)[t] and Z, both (n, 1). The sums are in float.
    """
    library = _library()
    if library is None:
        raise RuntimeError("the native machine is not available")
    rows, columns = logits.shape
    given = [logits, bias, targets]
    if [t.dtype for t in given] != [torch.bfloat16, torch.float, torch.long] or not all(
        t.is_contiguous() for t in given
    ):
        raise ValueError("logits, bias and targets are contiguous bfloat16, float and long")
    if not (len(bias) == columns and targets.shape == (rows, 1)):
        raise ValueError("a bias for each word and a target for each row")
    log_p, z = bias.new_empty(2, rows, 1)
    if rows:
        library.exponentiate(
            *(logits.data_ptr(), rows, columns, bias.data_ptr(), targets.data_ptr()),
            *(log_p.data_ptr(), z.data_ptr(), torch.get_num_threads(), _team()),
        )
    return log_p, z


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The machine of the wheel, or one built here; None if neither works."""
    for found in _candidates():
        try:
            path, about = found()
            library = _declared(ctypes.CDLL(str(path)))
        except (OSError, subprocess.CalledProcessError) as error:
            said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
            _LOG.info("The native machine is not available: %s\n%s", error, said)
        else:
            _build.clear()
            _build.update(about)
            return library
    return None


def _candidates() -> Iterator[Callable[[], tuple[Path, dict[str, str]]]]:
    """Sources of the library, best first: the wheel's, built for this processor, or for its
    kind."""
    if (_CARRIED / compiling.RECORD).exists():
        yield _carried
    command = compiler()
    if not command:
        _LOG.info("There is no C++ compiler for the native machine (CXX, c++, g++, clang++).")
        return
    yield lambda: _built([*command, *compiling.FLAGS, "-march=native"])
    yield lambda: _built([*command, *compiling.FLAGS])


def _carried() -> tuple[Path, dict[str, str]]:
    """The wheel's library for this processor's instruction set, and its build.

    The set is the one that PyTorch's own kernels take, so that `ATEN_CPU_CAPABILITY` decides for
    both. Owner and mode are not looked at: whoever can write here can write the code that reads it.
    """
    try:
        record = json.loads((_CARRIED / compiling.RECORD).read_text(encoding="utf-8"))
        capability = torch.backends.cpu.get_cpu_capability().lower()
        # "avx512_bf16" is the capability "AVX512" with one more instruction.
        if capability.startswith("avx512") and torch.cpu._is_avx512_bf16_supported():
            capability = "avx512_bf16"
        usable = [name for name in compiling.SETS if capability.startswith(name)]
        named = [name + compiling.SUFFIX for name in (*usable, "baseline")]
        path = _CARRIED / next(name for name in named if name in record)
        about = {str(key): str(value) for key, value in record[path.name].items()}
        if sha256(path) != about["library"]:
            raise ValueError(f"the SHA-256 of {path.name} does not match")
    except (ValueError, LookupError, TypeError, AttributeError, OSError, StopIteration) as error:
        print(
            f"{_CARRIED} is damaged ({error}), so its libraries are not used: reinstall infolm.",
            file=sys.stderr,
        )
        raise OSError(f"{_CARRIED} is damaged") from error
    return path, about


def build() -> dict[str, str]:
    """The machine's build: its SHA-256, the compiler, its flags and the instruction set.

    Another build may round differently. Empty if there is no machine.
    """
    return dict(_build) if available() else {}


def _built(command: list[str]) -> tuple[Path, dict[str, str]]:
    """The library, from the cache if it was built before, and its build.

    Its name tells the source, the command, and what the compiler says of itself and of the
    processor (its predefined macros): computers of different kinds may share the folder. The
    second half of the name is the SHA-256 of the library: one that is damaged, or that another
    account could have changed, is not loaded but rebuilt.
    """
    macros = compiling.macros(command)
    source = _SOURCE.read_text(encoding="utf-8")
    digest = hashlib.sha256("\0".join([source, *command, macros]).encode()).hexdigest()
    folder = _folder()
    for library in sorted(folder.glob(f"{digest[:32]}-*{compiling.SUFFIX}")):
        fault = _fault(library)
        if not fault:
            return library, compiling.about(library, command, macros)
        print(f"{library} {fault}: it is rebuilt.", file=sys.stderr)
        library.unlink(missing_ok=True)
    files.sweep(folder)
    # Several processes may build at once: what they make is the same, or has another name.
    with files.scratch_folder(folder, "building") as scratch:
        made = scratch / f"library{compiling.SUFFIX}"
        compiling.compile_library(command, _SOURCE, made)
        made.chmod(0o755)
        files.flush(made)
        library = folder / f"{digest[:32]}-{sha256(made)}{compiling.SUFFIX}"
        made.replace(library)
    files.flush_folder(folder)
    return library, compiling.about(library, command, macros)


def _fault(library: Path) -> str:
    """Why a library may not be loaded; loading a truncated one would end the process."""
    if foreign := _foreign(library):
        return foreign
    if sha256(library) != library.stem.partition("-")[2]:
        return "is damaged (its SHA-256 does not match)"
    return ""


def _foreign(path: Path) -> str:
    """Whether another account may have written the code we would run, in words."""
    if os.name != "posix":
        return ""
    state = path.lstat()
    if stat.S_ISLNK(state.st_mode):
        return "is a symbolic link"
    if state.st_uid not in (0, os.getuid()):
        return "belongs to another account"
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by other accounts"
    return ""


def _folder() -> Path:
    """`$INFOLM_NATIVE`, or in the user's cache; a temporary one where that cannot be written, or
    where others can write."""
    import pooch  # type: ignore[import-untyped]

    given = os.environ.get("INFOLM_NATIVE")
    folder = Path(given) if given else Path(pooch.os_cache("infolm")) / "native"
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder = folder.resolve()
        if os.name == "posix" and folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
        if foreign := _foreign(folder):
            print(
                f"{folder} {foreign}, so the native library there is not used: set INFOLM_NATIVE "
                "to a folder of your own.",
                file=sys.stderr,
            )
        elif os.access(folder, os.W_OK):
            return folder
    except OSError as error:
        _LOG.info("%s", error)
    return Path(tempfile.mkdtemp(prefix="infolm-native-"))


@functools.cache
def _team() -> int | None:
    """The address of OpenMP's function that calls another on PyTorch's threads, if it has them."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no such place to look
        return None


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    flag, whole, address = ctypes.c_bool, ctypes.c_int64, ctypes.c_void_p
    library.execute.argtypes = (
        *(flag, flag, ctypes.c_char_p, whole, address, address, whole, address, whole),
        *(flag, whole, address),
    )
    library.execute.restype = ctypes.c_int
    library.exponentiate.argtypes = (
        *(address, whole, whole, address, address),
        *(address, address, whole, address),
    )
    library.exponentiate.restype = None
    return library
