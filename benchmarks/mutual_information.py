"""Every estimator of mutual information against the truth: bias, spread, coverage, seconds.

    python benchmarks/mutual_information.py --estimators mine --runs 9   # a run of each task

Tasks: correlated Gaussians of 1, 5 and 25 dimensions a side with 0.2, 1 and 3 nats; `--tasks
forty`, those of Czyz et al.; or `--tasks FOLDER`, samples in files, such as those that
`forty_tasks.py` writes, of which each is one run. All others draw new samples for every run.
Runs are kept in `--records`, a line each, and not done again: stopped, the script goes on where it
was. needless: share with a warning, though the value is within 0.1 and the interval covers.
"""

import argparse
import json
import math
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from infolm.information.estimate import Array
from infolm.information.exact import CorrelatedGaussian, Task
from infolm.information.panel import Panel
from infolm.information.registry import estimator

NEURAL = ("mine", "nwj", "js", "js-dv", "infonce", "interpolated", "smile", "club")
OTHERS = ("ksg", "ksg2", "mixture", "gaussian", "copula")
NEAR = 0.1  # nats

Record = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    """Samples in a file: one run."""

    folder: Path
    name: str
    mutual_information: float

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        with np.load(self.folder / f"{self.name}.npz") as file:
            return file["x"][:n], file["y"][:n]


@dataclass(frozen=True)
class Named:
    """A task by the name that a benchmark gives it."""

    name: str
    task: Task

    @property
    def mutual_information(self) -> float:
        return self.task.mutual_information

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, ...]:
        return self.task.sample(n, rng)


def tasks(group: str) -> list[Task]:
    if group == "gaussian":
        return [
            CorrelatedGaussian.with_information(dimension, nats)
            for dimension in (1, 5, 25)
            for nats in (0.2, 1.0, 3.0)
        ]
    if group == "forty":
        from forty_tasks import tasks as forty

        return [Named(name, task) for name, task in forty().items()]
    folder = Path(group)
    index = json.loads((folder / "tasks.json").read_text())
    return [Stored(folder, each["name"], each["mutual_information"]) for each in index]


def measure(job: tuple[str, str, int, int, int]) -> Record:
    """One estimate on fresh samples of a task."""
    name, group, at, run, samples = job
    task = tasks(group)[at]
    x, y = task.sample(samples, np.random.default_rng([run, at]))
    start = time.process_time()
    panels = {"panel": Panel(seed=run), "fast": Panel(fast=True, seed=run)}
    found: Any = (panels.get(name) or estimator(name, seed=run)).estimate(x, y)
    return {
        "job": list(job),
        "task": task.name,
        "dimension": 1 if x.ndim == 1 else x.shape[1],
        "truth": task.mutual_information,
        "seconds": time.process_time() - start,
        "estimate": {"stderr": 0.0, "permuted": 0.0} | found.as_dict(),
    }


def jobs(args: argparse.Namespace) -> Iterator[tuple[str, str, int, int, int]]:
    count = len(tasks(args.tasks))
    if args.runs > count and Path(args.tasks).is_dir():
        raise SystemExit(f"{args.tasks} holds one run of {count} tasks: --runs {count} at most")
    for name in args.estimators.split(","):
        for run in range(args.runs):
            yield name, args.tasks, run % count, run // count, args.samples


def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def records(args: argparse.Namespace) -> list[Record]:
    """The runs asked for, those not yet kept done now."""
    path: Path = args.records
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    wanted = list(jobs(args))
    missing = [job for job in wanted if list(job) not in [record["job"] for record in kept]]
    spawn = multiprocessing.get_context("spawn")
    with (
        path.open("a") as file,
        ProcessPoolExecutor(args.workers, spawn, initializer=one_thread) as pool,
    ):
        for record in pool.map(measure, missing):
            kept.append(record)
            print(json.dumps(record), file=file, flush=True)
    asked = {tuple(job) for job in wanted}
    return [record for record in kept if tuple(record["job"]) in asked]


def errors(of: Sequence[Record]) -> np.ndarray:
    return np.array([record["estimate"]["value"] - record["truth"] for record in of])


def share(of: Sequence[bool]) -> str:
    return f"{np.mean(of):.0%}"


