"""Compiles the native recurrence into the wheel, once for each instruction set.

The libraries are called through ctypes and know no Python: one wheel serves all its versions. An
editable installation has none of them, and without a compiler the wheel is made without; in both
cases the recurrence is compiled at its first use, where there is a compiler then. With
INFOLM_REQUIRE_NATIVE=1 in the environment a wheel without them is refused.
"""

import importlib.util
import json
import os
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RECURRENCE = Path("infolm", "nn", "recurrence")


class NativeRecurrence(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self.scratch = tempfile.TemporaryDirectory(prefix="infolm-wheel-")
        made = Path(self.scratch.name)
        try:
            built = compile_all(Path(self.root, "src", RECURRENCE), made)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = f"{error} {getattr(error, 'stderr', '')}".strip()
            if os.environ.get("INFOLM_REQUIRE_NATIVE") == "1":
                raise RuntimeError(f"the native recurrence cannot be compiled: {reason}") from error
            self.app.display_warning(f"The wheel has no native recurrence: {reason}")
            return
        for name in built:
            build_data["force_include"][str(made / name)] = str(RECURRENCE / "carried" / name)
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data.update(pure_python=False, tag=f"py3-none-{platform}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "scratch"):
            self.scratch.cleanup()


def compile_all(folder: Path, out: Path) -> list[str]:
    """Compile a library for each instruction set into `out`; the names of what was made."""
    specification = importlib.util.spec_from_file_location("compiling", folder / "compiling.py")
    assert specification is not None
    assert specification.loader is not None
    compiling = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(compiling)
    found = compiling.compiler()
    if not found:
        raise OSError("there is no C++ compiler (CXX, c++, g++, clang++)")
    # macOS is told so which processor the wheel is for.
    command = [*found, *shlex.split(os.environ.get("ARCHFLAGS", "")), *compiling.FLAGS]
    record = {}
    for name, flags in compiling.sets(compiling.macros(command)).items():
        library = out / f"{name}{compiling.SUFFIX}"
        compiling.compile_library([*command, *flags], compiling.SOURCE, library)
        macros = compiling.macros([*command, *flags])
        record[library.name] = compiling.about(library, [*command, *flags], macros)
    (out / compiling.RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return [*record, compiling.RECORD]
