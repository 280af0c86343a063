"""The report of a run: one self-contained HTML file."""

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infolm.averaging.tail import DIVERGED
from infolm.config import Recipe
from infolm.families.base import family_of
from infolm.families.findings import Findings
from infolm.families.sections import Sections
from infolm.metrics import EVENT, STDERR, described, known
from infolm.reports.history import History, Series
from infolm.reports.page import (
    code,
    commands,
    figure,
    folded,
    number,
    page,
    paragraph,
    section,
    strong,
)
from infolm.reports.regularisers import ABOUT
from infolm.training import checkpoint

TOKENS = {
    "word": "words",
    "char": "characters",
    "byte": "bytes",
    "bpe": "byte pairs",
    "wordpiece": "word pieces",
}


def write_report(run: Path) -> Path:
    """Write `report.html` into the run's folder, atomically; returns its path."""
    found = Findings.of(run, course)
    text = report(found)
    path = found.folder.report
    checkpoint.atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path


def course(recipe: Recipe, records: Sequence[dict[str, Any]]) -> History:
    """The history of a training, as its family reads the records."""
    return family_of(recipe).history(recipe, records)


def report(found: Findings) -> str:
    """The whole report, from top to bottom, with the family's sections."""
    title = found.recipe.title or found.folder.path.resolve().name
    paper, sections = found.recipe.paper, family_of(found.recipe).sections(found)
    samples = sections.samples()
    return page(
        title,
        [
            f"<header><h1>{escape(title)}</h1>",
            paragraph(verdict(found, sections), "verdict"),
            paragraph(f"After {escape(paper)}", "source") if paper else "",
            paragraph(summary(found, sections), "lead"),
            "</header>",
            *(section(*each) for each in sections.opening()),
            section("Measurements", sections.measured()),
            *(section(*each) for each in sections.results()),
            section("Learning curve", curve(found, sections)),
            *(
                section(f"Regulariser: {name}", regularised(found, sections, name))
                for name in found.plots.regularisers
            ),
            "" if samples is None else section("Samples", samples),
            section("Next commands", further(found, sections)),
            footer(),
        ],
    )


def verdict(found: Findings, sections: Sections) -> str:
    """The verdict: whether the model is any good, and what to do if not."""
    best = found.history.best
    if best is None:
        return (
            f"Too early to tell: there has been no validation yet. To see one, {sections.longer}."
        )
    said = sections.verdict(best[1])
    if any(name == DIVERGED for _, name in found.history.events):
        rate = code("optimiser.learning_rate")
        said += f" Training diverged and went back: a lower {rate} may help."
    return said


def summary(found: Findings, sections: Sections) -> str:
    """Model, text, progress, best result and status in a paragraph."""
    recipe, history = found.recipe, found.history
    data, tokens = recipe.data, ""
    if found.corpus:
        tokens = f"{len(found.corpus.splits['train'].tokens):,} training tokens, "
    epochs = f"{history.epoch:,} of {recipe.train.epochs:,} epochs complete"
    if history.best:
        step, loss = history.best
        best = (
            f"the best validation {sections.best(loss)}, reached at step {step:,}"
            f"{sections.beyond(loss)}"
        )
    else:
        best = "there has been no validation yet"
    steps = f"step{'' if found.step == 1 else 's'} ({epochs})"
    described = recipe.model.described(recipe.objective.words)
    return (
        f"{described} with {strong(f'{found.weights:,}')} parameters, "
        f"trained on {strong(str(data.path or data.corpus))} "
        f"({tokens}a vocabulary of {len(found.tokenizer):,}; tokens are {TOKENS[data.tokens]}). "
        f"After {strong(f'{found.step:,}')} {steps} {best}. {status(found)}"
    )


def status(found: Findings) -> str:
    """Whether training is finished, as far as the folder shows."""
    if found.going_on:
        return "Training was still running when this report was written."
    if found.finished:
        return "Training is finished."
    if not found.step:
        return "Training has not reached its first checkpoint."
    return "Training was interrupted before its end and can be resumed."


