"""The history in a run's `metrics.jsonl`: curves, events, progress."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infolm.averaging.base import RAW
from infolm.averaging.two_tailed import LONG, SHORT
from infolm.objectives.bmi import PHASE_TWO, TRIGGERED

ENDING = 20
"""The end of a series is its last tenth, but at least this many records."""


class Ending(NamedTuple):
    """The end of a series: the mean of its last records, and its standard error.

    The error is from the spread of the records, each a mean over other batches; inf where there
    are fewer than two.
    """

    mean: float
    error: float
    records: int


@dataclass(frozen=True)
class Series:
    """Values over training: steps (N,), ascending, and values (N,), all finite."""

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)

    def thinned(self, most: int) -> "Series":
        """At most `most` points: the mean of each block of neighbours, at the block's last step.

        A record is itself a mean over the steps up to its own, so blocks keep that meaning.
        With N <= most this is the series itself.
        """
        starts = np.arange(0, len(self), max(1, math.ceil(len(self) / most)))
        if len(starts) == len(self):
            return self
        ends = np.append(starts[1:], len(self))
        means = np.add.reduceat(self.values, starts) / (ends - starts)
        return Series(self.steps[ends - 1], means)

    def since(self, step: int) -> "Series":
        """The part from `step` on."""
        return Series(self.steps[self.steps >= step], self.values[self.steps >= step])

    def ending(self) -> Ending:
        """The end of a series that is not empty; see `ENDING`."""
        last = self.values[-max(ENDING, len(self) // 10) :]
        error = last.std(ddof=1) / math.sqrt(len(last)) if len(last) > 1 else math.inf
        return Ending(float(last.mean()), float(error), len(last))


@dataclass(frozen=True)
class Codes:
    """The history of a sentence model's codes.

    reconstruction: the loss of the validation split given its codes, nats per token, or what `nll`
    says that it is in words. kl, information: of that split, nats per sentence; training_kl:
    in training. weight: of the KL in the loss, where it is part of it. All but the first are empty
    where codes are points.
    """

    nll: str
    reconstruction: Series
    kl: Series
    information: Series
    training_kl: Series
    weight: Series

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]], term: str, nll: str, points: bool) -> "Codes":
        """term: the objective's name in the records. points: codes are, so that what is recorded
        of their distribution means nothing."""
        steps, validations = (_of_kind(records, kind) for kind in ("step", "validation"))
        reconstruction = series_of(validations, "nll")
        if points:
            return cls(nll, reconstruction, *(series_of([], "") for _ in range(4)))
        of_codes = (series_of(validations, name) for name in ("kl", "information"))
        in_training = (series_of(steps, f"{term}/{name}") for name in ("kl", "kl_weight"))
        return cls(nll, reconstruction, *of_codes, *in_training)


@dataclass(frozen=True)
class Contrasts:
    """The history of an encoder's objective.

    nll: the cross entropy of the validation split; `History.training` is that in training.
    information, ngrams: the bounds of that split on what is told, of words and of n-grams, in nats;
    training_information, training_ngrams: in training. Empty what the objective does not have.
    weighted: whether the loss is more than the cross entropy.
    """

    nll: Series
    information: Series
    training_information: Series
    ngrams: Series
    training_ngrams: Series
    weighted: bool

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]], term: str) -> "Contrasts":
        """term: the objective's name in the records."""
        steps, validations = (_of_kind(records, kind) for kind in ("step", "validation"))
        return cls(
            nll=series_of(validations, "nll"),
            information=series_of(validations, "information"),
            training_information=series_of(steps, f"{term}/information"),
            ngrams=series_of(validations, "dim_information"),
            training_ngrams=series_of(steps, f"{term}/dim_information"),
            weighted=any("dim" in record for record in validations),
        )


