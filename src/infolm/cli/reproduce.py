"""`infolm reproduce`: train, measure, judge and draw a paper's table or sweep."""

import json
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infolm.cli.app import JsonOption, app, print_table
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.studies.tables.records import Records

OUT = Path("runs/reproduce")
"""Where tables are written by default, and their runs beside them."""


class ScaleName(StrEnum):
    small = "small"
    paper = "paper"


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="PAPER/TABLE",
            help="A name from the list, or a YAML file. Without it the list is printed.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Changes to every recipe, such as train.max_steps=200"
        ),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Print every table: claim, cost, progress.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Train every table of the list, the cheapest first.")
    ] = False,
    hours: Annotated[
        float | None,
        typer.Option(help="Stop after this many hours; run again to resume."),
    ] = None,
    scale: Annotated[
        ScaleName,
        typer.Option(help="Train a table at a size for this computer, or at the paper's."),
    ] = ScaleName.small,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Seeds of a table's trainings.", show_default="as the table says"),
    ] = None,
    ledger: Annotated[
        bool,
        typer.Option(
            "--ledger",
            help="Do not train: write pages, pictures and README.md from existing results.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the results.",
            show_default="runs/reproduce; for a sweep runs/<name>-reproduction",
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="The folder of a table's trainings.", show_default="runs in --out"),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that train side by side and share the cores.")
    ] = 1,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="For a sweep: only curves whose name matches, such as 'dreg-*'"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train and measure a table of a paper, and judge the paper's claim.

    \b
    infolm reproduce --list
    infolm reproduce mogrifier/figure-2.3 --workers 2
    infolm reproduce --all --hours 2.5 --workers 2

    Run again, the command resumes where it stopped and keeps what is finished. A table is written
    as Markdown, JSON and a picture; README.md in the same folder is the ledger of all claims.
    """
    from infolm.studies.tables.table import is_table

    folder = out or OUT
    trained = runs or folder / "runs"
    if ledger:
        _ledger(folder, as_json)
    elif every:
        if name is not None:
            raise InfolmError(f"--all is every table: leave {name} out")
        _tables(None, [], folder, trained, scale.value, seeds, workers, hours, as_json)
    elif name is None or show_list:
        _list(folder, trained, as_json)
    elif is_table(name):
        if only is not None:
            raise InfolmError(f"--only is for sweeps, and {name} is a table: leave it out")
        changes = overrides or []
        _tables([name], changes, folder, trained, scale.value, seeds, workers, hours, as_json)
    else:
        if seeds is not None or scale != ScaleName.small or hours is not None:
            raise InfolmError(
                f"{name} is a sweep: --scale, --seeds and --hours are for tables; leave them out"
            )
        _sweep(name, overrides or [], out, workers, only, as_json)


def _tables(
    sources: list[str] | None,
    overrides: list[str],
    out: Path,
    runs: Path,
    scale: Any,
    seeds: int | None,
    workers: int,
    hours: float | None,
    as_json: bool,
) -> None:
    from infolm.console import StageBars, bar, err
    from infolm.studies.tables import listing
    from infolm.studies.tables.table import names
    from infolm.studies.tables.work import Runs, reproduce

    works = listing.opened(out, scale, sources, tuple(overrides))
    costs = {id(each): listing.hours_left(each, seeds) for each in works}
    works.sort(key=lambda each: (costs[id(each)] is None, costs[id(each)] or 0.0))
    again = ["infolm", "reproduce", *(sources or ["--all"]), *overrides, "--out", str(out)]
    again += ["--runs", str(runs), "--workers", str(workers)]
    again += ["--scale", scale] if scale != ScaleName.small else []
    again += ["--seeds", str(seeds)] if seeds else []
    interrupted = done = False
    try:
        with StageBars() as stages, bar("reproducing") as progress:
            done = reproduce(
                works,
                Runs(runs),
                seeds,
                workers,
                None if hours is None else 3600 * hours,
                _write_page,
                progress.update,
                err.print,
                stages,
            )
    except KeyboardInterrupt:
        interrupted = True
    for records in works:
        if records.arms:
            _write_page(records)
            _write_picture(records)
    if not overrides and (sources is None or set(sources) <= set(names())):
        _write_ledger(out)
    if interrupted:
        err.print(f"interrupted; all is saved. Resume with: {shlex.join(again)}")
        sys.exit(130)
    if as_json:
        print(json.dumps([records.to_json() for records in works], indent=2))
    else:
        for records in works:
            _print_table(records, out)
    if not done:
        err.print(f"some trainings are left. Resume with: {shlex.join(again)}")
    if any(records.failures for records in works):
        sys.exit(1)


def _print_table(records: "Records", out: Path) -> None:
    from infolm.studies.tables import pages
    from infolm.studies.tables.verdict import of_table

    table = records.work.table
    print(f"{records.work.name}: {table.claim}")
    header = pages.header(records)
    print_table(header, pages.rows(records), right=set(range(1, len(header))))
    print_table(
        ["claim", "ours", "the paper", "p", "seeds", "verdict"],
        pages.judged(records),
        right={3, 4},
    )
    verdict = of_table([each.word for each in records.verdicts()])
    print(f"verdict: {verdict}; {out / records.work.name}.md, .json, .png\n")


def _write_page(records: "Records") -> None:
    from infolm.studies.tables import pages

    path = records.path.with_name(records.path.name.removesuffix(".json") + ".md")
    pages.write(path, pages.page(records, path.name.removesuffix(".md") + ".png"))


def _write_picture(records: "Records") -> None:
    from infolm.console import err

    try:
        from infolm.studies.tables.picture import draw
    except ModuleNotFoundError:
        err.print("no picture: install matplotlib with `pip install 'infolm[report]'`")
        return
    draw(records, records.path.with_name(records.path.name.removesuffix(".json") + ".png"))


def _write_ledger(out: Path) -> "list[Records]":
    from infolm.studies.tables import listing, pages

    works = listing.opened(out, "small")
    pages.write(out / "README.md", pages.ledger(works, [path.name for path in out.glob("*.md")]))
    return works


def _ledger(out: Path, as_json: bool) -> None:
    from infolm.console import err
    from infolm.studies.tables.work import former_kept

    works = _write_ledger(out)
    for records in works:
        if records.arms:
            if former := records.write():
                err.print(former_kept(records, former))
            _write_page(records)
            _write_picture(records)
    if as_json:
        print(json.dumps([records.to_json() for records in works], indent=2))
    else:
        print(out / "README.md")


def _list(out: Path, runs: Path, as_json: bool) -> None:
    from infolm.studies.tables.listing import rows

    found = rows(out, runs)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print_table(
        ["reproduction", "claim", "hours", "measured", "verdict"],
        [
            [
                row["reproduction"],
                row["claim"] or row["title"],
                "?" if row["hours_left"] is None else f"{row['hours_left']:.1f}",
                f"{row.get('measured', '?')} of {row['trainings']}",
                row["verdict"],
            ]
            for row in found
        ],
        right={2, 3},
    )
    print("hours: one core's time for the trainings that are left; --json has more")


def _sweep(
    name: str,
    overrides: list[str],
    out: Path | None,
    workers: int,
    only: str | None,
    as_json: bool,
) -> None:
    """Every point of a sweep, with the frontiers that the paper draws."""
    from infolm.console import StageBars, bar, err

    try:
        from infolm.studies.reproduction.picture import draw_figures
    except ModuleNotFoundError:
        raise InfolmError(
            "the figures need matplotlib: install it with `pip install 'infolm[report]'`"
        ) from None
    from infolm.studies.reproduction.plan import load_plan
    from infolm.studies.reproduction.results import summary
    from infolm.studies.reproduction.sweep import sweep
    from infolm.training.checkpoint import atomically

    plan = load_plan(name, overrides)
    short = name.removesuffix(".yaml").replace("/", "-").lstrip(".-")
    out = out or Path("runs") / f"{short}-reproduction"
    again = ["infolm", "reproduce", name, *plan.overrides, "--out", str(out)]
    again += ["--workers", str(workers), *(["--only", only] if only else [])]
    try:
        with StageBars() as stages, bar("reproducing") as progress:
            records = sweep(plan, out, workers, only, progress.update, err.print, stages)
    except KeyboardInterrupt:
        err.print(f"interrupted; all is saved. Resume with: {shlex.join(again)}")
        sys.exit(130)
    found = summary(plan, records)
    text = json.dumps(found, indent=2) + "\n"
    atomically(out / "summary.json", lambda path: path.write_text(text, encoding="utf-8"))
    figures = [str(path) for path in draw_figures(plan, records, out)]
    points = {name: records[name] for name in plan.points if name in records}
    result: dict[str, Any] = {"points": points, "figures": figures, "summary": found}
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print_summary(result)
    if any("failure" in record for record in result["points"].values()):
        sys.exit(1)


def _print_summary(result: dict[str, Any]) -> None:
    found = result["summary"]
    for split, measured in found["splits"].items():
        curves = measured["curves"].values()
        if not curves:
            continue
        levels = list(next(iter(curves))["nll"])
        print_table(
            [f"{split} split", "points", "on the frontier", *levels],
            [
                [
                    curve["label"],
                    str(curve["points"]),
                    str(len(curve["frontier"])),
                    *("-" if nll is None else f"{nll:.4f}" for nll in curve["nll"].values()),
                ]
                for curve in curves
            ],
            right=set(range(1, 3 + len(levels))),
        )
        print(
            f"NLL in {found['unit']} along the frontier, where the information is at least that "
            "share of "
            f"{measured['greatest']:.4f} nats; - if there is none"
        )
    if found["optimum"] is not None:
        print(f"the optimum is {found['optimum']:.4f}")
    for name, record in result["points"].items():
        if "failure" in record:
            print(f"{name} failed: {record['failure']}")
    for path in result["figures"]:
        print(path)
