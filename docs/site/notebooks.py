"""The notebooks in examples/, one for each tutorial, made from its page.

    python docs/site/notebooks.py           # writes examples/; `make notebooks`
    python docs/site/notebooks.py --check   # says which are out of date

A page's commands and lines of Python become cells, in their order; the prose between them stays.
Trainings are made short and read a small text, so that a notebook runs in minutes on two CPU cores.
"""

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

PAGES = [
    "quickstart",
    *(f"people/{who}" for who in "linguist teacher engineer researcher data-scientist".split()),
    *"recurrent bmi sentences monte-carlo encoders mutual-information".split(),
]
"""The tutorials: the first hour, one for each kind of person, one for each family of models."""

STEPS = "train.max_steps=60"
"""How long a training is here, unless the page says so itself."""

EXTRAS = {
    "engineer": "serve,onnx",
    "researcher": "tune",
    "encoders": "encoders,sentences",
    "monte-carlo": "tune",
    "mutual-information": "sklearn",
}
"""What a page needs besides `infolm[report]`."""

BOOK = """\
from pathlib import Path

from infolm.data import python_docs

# The short lines of the manual that comes with Python. Put a text of your own here.
lines = python_docs.splits()["train"].splitlines(keepends=True)
short = [line for line in lines if len(line.split()) < 40]
Path("book.txt").write_text("".join(short), encoding="utf-8")"""

CONTENTS = """\
# Notebooks

This folder has a notebook for each tutorial. Open one in Jupyter or Colab and run all cells. It
installs infolm, takes a small text from Python's own manual, and needs minutes on two CPU cores.

| tutorial | notebook | the same as a page |
| --- | --- | --- |
{rows}

In a clone leave out the first cell: `make install` has installed infolm. Where no index has infolm,
name there the wheel that `make dist` builds.

The notebooks are made from the pages by `make notebooks`, and a test compares them: change the
page, not the notebook.
"""

LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")

KNOWN = ("languages/",)
"""Recipes of languages with a known truth, which no text has."""


def command(line: str) -> str:
    """A command of a page as it is in the notebook: on the small text, and short."""
    arguments = shlex.split(line)[1:]
    what, first, *_ = [*arguments, ""]
    added = []
    if what in ("train", "reproduce") and first and "--resume" not in arguments:
        given = any(each.startswith("data.path=") for each in arguments)
        if what == "train" and not given and not first.startswith(KNOWN):
            added.append("data.path=book.txt")
        if not any(each.startswith(("train.max_steps=", "--list")) for each in arguments):
            added += [STEPS, "train.validate_every=30"]
    if what == "reproduce" and first.startswith("-"):
        added = []
    return " ".join([line, *added])


def runs_here(language: str, block: str) -> bool:
    """All but what waits for requests, and fine-tuning, whose tasks' files nobody may hand on.

    Pages mark with `bash` what other pages' tests run, too, and what is for a terminal only.
    """
    if language == "bash":
        lines = block.splitlines()
        return all(line.startswith("infolm ") and "infolm serve" not in line for line in lines)
    return language in ("sh", "python") and not block.startswith("infolm finetune")


def parts(page: Path) -> Iterator[tuple[str, str]]:
    """The kind of each cell of a page, and its text."""
    prose: list[str] = []
    for text, language, block in re.findall(
        r"(.*?)(?:^```(\w*)\n(.*?)^```\n|\Z)",
        page.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    ):
        prose.append(text)
        if runs_here(language, block):
            yield "markdown", "".join(prose)
            prose = []
            lines = block.splitlines()
            if language != "python":  # -e: a command that fails ends the cell, and says so
                lines = ["%%bash -e", *map(command, lines)]
            yield "code", "\n".join(lines)
        elif block:
            prose.append(f"```{language}\n{block}```\n")
    yield "markdown", "".join(prose)


def moved(text: str, page: Path) -> str:
    """Links as they are from examples/, and no pictures, which a lone notebook does not have."""

    def link(match: re.Match[str]) -> str:
        target, _, place = match.group(1).partition("#")
        path = (page.parent / target).resolve() if target else page
        inside = Path(os.path.relpath(path, EXAMPLES)).as_posix()
        return f"]({inside}{'#' + place if place else ''})"

    text = re.sub(r"^!\[.*?\]\(.*?\)\n\n?", "", text, flags=re.MULTILINE)
    return LINK.sub(link, text).strip()


def notebook(name: str) -> str:
    """The notebook of a page, as JSON. The same page gives the same bytes."""
    page = ROOT / "docs" / f"{name}.md"
    extras = ",".join(["report", *filter(None, [EXTRAS.get(page.stem)])])
    about = (
        f"*Made from [docs/{name}.md](../docs/{name}.md) by `make notebooks`. Trainings are short "
        f"here (`{STEPS}`), on a small text, so that everything runs in minutes on two CPU cores. "
        "The page has the full commands.*"
    )
    (_, opening), *others = parts(page)
    cells = [
        ("markdown", moved(opening, page) + "\n\n" + about),
        ("code", f"%pip install -q 'infolm[{extras}]'"),
        ("code", BOOK),
        *((kind, moved(text, page) if kind == "markdown" else text) for kind, text in others),
    ]
    written = [
        cell(number, kind, text) for number, (kind, text) in enumerate(cells) if text.strip()
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": written,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def cell(number: int, kind: str, text: str) -> dict[str, Any]:
    """A cell of the format's version 4.5. The one that installs is tagged."""
    tags = {"tags": ["install"]} if text.startswith("%pip") else {}
    shared = {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": tags,
        "source": text.splitlines(keepends=True),
    }
    return shared if kind == "markdown" else {**shared, "execution_count": None, "outputs": []}


def contents() -> str:
    """The page that lists the notebooks."""
    rows = []
    for name in PAGES:
        page = ROOT / "docs" / f"{name}.md"
        title = page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
        rows.append(
            f"| {title} | [{page.stem}.ipynb]({page.stem}.ipynb) | [page](../docs/{name}.md) |"
        )
    return CONTENTS.format(rows="\n".join(rows))


def files() -> dict[Path, str]:
    """What examples/ has to hold."""
    made = {EXAMPLES / f"{Path(name).name}.ipynb": notebook(name) for name in PAGES}
    return {EXAMPLES / "README.md": contents(), **made}


def stale() -> list[str]:
    """Names of files in examples/ that are missing, old, or nobody's."""
    wanted = files()
    there = set(EXAMPLES.glob("*.ipynb"))
    old = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    return sorted(path.name for path in [*old, *(there - wanted.keys())])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        old = stale()
        for name in old:
            print(f"examples/{name} is out of date: run `make notebooks`", file=sys.stderr)
        return 1 if old else 0
    EXAMPLES.mkdir(exist_ok=True)
    wanted = files()
    for path in set(EXAMPLES.glob("*.ipynb")) - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
