"""The Markdown pages of tables, and the ledger of all claims."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from infolm.studies.tables.records import Records
from infolm.studies.tables.sides import Side
from infolm.studies.tables.table import SMALL, TUNING_SEED, Comparison
from infolm.studies.tables.verdict import Verdict, of_table
from infolm.training import checkpoint

PAPERS = {
    "awd-lstm": "AWD-LSTM (Merity et al. 2017)",
    "mogrifier": "Mogrifier, Rewired LSTM, averaging (Melis 2023, chapters 2 to 4)",
    "bmi": "BMI (Cao & Xu 2020)",
    "sentence-mim": "SentenceMIM (Livne et al. 2020)",
    "monte-carlo": "Monte Carlo objectives (Melis 2023, chapter 5)",
    "infoword": "InfoWord (Kong et al. 2020)",
    "transformer": "A Transformer beside recurrent models",
}
"""Headings of the ledger, by the first part of a table's name, in their order."""
BESIDE = {
    "designs.md": "How each claim is tested stands in [designs](designs.md), written before "
    "anything was trained.",
    "figures.md": "Speeds, single measurements and earlier experiments: [figures](figures.md).",
}
"""What the ledger says of pages in its folder."""
NOTE = (
    "Mean ± standard deviation over seeds. A claim is shown if the paired difference over seeds is "
    "beyond two standard errors in its direction, opposite if beyond two in the other, and not "
    "tried with fewer than three seeds. p: of the two-sided paired t test."
)


def command(records: Records) -> str:
    """The command that makes the table."""
    work = records.work
    scale = f" --scale {work.scale}" if work.scale != "small" else ""
    return " ".join([f"infolm reproduce {work.source}", *work.overrides]) + scale


def spread(values: Sequence[float], decimals: int) -> str:
    """'115.5 ± 0.8'; of one seed the value alone."""
    if not values:
        return "-"
    said = f"{mean(values):,.{decimals}f}"
    return f"{said} ± {stdev(values):.{decimals}f}" if len(values) > 1 else said


def rows(records: Records) -> list[list[str]]:
    """The arms: label, seeds, and for each figure ours and the paper's."""
    table, figures = records.work.table, records.figures
    found = []
    for name, arm in table.arms.items():
        seeds = figures.get(name, {})
        row = [arm.label, str(len(seeds))]
        for figure, config in table.figures.items():
            values = [seeds[seed][figure] for seed in sorted(seeds) if figure in seeds[seed]]
            row.append(spread(values, config.decimals))
            if any(figure in each.paper for each in table.arms.values()):
                row.append(f"{arm.paper[figure]:g}" if figure in arm.paper else "")
        found.append(row)
    return found


def header(records: Records) -> list[str]:
    table = records.work.table
    titles = ["arm", "seeds"]
    for figure, config in table.figures.items():
        titles.append(config.label)
        if any(figure in arm.paper for arm in table.arms.values()):
            titles.append("the paper")
    return titles


def judged(records: Records) -> list[list[str]]:
    """The comparisons: claim, ours, the paper's, p, seeds, verdict."""
    table = records.work.table
    found = []
    for comparison, verdict in zip(table.comparisons, records.verdicts(), strict=True):
        pair = table.sides(comparison)
        figure = pair[0].first.figure or pair[1].first.figure
        plain = all(side.second is None for side in pair)
        decimals = table.figures[figure].decimals if plain else 3
        found.append(
            [
                comparison.claim,
                _ours(verdict, decimals),
                _papers(records, comparison, pair),
                "" if verdict.p is None else _p(verdict.p),
                str(verdict.seeds),
                verdict.word,
            ]
        )
    return found


def _ours(verdict: Verdict, decimals: int) -> str:
    if verdict.difference is None or verdict.stderr is None:
        return ""
    places = max(decimals, _needed(verdict.stderr))
    sides = f"{verdict.lower:,.{decimals}f} and {verdict.higher:,.{decimals}f}"
    return f"{sides}: {verdict.difference:.{places}f} ± {verdict.stderr:.{places}f}"


