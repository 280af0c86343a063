"""Comparison of runs: grouped over seeds, tested, with the differences of their recipes.

    found = compare([Path("runs/a-1"), Path("runs/a-2"), Path("runs/b-1"), Path("runs/b-2")])
    found.groups[0].mean, found.tests[0].p, found.tests[0].sentence

Every group is tested against the first one given. A difference is called clear only if its p, after
Holm's correction for the tests of its kind, is below `LEVEL`.
"""

import math
import os
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from infolm.data.ingest import Report
from infolm.errors import InfolmError
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.paired import (
    FEWEST,
    PAIRED,
    SHORTEST,
    TEXT,
    Difference,
    holm,
    over_text,
    paired_t,
    welch_t,
)
from infolm.families.base import silent
from infolm.metrics import described
from infolm.section import nearest
from infolm.studies.comparison import text as texts
from infolm.studies.comparison.runs import IN_TRAINING, Result, read

LEVEL = 0.05
"""Below this a p is called clear."""
READ = 10
"""Maximum runs whose text is read by default; more take long."""
PREFERRED = ("perplexity", "bits_per_character", "nll")
SPLITS = {"train": "training", "valid": "validation", "test": "test"}
ABSENT = "-"
"""The value of a key that a recipe does not have."""


@dataclass(frozen=True)
class Metric:
    """The number that is compared, as `Measurement` describes it. better: which way, if either."""

    name: str
    split: str
    method: str
    unit: str
    convention: str
    better: Literal["up", "down"] | None = None

    @property
    def words(self) -> str:
        """'test perplexity'."""
        label = self.name.replace("_", " ")
        split = SPLITS.get(self.split, self.split)
        return label if label.startswith(split) else f"{split} {label}"


@dataclass(frozen=True)
class Group:
    """Runs of one recipe with several seeds. deviation: the standard deviation over
    them (n - 1), None of a single run."""

    label: str
    results: tuple[Result, ...]
    values: tuple[float, ...]

    @property
    def runs(self) -> list[str]:
        return [str(result.path) for result in self.results]

    @property
    def seeds(self) -> list[int]:
        return [result.seed for result in self.results]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Tested:
    """A difference of group b from group a. p_holm: corrected for the tests of this kind."""

    a: str
    b: str
    unit: str
    found: Difference
    p_holm: float | None
    sentence: str

    @property
    def clear(self) -> bool:
        return self.p_holm is not None and self.p_holm < LEVEL


@dataclass(frozen=True)
class Comparison:
    """differs: key -> its value in each group, of those keys whose values differ; a list where they
    differ within a group. notes: why numbers are not comparable, and tests that were not
    possible."""

    metric: Metric
    groups: list[Group]
    tests: list[Tested]
    differs: dict[str, list[Any]]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        metric = self.metric
        return {
            "metric": metric.name,
            "split": metric.split,
            "method": metric.method,
            "unit": metric.unit,
            "convention": metric.convention,
            "better": metric.better,
            "groups": [
                {
                    "label": group.label,
                    "runs": group.runs,
                    "seeds": group.seeds,
                    "values": list(group.values),
                    "mean": group.mean,
                    "deviation": group.deviation,
                }
                for group in self.groups
            ],
            "tests": [
                {
                    "kind": test.found.kind,
                    "a": test.a,
                    "b": test.b,
                    "difference": test.found.difference,
                    "unit": test.unit,
                    "stderr": test.found.stderr,
                    "df": test.found.df,
                    "p": test.found.p,
                    "p_holm": test.p_holm,
                    "clear": test.clear,
                    "sentence": test.sentence,
                }
                for test in self.tests
            ],
            "differs": {
                key: dict(zip([g.label for g in self.groups], values, strict=True))
                for key, values in self.differs.items()
            },
            "notes": self.notes,
        }


