"""Every command and every line of Python in the README and the docs works as it stands.

Only the trainings are made short, and read a small text.
"""

import gzip
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import site_pages

from infolm.studies.race import clock

ROOT = Path(__file__).parents[2]
SHORT = ["train.max_steps=2", "train.validate_every=1", "feed.batch=4"]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PAGES = sorted(path for path in site_pages.sources().values() if path.suffix == ".md")


LANGUAGES = ("languages/hmm",)
"""Recipes of a language with a known truth, which no text has."""


SENTENCES = "the cat sat on the mat\nreturn the value .\nthe file is closed .\n"
"""Of the documents' commands."""


def blocks(document: Path) -> list[tuple[str, str]]:
    """Language and content of the blocks to run, in their order."""
    fenced = r"^```(sh|python)\n(.*?)^```"
    return re.findall(fenced, document.read_text(), re.DOTALL | re.MULTILINE)


def shortened(arguments: list[str]) -> list[str]:
    command, first, *_ = [*arguments, ""]
    if command == "train" and "--resume" not in arguments:
        own = any(argument.startswith("data.path=") for argument in arguments)
        given = [] if own or first in LANGUAGES else ["data.path=book.txt"]
        short = ["feed.length=32"] if first.startswith("infoword/") else []
        return [*arguments, *given, *short, *SHORT]
    if command == "reproduce" and first:
        return [*arguments, *SHORT, "data.uniform.symbols=20"]
    if command == "finetune":
        return [*arguments, "--epochs", "1"]
    if command == "race" and "--out" in arguments:
        return [*arguments, "train.max_steps=12", "feed.batch=4"]
    if command == "tune":
        return [re.sub(r"^train.max_steps=\d+", "train.max_steps=4", each) for each in arguments]
    if command == "evaluate" and "--codes" in arguments:
        return ["2" if each == "20" else each for each in arguments]
    trains = not {"copula", "--list"} & set(arguments)
    if command == "mi" and trains:
        return [*arguments, "--steps", "40"]
    return arguments


FORKS = """
import json, os, sys
import lightning_fabric, torch  # once for all, and nothing of infolm
for number, program in enumerate(json.load(sys.stdin)):
    pid = os.fork()
    if not pid:
        exec(compile(program, f"program {number}", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        sys.exit(f"program {number} failed")
"""
"""Programs each in a process of its own: what they register must be new there."""


def stories(folder: Path, lines: list[str]) -> None:
    """A folder of documents: gzipped JSON lines."""
    folder.mkdir()
    bodies = [json.dumps({"body": f"{line}\nstory {i}"}) for i, line in enumerate(lines)]
    (folder / "part-0.jsonl.gz").write_bytes(gzip.compress("\n".join(bodies).encode()))


def tasks(folder: Path) -> None:
    """Small files of CoLA and of SQuAD, where the documents have them."""
    (folder / "glue" / "CoLA").mkdir(parents=True)
    (folder / "squad").mkdir()
    sentences = "a\t1\t\tthe cat sat .\na\t0\t*\tcat the sat .\n"
    context = "The cat sat on the mat."
    answer = {"answer_start": 4, "text": "cat"}
    paragraphs = [
        {
            "context": f"{context}{end}",
            "qas": [{"id": end, "question": "Who?", "answers": [answer]}],
        }
        for end in ("!", "?")  # two, so that dev can be halved
    ]
    for split in ("train", "dev"):
        (folder / "glue" / "CoLA" / f"{split}.tsv").write_text(4 * sentences)
        content = {"version": "1.1", "data": [{"title": "cat", "paragraphs": paragraphs}]}
        (folder / "squad" / f"{split}-v1.1.json").write_text(json.dumps(content))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_runs(document, infolm, tmp_path, small_text, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clock, "process_age", lambda: 0.0)  # a race is timed from there
    lines = small_text.read_text().splitlines(keepends=True)
    text = "".join(["".join(lines[i : i + 10]) + SENTENCES for i in range(0, len(lines), 10)])
    (tmp_path / "book.txt").write_text(text)
    stories(tmp_path / "stories", text.splitlines())
    tasks(tmp_path)
    found = blocks(document)
    if document.name == "extending.md":  # it registers new kinds
        programs = json.dumps([block for language, block in found if language == "python"])
        subprocess.run([sys.executable, "-c", FORKS], input=programs, text=True, check=True)
        found = [(language, block) for language, block in found if language != "python"]
    for language, block in found:
        if language == "python":
            exec(compile(block, str(document), "exec"), {})
            continue
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "infolm"
            target = None
            if ">" in arguments:
                *arguments, _, target = arguments
            done = infolm(*shortened(arguments))
            assert done.code == 0, (line, done.err)
            if target:
                Path(target).write_text(done.out)


def places(page: Path) -> set[str]:
    """What may stand behind # in a link to the page: its headings, as forges and zensical name
    them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in headings}


@pytest.mark.parametrize("document", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_file_it_points_to_is_there(document):
    for target in re.findall(r"\]\((?!http)([^)\s]+)\)", document.read_text()):
        name, _, place = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), target
        assert not place or place in places(path), target


def test_the_readme_is_short_and_counts_the_claims_as_the_ledger_does():
    readme, ledger = ((ROOT / name).read_text() for name in ("README.md", "results/README.md"))
    assert len(readme.splitlines()) <= 120
    (count,) = re.findall(r"^\d+ claims: [^.]+", ledger, re.MULTILINE)
    assert f"| {count} |" in readme, "results/README.md has changed: bring its count to README.md"


def claims_of(ledger):
    """(page, claim) -> what the ledger has of it: our figures, p and the verdict."""
    found, page = {}, ""
    for line in ledger.splitlines():
        if heading := re.match(r"### (?:\[.*\]\((.*)\))?", line):
            page = f"results/{heading[1]}"
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6:
            claim, ours, _, p, _, verdict = cells
            found[page, claim] = [ours, p, verdict]
    return found


def test_the_readmes_claims_are_those_of_the_ledger():
    readme, ledger = ((ROOT / name).read_text() for name in ("README.md", "results/README.md"))
    known = claims_of(ledger)
    row = r"^\| \[[^]]+\]\((results/[^)]+)\) \| (.*) \| (.*) \| (.*) \| (.*) \|$"
    rows = re.findall(row, readme, re.MULTILINE)
    assert len(rows) == 10
    for page, claim, *told in rows:
        assert known[page, claim] == told, f"{page}, {claim}: bring its figures to README.md"


def test_the_readme_opens_with_the_demo_and_the_tests():
    first = re.search(r"```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert first.group(1).startswith("make demo")
    assert "make test" in first.group(1)
