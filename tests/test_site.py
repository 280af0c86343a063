"""The documentation site: its reference has all of the code, and every page has its place."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import site_pages
import site_reference
import typer
from whole import WHOLE

import infolm
from infolm import keys
from infolm.cli.app import app

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    return {name.split("/")[-1]: make() for name, make in site_reference.PAGES.items()}


def section(page: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, title
    return found.group(1)


def test_every_key_of_a_recipe_is_in_the_reference(reference):
    for group in keys.reference():
        told = section(reference["keys.md"], group.title)
        assert not [each.key for each in group.keys if f"| `{each.key}` |" not in told]


def test_every_command_and_option_is_in_the_reference(reference):
    commands = typer.main.get_command(app).commands
    assert {"train", "score", "mi"} <= commands.keys()
    for name, command in commands.items():
        told = section(reference["commands.md"], f"infolm {name}")
        assert command.help.split("\n")[0].split(":")[0] in told
        for option in command.params:
            names = [*option.opts, *option.secondary_opts]
            if option.param_type_name == "argument":
                names = option.metavar.strip("[]").split("|")
            rows = [line for line in told.splitlines() if line.startswith(f"| `{names[0]}`")]
            assert len(rows) == 1, (name, names)
            assert all(f"`{each}`" in rows[0] for each in names)
            *_, meaning, _ = re.split(r"(?<!\\)\|", rows[0])
            assert meaning.strip(), (name, names)


def test_every_public_name_is_in_the_reference(reference):
    page = reference["python.md"]
    for name in infolm.__all__:
        assert section(page, f"infolm.{name}").strip()
    assert "*,\n    by: str | None = None" in section(page, "infolm.compare")
    assert "-> list[Measurement]" in section(page, "infolm.evaluate")
    for name in ("Measurement", "Run", "Comparison", "InfolmError"):  # what they give and raise
        assert section(page, name)
    assert "| `stderr` | float or None |" in section(page, "Measurement")


def test_the_reference_shows_text_in_angle_brackets(reference):
    """<eos> outside code would be an element of HTML, and vanish."""
    for page in reference.values():
        prose = re.sub(r"```.*?```|`[^`]*`", "", page, flags=re.DOTALL)
        assert not re.findall(r"<\w+>?", prose)


def listed(entries) -> list[str]:
    """The pages that a part of the navigation names."""
    if isinstance(entries, str):
        return [entries]
    return [page for entry in entries for value in entry.values() for page in listed(value)]


def test_every_page_has_one_place_in_the_navigation():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    pages = {name for name in site_pages.sources() if name.endswith(".md")}
    assert sorted(listed(nav)) == sorted(pages | site_reference.PAGES.keys())


def test_every_page_opens_with_what_it_is_for(reference):
    texts = {path: path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    for name, text in [*texts.items(), *reference.items()]:
        assert re.match(r"# .+\n\n(This page|For )", text), name
    for name, path in site_pages.sources().items():  # the others say it in words of their own
        if name.endswith(".md"):
            assert re.match(r"# .+\n\n[`*]*[A-Z0-9a-z\[]", path.read_text()), name


def test_what_is_wrong_with_a_site_is_found(tmp_path):
    """A link to nowhere, a place that is not there, and a script from another host."""
    (tmp_path / "a.html").write_text(
        '<link rel="stylesheet" href="s.css"><h1 id="top">A</h1><a href="b.html#end">b</a>'
        '<a href="https://example.org">elsewhere</a><a href="#top">up</a>'
    )
    (tmp_path / "s.css").write_text("")
    (tmp_path / "b.html").write_text('<p id="end"></p><a href="a.html#top">a</a>')
    assert list(site_pages.faults(tmp_path)) == []
    (tmp_path / "c.html").write_text(
        '<script src="https://example.org/x.js"></script><a href="d.html">d</a>'
        '<a href="a.html#bottom">a</a><img src="p.png">'
    )
    assert list(site_pages.faults(tmp_path)) == [
        "c.html loads https://example.org/x.js from outside",
        "c.html links to d.html, which is not there",
        "c.html links to a.html#bottom, which has no such place",
        "c.html links to p.png, which is not there",
    ]
    assert list(site_pages.faults(tmp_path / "none"))


@pytest.mark.skipif(not WHOLE, reason="builds the whole site; make docs does the same")
def test_the_site_is_built_and_searched_from_the_file_system(tmp_path):
    pytest.importorskip("zensical")
    playwright = pytest.importorskip("playwright.sync_api")
    browser = shutil.which("chromium")
    if not browser:
        pytest.skip("there is no Chromium")
    site_pages.write(tmp_path / "build" / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    site = tmp_path / "build" / "site"
    assert list(site_pages.faults(site)) == []
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for size in ({"width": 1280, "height": 900}, {"width": 390, "height": 844}):
            page = chromium.new_page(viewport=size)
            asked: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto((site / "index.html").as_uri())
            page.keyboard.press("Control+k")
            page.keyboard.type("perplexity", delay=100)
            page.get_by_text(re.compile(r"^\s*\d+ results")).first.wait_for()
            page.keyboard.press("Enter")
            page.wait_for_url("**h=perplexity**")
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
            assert [url for url in asked if not url.startswith("file:")] == []
        chromium.close()
