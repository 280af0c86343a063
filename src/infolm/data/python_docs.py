"""English text from CPython itself: its manual's topics and its library's docstrings.

Everything is read with `ast`; nothing is imported. A document is one topic or one module. Its
paragraphs are unwrapped to one line each; text that is not English (code, tables, signatures, lists
of names) is left out, and so is a paragraph that occurred in an earlier document. The same Python
version gives the same text.
"""

import ast
import hashlib
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

VERSION = 1  # raise it when other text comes out

_LEFT_OUT = {
    *("site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "idlelib"),
    *("ensurepip", "turtledemo", "lib-dynload", "__pycache__", "pydoc_data"),
}
_COMMON = frozenset(
    "a an and are as at be by can for from has if in is it its may not of on or that the then "
    "this to used was when which will with you".split()
)
_BULLET = re.compile(r"^(?:[-*+o•]|\(?\d+[.)]|\[\d+\])\s+")
_ROLE = re.compile(r":[a-z:]+:`~?([^`]*)`")
_MARKUP = re.compile(r"\*\*?(?=\S)|(?<=\S)\*\*?|``?|(?<=[\w.])_+(?=\s|$)")
_WORD = re.compile(r"[A-Za-z][a-z'-]*$")


def splits() -> dict[str, str]:
    """The text of each split: documents fall into one by a hash of their name, 90 : 5 : 5."""
    texts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    seen: set[str] = set()
    for name, text in _documents():
        lines = [line for line in dict.fromkeys(paragraphs(text)) if line not in seen]
        seen.update(lines)
        texts[_split(name)] += lines
    return {split: "".join(f"{line}\n" for line in lines) for split, lines in texts.items()}


def _split(name: str) -> str:
    """A uniform number below twenty, the same on every machine."""
    side = int.from_bytes(hashlib.sha256(name.encode()).digest()) % 20
    return {0: "valid", 1: "test"}.get(side, "train")


def _documents() -> Iterator[tuple[str, str]]:
    """Name and text of each topic and each module, in the order of their names."""
    library = Path(sysconfig.get_path("stdlib"))
    topics = library / "pydoc_data" / "topics.py"
    if topics.exists():
        for name, text in sorted(_topics(_parse(topics)).items()):
            yield f"topic {name}", text
    for path in _modules(library):
        yield path.relative_to(library).as_posix(), "\n\n".join(_docstrings(_parse(path)))


def _modules(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in _LEFT_OUT or path.name.startswith(("config-", "_sysconfigdata")):
            continue
        if path.is_dir():
            yield from _modules(path)
        elif path.suffix == ".py":
            yield path


def _parse(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old library modules have doubtful escapes
        return ast.parse(path.read_bytes())


def _topics(module: ast.Module) -> dict[str, str]:
    """The dictionary that the module assigns to `topics`."""
    (value,) = (node.value for node in module.body if isinstance(node, ast.Assign))
    topics: dict[str, str] = ast.literal_eval(value)
    return topics


def _docstrings(node: ast.AST) -> Iterator[str]:
    """The docstrings of a module, its classes and functions, in the order of the source."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield ast.get_docstring(node) or ""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _docstrings(child)


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a documentation text that read as English, one line each, unmarked."""
    for block in re.split(r"\n[ \t]*\n", text):
        item: list[str] = []
        for line in [*map(str.strip, block.splitlines()), "- "]:
            if item and (_BULLET.match(line + " ") or line == "- "):
                paragraph = _unmarked(" ".join(item))
                if _is_english(paragraph):
                    yield paragraph
                item = []
            item.append(line)


def _unmarked(text: str) -> str:
    text = _ROLE.sub(r"\1", _BULLET.sub("", text))
    return " ".join(_MARKUP.sub("", text).replace("--", "–").split())


def _is_english(text: str) -> bool:
    """Long enough, mostly plain words, enough of them common, and no trace of code.

    Code and tables fail at the share of plain words, lists of names at that of common ones.
    """
    words = text.split()
    plain = sum(bool(_WORD.match(word.strip(".,;:!?()\"'"))) for word in words)
    common = sum(word.lower() in _COMMON for word in words)
    code = text.startswith((">>>", "...", "|", "#", "+-", "@")) or " = " in text or "::=" in text
    return (
        len(words) >= 4
        and not code
        and text[0].isalpha()
        and plain >= 0.75 * len(words)
        and common >= 0.15 * len(words)
    )
