"""The notebooks in examples/: they are those of the pages, and they run from the first cell on."""

import json
import os
import sys
from pathlib import Path

import notebooks
import pytest
from whole import WHOLE

QUICK = "teacher"
"""The notebook that every test run executes; the others are executed by `make faults`."""


def cells(name: str, kind: str) -> list[str]:
    read = json.loads((notebooks.EXAMPLES / f"{name}.ipynb").read_text("utf-8"))
    return ["".join(cell["source"]) for cell in read["cells"] if cell["cell_type"] == kind]


def test_notebooks_are_those_of_the_pages():
    assert notebooks.stale() == [], "run `make notebooks`"


def test_a_page_that_changes_makes_its_notebook_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "EXAMPLES", tmp_path)
    for path, text in notebooks.files().items():
        path.write_text(text)
    assert notebooks.stale() == []
    (tmp_path / "bmi.ipynb").write_text("{}")
    (tmp_path / "nobody.ipynb").write_text("{}")
    assert notebooks.stale() == ["bmi.ipynb", "nobody.ipynb"]


@pytest.mark.parametrize("page", notebooks.PAGES)
def test_a_notebook_installs_first_and_has_every_command_of_its_page(page):
    first, book, *others = cells(Path(page).name, "code")
    assert first.startswith("%pip install -q 'infolm[")
    assert 'Path("book.txt")' in book
    text = (notebooks.ROOT / "docs" / f"{page}.md").read_text("utf-8")
    commands = [line for block in others for line in block.splitlines()]
    for kind, block in notebooks.parts(notebooks.ROOT / "docs" / f"{page}.md"):
        if kind == "code":
            assert set(block.splitlines()) <= set(commands)
    assert sum(line.startswith("infolm ") for line in commands) > 1
    trained = [line for line in commands if line.startswith("infolm train")]
    assert all("train.max_steps=" in line or "--resume" in line for line in trained)
    assert text.split("\n")[0] in cells(Path(page).name, "markdown")[0]


def test_links_of_a_notebook_lead_somewhere():
    for page in notebooks.PAGES:
        for text in cells(Path(page).name, "markdown"):
            for target in notebooks.LINK.findall(text):
                path, _, _ = target.partition("#")
                assert (notebooks.EXAMPLES / path).exists(), (page, target)


def executed(name: str) -> list[str]:
    """What the cells of the notebook print, all but the one that installs."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(notebooks.EXAMPLES / f"{name}.ipynb", as_version=4)
    book.cells = [cell for cell in book.cells if "install" not in cell.metadata.get("tags", [])]
    for cell in book.cells:  # two steps are enough to see that everything runs
        if cell.cell_type == "code":
            short = cell.source.replace(notebooks.STEPS, "train.max_steps=2 feed.batch=4")
            cell.source = short.replace("train.validate_every=30", "train.validate_every=1")
    nbclient.NotebookClient(book, timeout=1200, kernel_name="python3").execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    return [output.get("text", "") for output in outputs]


@pytest.mark.filterwarnings("ignore")  # of Jupyter's own packages
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                not WHOLE and name != QUICK, reason="its commands are tested as those of the page"
            ),
        )
        for name in (Path(page).name for page in notebooks.PAGES)
    ],
)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    printed = "".join(executed(name))  # a cell that fails raises
    assert "Traceback (most recent call last)" not in printed
    if name == QUICK:
        assert "the run is in runs/demo" in printed
        assert (tmp_path / "microscope.html").stat().st_size > 100_000
