"""What a run's `metrics.jsonl` tells: curves, events, how far it came."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm.averaging.base import RAW
from infolm.averaging.two_tailed import LONG, SHORT


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


@dataclass(frozen=True)
class History:
    """The course of one training.

    training, validation: nats per token. candidates: the validation losses of the iterate and of
    the means, by name, where several were measured; `validation` is that of the answer. averaged:
    whether a mean ever was the answer. length: of Two-Tailed Averaging's long mean, in iterates,
    after each validation. speed: tokens per second. events: (step, name). epochs: (step, passes
    complete by then), wherever the second is greater than before. step: the last one recorded, 0
    where there is none.
    """

    training: Series
    validation: Series
    candidates: dict[str, Series]
    averaged: bool
    length: Series
    speed: Series
    events: list[tuple[int, str]]
    epochs: list[tuple[int, int]]
    step: int

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]]) -> "History":
        epochs: list[tuple[int, int]] = []
        for record in records:
            if record.get("epoch", 0) > (epochs[-1][1] if epochs else 0):
                epochs.append((record["step"], record["epoch"]))
        steps = [record for record in records if record["kind"] == "step"]
        validations = [record for record in records if record["kind"] == "validation"]
        events = [(r["step"], r["name"]) for r in records if r["kind"] == "event"]
        losses = {name: _series(validations, name) for name in (RAW, SHORT, LONG)}
        return cls(
            # A run of several terms has several losses; the likelihood of the text is an `nll`.
            training=_series(steps, next((k for r in steps for k in r if k.endswith("/nll")), "")),
            validation=_series(validations, "loss"),
            candidates=losses if len(losses[LONG]) else {},
            averaged=any(r.get("answer", RAW) != RAW for r in validations),
            length=_series([_after(r, events) for r in validations], "long_length"),
            speed=_series(steps, "tokens_per_second"),
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


def _after(validation: dict[str, Any], events: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """The record with the length that the long mean has after what followed from the losses."""
    step = validation["step"]
    if (step, "restarted") in events:
        return validation | {"long_length": 0}
    if (step, "switched") in events:
        return validation | {"long_length": validation["short_length"]}
    return validation


def _series(records: Sequence[dict[str, Any]], key: str) -> Series:
    points = [(r["step"], r[key]) for r in records if math.isfinite(r.get(key, math.nan))]
    steps, values = zip(*points, strict=True) if points else ((), ())
    return Series(np.array(steps, np.int64), np.array(values, np.float64))
