"""A comparison as one self-contained HTML page."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from infolm.errors import InfolmError
from infolm.reports.page import code, figure, page, paragraph, section
from infolm.studies.comparison import tables
from infolm.studies.comparison.comparison import LEVEL, Comparison, best
from infolm.training.checkpoint import atomically

CAPTION = (
    "Validation loss by step, a mean over the runs of a group; the band is one standard deviation "
    "between them."
)


def write(found: Comparison, path: Path) -> Path:
    """Write the page, atomically."""
    text = html(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path


def html(found: Comparison) -> str:
    try:
        from infolm.studies.comparison.picture import inline
    except ModuleNotFoundError:
        raise InfolmError(
            "a report needs matplotlib: install it with `pip install 'infolm[report]'`"
        ) from None
    runs = [result.path for group in found.groups for result in group.results]
    title = f"Comparison of {len(runs)} runs"
    header, rows = tables.summary(found)
    winner = best(found)
    sections = [
        f"<header><h1>{escape(title)}</h1>",
        paragraph(escape(_lead(found)), "lead"),
        "</header>",
        section(
            "Results",
            [
                _table(header, rows, winner),
                paragraph(
                    f"{escape(tables.about(found))}. Counted: {escape(found.metric.convention)}. "
                    "The standard deviation is over runs.",
                    "note",
                ),
                *(paragraph(f"{escape(note[0].upper() + note[1:])}.") for note in found.notes),
            ],
        ),
        section("What the tests show", _tests(found)) if found.tests else "",
        section("Learning curves", [figure(inline(found), CAPTION)]),
    ]
    if found.differs:
        sections.append(
            section("What differs between the recipes", [_table(*tables.differences(found))])
        )
    named = [
        f"<dt>{escape(g.label)}</dt><dd>{', '.join(map(code, g.runs))}</dd>" for g in found.groups
    ]
    sections.append(section("Runs", ["<dl>", *named, "</dl>"]))
    return page(title, sections)


def _lead(found: Comparison) -> str:
    clear = [test for test in found.tests if test.clear]
    groups, tests = len(found.groups), len(found.tests)
    if groups == 1:
        return "All runs differ only in their seed."
    said = f"{groups} groups of runs, each compared with {found.groups[0].label}: "
    if not tests:
        return said + "no test was possible."
    return said + f"{len(clear)} of {tests} differences are clear at the level of {LEVEL:.0%}."


def _tests(found: Comparison) -> list[str]:
    items = [
        f"<li>{'' if test.clear else '(not clear) '}{escape(test.sentence)}</li>"
        for test in found.tests
    ]
    return ["<ul>", *items, "</ul>"]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], bold: int | None = None) -> str:
    heads = "".join(f'<th scope="col">{escape(each)}</th>' for each in header)
    body = []
    for i, (first, *rest) in enumerate(rows):
        cells = "".join(f"<td>{escape(each)}</td>" for each in rest)
        kind = ' class="best"' if i == bold else ""
        body.append(f'<tr{kind}><th scope="row">{escape(first)}</th>{cells}</tr>')
    return (
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
