"""Recipes and command lines with random values: each ends with exit code 0 or 2, never a trace.

    python tests/support/fuzz_commands.py 10000 --json commands.json

Half of them are recipes that `infolm train` reads, with a few keys set to strange values; a recipe
that is sound is not trained. Half are command lines of the other commands, with strange options.
All are run in this process, by the function behind the command `infolm`.
"""

import argparse
import contextlib
import io
import json
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

STRANGE = (
    *("0", "-1", "1", "7", "99999", "100000000", "1" * 25, "1e308", "-0.0", "nan", "inf", ".inf"),
    *("true", "null", "~", "''", "[]", "{}", "[1, 2]", "{a: 1}", "x", "ä\u2028", "[/red]", "../.."),
    *("2026-11-17", "0x1F", "1_000", "!!python/name:os.system", "&a [*a]", "tune", "all", "%s{}"),
    *("[" * 200, "--"),
)


def keys(tree: dict[str, Any], before: str = "") -> list[str]:
    found = []
    for name, value in tree.items():
        found.append(f"{before}{name}")
        if isinstance(value, dict):
            found += keys(value, f"{before}{name}.")
    return found


def recipe_line(rng: random.Random, known: dict[str, list[str]]) -> list[str]:
    name = rng.choice(list(known))
    line = ["train", name, "--out", "never-made"]
    for _ in range(rng.choice((1, 1, 2, 3))):
        key = rng.choice(known[name])
        if rng.random() < 0.1:
            key = key[: rng.randrange(len(key) + 1)] + rng.choice("x.= ")
        line.append(f"{key}={rng.choice(STRANGE)}")
    return line


def command_line(rng: random.Random, options: dict[str, list[str]]) -> list[str]:
    command = rng.choice(list(options))
    line = [command, *rng.sample(["no-such-run", ".", "", "/dev/null", *STRANGE], rng.randrange(3))]
    for _ in range(rng.randrange(4)):
        option = rng.choice(options[command] or ["--x"])
        line += [option] if rng.random() < 0.3 else [option, rng.choice(STRANGE)]
    return line


def give(line: list[str]) -> tuple[int, str]:
    """The exit code of a command line, and what it said."""
    from infolm.cli import main

    said = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["infolm", *line]),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(said),
    ):
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()


def fuzz(count: int, seed: int = 0) -> dict[str, Any]:
    """Give so many; what they ended with, and those that ended otherwise than they should."""
    import typer

    from infolm.cli import app
    from infolm.config import load_recipe, recipe_names

    rng = random.Random(seed)
    known = {name: keys(load_recipe(name).model_dump(mode="json")) for name in recipe_names()}
    group: Any = typer.main.get_command(app)
    # Those that would do something that takes long with sound values are left out.
    options = {
        name: [o for each in command.params for o in getattr(each, "opts", []) if o[:1] == "-"]
        for name, command in group.commands.items()
        if name not in ("train", "tune", "reproduce", "race", "serve", "corpora")
    }
    codes: Counter[int] = Counter()
    findings, slowest = [], 0.0
    with mock.patch("infolm.families.train.train", return_value=1.0):
        for _ in range(count):
            recipes = rng.random() < 0.5
            line = recipe_line(rng, known) if recipes else command_line(rng, options)
            began = time.process_time()
            code, said = give(line)
            slowest = max(slowest, time.process_time() - began)
            codes[code] += 1
            if code not in (0, 2) or re.search("Traceback|should not have happened", said):
                findings.append({"line": line, "code": code, "said": said[-600:]})
    return {
        "lines": count,
        "codes": dict(codes),
        "slowest_seconds": round(slowest, 2),
        "findings": findings,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = fuzz(asked.count, asked.seed)
    print(json.dumps(found | {"findings": found["findings"][:20]}, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(bool(found["findings"]))


if __name__ == "__main__":
    main()
