"""ThreadSanitizer on the native recurrence.

    python tests/support/thread_sanitizer.py 400

Random programs run on two to four threads of the machine's own. In training the threads are
PyTorch's, of OpenMP; its library is not compiled for ThreadSanitizer, which would take its waiting
for races. What the threads do is the same.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from infolm.nn.recurrence import compiling

DRIVER = Path(__file__).with_suffix(".cpp")
FLAGS = ["-std=c++17", "-O1", "-g", "-pthread", "-ffp-contract=fast", "-fsanitize=thread"]


def build(folder: Path, source: str) -> Path | None:
    """The program that is checked; None if there is no compiler that can make it."""
    (folder / "native.cpp").write_text(source, encoding="utf-8")
    told = f'-DSOURCE="{folder / "native.cpp"}"'
    made = folder / "checked"
    command = [*compiling.compiler(), *FLAGS, told, str(DRIVER), "-o", str(made)]
    if not compiling.compiler() or subprocess.run(command, capture_output=True).returncode:
        return None
    return made


def run(program: Path, rounds: int) -> subprocess.CompletedProcess[str]:
    told = os.environ | {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66"}
    # Without random addresses: older sanitizers do not know those of newer kernels.
    command = ["setarch", "-R", str(program), str(rounds)]
    return subprocess.run(command, capture_output=True, text=True, env=told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=400)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder), compiling.SOURCE.read_text(encoding="utf-8"))
        if program is None:
            sys.exit("there is no C++ compiler with ThreadSanitizer")
        done = run(program, asked.rounds)
    print(done.stdout + done.stderr, end="")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
