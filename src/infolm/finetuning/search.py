"""Search over learning rates and batch sizes with several seeds (appendix B of Kong et al.).

A configuration is a learning rate and a batch. Dev is halved, by the same draw in every run:
epochs, configurations and trials are chosen on one half, and what is reported is of the other. The
configuration whose trials have the highest mean on the first half is chosen, each trial taken at
its best epoch, and of its trials the best one's network is kept; of equals the first.

With `choose_on: dev` both are all of dev. That is the paper's way, whose numbers are of a test set;
here the numbers of the best epochs are then of the very examples they were chosen by, and somewhat
too high, and those of the last epochs depend on dev by the configuration alone.
"""

import glob
import hashlib
import json
import os
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from infolm import files
from infolm.errors import InfolmError, RunError
from infolm.finetuning import networks
from infolm.finetuning.networks import Pretrained
from infolm.finetuning.problems import ChooseOn, Problem, Scores
from infolm.finetuning.trial import (
    ENDED,
    Settings,
    Trial,
    best_weights,
    fine_tune,
    forget,
    score,
    steps_of,
)
from infolm.training import checkpoint
from infolm.training.device import one_device
from infolm.training.run import RunFolder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RATES, BATCHES = (5e-6, 1e-5, 2e-5, 3e-5, 5e-5), (16, 32)
"""The paper's grid."""
HIGH_RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3)
"""For narrow or untrained encoders, which learn almost nothing at BERT's rates."""
NARROW = 512
"""Encoders of fewer columns are narrow."""
RATE, BATCH = 3e-5, 32
"""The configuration without a grid."""
RESULTS = "results.json"
NOTES: dict[ChooseOn, str] = {
    "half": "chosen on one half of dev and measured on the other; best: each trial after the epoch "
    "that is best on the first half; last: after its last epoch",
    "dev": "best: each trial after the epoch that is best on dev, so chosen on the examples that "
    "it is measured on; last: after its last epoch",
}

Report = Callable[[float, str], None]
"""Called with the share of the work done, and a text."""


@dataclass(frozen=True, eq=False)
class Found:
    """trials: in the order of the configurations, then of the seeds. chosen: the number of the one
    whose network is kept, with the weights of its best epoch. test: of that network, often {}.
    files: its predictions for the official programs, by the names of the files."""

    trials: list[Trial]
    chosen: int
    network: "PreTrainedModel"
    test: Scores
    files: dict[str, str]


def rates(columns: int, fresh: bool) -> tuple[float, ...]:
    """The learning rates to try for an encoder of so many columns."""
    return HIGH_RATES if fresh or columns < NARROW else RATES


def grid(rates: Sequence[float], batches: Sequence[int], epochs: int, seeds: int) -> list[Settings]:
    """Every rate with every batch and the seeds 1, 2, ..."""
    tried = product(dict.fromkeys(rates), dict.fromkeys(batches), range(1, seeds + 1))
    return [Settings(rate, batch, epochs, seed) for rate, batch, seed in tried]


def search(
    problem: Problem, encoder: Pretrained, tried: Sequence[Settings], report: Report, state: Path
) -> Found:
    """All trials of `tried`, in which those of a configuration stand together.

    state: a folder for what lets a search that was killed be resumed; see `resumable`.
    """
    metric, done = problem.metrics[0], 0
    steps = sum(steps_of(problem, settings) for settings in tried)
    trials = list[Trial]()
    best: tuple[float, int] | None = None  # mean, and the trial whose weights are kept
    for _, same in groupby(tried, lambda settings: (settings.learning_rate, settings.batch)):
        values, kept = list[float](), len(trials)
        for settings in same:
            name = f"trial {len(trials) + 1} of {len(tried)}: {describe(settings)}"

            def watch(step: int, loss: float, name: str = name, before: int = done) -> None:
                report((before + step) / steps, f"{name}, loss {loss:.3f}")

            trial = fine_tune(problem, encoder, settings, watch, _of_trial(state, settings))
            values.append(score(trial.epochs[trial.best].choice, metric))
            better = values[-1] > max(values[:-1], default=-float("inf"))
            trials.append(trial)
            if len(values) > 1:
                _forget_weights(state, tried[kept if better else len(trials) - 1])
            kept = len(trials) - 1 if better else kept
            done += steps_of(problem, settings)
        if best is None or statistics.fmean(values) > best[0]:
            if best is not None:
                _forget_weights(state, tried[best[1]])
            best = statistics.fmean(values), kept
        else:
            _forget_weights(state, tried[kept])
    assert best is not None
    network = problem.network(encoder)
    network.load_state_dict(_weights(problem, encoder, tried[best[1]], state))
    network.to(one_device("auto").device)
    network.eval()
    with torch.inference_mode():
        test, files = problem.measure_test(network), problem.files(network)
    return Found(trials, best[1], network, test, files)


