"""How `native.cpp` is compiled: by the build hook for wheels, or on the user's computer.

Standard library only: the hook (`hatch_build.py`) reads this file where infolm is not installed.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("native.cpp")
RECORD = "libraries.json"
"""The file beside a wheel's libraries with the build of each, by its file's name."""
SUFFIX = ".dll" if sys.platform == "win32" else ".so"
FLAGS = "-O3 -std=c++17 -ffp-contract=fast -shared".split()
# Code for Windows is always position-independent, and needs no option for threads.
FLAGS += [] if sys.platform == "win32" else ["-fPIC", "-pthread"]
# GCC for Windows does not align vectors of 32 bytes on the stack, and the source has no meaning for
# Microsoft's compiler.
COMPILERS = ("clang++",) if sys.platform == "win32" else ("c++", "g++", "clang++")
INSTRUCTIONS = (
    *("__SSE4_2__", "__AVX__", "__AVX2__", "__FMA__", "__AVX512F__", "__AVX512BF16__"),
    *("__ARM_NEON", "__ARM_FEATURE_SVE"),
)
_AVX512 = "-mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl".split()
SETS = {
    "avx512_bf16": [*_AVX512, "-mavx512bf16"],
    "avx512": _AVX512,
    "avx2": "-mavx2 -mfma".split(),
    "baseline": [],
}
"""Instruction sets of a wheel's libraries, the fastest first, by the compiler's options. What lies
above the baseline is Intel's and AMD's, after PyTorch's own division; ARM's baseline has NEON."""


def compiler() -> list[str]:
    """The command of `$CXX`, or of the first compiler found; empty if there is none."""
    given = shlex.split(os.environ.get("CXX", ""))
    if given:
        return given if shutil.which(given[0]) else []
    return [name for name in COMPILERS if shutil.which(name)][:1]


def macros(command: list[str]) -> str:
    """The compiler's predefined macros: its version, the processor and instruction set."""
    return _run([*command, "-dM", "-E", "-x", "c++", os.devnull])


def compile_library(command: list[str], source: Path, out: Path) -> None:
    """Compile with the options in `command`; raises CalledProcessError with the reason."""
    _run([*command, str(source), "-o", str(out)])


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def about(library: Path, command: list[str], macros: str) -> dict[str, str]:
    """The build of a library: its SHA-256, the compiler, its flags and the instruction set."""
    defined = _defined(macros)
    return {
        "library": sha256(library),
        "compiler": f"{command[0]} {defined.get('__VERSION__', '')}".replace('"', "").strip(),
        "flags": " ".join(command[1:]),
        "instructions": " ".join(name.strip("_") for name in INSTRUCTIONS if name in defined),
    }


def sets(macros: str) -> dict[str, list[str]]:
    """The instruction sets to compile for, where `macros` tell the processor's kind."""
    return SETS if "__x86_64__" in _defined(macros) else {"baseline": []}


def _defined(macros: str) -> dict[str, str]:
    return dict(line.split(" ", 2)[1:] for line in macros.splitlines() if line.count(" ") > 1)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
