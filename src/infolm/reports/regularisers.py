"""Descriptions of regularisers, and warnings about their quantities.

A rule returns a sentence, or None if all is well.
"""

import math
from collections.abc import Mapping
from typing import Any

from infolm.metrics import STDERR
from infolm.reports.history import History, Series

ENOUGH = 5
"""Least records to distinguish chance from knowledge."""
ERRORS = 2.0
"""Standard errors within which a value is called chance."""
FEW = 0.2
"""Below this effective share of the weights, one sentence of a batch decides its gradient."""


ABOUT = {
    "bmi": "A critic reads two sentences and predicts whether the second follows the first in the "
    "text or was drawn at random. Critic and model together maximise its bound, so the model "
    "remembers what distinguishes neighbours. In phase two the model is also trained on sentences "
    "near the true next one, weighted by the critic's scores."
}


def warnings(name: str, settings: Mapping[str, Any], history: History, finished: bool) -> list[str]:
    """All warnings about the regulariser `name`, which has records in `history`.

    settings: its section of the recipe.
    """
    series, empty = history.regularisers[name], History.of([]).training
    found = [
        at_chance(series.get("accuracy", empty)),
        by_heart(name, series.get("accuracy", empty), history.held_out.get(name, {})),
        beyond_the_batch(series.get("mine", empty), settings.get("batch")),
        never_begun(name, settings, series) if finished else "",
        one_decides(name, series.get("effective", empty)),
    ]
    return [sentence for sentence in found if sentence]


def at_chance(accuracy: Series) -> str:
    """The critic cannot distinguish neighbours from random sentences."""
    if len(accuracy) < ENOUGH:
        return ""
    mean, error, records = accuracy.ending()
    if mean - ERRORS * error > 0.5:
        return ""
    return (
        f"The critic is at chance: in the last {records} records it classifies {mean:.3f} ± "
        f"{error:.3f} "
        "of the pairs correctly, so the regulariser adds only noise. Train longer, or leave it "
        "out."
    )


def by_heart(name: str, accuracy: Series, held_out: Mapping[str, Series]) -> str:
    """The critic is right only on its training pairs."""
    unseen, errors = (held_out.get(key) for key in ("accuracy", f"accuracy{STDERR}"))
    if not len(accuracy) or not unseen or not errors or at_chance(accuracy):
        return ""
    mean, error = unseen.values[-1], errors.values[-1]
    if mean - ERRORS * error > 0.5:
        return ""
    return (
        f"The critic overfits its training pairs: it classifies {accuracy.ending().mean:.3f} of "
        "them "
        f"correctly, and {mean:.3f} ± {error:.3f} of those of the validation split, which is "
        "chance. "
        f"Raise regularisers.{name}.critic.dropout, lower regularisers.{name}.critic.hidden, or "
        "give more text."
    )


def beyond_the_batch(mine: Series, pairs: int | None) -> str:
    """MINE is above ln M, which a critic shows that finds the neighbour among M without fail.

    What is beyond that comes from the size of the scores, for which a batch of M pairs is no
    evidence (McAllester and Stratos 2020).
    """
    if not len(mine) or not pairs or mine.ending().mean <= math.log(pairs):
        return ""
    return (
        f"MINE is {mine.ending().mean:.2f} nats at the end, more than the ln {pairs} = "
        f"{math.log(pairs):.2f} of a critic that always finds the neighbour among the {pairs} "
        "sentences of a batch: read it as a sign of how well the critic knows the training text, "
        "not as mutual information."
    )


def never_begun(name: str, settings: Mapping[str, Any], series: Mapping[str, Series]) -> str:
    """Phase two was requested, but training ended before it."""
    if not settings.get("phase_two") or "raml" in series:
        return ""
    return (
        f"Phase two was requested (regularisers.{name}.phase_two), but no step of it was recorded: "
        "it starts at a validation, when averaging is triggered or after the share of training "
        f"that regularisers.{name}.switch sets. Lower that, validate more often "
        "(train.validate_every), or train longer."
    )


def one_decides(name: str, effective: Series) -> str:
    """The importance weights are so uneven that most of a batch counts for nothing."""
    if not len(effective) or effective.ending().mean >= FEW:
        return ""
    return (
        f"The effective share of the importance weights is {effective.ending().mean:.2f} at the "
        "end: in most batches a few sentences decide. Raise "
        f"regularisers.{name}.temperature, which evens the weights out."
    )
