"""The command `infolm`. Every heavy import waits until a command needs it."""

import os
import sys
from itertools import pairwise
from typing import NoReturn

# Importing a module adds its commands to `app`, in the order that `infolm --help` lists them.
# isort: off
from infolm.cli import training  # noqa: F401
from infolm.cli import use  # noqa: F401
from infolm.cli import score  # noqa: F401
from infolm.cli import race  # noqa: F401
from infolm.cli import compare  # noqa: F401
from infolm.cli import finetune  # noqa: F401
from infolm.cli import export  # noqa: F401
from infolm.cli import serve  # noqa: F401
from infolm.cli import variance  # noqa: F401
from infolm.cli import repair  # noqa: F401
from infolm.cli import reproduce  # noqa: F401
from infolm.cli.information import command  # noqa: F401
from infolm.cli import lists  # noqa: F401

# isort: on
from infolm.cli.app import app
from infolm.cli.options import spelt_out
from infolm.errors import InfolmError


def main() -> NoReturn:
    """Run the command; a person's mistake is one sentence on standard error and exit code 2."""
    _read_and_write_utf8()
    _share_cores()
    try:
        _refuse_giant_seeds(sys.argv[1:])
        app(spelt_out(sys.argv[1:]))
    except InfolmError as error:
        message = " ".join(str(error).split())
        print(f"infolm: {message}{'' if message.endswith(('.', '?')) else '.'}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has closed it
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # a full disk, a folder that is not writable
        print(f"infolm: {error}; what was saved before is intact.", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        print(f"infolm: {_last_resort(error)}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def _read_and_write_utf8() -> None:
    """Restart in Python's UTF-8 mode if the locale is C, where file names and texts could only be
    ASCII."""
    if sys.getfilesystemencoding() == "ascii" and os.environ.get("PYTHONUTF8") != "1":
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONUTF8": "1"})


def _share_cores() -> None:
    """Have a thread that waits for the others of its step sleep after 20,000 turns.

    By default GNU's OpenMP keeps waiting threads busy for milliseconds, on the very cores that the
    others need when more programs are running: beside two of them, training is 2.5 to 5 times as
    fast with this, and alone as fast as without (`benchmarks/busy.py`). OpenMP reads the
    variable when PyTorch is loaded; processes that we start inherit it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def _last_resort(error: Exception) -> str:
    """One sentence on an unexpected error; the full traceback goes to a file."""
    import tempfile
    import traceback
    from importlib import metadata

    said = " ".join(f"{type(error).__name__}: {error}".split())
    said = said if len(said) < 200 else f"{said[:200]} ..."
    if isinstance(error, MemoryError) or "can't allocate memory" in said:
        said = f"there is not enough memory ({said}), so lower sizes such as feed.batch"
    elif isinstance(error, OverflowError):
        said = f"a number is too large ({said})"
    else:
        said = f"this should not have happened ({said})"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="infolm-", suffix=".log", delete=False, encoding="utf-8", errors="replace"
        ) as log:
            log.write(f"infolm {metadata.version('infolm')}, Python {sys.version}\n{sys.argv}\n")
            traceback.print_exception(error, file=log)
    except (OSError, metadata.PackageNotFoundError, RecursionError):
        return f"{said}; what was saved before is intact."
    return f"{said}; what was saved before is intact, and {log.name} shows where it happened."


def _refuse_giant_seeds(arguments: list[str]) -> None:
    for before, after in pairwise(["", *arguments]):
        value = after.removeprefix("--seed=")
        given = (before == "--seed" or value != after) and value.lstrip("-").isdigit()
        # Check the length first: Python refuses to parse thousands of digits.
        if given and (len(value) > 20 or not -(2**63) <= int(value) < 2**63):
            raise InfolmError(
                f"--seed {value[:30]} is a number beyond 64 bits: choose a smaller one"
            )
