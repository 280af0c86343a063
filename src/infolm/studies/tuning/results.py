"""Results of a study: a table of its trials, the winner as a recipe, its spread over seeds."""

import json
import math
import statistics
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from infolm.errors import RunError
from infolm.space import short
from infolm.studies.tuning import history, parallel
from infolm.studies.tuning.study import Study, with_values
from infolm.training import checkpoint

STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}
OPTIMISTIC = (
    "the tuner takes advantage of chance: the best trial's own value is optimistic (by 0.7 "
    "perplexity for an LSTM on PTB, section 2.B of Melis's thesis), the mean over new seeds is not"
)


def perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))  # exp of more overflows


def row(study: Study, trial: FrozenTrial) -> dict[str, Any]:
    """A trial as a line of `trials.jsonl`."""
    return {
        "trial": trial.number,
        "state": STATES[trial.state],
        "loss": trial.values[0] if trial.state == TrialState.COMPLETE else None,
        "seconds": trial.duration.total_seconds() if trial.duration else None,
        "values": study.values(trial),
        "validations": {f"{at / 10:g}%": v for at, v in sorted(trial.intermediate_values.items())},
        "failure": trial.user_attrs.get("failure"),
    }


def describe(study: Study, trial: FrozenTrial) -> str:
    """A finished trial in a line."""
    values = ", ".join(f"{key} {short(value)}" for key, value in study.values(trial).items())
    if trial.state == TrialState.FAIL:
        return f"trial {trial.number} failed: {trial.user_attrs.get('failure')} ({values})"
    if trial.state == TrialState.PRUNED:
        return f"trial {trial.number} pruned at {(trial.last_step or 0) / 10:g}% ({values})"
    loss = trial.values[0]
    return (
        f"trial {trial.number}: validation {loss:.4f} nats per token, perplexity "
        f"{perplexity(loss):.2f} ({values})"
    )


def describe_again(number: int, seed: int, outcome: dict[str, Any]) -> str:
    """The winner trained again, in a line."""
    if "failure" in outcome:
        return f"trial {number} with seed {seed} failed: {outcome['failure']}"
    loss = outcome["loss"]
    return (
        f"trial {number} with seed {seed}: validation {loss:.4f} nats per token, perplexity "
        f"{perplexity(loss):.2f}"
    )


def write_table(study: Study) -> None:
    lines = "".join(json.dumps(row(study, trial)) + "\n" for trial in study.trials())
    checkpoint.atomically(study.folder.table, lambda path: path.write_text(lines, encoding="utf-8"))


def summary(study: Study, seeds: int) -> dict[str, Any]:
    """The result of a finished study. Losses are nats per token on the validation split."""
    trials, winner = study.trials(), study.best()
    counts = {name: sum(STATES[t.state] == name for t in trials) for name in STATES.values()}
    if winner is None:
        failures = [t.user_attrs["failure"] for t in trials if "failure" in t.user_attrs]
        raise RunError(
            f"all {len(trials)} trials failed, the last one because: {failures[-1]}; change the "
            "recipe or its ranges and name another folder with --out"
        )
    loss = winner.values[0]
    result = {
        "study": str(study.folder.path),
        "trials": {"total": len(trials), **{k: v for k, v in counts.items() if v}},
        "unit": "nats per token on the validation split",
        "best": {
            "trial": winner.number,
            "values": study.values(winner),
            "nll": loss,
            "perplexity": perplexity(loss),
        },
        "importance": study.importance(),
        "history": [tried._asdict() for tried in history.history(trials)],
        "recipe": str(study.folder.best),
        "picture": str(study.folder.picture),
        "history_picture": str(study.folder.history),
    }
    if seeds:
        found = study.retrained(winner.number)
        result["retrained"] = spread({seed: found[seed] for seed in study.seeds(seeds)})
    return result


def spread(found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation (n - 1) over the seeds whose training did not fail."""
    losses = {seed: each["loss"] for seed, each in found.items() if "loss" in each}
    failures = {seed: each["failure"] for seed, each in found.items() if "failure" in each}
    measured: dict[str, Any] = {"seeds": losses}
    if failures:
        measured["failures"] = failures
    columns = {
        "nll": list(losses.values()),
        "perplexity": [perplexity(loss) for loss in losses.values()],
    }
    for name, column in columns.items():
        if column:
            deviation = statistics.stdev(column) if len(column) > 1 else None
            measured[name] = {"mean": statistics.fmean(column), "deviation": deviation}
    return measured | {"note": OPTIMISTIC}


def write(study: Study, result: dict[str, Any]) -> None:
    """All files of a finished study."""
    best = result["best"]
    recipe = with_values(study.recipe, best["values"])
    title = f"{recipe.title}, tuned".removeprefix(", ")
    about = (
        f"# Trial {best['trial']} of {result['trials']['total']}: validation loss "
        f"{best['nll']:.4f} nats per token.\n# Found in:\n"
        + "".join(
            f"#   {key}: {section.model_dump(exclude_defaults=True)}\n"
            for key, section in study.space.items()
        )
    )
    text = about + recipe.model_copy(update={"title": title}).as_yaml()
    checkpoint.atomically(study.folder.best, lambda path: path.write_text(text, encoding="utf-8"))
    parallel.draw(study.space, study.trials(), study.folder.picture)
    tried = [history.Tried(**each) for each in result["history"]]
    history.draw(tried, result["importance"], study.folder.history)
    told = json.dumps(result, indent=2) + "\n"
    checkpoint.atomically(study.folder.result, lambda path: path.write_text(told, encoding="utf-8"))
