"""`infolm race`: train the best language model within an hour on two cores."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infolm.cli.app import JsonOption, app, print_table
from infolm.cli.training import VariantOption
from infolm.errors import InfolmError, Interrupted

if TYPE_CHECKING:
    from infolm.studies.race.record import Record

RECIPE = "race/ptb"


@app.command()
def race(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="[RECIPE]", help="A name from `infolm recipes` or a YAML file; see `train`."
        ),
    ] = RECIPE,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes, such as model.parameters=5M"),
    ] = None,
    variant: VariantOption = None,
    minutes: Annotated[
        float, typer.Option(help="Time limit; fewer than 60 make a rehearsal, not a record.")
    ] = 60.0,
    threads: Annotated[int, typer.Option(min=1, help="Processors to use.")] = 2,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the training.", show_default="the recipe's")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder.", show_default="runs/<recipe>-seed-<seed>"),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Verify this record, or that of a run's folder, without racing."
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="With --check: the run, to measure its static test result again."
        ),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(
            metavar="PICTURE",
            help="Draw perplexity against minutes for the best of each family, from records named "
            "in place of the recipe, without racing.",
        ),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this machine, without racing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train and measure a recipe within an hour, by fixed rules; the result is a signed record.

    \b
    infolm race race/ptb --seed 1
    infolm race race/ptb --minutes 10 --out runs/rehearsal
    infolm race --check runs/race-ptb-seed-1
    infolm race --curve curve.png runs/race-*/race.json
    """
    given = [*([recipe] if recipe != RECIPE else []), *(overrides or [])]
    if run is not None and check is None:
        raise InfolmError("--run is for --check: add --check RUN/race.json")
    if check is not None:
        _check(check, run, as_json)
    elif curve is not None:
        _curve(curve, [Path(each) for each in given])
    elif calibrate:
        _calibrate(threads, as_json)
    else:
        changes = [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
        _race(recipe, changes, variant or [], minutes, threads, out, as_json)


def _race(
    source: str,
    overrides: list[str],
    variants: list[str],
    minutes: float,
    threads: int,
    out: Path | None,
    as_json: bool,
) -> None:
    from infolm.cli.training import source_and_folder
    from infolm.config import load_recipe
    from infolm.console import StageBars, TrainingBar, bar, err
    from infolm.studies.race.clock import Clock
    from infolm.studies.race.race import Rules
    from infolm.studies.race.race import race as run_race
    from infolm.studies.race.record import NAME
    from infolm.training.device import keep_freed_memory

    keep_freed_memory()
    rules = Rules(minutes, threads)
    source, folder = source_and_folder(source, "recipe.yaml", variants)
    loaded = load_recipe(source, overrides, variants)
    out = out or folder.with_name(f"{folder.name}-seed-{loaded.seed}")
    clock = Clock(60 * minutes)
    try:
        with StageBars() as stages, bar("training") as progress:
            record = run_race(loaded, out, rules, clock, TrainingBar(progress), stages)
    except (Interrupted, KeyboardInterrupt):
        kept = f"; what was trained is in {out}" if out.exists() else ""
        err.print(f"interrupted: a race cannot be resumed, so there is no record{kept}")
        sys.exit(130)
    if as_json:
        print(record.as_json(), end="")
    else:
        _print(record)
    err.print(f"the record: {out / NAME}")
    err.print(f"next: infolm race --check {out / NAME} --run {out}")


def _print(record: "Record") -> None:
    rows = []
    for name, method in {record.ngrams.described: record.ngrams, **record.methods}.items():
        test = method.test.text if method.test else "no time"
        rows.append([name, method.valid.text, f"{method.valid.tokens:,}", test])
    header = ["method", "validation perplexity", "on tokens", "test perplexity"]
    print_table(header, rows, right={1, 2, 3})
    kind = "rehearsal" if record.rehearsal else "record"
    best = record.methods[record.best]
    assert best.test is not None
    print(
        f"{kind} of the track {record.track}: test perplexity {best.test.text} ({record.best}, the "
        f"best on the first {record.compared_tokens:,} predictions of validation) after "
        f"{record.times.total / 60:.1f} of {record.times.limit / 60:.1f} minutes"
    )
    print(
        f"{record.training.steps:,} steps; {record.family}, {record.training.parameters:,} "
        "parameters"
    )
    phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in record.times.phases.items())
    print(phases)


def _check(file: Path, run: Path | None, as_json: bool) -> None:
    from infolm.console import StageBars
    from infolm.studies.race.check import check, check_run
    from infolm.studies.race.record import read

    record = read(file)
    faults = check(record)
    if run is not None and not faults:
        with StageBars() as stages:
            faults = check_run(record, run, stages)
    if faults:
        raise InfolmError(f"{file} is not a valid record: {'; '.join(faults)}")
    again = " The static test result was measured again and is the same." if run else ""
    if as_json:
        print(json.dumps({"record": str(file), "signature": record.signature, "holds": True}))
        return
    kind = "a rehearsal, not a record" if record.rehearsal else "a record"
    print(
        f"{file} holds: signature, rules, times and arithmetic agree. It is {kind} of the track "
        f"{record.track}.{again}"
    )
    print(record.line(), end="")


def _curve(picture: Path, records: list[Path]) -> None:
    from infolm.console import err
    from infolm.studies.race.check import check
    from infolm.studies.race.record import read

    try:
        from infolm.studies.race.curve import best_of_each, draw, lowest
    except ModuleNotFoundError:
        raise InfolmError(
            "--curve needs matplotlib: install it with `pip install 'infolm[report]'`"
        ) from None
    import math

    if not records:
        raise InfolmError("--curve needs records: name them, as in runs/race-*/race.json")
    read_records = [read(path) for path in records]
    for path, record in zip(records, read_records, strict=True):
        if faults := check(record):
            raise InfolmError(f"{path} is not a valid record: {faults[0]}")
    draw(read_records, picture)
    rows = [
        [family, f"{record.training.parameters:,}", f"{math.exp(lowest(record)):.2f}"]
        for family, record in best_of_each(read_records).items()
    ]
    print_table(["family", "parameters", "lowest validation perplexity"], rows, right={1, 2})
    err.print(f"perplexity against minutes: {picture}")


def _calibrate(threads: int, as_json: bool) -> None:
    from infolm.studies.race import calibration
    from infolm.studies.race.clock import threads as on_threads

    with on_threads(threads):
        scores = calibration.measure()
    scale = calibration.scale([scores])
    if as_json:
        print(json.dumps({**scores.model_dump(), "threads": threads, "scale": scale}))
        return
    reference = calibration.REFERENCE
    rows = [
        [name, f"{scores.gemm:.1f}", f"{scores.memory:.1f}"]
        for name, scores in (("this machine", scores), ("the reference", reference))
    ]
    print_table(["", "GEMM, GFLOP/s", "memory, GB/s"], rows, right={1, 2})
    print(
        f"about {calibration.ratio(scores):.2f} times as long as on the reference; a race here may "
        f"last {60 * scale:.1f} minutes on {threads} thread{'s'[: threads != 1]}"
    )
