"""`infolm reproduce`: a published sweep, trained, measured and drawn."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from infolm.cli.app import JsonOption, app, print_table
from infolm.errors import InfolmError


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="PAPER/EXPERIMENT",
            help="A name from the list, or a YAML file. Without it the list is printed.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Changes to every recipe, such as train.max_steps=200"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder.", show_default="runs/<name>-reproduction")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that train side by side and share the cores.")
    ] = 1,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="Only the curves whose name matches, such as 'dreg-*'"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train every point of a published sweep, measure each, and draw what the paper draws.

    Run again, the command resumes where it stopped and keeps what is finished.
    """
    if name is None:
        _list(as_json)
        return
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

    plan = load_plan(name, overrides or [])
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


def _list(as_json: bool) -> None:
    from infolm.studies.reproduction.plan import load, names

    found = {name: load(name) for name in names()}
    rows: list[dict[str, Any]] = [
        {
            "reproduction": name,
            "title": each.title,
            "paper": each.paper,
            "points": sum(len(curve.combinations()) for curve in each.curves.values()),
        }
        for name, each in found.items()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print_table(list(rows[0]), [[str(cell) for cell in row.values()] for row in rows], right={3})


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
            f"NLL in {found['unit']} where the information is that share of "
            f"{measured['greatest']:.4f} nats or more, along the frontier; - where none is"
        )
    if found["optimum"] is not None:
        print(f"the optimum is {found['optimum']:.4f}")
    for name, record in result["points"].items():
        if "failure" in record:
            print(f"{name} failed: {record['failure']}")
    for path in result["figures"]:
        print(path)