@dataclass(frozen=True)
class History:
    """The history of one training.

    training, validation: nats per token; of a sentence model the first is the loss given the code,
    and the second what the objective makes of it; of an encoder both are nats per hidden token or
    per whatever it tells. codes, contrasts: None for other models. regularisers: the terms besides
    the main one, by name, of each the quantities, by name; held_out: the same of what they are at
    each validation, on its split. candidates: the validation
    losses of the iterate and of the means, by name, where several were measured; `validation` is
    that of the kept weights. averaged: whether a mean was ever kept. length: of Two-Tailed
    Averaging's long mean, in iterates, after each validation. speed: tokens per second. events:
    (step, name). epochs: (step, passes complete by then), wherever the second is greater than
    before. step: the last one recorded, 0 where there is none.
    """

    training: Series
    validation: Series
    regularisers: dict[str, dict[str, Series]]
    held_out: dict[str, dict[str, Series]]
    candidates: dict[str, Series]
    averaged: bool
    length: Series
    speed: Series
    events: list[tuple[int, str]]
    epochs: list[tuple[int, int]]
    step: int
    codes: Codes | None = None
    contrasts: Contrasts | None = None

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]]) -> "History":
        """Of any training; `Family.history` adds what only its models have."""
        epochs: list[tuple[int, int]] = []
        for record in records:
            if record.get("epoch", 0) > (epochs[-1][1] if epochs else 0):
                epochs.append((record["step"], record["epoch"]))
        steps, validations = (_of_kind(records, kind) for kind in ("step", "validation"))
        events = [(r["step"], r["name"]) for r in records if r["kind"] == "event"]
        losses = {name: series_of(validations, name) for name in (RAW, SHORT, LONG)}
        # A run of several terms has several losses; the likelihood of the text is an `nll`.
        main = next((k for r in steps for k in r if k.endswith("/nll")), "")
        return cls(
            training=series_of(steps, main),
            validation=series_of(validations, "loss"),
            regularisers=_regularisers(steps, main.removesuffix("/nll")),
            held_out=_regularisers(validations, main.removesuffix("/nll")),
            candidates=losses if len(losses[LONG]) else {},
            averaged=any(r.get("answer", RAW) != RAW for r in validations),
            length=series_of([_after(r, events) for r in validations], "long_length"),
            speed=series_of(steps, "tokens_per_second"),
            events=events,
            epochs=epochs,
            step=records[-1]["step"] if records else 0,
        )

    @property
    def epoch(self) -> int:
        """Passes over the training split that are complete."""
        return self.epochs[-1][1] if self.epochs else 0

    @property
    def best(self) -> tuple[int, float] | None:
        """The step and the loss of the best validation; None before the first."""
        if not len(self.validation):
            return None
        i = int(self.validation.values.argmin())
        return int(self.validation.steps[i]), float(self.validation.values[i])

    @property
    def switch(self) -> int | None:
        """Where phase two began, or else averaging; None before that."""
        first = dict(reversed([(name, step) for step, name in self.events]))
        return first.get(PHASE_TWO, first.get(TRIGGERED))


def _after(validation: dict[str, Any], events: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """The record with the length that the long mean has after what followed from the losses."""
    step = validation["step"]
    if (step, "restarted") in events:
        return validation | {"long_length": 0}
    if (step, "switched") in events:
        return validation | {"long_length": validation["short_length"]}
    return validation


def _of_kind(records: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == kind]


def _regularisers(steps: Sequence[dict[str, Any]], main: str) -> dict[str, dict[str, Series]]:
    """The quantities "<term>/<name>" of every term but `main`."""
    found: dict[str, dict[str, Series]] = {}
    for key in dict.fromkeys(key for record in steps for key in record if "/" in key):
        term, _, name = key.partition("/")
        if term != main and len(series := series_of(steps, key)):
            found.setdefault(term, {})[name] = series
    return found


def series_of(records: Sequence[dict[str, Any]], key: str) -> Series:
    """The finite values under `key`, by step."""
    points = [(r["step"], r[key]) for r in records if math.isfinite(r.get(key, math.nan))]
    steps, values = zip(*points, strict=True) if points else ((), ())
    return Series(np.array(steps, np.int64), np.array(values, np.float64))
