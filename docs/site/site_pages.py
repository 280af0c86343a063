"""The documentation site: puts its pages together, and checks what was built of them.

`make docs` calls it twice, around `zensical build`:

    python docs/site/site_pages.py write build/docs    # the pages, the reference among them
    python docs/site/site_pages.py check build/site    # links, and that nothing comes from outside

Pages keep the places that they have in the repository, so that their links hold in both.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
ALONE = [
    "CHANGELOG.md",
    "CITATION.cff",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
]
"""What stands outside the folders of pages."""

HOME = "index.md"
"""What the README is called in the site."""

ASSETS = {".png", ".svg", ".json", ".sh", ".yaml", ".ipynb"}
"""What pages show or link to, besides pages."""


def sources() -> dict[str, Path]:
    """The files of the site that are not made from the code, by their path in the site."""
    found = {HOME: ROOT / "README.md"}
    found |= {name: ROOT / name for name in ALONE if (ROOT / name).exists()}
    for folder in ("docs", "results", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            inside = path.relative_to(ROOT)
            hidden = {"runs", "site"} & set(inside.parts)  # trainings; this folder
            if path.is_file() and path.suffix in {".md", *ASSETS} and not hidden:
                found[inside.as_posix()] = path
    found["assets/iframe-worker.js"] = Path(__file__).parent / "iframe-worker.js"
    found["assets/extra.css"] = Path(__file__).parent / "extra.css"
    return found


def write(folder: Path) -> None:
    """All pages, in a folder that holds nothing else afterwards."""
    from site_reference import PAGES

    shutil.rmtree(folder, ignore_errors=True)
    for name, path in sources().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for name, make in PAGES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(make(), encoding="utf-8")


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that may be linked to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if place := given.get("id"):
            self.places.add(place)
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        loaded = given.get("src") if tag != "link" else given.get("href")
        if loaded and given.get("rel") not in ("canonical", "prev", "next", "edit"):
            self.loads.append(loaded)


def faults(site: Path) -> Iterator[str]:
    """What is wrong with a site that was built: a sentence each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":  # its links are those of the site's root, wherever it is shown
            continue
        here = path.relative_to(site)
        for address in page.loads:
            if urlsplit(address).netloc:
                yield f"{here} loads {address} from outside"
        for link in dict.fromkeys([*page.links, *page.loads]):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (
                Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            )
            if target.is_dir() and (target / "index.html").is_file():
                target /= "index.html"
            if not target.is_file():
                yield f"{here} links to {link}, which is not there"
            elif parts.fragment and target in pages:
                place = unquote(parts.fragment)
                if place not in pages[target].places and not place.startswith("__"):
                    yield f"{here} links to {link}, which has no such place"
    if not pages:
        yield f"{site} has no pages: build the site first"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=["write", "check"])
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    if asked.action == "write":
        write(asked.folder)
        return 0
    found = list(faults(asked.folder))
    print(*found, sep="\n", file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
