"""A race: calibrate, plan, train, tune, measure, sign. The test split is sealed until the end."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from infolm import files
from infolm.config import Recipe
from infolm.data import corpora
from infolm.data.ingest import Report
from infolm.errors import InfolmError
from infolm.evaluation import measurement
from infolm.evaluation.kneser_ney import KneserNey
from infolm.evaluation.measurement import standard_error
from infolm.evaluation.suite import BASELINE, NGRAM_ORDER
from infolm.families.running.run import LanguageRun
from infolm.families.running.tuned import SEGMENTS
from infolm.families.train import train
from infolm.studies.race import calibration, machine
from infolm.studies.race.clock import Clock, OutOfTime, threads
from infolm.studies.race.measuring import Entry, LogProbs, Measuring, best_of
from infolm.studies.race.plan import (
    EVEN,
    MARGIN,
    Pace,
    Plan,
    Rates,
    Sizes,
    for_race,
    mean_seconds,
    planned,
    probe,
)
from infolm.studies.race.record import (
    BEYOND,
    Calibration,
    Method,
    Number,
    Point,
    Record,
    Replanned,
    Times,
    Training,
    number,
    write,
)
from infolm.studies.race.tracks import MINUTES, check_recipe
from infolm.training.loop import Watcher
from infolm.training.manifest import sha256

TEST = "test"
TOLERANCE = 0.01
"""By so much the steps that fit may differ from those planned before they are planned anew."""
RESUMING = 5.0
"""Seconds that resuming with another number of steps may take."""
GRACE = MARGIN / 2
"""Of the limit: so much later than planned training may end. Without it a machine that has become
slower by a hair would lose all steps after the last validation but one."""


@dataclass(frozen=True)
class Rules:
    """minutes: 60, or fewer for a rehearsal. threads: those of the race."""

    minutes: float = MINUTES
    threads: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.minutes <= MINUTES:
            raise InfolmError(
                f"--minutes is {self.minutes:g}: a race lasts {MINUTES:g}, a rehearsal less"
            )


class _Replan(Exception):
    """Another number of steps fits into the time than was planned."""


class _Runner:
    """A watcher that keeps the curve, and the number of steps to what fits into the time.

    until: seconds since the start of the process when training is to end. grace: seconds by which
    it may be late. steps: planned in all.
    most: that the recipe allows. pace: how long steps take beside each other. again: `until` anew,
    asked at each validation; it is never put off. replanned: what was planned anew, and after which
    step.
    """

    def __init__(
        self,
        inner: Watcher,
        clock: Clock,
        until: float,
        steps: int,
        most: int | None,
        pace: Pace = EVEN,
        grace: float = 0.0,
        again: Callable[[], float] | None = None,
    ) -> None:
        self.inner, self.clock, self.until = inner, clock, until
        self._later = again or (lambda: until)
        self.first = self.planned = steps
        self.most = most or math.inf
        self.pace, self.grace = pace, grace
        self.curve: list[Point] = []
        self.replanned: list[Replanned] = []
        self.steps = 0
        self._began, self._since = clock.elapsed(), 0
        self._again = False

    def begin(self) -> None:
        """Before training starts or resumes, at the last validation."""
        self.steps = self._since = self.curve[-1].step if self.curve else 0
        self._began = self.clock.elapsed()
        self._again = False

    def step(self, progress: float, nll: float, tokens: int) -> None:
        if self._again:  # the checkpoint of the validation is saved by now
            raise _Replan
        self.inner.step(progress, nll, tokens)
        self.steps += 1
        if self.clock.elapsed() > self.until + self.grace and self.curve:
            raise OutOfTime

    def validated(self, step: int, progress: float, loss: float) -> None:
        self.inner.validated(step, progress, loss)
        now = self.clock.elapsed()
        self.curve.append(Point(seconds=now, step=step, nll=min(loss, BEYOND)))
        self.until = min(self.until, self._later())
        if step >= self.planned:  # the end, whatever else would fit
            return
        share, since = step / self.planned, self._since / self.planned
        seconds = (now - self._began) / (step - self._since)  # of a step, validations included
        later = seconds * mean_seconds(self.pace, share) / mean_seconds(self.pace, since, share)
        fitting = min(step + int((self.until - RESUMING - now) / later), self.most)
        if fitting > step and abs(fitting / self.planned - 1) > TOLERANCE:
            self.planned, self._again = int(fitting), True
            self.replanned.append(Replanned(after=step, steps=self.planned))

    def say(self, text: str) -> None:
        self.inner.say(text)


@dataclass(frozen=True)
class _Trained:
    plan: Plan
    rates: Rates
    recipe: Recipe
    runner: _Runner


def race(
    recipe: Recipe, out: Path, rules: Rules, clock: Clock, watcher: Watcher, report: Report
) -> Record:
    """Train and measure `recipe` by the rules; the record is in the run's folder `out` too.

    clock: runs since the process began. Its limit is set here. Refused where a rule is broken or
    the time is up; what was trained and measured stays in `out`, without a record.
    """
    track = check_recipe(recipe)
    files.sweep(out.parent, out.name)
    if out.exists():
        raise InfolmError(f"{out} exists already, and a race cannot be resumed: name another --out")
    with threads(rules.threads):
        digests = track.check_text(recipe.data)
        clock.mark("start")
        watcher.say(f"{track.title}: the texts are those of the track; the test split is sealed")
        before = calibration.measure()
        clock.limit = 60 * rules.minutes * calibration.scale([before])
        watcher.say(_calibrated(before, clock.limit))
        clock.mark("calibration")
        with corpora.sealed(TEST):
            ngrams, trained = _train(recipe, out, rules, clock, watcher, report)
            measuring = Measuring(LanguageRun.open(out), ngrams, clock, report)
            entries = measuring.tuned(trained.plan, clock.limit * (1 - MARGIN))
            clock.mark("tuning and validation")
            tuned = clock.elapsed()
        opened = clock.elapsed()
        found = measuring.test(entries)
        log_ngrams = ngrams.log_probs(measuring.run.corpus.splits[TEST].tokens)
        clock.mark("test")
        after = calibration.measure()
    scales = [before, after]
    limit = 60 * rules.minutes * calibration.scale(scales)
    _keep(measuring, entries, found)
    if clock.total > limit:
        raise InfolmError(
            f"the race took {clock.total / 60:.1f} minutes, beyond the limit of {limit / 60:.1f}, "
            f"so there is no record; the run and its measurements are in {out}"
        )
    common = min(len(each.valid) for each in entries)
    methods = {each.name: _method(each, found.get(each.name), common) for each in entries}
    measured = [each for each in entries if each.name in found]
    record = Record(
        track=track.name,
        rehearsal=rules.minutes != MINUTES,
        minutes=rules.minutes,
        threads=rules.threads,
        seed=recipe.seed,
        family=recipe.model.called,
        recipe=trained.recipe.model_dump(mode="json"),
        data=dict(digests),
        weights=sha256(measuring.run.folder.model),
        training=_training(trained, measuring.run),
        times=Times(
            limit=limit, total=clock.total, phases=clock.phases, tuned=tuned, test_opened=opened
        ),
        calibration=Calibration(
            before=before,
            after=after,
            reference=calibration.REFERENCE,
            scale=calibration.scale(scales),
        ),
        ngrams=_of_ngrams(ngrams, measuring, log_ngrams, common),
        methods=methods,
        compared_tokens=common,
        best=best_of(measured).name,
        hardware=machine.hardware(),
        versions=machine.versions(),
        commit=machine.commit(),
        written=datetime.now(UTC).isoformat(timespec="seconds"),
    ).signed()
    write(record, out)
    return record


def _calibrated(scores: calibration.Scores, limit: float) -> str:
    slower = calibration.ratio(scores)
    said = (
        f"{scores.gemm:.0f} GFLOP/s and {scores.memory:.1f} GB/s: a step takes about {slower:.2f} "
        f"times as long as on the reference machine, so the limit is {limit / 60:.1f} minutes"
    )
    if calibration.scale([scores]) > 1:
        said += (
            "; if the machine is busy, wait until it is not: it is calibrated "
            "again at the end, and the faster of the two counts"
        )
    return said


def _train(
    recipe: Recipe, out: Path, rules: Rules, clock: Clock, watcher: Watcher, report: Report
) -> tuple[KneserNey, _Trained]:
    """The n-gram model and the trained run; the time is divided between training and measuring."""
    corpus = corpora.load(recipe.data, report)
    tokens = corpus.splits["train"].tokens
    ngrams = KneserNey.fit(tokens, len(corpus.tokenizer), NGRAM_ORDER)
    clock.mark("n-grams")
    files.make_folder(out.parent)
    with files.scratch_folder(out.parent, f".{out.name}-probe") as scratch:
        rates, valid = probe(recipe, scratch, clock.limit, report)
    clock.mark("planning")
    lengths = {s: sum(map(len, parts)) for s, parts in corpora.texts(recipe.data).items()}
    test = round(valid * lengths[TEST] / max(lengths["valid"], 1))
    sizes = Sizes(valid, test, SEGMENTS[corpus.tokenizer.kind][0])
    plan = planned(rates, sizes, clock.elapsed(), clock.limit)
    steps = min(plan.steps, recipe.train.max_steps or plan.steps)
    watcher.say(
        f"{steps:,} steps of {rates.step:.3g} s; {plan.reserve / 60:.1f} minutes are kept for "
        f"measuring{'' if plan.dynamic else ', without dynamic evaluation, which would take more'}"
    )
    changed = for_race(recipe, steps)

    def until() -> float:
        return clock.limit * (1 - MARGIN / 2) - plan.reserve

    def again() -> float:
        """A machine that is faster than it was has less time, as at the end."""
        seen = calibration.measure(calibration.PASSING)
        clock.limit = min(clock.limit, 60 * rules.minutes * calibration.scale([seen]))
        return until()

    most, grace = recipe.train.max_steps, GRACE * clock.limit
    runner = _Runner(watcher, clock, until(), steps, most, rates.pace, grace, again)
    every = {"validate_every": changed.train.validate_every}
    resume = True
    while resume:
        runner.begin()
        resume = False
        try:
            train(changed, out, bool(runner.curve), runner, report)
        except _Replan:
            watcher.say(f"{runner.planned:,} steps fit into the time, of {runner.first:,} planned")
            changed, resume = for_race(recipe, runner.planned, **every), True
        except OutOfTime:
            watcher.say(
                f"the machine is slower than it was: training ends after {runner.steps:,} of "
                f"{runner.planned:,} steps, with the weights of the best validation"
            )
    clock.mark("training")
    return ngrams, _Trained(plan, rates, changed, runner)


def _number(log_probs: LogProbs) -> Number:
    losses = -np.asarray(log_probs)
    return number(float(losses.mean()), standard_error(losses), len(losses))


def _method(entry: Entry, test: LogProbs | None, common: int) -> Method:
    return Method(
        described=str(entry),
        compared=-float(entry.valid[:common].mean()),
        valid=_number(entry.valid),
        test=None if test is None else _number(test),
    )


def _of_ngrams(ngrams: KneserNey, measuring: Measuring, test: LogProbs, common: int) -> Method:
    valid = ngrams.log_probs(measuring.run.corpus.splits["valid"].tokens)
    compared = -float(valid[:common].mean())
    return Method(described=BASELINE, compared=compared, valid=_number(valid), test=_number(test))


def _training(trained: _Trained, run: LanguageRun) -> Training:
    runner = trained.runner
    best = min(runner.curve, key=lambda point: point.nll)
    return Training(
        planned=runner.planned,
        first=runner.first if runner.replanned else None,
        replanned=runner.replanned,
        steps=runner.steps,
        best_step=best.step,
        parameters=sum(weight.numel() for weight in run.model.parameters()),
        seconds_per_step=trained.rates.step,
        curve=runner.curve,
    )


def _keep(measuring: Measuring, entries: list[Entry], test: Mapping[str, LogProbs]) -> None:
    """What was measured, as `infolm evaluate` keeps it in the run's folder."""
    results = []
    for each in entries:
        results += measuring.measurements("valid", str(each), each.valid)
        if each.name in test:
            results += measuring.measurements(TEST, str(each), test[each.name])
    measurement.keep(measuring.run.folder.measurements, results)