def curve(found: Findings, sections: Sections) -> list[str]:
    """The plot, with a caption."""
    history = found.history
    if not found.plots.course:
        every = found.recipe.train.log_every
        return [paragraph(f"No loss has been recorded yet; there is a record every {every} steps.")]
    caption = [
        "The training loss is a mean over the steps since the previous record, with dropout if "
        "any.",
        sections.panels(),
    ]
    if history.candidates:
        caption.append(
            "The second panel shows the validation losses of the iterate itself (raw) and of the "
            "short and the long mean, at the scale of the second half of training; the third, the "
            "number of iterates in the long mean."
        )
    if len(history.speed):
        caption.append(
            f"The median speed is {np.median(history.speed.values):,.0f} tokens per second; a "
            "record that spans a validation includes its time."
        )
    for name in dict.fromkeys(name for _, name in history.events):
        steps = [step for step, each in history.events if each == name]
        at = ", ".join(f"{step:,}" for step in steps[:5]) + (" and later" if steps[5:] else "")
        meaning = f": {described(name, EVENT).meaning}" if known(name, EVENT) else ""
        caption.append(f"{name} at step {at}{meaning}.".capitalize())
    parts = [figure(found.plots.course, " ".join(caption))]
    if found.plots.after:
        after = f"The validations from step {history.switch:,} on, at their own scale."
        parts.append(figure(found.plots.after, after))
    unused = found.recipe.averaging.unused([name for _, name in history.events])
    if unused and found.finished and not history.averaged:
        parts.append(paragraph(escape(f"{unused[0].upper()}{unused[1:]}.")))
    return parts


def regularised(found: Findings, sections: Sections, name: str) -> list[str]:
    """The regulariser's settings, curves and warnings."""
    settings = found.settings(name)
    weight = f" The regulariser's weight is {settings['weight']:g}." if "weight" in settings else ""
    if settings.get("phase_two") and settings.get("phase_two_weight"):
        weight += f" In phase two it is {settings['phase_two_weight']:g}."
    caption = "Each point is a mean over the steps since the previous record."
    held_out = found.history.held_out.get(name, {})
    if held_out:
        caption += (
            " Circles show the validation split, without dropout: pairs that were not trained from."
        )
    return [
        paragraph(escape(ABOUT.get(name, "") + weight)),
        *(paragraph(escape(sentence)) for sentence in found.warnings(name)),
        figure(found.plots.regularisers[name], caption),
        quantity_table(name, found.history.regularisers[name], held_out),
        *sections.regulariser(name),
    ]


def quantity_table(
    term: str, quantities: Mapping[str, Series], held_out: Mapping[str, Series]
) -> str:
    """Each quantity of the regulariser `term`: its latest training mean, and its value at the last
    validation."""

    def meaning(name: str) -> str:
        return escape(described(f"{term}/{name}").meaning)

    rows = []
    for name, series in quantities.items():
        mean, error, records = series.ending()
        spread = f"± {number(error, 4)}" if records > 1 else ""
        rows.append(
            f'<tr><th scope="row">{meaning(name)}</th><td>{number(mean, 4)}</td>'
            f'<td class="error">{spread}</td><td>{records}</td></tr>'
        )
    if "pairs" in held_out:
        pairs = f"{held_out['pairs'].values[-1]:,.0f} pairs"
        title = f"On the validation split, {pairs}, at the last validation"
        rows.append(f'<tr><th scope="rowgroup" colspan="4">{title}</th></tr>')
    for name in (name for name in held_out if name in quantities):
        errors = held_out.get(f"{name}{STDERR}")
        spread = f"± {number(errors.values[-1], 4)}" if errors else ""
        rows.append(
            f'<tr><th scope="row">{meaning(name)}</th>'
            f"<td>{number(held_out[name].values[-1], 4)}</td>"
            f'<td class="error">{spread}</td><td></td></tr>'
        )
    header = (
        '<tr><th scope="col">quantity</th><th scope="col" colspan="2">mean</th>'
        '<th scope="col">records</th></tr>'
    )
    body = "\n".join(['<tr><th scope="rowgroup" colspan="4">At the end</th></tr>', *rows])
    return f'<div class="wide"><table><thead>{header}</thead>\n<tbody>{body}</tbody></table></div>'


def further(found: Findings, sections: Sections) -> list[str]:
    resume = ("Resume training", f"infolm train {sections.path} --resume")
    return [
        commands([resume, *sections.commands()]),
        folded("The recipe, every value resolved", found.folder.recipe.read_text("utf-8")),
    ]


def footer() -> str:
    day = datetime.now(UTC).date().isoformat()
    return (
        f"<footer>Written on {day} by infolm {version('infolm')} with torch {torch.__version__} "
        f"and Python {platform.python_version()}.</footer>"
    )
