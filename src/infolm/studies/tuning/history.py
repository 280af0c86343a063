"""The history of a search: the loss of each complete trial, the best so far, and importances.

The importance of a key is Optuna's PED-ANOVA (Watanabe et al. 2023): how far the values of the best
trials are from being distributed as those of all complete trials. The keys' shares sum to 1.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import optuna
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from optuna.trial import FrozenTrial, TrialState

from infolm.reports.curves import INK, MUTED, STYLE, TRAINING, VALIDATION
from infolm.studies.tuning.parallel import SHOWN, save

ENOUGH = 10
"""Least complete trials for the importance; with fewer it would be chance."""
BEST = 5
"""The best trials are a tenth of the complete ones, and at least so many, as Optuna advises."""


class Tried(NamedTuple):
    """A complete trial: its loss and the least until then, in nats per token."""

    trial: int
    nll: float
    best: float


def history(trials: Sequence[FrozenTrial]) -> list[Tried]:
    """The complete trials in the order of their numbers."""
    complete = [t for t in trials if t.state == TrialState.COMPLETE]
    losses = [trial.values[0] for trial in complete]
    least = np.minimum.accumulate(losses).tolist() if losses else []
    return [Tried(t.number, *pair) for t, *pair in zip(complete, losses, least, strict=True)]


def importance(study: optuna.Study) -> dict[str, float]:
    """Key -> its share, the greatest first; empty with too few complete trials or a single key."""
    complete = [t for t in study.get_trials(deepcopy=False) if t.state == TrialState.COMPLETE]
    if len(complete) < ENOUGH or len(complete[0].params) < 2:
        return {}
    # Imported here: it takes scikit-learn along.
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    share = max(0.1, BEST / len(complete))
    return get_param_importances(
        study, evaluator=PedAnovaImportanceEvaluator(target_quantile=share)
    )


def draw(tried: Sequence[Tried], shares: Mapping[str, float], path: Path) -> None:
    """Write the picture to `path`, an .svg, and beside it as a .png."""
    with matplotlib.rc_context(STYLE):
        save(picture(tried, shares), path)


def picture(tried: Sequence[Tried], shares: Mapping[str, float]) -> Figure:
    """The history; and beside it the importance, where there is one."""
    figure = Figure(figsize=(9.6 if shares else 5.6, 3.6), layout="constrained")
    if not shares:
        _draw_history(figure.subplots(), tried)
        return figure
    left, right = figure.subplots(1, 2)
    _draw_history(left, tried)
    _draw_importance(right, shares)
    return figure


def _draw_history(axes: Axes, tried: Sequence[Tried]) -> None:
    """The worst trials may be far off: they end at the top, as in the parallel coordinates."""
    numbers, losses = [t.trial for t in tried], [t.nll for t in tried]
    low, shown = min(losses), float(np.quantile(losses, SHOWN, method="higher"))
    high = max(shown, low + 1e-3)
    margin = 0.06 * (high - low)
    for beyond, marker in ((False, "o"), (True, "^")):
        there = [(t.trial, min(t.nll, high)) for t in tried if (t.nll > high) == beyond]
        if there:
            label = f"above {high:.3f}" if beyond else "complete trial"
            style: dict[str, Any] = {
                "color": TRAINING,
                "markersize": 4.5,
                "linestyle": "none",
                "label": label,
            }
            axes.plot(*zip(*there, strict=True), marker=marker, **style)
    axes.step(
        numbers,
        [min(t.best, high) for t in tried],
        where="post",
        color=VALIDATION,
        linewidth=1.6,
        label="best so far",
        gid="best",
    )
    axes.set(ylim=(low - margin, high + margin), xlabel="trial")
    axes.set_title("validation loss, nats per token", loc="left", size=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, numpoints=1)


def _draw_importance(axes: Axes, shares: Mapping[str, float]) -> None:
    keys, sizes = list(shares), list(shares.values())
    axes.barh(keys, sizes, height=0.6, color=TRAINING)
    for y, size in enumerate(sizes):
        axes.text(size, y, f" {size:.0%}", va="center", size=8, color=MUTED)
    axes.invert_yaxis()
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlim=(0, 1.12 * max(sizes)))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_title("importance of each key", loc="left", size=9, color=INK)


def improvements(tried: Sequence[Tried]) -> list[Tried]:
    """The trials that were the best when they were complete."""
    found: list[Tried] = []
    for each in tried:
        if each.nll < (found[-1].nll if found else math.inf):
            found.append(each)
    return found