def compare(
    runs: Sequence[Path | str],
    by: str | None = None,
    metric: str | None = None,
    split: str = "valid",
    method: str | None = None,
    text: bool | None = None,
    report: Report = silent,
) -> Comparison:
    """Compare runs by their folders.

    by: a key of the recipe, or a section such as model, whose value makes the groups; none: all of
    the recipe but the seed. metric: one of those that `infolm evaluate` measured, or
    validation_loss; none: perplexity where all runs have it. method: part of its name; none: the
    first that all have. text: test over the text too; none: where few runs need to be read.
    """
    if split not in SPLITS:
        raise InfolmError(f"--split is {', '.join(SPLITS)}, not '{split}'")
    paths = list(dict.fromkeys(Path(os.path.normpath(run)) for run in runs))
    if not paths:
        raise InfolmError("there is nothing to compare: name the folders of two or more runs")
    results = [read(path) for path in paths]
    chosen, values = _metric(results, metric, split, method)
    folded, notes = _folded(results, by)
    groups = [
        Group(label, tuple(members), tuple(values[result.path] for result in members))
        for label, members in _labelled(folded, by).items()
    ]
    notes += _incomparable(results, chosen)
    tests = _over_seeds(groups, chosen, notes)
    tests += _over_text(groups, split, text, notes, report)
    return Comparison(chosen, groups, tests, _differs(groups), notes)


# -- the metric -----------------------------------------------------------------------------


def _metric(
    results: Sequence[Result], name: str | None, split: str, method: str | None
) -> tuple[Metric, dict[Path, float]]:
    """The metric that all runs have, and its value in each; an error if there is none."""

    def found(result: Result, metric: str) -> dict[str, Measurement]:
        """By method."""
        return {
            m.method: m
            for m in result.measurements
            if (m.metric, m.split) == (metric, split)
            and (method is None or method.casefold() in m.method.casefold())
        }

    for metric in [name] if name else [*PREFERRED, "validation_loss"]:
        each = [found(result, metric) for result in results]
        common = [m for m in each[0] if all(m in others for others in each)]
        # Methods tuned for each run by itself have other numbers in their names.
        alone = method is not None and all(len(others) == 1 for others in each)
        if common or alone:
            chosen = [(e[common[0]] if common else next(iter(e.values()))) for e in each]
            first = chosen[0]
            shown = first.method if common else f"{method}, tuned for each run"
            better = described(metric, results[0].family).better
            about = Metric(metric, split, shown, first.unit, first.convention, better)
            paths = [result.path for result in results]
            return about, {p: m.value for p, m in zip(paths, chosen, strict=True)}
    raise InfolmError(_no_metric(results, name, split, method))


def _no_metric(results: Sequence[Result], name: str | None, split: str, method: str | None) -> str:
    by = f" by '{method}'" if method else ""
    known = dict.fromkeys(m.metric for r in results for m in r.measurements)
    if name and name not in known:
        return f"no run has a metric '{name}'{nearest(name, known)} (there are {', '.join(known)})"
    wanted = f"{name or 'any metric'} of the {SPLITS[split]} split{by}"
    lacking = [
        str(r.path)
        for r in results
        if not any(m.split == split and m.metric in (name or known, name) for m in r.measurements)
    ]
    if lacking:
        return f"{lacking[0]} has no {wanted}: measure it with `infolm evaluate {lacking[0]}`"
    return (
        f"the runs have no common metric: {wanted} was measured in a different way in each, so "
        "measure all with the same options of `infolm evaluate`, or name a --method or a --metric"
    )


def _folded(results: Sequence[Result], by: str | None) -> tuple[list[list[Result]], list[str]]:
    """The runs in groups, in the order of the first of each, and notes."""
    groups: dict[str, list[Result]] = {}
    notes = []
    keys = dict.fromkeys(key for result in results for key in result.settings)
    wanted = [key for key in keys if by is None or key == by or key.startswith(f"{by}.")]
    if not wanted:
        sections = dict.fromkeys([*keys, *(key.split(".")[0] for key in keys)])
        raise InfolmError(f"--by {by}: no recipe has such a key{nearest(by, sections)}")
    for result in results:
        identity = repr([(key, result.settings.get(key, ABSENT)) for key in wanted])
        same = [r for r in groups.get(identity, []) if _same_training(r, result)]
        if same:
            notes.append(
                f"{result.path} and {same[0].path} are the same training (seed {result.seed}), "
                "which counts once"
            )
        else:
            groups.setdefault(identity, []).append(result)
    within = [
        key
        for key in keys
        if any(len({repr(r.settings.get(key)) for r in group}) > 1 for group in groups.values())
    ]
    if within:
        notes.append(f"the runs of a group also differ in {', '.join(within)}")
    return list(groups.values()), notes


def _same_training(one: Result, other: Result) -> bool:
    return one.seed == other.seed and one.settings == other.settings