def _of_trial(state: Path, settings: Settings) -> Path:
    return state / "-".join(map(str, asdict(settings).values()))


def _forget_weights(state: Path, settings: Settings) -> None:
    forget(_of_trial(state, settings), but={ENDED})


def _weights(
    problem: Problem, encoder: Pretrained, settings: Settings, state: Path
) -> dict[str, Tensor]:
    """Of a trial; trained again where a search with another grid has forgotten them."""
    folder = _of_trial(state, settings)
    if not RunFolder(folder).model.exists():
        shutil.rmtree(folder)
        fine_tune(problem, encoder, settings, lambda step, loss: None, folder)
    return best_weights(folder)


@contextmanager
def resumable(folder: Path, problem: Problem, encoder: Pretrained) -> Iterator[Path]:
    """Where the search that is to write `folder` keeps its state: beside it, until the end of a
    block that raised nothing. State of another problem or encoder is removed."""
    state = folder.parent / f".{folder.name}-trials"
    files.make_folder(state)
    files.refuse_links(state)
    try:
        with RunFolder(state).locked():
            about, now = state / "about", _identity(problem, encoder)
            if not about.exists() or about.read_text() != now:
                for path in _trials_in(state):
                    shutil.rmtree(path)
                checkpoint.atomically(about, lambda path: path.write_text(now))
            yield state
            for path in _trials_in(state):
                shutil.rmtree(path)
    finally:
        if not _trials_in(state):
            shutil.rmtree(state)


def _trials_in(state: Path) -> list[Path]:
    return [path for path in state.iterdir() if path.is_dir()]


def _identity(problem: Problem, encoder: Pretrained) -> str:
    """The SHA-256 of what decides the numbers of a trial, but for its settings."""
    digest = hashlib.sha256(problem.digest.encode())
    digest.update(encoder.sizes.to_json_string().encode())
    digest.update(encoder.tokenizer.to_json().encode())
    for name, weight in sorted(encoder.weights.items()):
        digest.update(name.encode() + weight.contiguous().numpy().tobytes())
    return digest.hexdigest()


def describe(settings: Settings) -> str:
    return f"rate {settings.learning_rate:g}, batch {settings.batch}, seed {settings.seed}"


def summary(found: Found) -> list[dict[str, Any]]:
    """Of each configuration the mean and the standard deviation over its seeds of each metric, at
    the best epoch and at the last; no deviation of a single seed. choice: of the best epochs, on
    the examples that it is chosen by; all else is of those that are reported."""
    rows = []
    pairs = groupby(found.trials, lambda t: (t.settings.learning_rate, t.settings.batch))
    for (rate, batch), group in pairs:
        trials = list(group)
        rows.append(
            {
                "learning_rate": rate,
                "batch": batch,
                "seeds": len(trials),
                "choice": _spread([trial.epochs[trial.best].choice for trial in trials]),
                "best": _spread([trial.epochs[trial.best].dev for trial in trials]),
                "last": _spread([trial.epochs[-1].dev for trial in trials]),
                "chosen": found.trials[found.chosen] in trials,
            }
        )
    return rows


def _spread(measured: Sequence[Scores]) -> dict[str, dict[str, dict[str, float | None]]]:
    def of(part: str, metric: str) -> dict[str, float | None]:
        values = [scores[part][metric] for scores in measured]
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return {"mean": statistics.fmean(values), "deviation": deviation}

    return {
        part: {metric: of(part, metric) for metric in found} for part, found in measured[0].items()
    }