def summary(name: str, of: list[Record]) -> list[str]:
    """A row of the table over all tasks."""
    found = [record["estimate"] for record in of]
    wrong = errors(of)
    cells = {record["task"] for record in of}
    spreads = [errors([r for r in of if r["task"] == cell]) for cell in cells]
    repeated = [np.var(each, ddof=1) for each in spreads if len(each) > 1]
    below = [e["value"] <= r["truth"] + 2 * e["stderr"] for e, r in zip(found, of, strict=True)]
    covered = [
        e["interval"][0] <= r["truth"] <= e["interval"][1] for e, r in zip(found, of, strict=True)
    ]
    right = [abs(w) <= NEAR and held for w, held in zip(wrong, covered, strict=True)]
    near = [abs(w) <= NEAR or bool(e["warning"]) for w, e in zip(wrong, found, strict=True)]
    return [
        name,
        f"{len(of)}",
        f"{wrong.mean():+.3f}",
        f"{np.abs(wrong).max():.3f}",
        f"{math.sqrt(np.mean(repeated)):.3f}" if repeated else "",
        f"{np.mean([e['stderr'] for e in found]):.3f}",
        share(below),
        share(covered),
        share([bool(e["warning"]) for e in found]),
        share([bool(e["warning"]) and good for e, good in zip(found, right, strict=True)]),
        share(near),
        f"{np.mean([abs(e['permuted']) for e in found]):.3f}",
        f"{np.median([record['seconds'] for record in of]):.1f}",
    ]


HEADER = [
    "estimator",
    "runs",
    "bias",
    "worst error",
    "spread",
    "stderr",
    "<= truth + 2 stderr",
    "interval covers",
    "warned",
    "needless",
    "within 0.1 or warned",
    "abs. shuffled",
    "seconds",
]


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def by_task(of: list[Record], names: list[str]) -> str:
    """Mean estimate of every estimator on every task; * where most runs are warned of."""
    order = {record["task"]: record for record in of}

    def cell(name: str, task: str) -> str:
        some = [r for r in of if r["task"] == task and r["job"][0] == name]
        if not some:
            return ""
        warned = np.mean([bool(r["estimate"]["warning"]) for r in some]) > 0.5
        return f"{np.mean([r['estimate']['value'] for r in some]):.3f}{'*' if warned else ''}"

    rows = [
        [task, f"{record['truth']:.3f}", *(cell(name, task) for name in names)]
        for task, record in order.items()
    ]
    return table(["task", "truth", *names], rows)


def draw(of: list[Record], names: list[str], path: Path) -> None:
    """Every estimator against the truth, a panel a dimension."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    dimensions = sorted({record["dimension"] for record in of})
    figure, panels = plt.subplots(1, len(dimensions), figsize=(11, 4.2), sharey=True)
    names = [name for name in names if name != "club"]  # off the page: hundreds of nats
    colours = plt.get_cmap("tab20").colors  # type: ignore[attr-defined]
    for panel, dimension in zip(panels, dimensions, strict=True):
        here = [record for record in of if record["dimension"] == dimension]
        truths = sorted({round(record["truth"], 6) for record in here})
        for (group, truth), (at, name) in product(enumerate(truths), enumerate(names)):
            some = [
                record["estimate"]
                for record in here
                if record["job"][0] == name and round(record["truth"], 6) == truth
            ]
            if not some:
                continue
            place = group + 0.8 * ((at + 0.5) / len(names) - 0.5)
            ends = np.mean([estimate["interval"] for estimate in some], axis=0)
            warned = np.mean([bool(estimate["warning"]) for estimate in some]) > 0.5
            panel.plot([place] * 2, ends, color=colours[at], lw=1.2)
            panel.plot(
                place,
                np.mean([estimate["value"] for estimate in some]),
                "o",
                ms=5,
                color=colours[at],
                mfc="white" if warned else colours[at],
                label=name if group == 0 else None,
            )
        panel.hlines(truths, *np.add.outer([-0.45, 0.45], range(len(truths))), color="0.4", lw=0.8)
        panel.set(title=f"{dimension} + {dimension} dimensions", xlabel="true nats")
        panel.set_xticks(range(len(truths)), [f"{truth:g}" for truth in truths])
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("estimated nats")
    panels[-1].legend(fontsize=7.5, frameon=False, loc="upper left", ncols=2)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--estimators", default=",".join((*NEURAL, *OTHERS)))
    parser.add_argument(
        "--tasks", default="gaussian", help="gaussian, forty, or a folder of samples"
    )
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=108, help="of each estimator, over the tasks")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--records", type=Path, default=Path("runs/mutual_information.jsonl"))
    parser.add_argument("--plot", type=Path, help="write the picture of the documentation here")
    args = parser.parse_args()
    found, names = records(args), args.estimators.split(",")
    print(f"{args.samples:,} pairs, tasks: {args.tasks}; nats\n")
    print(table(HEADER, [summary(n, [r for r in found if r["job"][0] == n]) for n in names]))
    print(f"\nmean estimates; * where most were warned of\n\n{by_task(found, names)}")
    if args.plot:
        draw(found, names, args.plot)


if __name__ == "__main__":
    main()