def _labelled(groups: Sequence[list[Result]], by: str | None) -> dict[str, list[Result]]:
    """Short names: the key's value, or what the names of the runs' folders share."""
    labels = []
    for group in groups:
        first = group[0]
        if by is not None and by in first.settings:
            labels.append(f"{by}={first.settings[by]}")
        elif by is not None and f"{by}.kind" not in first.settings and not _sectional(first, by):
            labels.append(f"{by}={ABSENT}")
        else:
            labels.append(_shared_name(group))
    if len(set(labels)) < len(labels):
        labels = [group[0].path.name for group in groups]
    if len(set(labels)) < len(labels):
        labels = [str(group[0].path) for group in groups]
    return dict(zip(labels, groups, strict=True))


def _sectional(result: Result, by: str) -> bool:
    return any(key.startswith(f"{by}.") for key in result.settings)


def _shared_name(group: Sequence[Result]) -> str:
    """'lstm' of lstm-1, lstm-2; the folder's name of a single run."""
    names = [result.path.name for result in group]
    if len(names) == 1:
        return names[0]
    shared = "".join(
        takewhile(str, (c[0] if len(set(c)) == 1 else "" for c in zip(*names, strict=False)))
    )
    return re.sub(r"[-_. ]*(seed)?[-_. ]*$", "", shared) or names[0]


