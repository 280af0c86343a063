"""Verification of a record: signature, rules, arithmetic, and the run behind it."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from infolm.config import Recipe
from infolm.data.ingest import Report
from infolm.errors import InfolmError
from infolm.evaluation.likelihood import log_probs
from infolm.families.running.run import LanguageRun
from infolm.studies.race import calibration
from infolm.studies.race.measuring import STATIC_NAME
from infolm.studies.race.plan import CHUNK
from infolm.studies.race.record import FORMAT, Number, Record
from infolm.studies.race.tracks import MINUTES, TRACKS, check_recipe
from infolm.training.manifest import sha256

EXACT = 1e-9
"""Relative difference that rounding of sums explains."""
SAME_NLL = 1e-4
"""Nats per token by which a number measured again may differ: another machine sums in another
order."""


def check(record: Record) -> list[str]:
    """The faults of a record, in words; empty for a valid one."""
    return [fault for part in (_signature, _rules, _time, _arithmetic) for fault in part(record)]


def _signature(record: Record) -> Iterator[str]:
    if record.format != FORMAT:
        yield f"its format is {record.format}, not {FORMAT}"
    if record.signature != record.digest():
        yield "the signature is not that of its content: something was changed after it was written"


def _rules(record: Record) -> Iterator[str]:
    try:
        recipe = Recipe.model_validate(record.recipe)
        track = check_recipe(recipe)
    except ValidationError:
        yield "its recipe cannot be read by this version"
        return
    except InfolmError as error:
        yield f"its recipe breaks a rule: {error}"
        return
    if track.name != record.track:
        yield f"its recipe is of the track {track.name}, not {record.track}"
    if recipe.seed != record.seed:
        yield f"its recipe has seed {recipe.seed}, not {record.seed}"
    if recipe.train.max_steps != record.training.planned:
        yield "its recipe has another number of steps than were planned"
    known = TRACKS[track.name].digests
    if known and record.data != known:
        yield f"its text is not that of the track {track.name}"
    if record.rehearsal != (record.minutes != MINUTES):
        kind = "rehearsal" if record.rehearsal else "record"
        yield f"{record.minutes:g} minutes are not those of a {kind}"
    if not record.rehearsal and record.commit.endswith("+"):
        yield "the program had changes that no commit has"


def _time(record: Record) -> Iterator[str]:
    times, calibrated = record.times, record.calibration
    if calibrated.reference != calibration.REFERENCE:
        yield "it was calibrated against other reference scores than this version has"
        return
    if not _same(calibrated.scale, calibration.scale([calibrated.before, calibrated.after])):
        yield "the scale does not follow from the calibration"
    if not _same(times.limit, 60 * record.minutes * calibrated.scale):
        yield "the limit does not follow from the minutes and the scale"
    if times.total > times.limit:
        yield f"it took {times.total / 60:.1f} minutes, beyond the limit of {times.limit / 60:.1f}"
    if not _same(sum(times.phases.values()), times.total):
        yield "the phases do not add up to the whole time"
    ends = [point.seconds for point in record.training.curve]
    if not max([*ends, 0.0]) <= times.tuned <= times.test_opened <= times.total:
        yield "the test split was opened before training and tuning had ended"


def _arithmetic(record: Record) -> Iterator[str]:
    for name, method in {"n-grams": record.ngrams, **record.methods}.items():
        for number in (method.valid, method.test):
            if number and not _same(number.perplexity, math.exp(number.nll)):
                yield f"{name}: the perplexity is not e^nll"
    measured = {name: each for name, each in record.methods.items() if each.test}
    least = min(each.compared for each in measured.values())
    if record.methods[record.best].compared > least:
        yield f"{record.best} is not the best on validation"
    curve = record.training.curve
    best = min(curve, key=lambda point: point.nll, default=None)
    if best is None or best.step != record.training.best_step:
        yield "the weights are not those of the best validation"
    if record.training.steps > record.training.planned:
        yield "more steps were taken than planned"


def _same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=EXACT)


def check_run(record: Record, path: Path, report: Report) -> list[str]:
    """What is wrong with the run of a record: its weights, its text, its static test number, which
    is measured again."""
    run = LanguageRun.open(path)
    faults = []
    if sha256(run.folder.model) != record.weights:
        faults.append(f"the weights in {path} are not those of the record")
    if run.recipe.model_dump(mode="json") != Recipe.model_validate(record.recipe).model_dump(
        mode="json"
    ):
        faults.append(f"the recipe in {path} is not that of the record")
    if dict(TRACKS[record.track].check_text(run.recipe.data)) != record.data:
        faults.append("the text here is not that of the record")
    if faults:
        return faults
    tokens = run.corpus.splits["test"].tokens
    progress = _progress(report)
    nll = -float(np.mean(log_probs(run.model, tokens, CHUNK, progress)))
    said: Number | None = record.methods[STATIC_NAME].test
    if said is None or abs(said.nll - nll) > SAME_NLL:
        faults.append(
            f"measured again, the static test perplexity is {math.exp(nll):.3f}, and the record "
            f"says {said.perplexity if said else math.nan:.3f}"
        )
    return faults


def _progress(report: Report) -> Callable[[int, int], None]:
    return lambda done, total: report("measuring the test split again", done, total)
