"""The command `infolm`. Every heavy import waits until a command needs it."""

import sys
from pathlib import Path
from typing import NoReturn

# Each joins `app`, in the order in which `infolm --help` lists its commands.
# isort: off
from infolm.cli import training  # noqa: F401
from infolm.cli import use  # noqa: F401
from infolm.cli import finetune  # noqa: F401
from infolm.cli import export  # noqa: F401
from infolm.cli import variance  # noqa: F401
from infolm.cli import repair  # noqa: F401
from infolm.cli import reproduce  # noqa: F401
from infolm.cli import information  # noqa: F401
from infolm.cli import lists  # noqa: F401

# isort: on
from infolm.cli.app import app
from infolm.errors import InfolmError

TUNABLE = ("--cache", "--dynamic", "--temperature")


def main() -> NoReturn:
    """Run the command; a person's mistake is one sentence on standard error and exit code 2."""
    try:
        app(_spell_out(sys.argv[1:]))
    except InfolmError as error:
        message = " ".join(str(error).split())
        print(f"infolm: {message}{'' if message.endswith('.') else '.'}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has had enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"infolm: {error}; what was saved before is intact.", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def _spell_out(arguments: list[str]) -> list[str]:
    """`--cache`, `--dynamic` and `--temperature` may stand alone, or with a value behind them.

    What follows is a value unless it is another option, or a run's folder.
    """
    spelt = list(arguments)
    for i, argument in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else "-"
        option = following.startswith("-") and not following[1:2].isdigit()
        if argument in TUNABLE and (option or Path(following).is_dir()):
            spelt[i] = f"{argument}=tuned"
    return spelt