def warnings(problem: Problem, found: Found) -> list[str]:
    """Warnings: models with a constant answer, and a learning rate at the edge of the grid."""
    said = []
    trial = found.trials[found.chosen]
    for part, different in trial.epochs[trial.best].answers.items():
        if different == 1:
            examples = f"all {problem.counts[part]['examples']:,} examples of {part}"
            said.append(
                f"the chosen model gives the same answer to {examples}: it has learnt nothing that "
                "distinguishes them"
            )
    constant = sum(1 in t.epochs[t.best].answers.values() for t in found.trials)
    if constant and len(found.trials) > 1:
        said.append(
            f"{constant:,} of {len(found.trials):,} trials give the same answer to all examples, "
            "even after their best epoch"
        )
    tried = sorted({t.settings.learning_rate for t in found.trials})
    for edge, where, beyond in ((tried[0], "lowest", "lower"), (tried[-1], "highest", "higher")):
        if len(tried) > 1 and trial.settings.learning_rate == edge:
            said.append(
                f"the chosen learning rate, {edge:g}, is the {where} that was tried: try {beyond} "
                "ones with --learning-rate"
            )
    return said


def results(problem: Problem, found: Found) -> dict[str, Any]:
    """All that was measured, to be written as JSON.

    `choice` says what models were chosen on; `dev` is everywhere what they are reported on.
    """
    chosen = found.trials[found.chosen]
    constants = problem.best_constant
    return {
        "length": problem.length,
        **problem.put,
        "examples": problem.counts,
        "cut": problem.cut,
        "chosen_by": problem.metrics[0],
        "choice": {
            "on": problem.choose_on,
            "examples": {part: choice.counts for part, choice in problem.choice.items()},
        },
        "note": NOTES[problem.choose_on],
        "warnings": warnings(problem, found),
        "configurations": summary(found),
        "chosen": {
            **asdict(chosen.settings),
            "epoch": chosen.best + 1,
            "choice": chosen.epochs[chosen.best].choice,
            "dev": chosen.epochs[chosen.best].dev,
            "test": found.test,
            "files": list(found.files),
        },
        "majority": problem.majority,
        "best_constant": constants
        and {part: {"answer": said, "scores": s} for part, (said, s) in constants.items()},
        "trials": [
            {
                **asdict(trial.settings),
                "best_epoch": trial.best + 1,
                "by_epoch": [asdict(epoch) for epoch in trial.epochs],
            }
            for trial in found.trials
        ],
    }


# The folder


def check_target(folder: Path) -> None:
    """Refuse, before any work, a folder that could not be written or that holds something else."""
    _restore(folder)
    if folder.exists() and not folder.is_dir():
        raise InfolmError(f"{folder} is a file: give another folder with --out")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RESULTS).is_file():
        raise InfolmError(
            f"{folder} is not the folder of a fine-tuned model: give another folder with --out"
        )
    there = next(parent for parent in folder.absolute().parents if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InfolmError(f"{there} cannot be written to: give another folder with --out")


def write(
    folder: Path, found: Found, encoder: Pretrained, length: int, told: dict[str, Any]
) -> None:
    """The network, its tokenizer, its predictions and the results, whole or not at all.

    A fine-tuned model that is there already is replaced when the new one has been written.
    """
    try:
        files.make_folder(folder.parent)
        files.sweep(folder.parent, folder.name)
        with files.scratch_folder(folder.parent, f".{folder.name}") as scratch:
            new, old = scratch / "new", scratch / "old"
            try:
                networks.save(found.network, encoder.tokenizer, length, new)
                for name, content in found.files.items():
                    (new / name).write_text(content, encoding="utf-8")
                (new / RESULTS).write_text(json.dumps(told, indent=2) + "\n")
                files.flush_tree(new)
                files.flush_folder(scratch)
                files.flush_folder(folder.parent)  # so that `scratch`, and the old one in it, stays
                if folder.exists():
                    folder.rename(old)
                new.rename(folder)
                files.flush_folder(folder.parent)  # before the old one is removed
            finally:
                if not folder.exists() and old.exists():
                    old.rename(folder)
    except OSError as error:
        raise RunError(
            f"{folder} could not be written ({error}): free some space, or give another folder "
            "with --out"
        ) from error


def _restore(folder: Path) -> None:
    """Finish the work of a writer that died when it had moved the old model aside."""
    for old in folder.parent.glob(f".{glob.escape(folder.name)}[.-]*/old"):
        with files.taken(old.parent) as dead:
            if dead and not folder.exists():
                old.with_name("new").rename(folder)  # it was whole before the old one was moved
