"""`infolm finetune`: fine-tune an encoder on a GLUE task or SQuAD."""

import json
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from infolm.cli.app import JsonOption, app, print_table
from infolm.errors import InfolmError, Interrupted

FINETUNED = "finetuned"
"""The subfolder of a run for fine-tuning results."""


class ChooseOnName(StrEnum):
    half = "half"
    dev = "dev"


class HeadName(StrEnum):
    pooler = "pooler"
    linear = "linear"


class WindowsName(StrEnum):
    answer = "answer"
    all = "all"


@app.command()
def finetune(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="An encoder's run, or a folder where transformers saved a BERT."
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(help="cola, sst2, mrpc, qqp, mnli, qnli, rte, stsb, squad or same-article."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder of the task's files, TSV or SQuAD's JSON."),
    ] = None,
    grid: Annotated[
        bool,
        typer.Option(
            "--grid",
            help="Try five learning rates and two batch sizes: the paper's rates, or higher ones "
            "for "
            "an encoder narrower than 512 or with --fresh.",
        ),
    ] = False,
    choose_on: Annotated[
        ChooseOnName,
        typer.Option(
            help="Choose epoch, rate, batch and seed on half of dev and report the other half, "
            "or choose and report on all of dev."
        ),
    ] = ChooseOnName.half,
    seeds: Annotated[int, typer.Option(min=1, help="Trials of each setting; the paper has 5.")] = 1,
    learning_rate: Annotated[
        list[float] | None,
        typer.Option(help="May be repeated: each is tried.", show_default="3e-5"),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="May be repeated: each is tried.", show_default="32"),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Passes over the training examples.",
            show_default="4 for CoLA and SQuAD, 10 for the others",
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            min=8,
            help="Maximum tokens of a sequence, at most the encoder's.",
            show_default="128, and 512 for SQuAD",
        ),
    ] = None,
    share: Annotated[
        float,
        typer.Option(help="Share of the training examples; a smaller one is part of a larger one."),
    ] = 1.0,
    head: Annotated[
        HeadName,
        typer.Option(help="For GLUE, on [CLS]: BERT's pooler, or the paper's linear layer."),
    ] = HeadName.pooler,
    windows: Annotated[
        WindowsName,
        typer.Option(
            help="For SQuAD: train on the windows that hold the answer, or on all, where those "
            "without it have [CLS] as the answer."
        ),
    ] = WindowsName.answer,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Start from random weights, to measure the gain of pretraining."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The result.", show_default="RUN/finetuned/TASK"),
    ] = None,
    average: Annotated[
        bool,
        typer.Option(
            "--average", help="Do not fine-tune: print GLUE's average over the results in RUN."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune an encoder on a labelled task, and measure it.

    \b
    infolm finetune RUN --task cola --data glue_data --grid --seeds 5
    infolm finetune RUN --average

    \b
    The folder of the result has the chosen model, for transformers'
    AutoModelForSequenceClassification (with --head linear AutoModelForTokenClassification, read at
    [CLS]) or AutoModelForQuestionAnswering; results.json; for SQuAD predictions.json; and if the
    task's folder has GLUE's test file, the predictions for GLUE's server (CoLA.tsv). The folder is
    written at the end.
    """
    if average:
        _average(run, as_json)
        return
    if task is None or data is None:
        raise InfolmError(
            f"--{'task' if task is None else 'data'} is missing: give --task and --data, or "
            "--average for the results that exist"
        )
    if not 0 < share <= 1:
        raise InfolmError(f"--share {share:g} is not above 0 and at most 1: try 0.1")
    if learning_rate and not all(0 < rate < 1 for rate in learning_rate):
        raise InfolmError("--learning-rate is above 0 and below 1: try 3e-5")

    from infolm.console import bar, err
    from infolm.finetuning import search
    from infolm.finetuning.networks import open_encoder
    from infolm.finetuning.problems import Options, read_problem

    encoder = open_encoder(run)
    options = Options(length, share, choose_on.value, head.value, windows.value)
    problem = read_problem(task, data, encoder, options)
    variant = ["fresh"] * fresh + [f"{share:g}"] * (share < 1)
    folder = out or run / FINETUNED / "-".join([task, *variant])
    search.check_target(folder)
    if fresh:
        encoder = replace(encoder, weights={})
    grid_rates = search.rates(encoder.sizes.hidden_size, fresh)
    rates = learning_rate or (list(grid_rates) if grid else [search.RATE])
    batches = batch or (search.BATCHES if grid else [search.BATCH])
    tried = search.grid(rates, batches, epochs or problem.epochs, seeds)
    try:
        with search.resumable(folder, problem, encoder) as state:
            with bar(f"fine-tuning on {task}") as shown:
                found = search.search(problem, encoder, tried, shown.update, state)
            told: dict[str, Any] = {"task": task, "run": str(run), "data": str(data)}
            told |= {"fresh": fresh, "share": share, **search.results(problem, found)}
            search.write(folder, found, encoder, problem.length, told)
    except Interrupted:
        err.print("interrupted; all is saved. The same command resumes.")
        sys.exit(130)
    for warning in told["warnings"]:
        err.print(f"{warning}.")
    if as_json:
        print(json.dumps({**told, "folder": str(folder)}, indent=2))
        return
    _print(told, folder)
    if out is None:
        _print_averages(run, at_least=2)


def _average(run: Path, as_json: bool) -> None:
    from infolm.finetuning import glue

    found = glue.averages(run / FINETUNED)
    if not found:
        raise InfolmError(
            f"{run / FINETUNED} has no result of a GLUE task: fine-tune one with --task and --data"
        )
    if as_json:
        print(json.dumps([each.told() for each in found], indent=2))
        return
    for each in found:
        rows = [
            [task, part, metric, f"{100 * value:.1f}"]
            for task, parts in each.scores.items()
            for part, metrics in parts.items()
            for metric, value in metrics.items()
        ]
        print_table(["task", "part", "metric", "x 100"], rows, right={3})
        if each.chosen_on_dev:
            print(
                f"Chosen on the same examples that it is measured on: "
                f"{', '.join(each.chosen_on_dev)}."
            )
    _print_averages(run, at_least=1)


def _print_averages(run: Path, at_least: int) -> None:
    """Print GLUE's average of each kind of fine-tuning (fresh or not, each share)."""
    from infolm.finetuning import glue

    for each in glue.averages(run / FINETUNED):
        if len(each.scores) < at_least:
            continue
        told = each.told()
        kind = ", ".join(
            ["fresh weights"] * each.fresh + [f"share {each.share:g}"] * (each.share < 1)
        )
        paper = "none" if told["paper"] is None else f"{100 * told['paper']:.1f}"
        missing = f", without {', '.join(each.missing)}" if each.missing else ""
        print(
            f"GLUE's average on dev{f' ({kind})' if kind else ''}, x 100: "
            f"{100 * told['leaderboard']:.1f} as the leaderboard averages, {paper} as the paper "
            f"does ({len(each.scores)} of 8 tasks{missing})."
        )


def _print(told: dict[str, Any], folder: Path) -> None:
    first = told["configurations"][0]["best"]
    columns = [(part, metric) for part in first for metric in first[part]]
    several = len(first) > 1
    header = ["rate", "batch", "seeds", ""]
    for epoch in ("best", "last"):
        header += [f"{f'{part} ' if several else ''}{m}, {epoch} epoch" for part, m in columns]
    rows = [
        [
            f"{row['learning_rate']:g}",
            str(row["batch"]),
            str(row["seeds"]),
            "chosen" if row["chosen"] and len(told["configurations"]) > 1 else "",
            *(_number(**row[epoch][p][m]) for epoch in ("best", "last") for p, m in columns),
        ]
        for row in told["configurations"]
    ]
    if told["majority"]:
        same = [f"{told['majority'][part][metric]:.4g}" for part, metric in columns]
        answer = "most frequent class" if told["task"] != "stsb" else "mean score"
        rows.append([answer, "", "", "", *same, *same])
    if constants := told["best_constant"]:
        same = [f"{constants[part]['scores'][metric]:.4g}" for part, metric in columns]
        said = ", ".join(dict.fromkeys(each["answer"] for each in constants.values()))
        rows.append([f"best constant: {said}", "", "", "", *same, *same])
    print_table(header, rows, right=set(range(4, len(header))) | {1, 2})
    print(f"{told['note']}.")
    if told["choice"]["on"] == "half":
        for part, counts in told["choice"]["examples"].items():
            print(f"{part}: {counts['choosing']:,} to choose by, {counts['reported']:,} reported.")
    if chosen := told["chosen"]["test"]:
        for part, measured in chosen.items():
            print(f"{part}: {', '.join(f'{m} {v:.4g}' for m, v in measured.items())}, once.")
    for part, counts in told["examples"].items():
        number, *rest = counts.items()
        more = "".join(f", {count:,} {_WHAT[name]}" for name, count in rest)
        print(f"{part}: {number[1]:,} examples{more.format(length=told['length'])}.")
    if told["cut"]:
        print(f"The first that was cut is {told['cut'][0]}; results.json names all.")
    also = "".join(f", {name}" for name in told["chosen"]["files"])
    print(f"The chosen model{also} and results.json are in {folder}.")


_WHAT = {
    "cut": "cut to {length} tokens",
    "windows": "windows of at most {length} tokens",
    "without the answer": "of them without the answer",
    "in no window": "whose answer fits in no window",
}


def _number(mean: float, deviation: float | None) -> str:
    return f"{mean:.4g}" if deviation is None else f"{mean:.4g} ± {deviation:.2g}"
