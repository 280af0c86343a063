"""Imports point one way through the packages, and nothing in one knows a later one."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import infolm

ROOT = Path(infolm.__file__).parent
ORDER = [
    {"trees"},
    {"errors", "console", "metrics", "section", "registration"},
    {"files", "registry", "shelf", "space"},
    {"information"},
    {"data"},
    {"nn"},
    {"models"},
    {"averaging"},
    {"optimisation"},
    {"objectives"},
    {"training"},
    {"evaluation"},
    {"generation"},
    {"reports"},
    {"config"},
    {"families", "keys"},
    {"finetuning", "sentence_vectors", "word_vectors", "repair", "causal_lm_config"},
    {"causal_lm"},
    {"exports", "server"},
    {"studies"},
    {"library"},
    {"cli"},
    {"__main__"},
]
"""Rooms of the package, from the ground up; those of one line know nothing of each other."""


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> set[str]:
    """The modules of infolm that a file imports, also inside functions, but not for types alone;
    and what it imports from them, which may be modules."""
    tree = ast.parse(path.read_text())
    typed = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in typed and node.module:
            if node.module == "infolm":
                found |= {f"infolm.{alias.name}" for alias in node.names}
            elif node.module.startswith("infolm."):
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("infolm.")}
    return found


def test_every_room_has_its_place():
    rooms = {p.stem if p.suffix == ".py" else p.name for p in ROOT.iterdir()}
    ours = {r for r in rooms if (ROOT / f"{r}.py").exists() or (ROOT / r / "__init__.py").exists()}
    assert ours - {"__init__"} == set().union(*ORDER)


def test_imports_point_up_the_list():
    level = {name: i for i, names in enumerate(ORDER) for name in names}
    wrong = []
    for path in ROOT.rglob("*.py"):
        own = ".".join(["infolm", *path.relative_to(ROOT).with_suffix("").parts])
        here = room(own)
        if here == "__init__":
            continue
        for target in imports(path):
            there = room(target)
            if there and there != here and level[there] >= level[here]:
                wrong.append(f"{own} imports {target}")
    assert not wrong


def test_no_two_modules_import_each_other():
    files = {module_name(path): path for path in ROOT.rglob("*.py")}
    graph = {name: (imports(path) & files.keys()) - {name} for name, path in files.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_feeds_do_without_torch():
    for path in (ROOT / "data").glob("*.py"):
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Import)]
        assert "torch" not in {alias.name for node in nodes for alias in node.names}, path
