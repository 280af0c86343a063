"""A comparison as rows, Markdown, LaTeX, CSV and JSON."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from infolm.studies.comparison.comparison import Comparison, best

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    c: f"\\{c}" for c in "&%$#_{}"
}


def decimals(found: Comparison) -> int:
    """Enough digits for the spread to show: of perplexities two, of nats and bits four."""
    return 2 if "perplexity" in found.metric.name else 4


def value(number: float, digits: int) -> str:
    return f"{number:,.{digits}f}" if abs(number) < 1e6 else f"{number:.2e}"


def summary(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """A row for each group: what it is, how many runs, mean and standard deviation."""
    digits = decimals(found)
    header = ["group", "runs", "seeds", found.metric.words, "standard deviation"]
    rows = [
        [
            group.label,
            str(len(group.values)),
            ", ".join(map(str, group.seeds)),
            value(group.mean, digits),
            "" if group.deviation is None else value(group.deviation, digits),
        ]
        for group in found.groups
    ]
    return header, rows


def differences(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """A row for each key whose value is not the same in all recipes."""
    rows = [[key, *map(_shown, values)] for key, values in found.differs.items()]
    return ["key", *(group.label for group in found.groups)], rows


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def about(found: Comparison) -> str:
    """The metric in full, below a table."""
    metric = found.metric
    split = "" if metric.split == "valid" and "while training" in metric.method else metric.split
    return f"{metric.name} in {metric.unit}; {', '.join(filter(None, (split, metric.method)))}"


def markdown(found: Comparison) -> str:
    parts = [_markdown_table(*summary(found)), f"{about(found)}."]
    if found.differs:
        parts.append(_markdown_table(*differences(found)))
    said = [*(test.sentence for test in found.tests), *(f"Note: {note}." for note in found.notes)]
    parts += ["\n".join(f"- {line}" for line in said)] if said else []
    return "\n\n".join(parts) + "\n"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_in_markdown, line)) + " |" for line in lines)


def _in_markdown(text: str) -> str:
    return text.replace("|", r"\|")


def latex(found: Comparison) -> str:
    """A booktabs table; the best mean is bold where lower is better, clear or not."""
    digits, winner = decimals(found), best(found)
    rows = []
    for i, group in enumerate(found.groups):
        mean = value(group.mean, digits)
        mean = rf"\textbf{{{mean}}}" if i == winner else mean
        spread = "" if group.deviation is None else rf" $\pm$ {value(group.deviation, digits)}"
        rows.append(rf"{_tex(group.label)} & {len(group.values)} & {mean}{spread} \\")
    said = "".join(f"% {test.sentence}\n" for test in found.tests)
    said += "".join(f"% Note: {note}.\n" for note in found.notes)
    return (
        f"% {about(found)}. Mean and standard deviation over runs.\n{said}"
        "\\begin{tabular}{lrr}\n\\toprule\n"
        rf"model & runs & {_tex(found.metric.words)} \\"
        "\n\\midrule\n" + "\n".join(rows) + "\n\\bottomrule\n\\end{tabular}\n"
    )


def _tex(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in text)


def as_csv(found: Comparison) -> str:
    """A row for each run, ready for R and pandas."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    keys = list(found.differs)
    metric = found.metric
    writer.writerow(["group", "run", "seed", "metric", "split", "method", "unit", "value", *keys])
    for group in found.groups:
        for result, number in zip(group.results, group.values, strict=True):
            described = [metric.name, metric.split, metric.method, metric.unit, repr(number)]
            settings = [result.settings.get(key, "") for key in keys]
            writer.writerow([group.label, result.path, result.seed, *described, *settings])
    return file.getvalue()


def as_json(found: Comparison) -> str:
    return json.dumps(found.as_dict(), indent=2) + "\n"


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": as_csv,
    "json": as_json,
}
