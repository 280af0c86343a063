"""`infolm finetune`: an encoder on a task of GLUE, or on SQuAD."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from infolm.cli.app import JsonOption, app, print_table
from infolm.errors import InfolmError


@app.command()
def finetune(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="An encoder's run, or a folder where transformers saved a BERT."
        ),
    ],
    task: Annotated[
        str, typer.Option(help="cola, sst2, mrpc, qqp, mnli, qnli, rte, stsb or squad.")
    ],
    data: Annotated[
        Path, typer.Option(metavar="FOLDER", help="With the task's files, TSV or SQuAD's JSON.")
    ],
    grid: Annotated[
        bool,
        typer.Option(
            "--grid", help="Try the paper's learning rates and batches, and choose on dev."
        ),
    ] = False,
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
        typer.Option(min=1, show_default="4 for CoLA and SQuAD, 10 for the others"),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            min=8,
            help="Most tokens of a sequence, no more than the encoder's.",
            show_default="128, and 512 for SQuAD",
        ),
    ] = None,
    share: Annotated[
        float,
        typer.Option(help="Share of the training examples; a smaller one is part of a larger one."),
    ] = 1.0,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start from random weights, to see what pretraining gains."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The result.", show_default="RUN/finetuned/TASK"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune an encoder on a task with labels, and measure it.

    \b
    infolm finetune RUN --task cola --data glue_data --grid --seeds 5

    \b
    The folder of the result has the model that is best on dev, for transformers'
    AutoModelForSequenceClassification or AutoModelForQuestionAnswering, and results.json.
    It is written when all is done: an interrupted search leaves nothing behind.
    """
    if not 0 < share <= 1:
        raise InfolmError(f"--share {share:g} is not above 0 and at most 1: try 0.1")
    if learning_rate and not all(0 < rate < 1 for rate in learning_rate):
        raise InfolmError("--learning-rate is above 0 and below 1: try 3e-5")

    from infolm.console import bar
    from infolm.finetuning import search
    from infolm.finetuning.networks import open_encoder
    from infolm.finetuning.problems import read_problem

    encoder = open_encoder(run)
    problem = read_problem(task, data, encoder, length, share)
    variant = ["fresh"] * fresh + [f"{share:g}"] * (share < 1)
    folder = out or run / "finetuned" / "-".join([task, *variant])
    search.check_target(folder)
    if fresh:
        encoder = replace(encoder, weights={})
    rates = learning_rate or (search.RATES if grid else [search.RATE])
    batches = batch or (search.BATCHES if grid else [search.BATCH])
    tried = search.grid(rates, batches, epochs or problem.epochs, seeds)
    with bar(f"fine-tuning on {task}") as shown:
        found = search.search(problem, encoder, tried, shown.update)
    told = {"task": task, "run": str(run), "data": str(data), "fresh": fresh, "share": share}
    told |= search.results(problem, found)
    search.write(folder, found, encoder, problem.length, told)
    if as_json:
        print(json.dumps({**told, "folder": str(folder)}, indent=2))
    else:
        _print(told, folder)


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
    print_table(header, rows, right=set(range(4, len(header))) | {1, 2})
    print(f"{told['note']}.")
    if chosen := told["chosen"]["test"]:
        for part, measured in chosen.items():
            print(f"{part}: {', '.join(f'{m} {v:.4g}' for m, v in measured.items())}, once.")
    for part, counts in told["examples"].items():
        number, *rest = counts.items()
        more = "".join(f", {count:,} {_WHAT[name]}" for name, count in rest)
        print(f"{part}: {number[1]:,} examples{more.format(length=told['length'])}.")
    if told["cut"]:
        print(f"The first that was cut is {told['cut'][0]}; results.json names all.")
    print(f"The best model and results.json are in {folder}.")


_WHAT = {
    "cut": "cut to {length} tokens",
    "windows": "windows of at most {length} tokens",
    "in no window": "whose answer no window has whole",
}


def _number(mean: float, deviation: float | None) -> str:
    return f"{mean:.4g}" if deviation is None else f"{mean:.4g} ± {deviation:.2g}"