def _needed(error: float) -> int:
    """Decimals that show an error's first digit."""
    return 0 if error <= 0 else max(0, min(6, -math.floor(math.log10(error))))


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def _papers(records: Records, comparison: Comparison, pair: tuple[Side, Side]) -> str:
    """The paper's own numbers, where it has both sides."""
    arms = records.work.table.arms
    found = []
    for side in pair:
        term = side.first
        if side.second is not None or not term.arm or term.figure not in arms[term.arm].paper:
            return ""
        found.append(arms[term.arm].paper[term.figure])
    return f"{found[0]:g} and {found[1]:g}"


CLAIMS = ["claim", "ours: lower and higher side, difference ± standard error", "the paper", "p"]
CLAIMS += ["seeds", "verdict"]


def page(records: Records, picture: str | None) -> str:
    """A table's own page. picture: its file's name, drawn once something is measured."""
    table = records.work.table
    verdict = of_table([each.word for each in records.verdicts()])
    parts = [
        f"# {table.title}",
        f"{table.paper}. {table.claim}",
        f"Verdict: **{verdict}**.",
        f"```\n{command(records)}\n```",
        *([table.note] if table.note else []),
        *_tunings(records),
        markdown(header(records), rows(records)),
        markdown(CLAIMS, judged(records)),
        NOTE,
        *([f"![{table.title}]({picture})"] if picture and any(records.figures.values()) else []),
    ]
    if records.failures:
        failed = [f"- {run}: {why}" for run, why in records.failures.items()]
        parts.append("Trainings that failed:\n\n" + "\n".join(failed))
    return "\n\n".join(parts) + "\n"


def _tunings(records: Records) -> list[str]:
    """The values chosen by tuning, and the candidates."""
    found = []
    for number, tuning in enumerate(records.work.table.tuning):
        losses = records.losses(number)
        if records.work.scale != SMALL or losses is None:
            continue
        tried = [
            f"{label.rpartition('=')[2]}: {'failed' if loss is None else f'{loss:.3f}'}"
            for label, loss in losses.items()
        ]
        arms = ", ".join(tuning.arms) or "all arms"
        found.append(
            f"Chosen for {arms} by the validation loss of {tuning.arm} with seed {TUNING_SEED}: "
            f"`{records.chosen(number)}` ({'; '.join(tried)} nats)."
        )
    return found


def ledger(works: Sequence[Records], beside: Sequence[str] = ()) -> str:
    """All claims with their verdicts. beside: names of pages in the same folder, to refer to."""
    words = [verdict.word for records in works for verdict in records.verdicts()]
    counts = ", ".join(
        f"{words.count(word)} {word}" for word in ("shown", "not shown", "opposite", "not tried")
    )
    parts = [
        "# The papers' claims, and what small models show of them",
        f"{len(words)} claims: {counts}. Made by `infolm reproduce --ledger` from the JSON files "
        "here.",
        *(about for name, about in BESIDE.items() if name in beside),
        "Models are ten to fifty times smaller than the papers' and trained for minutes on one CPU "
        f"core: compare the sides of a row, not its numbers with the paper's. {NOTE}",
    ]
    papers = dict.fromkeys(records.work.source.split("/")[0] for records in works)
    known = [*(name for name in PAPERS if name in papers), *(p for p in papers if p not in PAPERS)]
    for paper in known:
        parts.append(f"## {PAPERS.get(paper, paper)}")
        for records in works:
            if records.work.source.split("/")[0] != paper:
                continue
            table = records.work.table
            title = f"[{table.title}]({records.work.name}.md)" if records.arms else table.title
            parts.append(f"### {title}\n\n{table.paper}: `{command(records)}`")
            parts.append(markdown(CLAIMS, judged(records)))
    return "\n\n".join(parts) + "\n"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.atomically(path, lambda file: file.write_text(text, encoding="utf-8"))