def _differs(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Keys whose values are not the same in all runs, and their values by group."""
    keys = dict.fromkeys(k for g in groups for r in g.results for k in r.settings)
    found: dict[str, list[Any]] = {}
    for key in keys:
        columns = [[r.settings.get(key, ABSENT) for r in g.results] for g in groups]
        if len({repr(value) for column in columns for value in column}) > 1:
            distinct = [list({repr(v): v for v in column}.values()) for column in columns]
            found[key] = [values[0] if len(values) == 1 else values for values in distinct]
    return found


def _incomparable(results: Sequence[Result], metric: Metric) -> list[str]:
    """Why numbers of different runs are not comparable."""
    notes = []
    if len({r.text for r in results}) > 1:
        notes.append(
            "the runs were trained and measured on different texts, so their numbers are not "
            "comparable"
        )
    elif len({r.vocabulary for r in results}) > 1 and not metric.name.startswith("bits_per_"):
        notes.append(
            "the runs have different vocabularies, so numbers per token are not comparable: "
            "compare bits_per_character or bits_per_byte"
        )
    if len({r.family for r in results}) > 1:
        notes.append("the runs are of different families, whose losses are different quantities")
    objectives = {r.recipe.objective.kind for r in results}
    if metric.method == IN_TRAINING and results[0].family != "language" and len(objectives) > 1:
        notes.append("the objectives differ, and so do the quantities that their losses are")
    return notes


# -- the tests ------------------------------------------------------------------------------

Sentence = Callable[[Difference, float | None, int], str]


def _over_seeds(groups: Sequence[Group], metric: Metric, notes: list[str]) -> list[Tested]:
    """Each group against the first, where both have several seeds."""
    found: list[tuple[Group, Difference]] = []
    first = groups[0]
    for group in groups[1:]:
        if min(len(first.values), len(group.values)) < 2:
            continue
        a, b = (dict(zip(g.seeds, g.values, strict=True)) for g in (first, group))
        unique = len(a) == len(first.values) and len(b) == len(group.values)
        if unique and set(a) == set(b):
            found.append((group, paired_t([a[s] for s in a], [b[s] for s in a])))
        else:
            found.append((group, welch_t(first.values, group.values)))
    single = [group.label for group in groups if len(group.values) < 2]
    if len(groups) > 1 and single:
        named = ", ".join(single[:5]) + (" ..." if len(single) > 5 else "")
        notes.append(
            f"no test over seeds with one run of {named}: train each with several seeds, as in "
            "seed=2, before you say that one is better"
        )

    def sentence(group: Group) -> Sentence:
        def say(test: Difference, p: float | None, tests: int) -> str:
            seeds = f"{len(first.values)} and {len(group.values)} seeds"
            if test.kind == PAIRED:
                seeds = f"the same {test.number} seeds"
            how = f"{_name(test)}, {_p(p, tests)}"
            difference = f"mean difference {_signed(test)} in {metric.unit}"
            return _sentence(
                group.label, first.label, metric.words, seeds, difference, how, test, p
            )

        return say

    return _tested(first, [(g, d, metric.unit, sentence(g)) for g, d in found])


def _over_text(
    groups: Sequence[Group], split: str, wanted: bool | None, notes: list[str], report: Report
) -> list[Tested]:
    """Each group against the first, by the losses of the same tokens, a mean over its runs."""
    results = [result for group in groups for result in group.results]
    if wanted is False or len(groups) < 2:
        return []
    reason = _no_text(results)
    if not reason and wanted is None:
        missing = sum(
            texts.kept(r.path, split, r.vocabulary, r.text) is None for r in results[:200]
        )
        if missing > READ:
            reason = f"{missing} runs would have to be read, which --text does"
    if reason:
        notes.append(f"no test over the text: {reason}")
        return []

    def losses(group: Group) -> Any:
        each = [
            -texts.log_probs(r.path, split, r.vocabulary, r.text, report) for r in group.results
        ]
        return np.mean(each, 0)

    first, a = groups[0], losses(groups[0])
    found = []
    for group in groups[1:]:
        test = over_text(a, losses(group))
        if test is None:
            notes.append(
                f"no test over the text: the {SPLITS[split]} split has {len(a):,} tokens, and "
                f"{FEWEST * SHORTEST:,} are needed"
            )
            return []
        found.append((group, test, "nats per token", _text_sentence(group, first, split, len(a))))
    return _tested(first, found)


def _no_text(results: Sequence[Result]) -> str:
    if any(result.family != "language" for result in results):
        return "it needs language models of running text"
    if len({(result.text, result.vocabulary) for result in results}) > 1:
        return "it needs runs on the same text with the same vocabulary"
    if len({result.recipe.feed.gives for result in results}) > 1:
        return "it needs runs that read the text in the same way"
    for result in results:
        if not (result.path / "model.safetensors").exists():
            return f"{result.path} has no weights"
    return ""


def _text_sentence(group: Group, first: Group, split: str, tokens: int) -> Sentence:
    several = max(len(group.values), len(first.values)) > 1

    def say(test: Difference, p: float | None, tests: int) -> str:
        where = f"the same {tokens:,} tokens of the {SPLITS[split]} split"
        if several:
            where += ", the losses averaged over the runs of each"
        how = f"{_name(test)}, {test.number} blocks, {_p(p, tests)}"
        difference = f"mean difference {_signed(test)} nats per token"
        said = _sentence(
            group.label, first.label, "loss", where, difference, how, test, p, over="On"
        )
        return f"{said} This is about these trained models on this kind of text, not about seeds."

    return say


def _tested(first: Group, found: Sequence[tuple[Group, Difference, str, Sentence]]) -> list[Tested]:
    """With p corrected for all tests of the same kind."""
    adjusted = holm([test.p for _, test, _, _ in found])
    number = sum(p is not None for p in adjusted)
    return [
        Tested(first.label, group.label, unit, test, p, say(test, p, number))
        for (group, test, unit, say), p in zip(found, adjusted, strict=True)
    ]


NAMES = {
    PAIRED: "paired t-test over seeds",
    TEXT: "paired t-test over blocks of the text",
}


def _name(test: Difference) -> str:
    return NAMES.get(test.kind, "Welch's t-test over seeds")


def _p(p: float | None, tests: int) -> str:
    if p is None:
        return "which has no spread to test"
    corrected = f", Holm-corrected for {tests} tests" if tests > 1 else ""
    return f"{'p < 0.001' if p < 0.001 else f'p = {p:.3f}'}{corrected}"


def _signed(test: Difference) -> str:
    error = "" if test.stderr is None else f" ± {test.stderr:.2g} (standard error)"
    return f"{test.difference:+.4g}{error}"


def _sentence(
    group: str,
    first: str,
    quantity: str,
    where: str,
    difference: str,
    how: str,
    test: Difference,
    p: float | None,
    over: str = "With",
) -> str:
    """The sentence that the test supports."""
    if p is not None and p < LEVEL:
        side = "lower" if test.difference < 0 else "higher"
        judged = f"{group} has a {side} {quantity} than {first}"
    else:
        judged = f"no clear difference in {quantity} between {group} and {first} was found"
    return f"{over} {where}, {judged}: {difference} ({how})."


def best(found: Comparison) -> int | None:
    """The group whose mean is best; None where neither way is better."""
    sign = {"down": 1, "up": -1, None: 0}[found.metric.better]
    if not sign or len(found.groups) < 2:
        return None
    means = [sign * group.mean for group in found.groups]
    finite = [mean if math.isfinite(mean) else math.inf for mean in means]
    return finite.index(min(finite))
