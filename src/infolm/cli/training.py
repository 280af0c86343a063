"""`infolm train` and `infolm tune`."""

import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from infolm.cli.app import JsonOption, app, print_table
from infolm.errors import InfolmError, Interrupted

VariantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        metavar="NAME",
        help="One of the recipe's variants, which `infolm recipes RECIPE` lists. May be given more "
        "than once. KEY=VALUE wins over it.",
    ),
]


@app.command()
def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A name from `infolm recipes`, a YAML file or a run."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Changes to the recipe, such as data.path=book.txt seed=2"
        ),
    ] = None,
    variant: VariantOption = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder.", show_default="runs/<recipe>")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run if it exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model from a recipe; the result is a run's folder."""
    from infolm.config import load_recipe
    from infolm.console import StageBars, TrainingBar, bar, err
    from infolm.families.base import family_of
    from infolm.families.train import train as train_run
    from infolm.metrics import described
    from infolm.training import processes
    from infolm.training.device import keep_freed_memory

    keep_freed_memory()
    source, folder = source_and_folder(recipe, "recipe.yaml", variant)
    loaded = load_recipe(source, overrides, variant or [])
    out = out or folder
    family = family_of(loaded)
    unit = described("nll", family.kind).unit
    err.quiet = not processes.first()
    try:
        with StageBars() as stages, bar("training") as progress:
            watcher = TrainingBar(progress, perplexity=unit == "nats per token")
            best = train_run(loaded, out, resume, watcher, stages)
    except Interrupted:
        err.print(f"interrupted; all is saved. Resume with: infolm train {out} --resume")
        sys.exit(130)
    if as_json and processes.first():
        print(json.dumps({"run": str(out), "nll": best, "unit": unit}))
    found = family.result(loaded, best)
    err.print(f"done: best validation {found}; the run is in {out}")
    alone = loaded.feed.kind != "stream"  # isolated sentences have no recent past to cache
    err.print(f"next: infolm evaluate {out}{'' if alone else ' --cache'}")


def source_and_folder(
    recipe: str, file: str, variants: Sequence[str] | None, suffix: str = ""
) -> tuple[str, Path]:
    """The recipe to load, and the default folder of its results.

    If `recipe` is such a folder, with the recipe in `file`, that folder is resumed.
    """
    inside = Path(recipe) / file
    if inside.is_file():
        if variants:
            raise InfolmError(
                f"--variant is for a recipe, and {recipe} has one already: leave --variant out, or "
                "name the recipe instead of the folder"
            )
        return str(inside), Path(recipe)
    slugs = [re.sub(r"[^\w.]+", "-", name).strip("-.").lower() for name in variants or []]
    name = recipe.removesuffix(".yaml").replace("/", "-").lstrip(".-")
    return recipe, Path("runs") / f"{'-'.join([name, *slugs])}{suffix}"


@app.command()
def tune(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A recipe with a section `tuning`, or a study's folder."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes to the recipe, as in `train`."),
    ] = None,
    variant: VariantOption = None,
    trials: Annotated[
        int, typer.Option(help="Trainings in total, including those of a resumed study.")
    ] = 30,
    out: Annotated[
        Path | None, typer.Option(help="The study's folder.", show_default="runs/<recipe>-tuning")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that train in parallel and share the cores.")
    ] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="postgresql://user@host/database, to share the study with other machines; its "
            "name there is the folder's.",
            show_default="study.db in the folder",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=0, help="Train the winner again with this many other seeds.")
    ] = 3,
    as_json: JsonOption = False,
) -> None:
    """Search a recipe's ranges for the values with the best validation loss."""
    from infolm.config import load_recipe
    from infolm.console import StageBars, bar, err

    try:
        from infolm.studies.tuning import tuner
    except ModuleNotFoundError as error:
        raise InfolmError(f"tuning needs {error.name}: pip install 'infolm[tune]'") from None

    source, folder = source_and_folder(recipe, "study.yaml", variant, "-tuning")
    loaded = load_recipe(source, overrides, variant or [])
    out = out or folder
    try:
        with StageBars() as stages, bar("tuning") as progress:
            result = tuner.tune(
                loaded, out, trials, workers, seeds, storage, progress.update, err.print, stages
            )
    except KeyboardInterrupt:
        options = f"--trials {trials} --workers {workers} --seeds {seeds}"
        if storage:
            options += " --storage URL"
        err.print(f"interrupted; all is saved. Resume with: infolm tune {out} {options}")
        sys.exit(130)
    if as_json:
        print(json.dumps(result, indent=2))
        return
    _print_tuned(result)
    err.print(f"next: infolm train {result['recipe']} --out runs/best")


def _print_tuned(result: dict[str, Any]) -> None:
    best, trials = result["best"], dict(result["trials"])
    total = trials.pop("total")
    print(f"{total} trials: " + ", ".join(f"{n} {state}" for state, n in trials.items()))
    _print_keys(result)
    rows = [[f"trial {best['trial']}, as tuned", f"{best['nll']:.4f}", f"{best['perplexity']:.2f}"]]
    again = result.get("retrained", {})
    if "nll" in again:
        spread = [
            f"{each['mean']:.{digits}f}"
            + ("" if each["deviation"] is None else f" ± {each['deviation']:.{digits}f}")
            for each, digits in ((again["nll"], 4), (again["perplexity"], 2))
        ]
        rows.append([f"mean ± standard deviation over {len(again['seeds'])} other seeds", *spread])
    print_table(["validation", "nats per token", "perplexity"], rows, right={1, 2})
    for seed, failure in again.get("failures", {}).items():
        print(f"with seed {seed} it failed: {failure}")
    if "note" in again:
        print(f"{again['note']}.")
    print(f"the winner's recipe: {result['recipe']}")
    print(f"pictures: {result['picture']}, {result['history_picture']}")


def _print_keys(result: dict[str, Any]) -> None:
    """Print the winner's values, the importance of each key, and the history of the best result."""
    from infolm.space import short
    from infolm.studies.tuning.history import BEST, ENOUGH, Tried, improvements
    from infolm.studies.tuning.results import perplexity

    values, shares = result["best"]["values"], result["importance"]
    header, order = ["key", "best value"], list(shares or values)
    rows = [[k, short(values[k])] for k in order]
    if shares:
        header.append("importance")
        rows = [[*row, f"{shares[row[0]]:.0%}"] for row in rows]
    print_table(header, rows, right={2})
    tried = [Tried(**each) for each in result["history"]]
    if shares:
        best = max(BEST, math.ceil(len(tried) / 10))
        print(
            f"importance: how much a key decides whether a trial is one of the best {best} of "
            f"{len(tried)} complete ones (PED-ANOVA; rough with few trials)."
        )
    elif len(values) > 1:
        print(f"The importance of each key is shown after {ENOUGH} complete trials.")
    steps = ", ".join(f"{perplexity(t.nll):.2f} (trial {t.trial})" for t in improvements(tried))
    print(f"history of the best perplexity: {steps}\n")
