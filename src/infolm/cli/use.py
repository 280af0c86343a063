"""`infolm evaluate`, `generate` and `report`: commands on a trained run."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from infolm.cli.app import JsonOption, RunArgument, app, print_table
from infolm.cli.options import with_options
from infolm.errors import InfolmError
from infolm.families.options import EVALUATING, GENERATING


@app.command()
@with_options(EVALUATING)
def evaluate(run: RunArgument, as_json: JsonOption = False, **given: Any) -> None:
    """Measure a trained model on its corpus: perplexity and related metrics, with their
    conventions.

    Methods combine: the result has the plain model, each method alone, and all together.
    Values are tuned on the validation split, and kept in the run's folder.

    \b
    infolm evaluate RUN --dynamic --mc 200 --temperature tune --cache tune

    \b
    --cache, --dynamic, --temperature and --mc-rate without a value: as tuned before, or tuned now.

    \b
    infolm evaluate RUN --reverse --mi --real

    \b
    A model with a latent code: bounds on the likelihood, information of its codes, BLEU.

    \b
    An encoder: how well it predicts hidden tokens, by its objective and among all words.
    """
    from infolm.console import StageBars, err
    from infolm.evaluation.measurement import NotKeptError
    from infolm.evaluation.measurement import as_json as in_json
    from infolm.families.base import Evaluation, open_run
    from infolm.training import processes
    from infolm.training.device import on_cuda

    err.quiet = not processes.first()
    not_kept = None
    try:
        opened = open_run(run)
        together: AbstractContextManager[None] = nullcontext()
        if processes.launched() and int(os.environ["WORLD_SIZE"]) > 1:
            if opened.shares(**given):
                together = processes.together(on_cuda("auto"))
            elif not processes.first():
                return
            else:
                err.print(
                    "only the first process measures: of all evaluations only a language model's "
                    "--streams 20 is shared among the processes."
                )
        with together, StageBars() as stages:
            found = opened.evaluate(stages, **given)
    except NotKeptError as error:
        found, not_kept = Evaluation(error.measurements), error
    if not processes.first():
        return
    for warning in found.warnings:
        err.print(f"{warning}.")
    if as_json:
        print(in_json(found.measurements))
    else:
        _print_measurements(found.measurements)
        for table in found.tables:
            print_table(*table)
    if not_kept:
        raise not_kept


def _print_measurements(results: list[Any]) -> None:
    def number(value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:.4g}" if value < 100 else f"{value:.2f}" if value < 1e6 else f"{value:.2e}"

    print_table(
        ["split", "method", "metric", "value", "stderr", "unit", "tokens"],
        [
            [
                r.split,
                r.method,
                r.metric,
                number(r.value),
                number(r.stderr),
                r.unit,
                f"{r.tokens:,}",
            ]
            for r in results
        ],
        right={3, 4, 6},
    )
    conventions: dict[str, list[Any]] = {}
    for r in results:
        conventions.setdefault(r.convention, []).append(r)
    # Named after their methods, or after the metrics if one method has several.
    methods = [{r.method for r in found} for found in conventions.values()]
    several = sum(map(len, methods)) > len(set().union(*methods))
    for convention, found in conventions.items():
        names = dict.fromkeys(r.metric if several else r.method for r in found)
        of = f" of {'; '.join(names)}" if len(conventions) > 1 else ""
        print(f"convention{of}: {convention}")


@app.command()
@with_options(GENERATING)
def generate(run: RunArgument, as_json: JsonOption = False, **given: Any) -> None:
    """Generate text with a trained model.

    \b
    A language model, streaming or prompt by prompt:
    infolm generate RUN --prompt "Once upon a time" --stream
    infolm generate RUN --interactive

    \b
    A model with a latent code, sentences from codes:
    infolm generate RUN --interpolate "the first sentence" "and the last" --steps 9
    """
    from infolm.console import StageBars, err
    from infolm.families.base import Table, open_run

    opened = open_run(run)
    if given["interactive"] or given["stream"]:
        if as_json:
            raise InfolmError("--json prints finished texts: leave out --stream and --interactive")
        _talk(opened, given)
        return
    with StageBars() as stages:
        written = opened.generate(stages, **given)
    for warning in written.warnings:
        err.print(f"{warning}.", markup=False, highlight=False)
    if as_json:
        print(json.dumps(written.records, indent=2))
    elif isinstance(written.shown, Table):
        print_table(*written.shown)
    else:
        print(written.shown)


def _talk(opened: Any, given: dict[str, Any]) -> None:
    """Print the text while it is generated: after one prompt, or after each prompt read."""
    if not given["interactive"]:
        _print_stream(opened, given)
        return
    # Options are checked before anything is read; each text has its own seed.
    opened.stream(**given)
    asked = {**given, "interactive": False}
    for number, prompt in enumerate(_prompts()):
        _print_stream(opened, {**asked, "prompt": prompt, "seed": given["seed"] + number})


def _prompts() -> Iterator[str]:
    """Lines typed by a person, up to an empty line or the end of input."""
    shown = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            prompt = input(shown)
        except (EOFError, KeyboardInterrupt):
            return
        if not prompt.strip():
            return
        yield prompt


def _print_stream(opened: Any, given: dict[str, Any]) -> None:
    from infolm.console import err

    if said := opened.unread(given["prompt"]):
        err.print(f"{said}.", markup=False, highlight=False)
    echo = "" if given["no_echo"] else given["prompt"]
    begun = bool(echo)
    sys.stdout.write(echo)
    for piece in opened.stream(**given):
        piece = piece if begun else piece.lstrip(" \n")
        begun = begun or bool(piece)
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs' folders.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page that compares several runs.",
            show_default="comparison.html beside the first run",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a report on a run, report.html in its folder; for several runs, one comparing page."""
    from infolm.families.report import write_report

    if len(runs) == 1:
        if out:
            raise InfolmError("--out is for several runs: name more runs, or leave it out")
        path = write_report(runs[0])
    else:
        from infolm.console import StageBars
        from infolm.studies.comparison.comparison import compare
        from infolm.studies.comparison.page import write

        with StageBars() as stages:
            found = compare(runs, report=stages)
        path = write(found, out or runs[0].parent / "comparison.html")
    print(json.dumps([str(path)]) if as_json else path)
