"""The report of a run: one HTML file that a person can read who has nothing else."""

import math
import platform
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import cast

import numpy as np
import torch

from infolm.config import Expected
from infolm.evaluation.measurement import BLOCKS, Measurement
from infolm.evaluation.suite import BASELINE, CRITIC, LANGUAGE
from infolm.families.contrastive.report import (
    encoder_caption,
    encoder_table,
    is_encoder,
)
from infolm.families.findings import (
    INTERPOLATION,
    SAMPLE_SEED,
    SAMPLE_TOKENS,
    SAMPLES,
    Findings,
)
from infolm.families.latent.report import (
    has_codes,
    latent_of,
    latent_section,
    latent_table,
    reconstruction_section,
)
from infolm.models.encoder_decoder import EncoderDecoderConfig
from infolm.models.latent import GaussianConfig
from infolm.objectives.bmi import PHASE_TWO, STDERR, BmiConfig
from infolm.objectives.monte_carlo import MonteCarloConfig
from infolm.objectives.sentence import LatentObjectiveConfig
from infolm.objectives.vae import CAUGHT_UP
from infolm.objectives.vq import VqConfig
from infolm.reports.history import Series
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
from infolm.reports.regularisers import ABOUT, QUANTITIES, quantity
from infolm.training import checkpoint

SPLITS = {"valid": "Validation split", "test": "Test split"}
COLUMNS = {  # metric: heading, decimals
    "perplexity": ("perplexity", 2),
    "nll": ("nats per token", 4),
    "bits_per_character": ("bits per character", 4),
    "bits_per_byte": ("bits per byte", 4),
    "nll_above_entropy": ("above the entropy", 4),
}
OF_TEXTS = {  # metric of what the model writes: what it is, decimals
    "reverse_perplexity": ("reverse perplexity", 2),
    "mutual_information": ("mutual information, nats", 4),
    "mutual_information_shuffled": ("the same of shuffled pairs", 4),
}
OF_CRITIC = {  # metric of a regulariser's critic: what it is, decimals
    f"{CRITIC}accuracy": ("accuracy", 4),
    f"{CRITIC}jensen_shannon": ("bound (eq. 6), nats", 4),
    f"{CRITIC}mine": ("MINE (eq. 4), nats", 4),
}
TOKENS = {
    "word": "words",
    "char": "characters",
    "byte": "bytes",
    "bpe": "byte pairs",
    "wordpiece": "word pieces",
}
EVENTS = {
    "triggered": "from here on the answer is the mean of the iterates",
    "switched": "the short mean was as good as the long one, or that had stopped improving, so it "
    "became the long one",
    "emptied": "the short mean had stopped improving, so it began anew",
    "restarted": "the iterate was better than the mean of those since the validation before, so "
    "both means began anew",
    PHASE_TWO: "from here on the model also learns sentences near the true next one, weighted by "
    "how well the critic likes them",
    CAUGHT_UP: "the mutual information of sentence and code no longer rose, so from here on the "
    "encoder and the decoder learn together",
    "diverged": "the loss blew up, so training went back to the best validation and on from there "
    "with a lower learning rate",
    "rate reduced": "validation no longer improved, so the learning rate was lowered",
    "stopped": "validation no longer improved, so training ended",
}


def write_report(run: Path) -> Path:
    """Write `report.html` into the run's folder, whole or not at all; returns its path."""
    found = Findings.of(run)
    text = report(found)
    path = found.folder.report
    checkpoint.atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path


def report(found: Findings) -> str:
    """The whole report, from top to bottom."""
    title = found.recipe.title or found.folder.path.resolve().name
    paper = found.recipe.paper
    return page(
        title,
        [
            f"<header><h1>{escape(title)}</h1>",
            paragraph(f"After {escape(paper)}", "source") if paper else "",
            paragraph(summary(found), "lead"),
            "</header>",
            section("The latent code", coded(found)) if has_codes(found.recipe) else "",
            section("Measurements", measured_by_kind(found)),
            section("What it writes", texts) if (texts := of_texts(found)) else "",
            section("From code to sentence", reconstruction_section(found.latent))
            if found.latent
            else "",
            section("Learning curve", curve(found)),
            *(
                section(f"Regulariser: {name}", regularised(found, name))
                for name in found.plots.regularisers
            ),
            "" if is_encoder(found.recipe) else section("Samples", sampled(found)),
            section("How to go on", further(found)),
            footer(),
        ],
    )


def summary(found: Findings) -> str:
    """What was trained on what, how far it came, and whether it is done."""
    recipe, history = found.recipe, found.history
    data, tokens = recipe.data, ""
    if found.corpus:
        tokens = f"{len(found.corpus.splits['train'].tokens):,} training tokens, "
    epochs = f"{history.epoch:,} of {recipe.train.epochs:,} epochs complete"
    if history.best:
        step, loss = history.best
        best = (
            f"the best validation {best_loss(found, loss)}, reached at step {step:,}"
            f"{above_entropy(found, loss)}"
        )
    else:
        best = "there has been no validation yet"
    steps = f"step{'' if found.step == 1 else 's'} ({epochs})"
    described = recipe.model.described(recipe.objective.words)
    return (
        f"{described} with {strong(f'{found.weights:,}')} weights, "
        f"trained on {strong(str(data.path or data.corpus))} "
        f"({tokens}a vocabulary of {len(found.tokenizer):,}; tokens are {TOKENS[data.tokens]}). "
        f"After {strong(f'{found.step:,}')} {steps} {best}. {status(found)}"
    )


def best_loss(found: Findings, loss: float) -> str:
    """The validation loss as what it is: a perplexity, a bound on one, or the objective's own."""
    shown = strong(number(perplexity(loss), 2))
    if is_encoder(found.recipe) and found.recipe.objective.of_all_words:
        return f"perplexity of hidden words is {shown}"
    if is_encoder(found.recipe):
        return f"loss is {strong(number(loss, 3))} nats"
    if not has_codes(found.recipe):
        return f"perplexity is {shown}"
    if bound := cast(LatentObjectiveConfig, found.recipe.objective).bound:
        return f"perplexity is at most {shown}, by {bound}"
    return f"loss is {strong(number(loss, 3))} nats per token"


def coded(found: Findings) -> list[str]:
    """Whether the codes of a model are any use."""
    if found.latent is None or found.plots.latent is None:
        why = (
            f"the corpus could not be loaded ({escape(found.missing)})"
            if found.missing
            else "there are no weights before the first validation"
        )
        return [paragraph(f"Nothing is known of the codes: {why}.")]
    return latent_section(
        found.latent,
        found.plots.latent,
        found.recipe,
        found.measurements,
        _typed(found.folder.path),
    )


def above_entropy(found: Findings, loss: float) -> str:
    """How far a validation loss is above that of the language itself, where that is known."""
    if found.entropy is None or found.reachable is None:
        return ""
    above = strong(number(loss - found.reachable, 3))
    return f": {above} nats per token above the true entropy of {number(found.entropy, 3)}"


def status(found: Findings) -> str:
    """Whether training is done, as far as the folder can tell."""
    if found.going_on:
        return "Training was still going on when this report was written."
    if found.finished:
        return "Training is finished."
    if not found.step:
        return "Training has not come to its first checkpoint."
    return "Training was interrupted before its end and can be resumed."


def measured_by_kind(found: Findings) -> list[str]:
    """What was measured of the model, whose kind decides what that can be."""
    if has_codes(found.recipe) or is_encoder(found.recipe):
        return measured_objective(found)
    return measured(found)


def measured(found: Findings) -> list[str]:
    """The table, what its numbers mean, and what is missing from it."""
    path = _typed(found.folder.path)
    measurements = [m for m in found.measurements if not _of_text(m) and m.metric not in OF_CRITIC]
    methods = {m.method for m in measurements}
    contest = len(methods - {LANGUAGE}) > 1
    parts = []
    if methods <= {BASELINE, LANGUAGE}:
        when = "" if found.samples else ", once training has come to its first validation,"
        parts.append(
            paragraph(
                f"The model has not been measured yet; this measures it{when}: "
                f"{code(f'infolm evaluate {path} --cache --baseline')}"
            )
        )
    if measurements:
        conventions = dict.fromkeys(m.convention for m in measurements)
        parts += [
            measurement_table(measurements, found.recipe.expected),
            paragraph(
                f"Counted: {escape('; '.join(conventions))}. Perplexity is e to the power of the "
                f"nats per token. ± is one standard error, from the spread of {BLOCKS} stretches "
                f"of the split.{' The best of each split is bold.' if contest else ''}",
                "note",
            ),
        ]
        if found.entropy is not None:
            parts.append(
                paragraph(
                    f"The text was drawn from a language whose entropy is {found.entropy:.4f} nats "
                    "per token: in the long run no model can have less. Above the entropy is the "
                    "mean, over the same tokens, of how much less probable the model finds each "
                    "one than the language does, in nats: the divergence between the two.",
                    "note",
                )
            )
    elif found.recipe.expected:
        expected = found.recipe.expected
        parts.append(
            paragraph(
                f"Expected: {COLUMNS[expected.metric][0]} {expected.valid} on the validation and "
                f"{expected.test} on the test split ({escape(expected.source)})."
            )
        )
    if BASELINE not in methods:
        why = (
            f"the corpus could not be loaded ({escape(found.missing)})"
            if found.missing
            else f"the text is long; {code(f'infolm evaluate {path} --baseline')} adds it"
        )
        parts.append(paragraph(f"The {BASELINE} baseline is missing: {why}.", "note"))
    return parts


def measured_objective(found: Findings) -> list[str]:
    """The same of a model with codes or of an encoder, whose numbers are of other kinds."""
    if found.measurements and is_encoder(found.recipe):
        return encoder_table(found.measurements)
    if found.measurements:
        return latent_table(found.recipe, found.measurements)
    when = "" if found.history.best else ", once training has come to its first validation,"
    command = code(f"infolm evaluate {_typed(found.folder.path)}")
    return [paragraph(f"The model has not been measured yet; this measures it{when}: {command}")]


def _of_text(found: Measurement) -> bool:
    return found.metric.startswith("reverse_") or found.metric in OF_TEXTS


def of_texts(found: Findings) -> list[str]:
    """What `infolm evaluate --reverse --mi` found, text by text; nothing if it was not asked."""
    if has_codes(found.recipe):  # whose mutual information is that of codes
        return []
    return by_method(found.measurements, OF_TEXTS)


def by_method(
    measurements: Sequence[Measurement], metrics: Mapping[str, tuple[str, int]]
) -> list[str]:
    """Those of `metrics`, what each is called and its decimals, method by method; or nothing."""
    shown = [m for m in measurements if m.metric in metrics]
    if not shown:
        return []
    groups = []
    for method in dict.fromkeys(m.method for m in shown):
        rows = [f'<tr><th scope="rowgroup" colspan="3">{escape(method)}</th></tr>']
        for m in (m for m in shown if m.method == method):
            name, decimals = metrics[m.metric]
            where = f", {SPLITS[m.split].lower()}" if m.split in SPLITS else ""
            error = "" if m.stderr is None else f"± {number(m.stderr, decimals)}"
            rows.append(
                f'<tr><th scope="row">{name}{where}</th><td>{number(m.value, decimals)}</td>'
                f'<td class="error">{error}</td></tr>'
            )
        groups.append(f"<tbody>{''.join(rows)}</tbody>")
    header = '<tr><th scope="col">measure</th><th scope="col" colspan="2">value</th></tr>'
    conventions = escape("; ".join(dict.fromkeys(m.convention for m in shown)))
    return [
        f'<div class="wide"><table><thead>{header}</thead>{"".join(groups)}</table></div>',
        paragraph(f"Counted: {conventions}. ± is one standard error.", "note"),
    ]


def measurement_table(measurements: Sequence[Measurement], expected: Expected | None) -> str:
    """A group of rows for each split: the methods, the baseline, the language that the text was
    drawn from if it is known, what the recipe expects.

    Each metric has two columns, the value and its standard error, so that digits stand below
    each other.
    """
    shown = {m.metric for m in measurements} | ({expected.metric} if expected else set())
    metrics = [name for name in COLUMNS if name in shown]
    columns = "".join(f'<th scope="col" colspan="2">{COLUMNS[name][0]}</th>' for name in metrics)
    header = f'<tr><th scope="col">method</th>{columns}<th scope="col">tokens</th></tr>'
    width = 2 * len(metrics) + 2
    groups = []
    for split, title in SPLITS.items():
        here = [m for m in measurements if m.split == split]
        if not here:
            continue
        rows = [f'<tr><th scope="rowgroup" colspan="{width}">{title}</th></tr>']
        models = {m.method: m.value for m in here if m.metric == "nll" and m.method != LANGUAGE}
        best = min(models, key=models.__getitem__, default="")
        methods = dict.fromkeys(m.method for m in here)
        for method in sorted(methods, key=lambda method: (method == LANGUAGE, method == BASELINE)):
            values = {m.metric: m for m in here if m.method == method}
            cells = "".join(_cells(values.get(name)) for name in metrics)
            tokens = next(iter(values.values())).tokens
            kind = ' class="best"' if method == best and len(models) > 1 else ""
            kind = ' class="expected"' if method == LANGUAGE else kind
            name = f'<th scope="row">{escape(method)}</th>'
            rows.append(f"<tr{kind}>{name}{cells}<td>{tokens:,}</td></tr>")
            if "true_entropy" in values:
                # What the language's own loss tends to on an endless text.
                entropy = values["true_entropy"].value
                limits = {"nll": entropy, "perplexity": perplexity(entropy)}
                rows.append(_plain_row("true entropy", limits, metrics))
        if expected:
            value: dict[str, float] = {expected.metric: getattr(expected, split)}
            rows.append(_plain_row(f"expected: {escape(expected.source)}", value, metrics))
        groups.append("<tbody>" + "\n".join(rows) + "</tbody>")
    body = "\n".join(groups)
    return f'<div class="wide"><table><thead>{header}</thead>\n{body}</table></div>'


def _plain_row(html: str, values: dict[str, float], metrics: Sequence[str]) -> str:
    """Numbers by metric that have no error and no tokens."""
    cells = "".join(
        f"<td>{number(values[name], COLUMNS[name][1]) if name in values else ''}</td><td></td>"
        for name in metrics
    )
    return f'<tr class="expected"><th scope="row">{html}</th>{cells}<td></td></tr>'


def _cells(found: Measurement | None) -> str:
    if found is None:
        return '<td></td><td class="error"></td>'
    decimals = COLUMNS[found.metric][1]
    error = "" if found.stderr is None else f"± {number(found.stderr, decimals)}"
    return f'<td>{number(found.value, decimals)}</td><td class="error">{error}</td>'


def perplexity(loss: float) -> float:
    """exp(loss), capped where it would overflow."""
    return math.exp(min(loss, 700))


def curve(found: Findings) -> list[str]:
    """The plot, and in words what cannot be read off it."""
    history = found.history
    if not found.plots.course:
        every = found.recipe.train.log_every
        return [paragraph(f"No loss has been recorded yet; there is a record every {every} steps.")]
    caption = [
        "The training loss is a mean over the steps since the record before, with dropout if any.",
        _panels(found),
    ]
    if history.candidates:
        caption.append(
            "The second panel has the validation losses of the iterate itself (raw) and of the "
            "short and the long mean, to the scale of the second half of training; the third, how "
            "many iterates are in the long mean."
        )
    if len(history.speed):
        caption.append(
            f"The median speed is {np.median(history.speed.values):,.0f} tokens per second; a "
            "record that spans a validation includes its time."
        )
    for name in dict.fromkeys(name for _, name in history.events):
        steps = [step for step, each in history.events if each == name]
        at = ", ".join(f"{step:,}" for step in steps[:5]) + (" and later" if steps[5:] else "")
        meaning = f": {EVENTS[name]}" if name in EVENTS else ""
        caption.append(f"{name} at step {at}{meaning}.".capitalize())
    parts = [figure(found.plots.course, " ".join(caption))]
    if found.plots.after:
        after = f"The validations from step {history.switch:,} on, to a scale of their own."
        parts.append(figure(found.plots.after, after))
    unused = found.recipe.averaging.unused([name for _, name in history.events])
    if unused and found.finished and not history.averaged:
        parts.append(paragraph(escape(f"{unused[0].upper()}{unused[1:]}.")))
    return parts


def _panels(found: Findings) -> str:
    """What the panels show, and how validation reads."""
    if is_encoder(found.recipe):
        return encoder_caption(found.recipe)
    return _of_codes(found) if has_codes(found.recipe) else _reading(found)


def _reading(found: Findings) -> str:
    """How validation reads a running text."""
    streams = found.recipe.train.validation_streams
    if streams == 1:
        return "Validation reads its split as one stream."
    return (
        f"Validation during training reads its split as {streams} parallel streams, which is "
        "faster and nearly the same as one."
    )


def _of_codes(found: Findings) -> str:
    """What the panels of a model with codes show."""
    config, codes = found.recipe.objective, found.history.codes
    if isinstance(config, VqConfig):
        return "Both losses are bounds: what a sentence costs given its code, and the code itself."
    if isinstance(config, MonteCarloConfig):
        said = (
            f"The first panel has the bound on the loss with {config.samples:,} "
            f"code{'s'[: config.samples != 1]} a sentence; the second the validation loss, in which"
            " what codes tell has the weight that the objective gives it."
        )
        told = "the estimate of what a code tells of its sentence under the model's own posterior"
    else:
        said = (
            "The first panel has the loss of a sentence given its code; the second the validation "
            "loss, to which the objective adds what it asks of codes."
        )
        told = "the mutual information of sentence and code"
    if not codes or not len(codes.kl):
        return said
    return (
        f"{said} Below are the KL divergence of q(z|x) from the prior, the thin line in training, "
        f"and {told}, both of the validation split."
    )


def regularised(found: Findings, name: str) -> list[str]:
    """What the regulariser is, how it went, and what is wrong with it if anything is."""
    settings = found.settings(name)
    weight = f" The regulariser's weight is {settings['weight']:g}." if "weight" in settings else ""
    if settings.get("phase_two") and settings.get("phase_two_weight"):
        weight += f" That of phase two is {settings['phase_two_weight']:g}."
    caption = "Each point is a mean over the steps since the record before."
    held_out = found.history.held_out.get(name, {})
    if held_out:
        caption += (
            " Circles are of the validation split, without dropout: pairs that nothing was learnt "
            "from."
        )
    return [
        paragraph(escape(ABOUT.get(name, "") + weight)),
        *(paragraph(escape(sentence)) for sentence in found.warnings(name)),
        figure(found.plots.regularisers[name], caption),
        quantity_table(found.history.regularisers[name], held_out),
        *(by_method(found.measurements, OF_CRITIC) if name == BmiConfig.kind else []),
    ]


def quantity_table(quantities: Mapping[str, Series], held_out: Mapping[str, Series]) -> str:
    """What each quantity of a regulariser is at the end of training so far, and at the last
    validation on its split."""
    rows = []
    for name, series in quantities.items():
        mean, error, records = series.ending()
        spread = f"± {number(error, 4)}" if records > 1 else ""
        rows.append(
            f'<tr><th scope="row">{escape(quantity(name).meaning)}</th><td>{number(mean, 4)}</td>'
            f'<td class="error">{spread}</td><td>{records}</td></tr>'
        )
    if "pairs" in held_out:
        pairs = f"{held_out['pairs'].values[-1]:,.0f} pairs"
        title = f"On the validation split, {pairs}, at the last validation"
        rows.append(f'<tr><th scope="rowgroup" colspan="4">{title}</th></tr>')
    for name in (name for name in held_out if name in QUANTITIES):
        errors = held_out.get(f"{name}{STDERR}")
        spread = f"± {number(errors.values[-1], 4)}" if errors else ""
        rows.append(
            f'<tr><th scope="row">{escape(quantity(name).meaning)}</th>'
            f"<td>{number(held_out[name].values[-1], 4)}</td>"
            f'<td class="error">{spread}</td><td></td></tr>'
        )
    header = (
        '<tr><th scope="col">quantity</th><th scope="col" colspan="2">mean</th>'
        '<th scope="col">records</th></tr>'
    )
    body = "\n".join(['<tr><th scope="rowgroup" colspan="4">At the end</th></tr>', *rows])
    return f'<div class="wide"><table><thead>{header}</thead>\n<tbody>{body}</tbody></table></div>'


def sampled(found: Findings) -> list[str]:
    if isinstance(found.recipe.model, EncoderDecoderConfig):
        return [paragraph("An encoder-decoder writes only what follows what it has read.")]
    if found.latent and not found.samples:
        return [paragraph("An auto-encoder has no distribution of codes to draw from.")]
    if not found.samples:
        return [paragraph("There are no weights to write with before the first validation.")]
    note = f"Drawn from the model's own distribution, {SAMPLE_TOKENS} tokens each."
    if found.latent:
        note = f"The likeliest words, from codes drawn from N(0, {found.latent.deviation:g}²)."
        if not isinstance(latent_of(found.recipe), GaussianConfig):
            note = "The likeliest words, from codes whose classes are drawn, each as likely."
    return [
        paragraph(note, "note"),
        *(f'<div class="sample">{escape(text.strip())}</div>' for text in found.samples),
    ]


def further(found: Findings) -> list[str]:
    path = _typed(found.folder.path)
    listed = [
        ("Go on training", f"infolm train {path} --resume"),
        ("Measure", f"infolm evaluate {path} --cache --baseline"),
        (
            "Write the samples",
            f"infolm generate {path} --tokens {SAMPLE_TOKENS} --num {SAMPLES} --seed {SAMPLE_SEED}",
        ),
    ]
    if is_encoder(found.recipe):
        listed[1:] = [
            ("Measure", f"infolm evaluate {path}"),
            ("Fine-tune", f"infolm finetune {path} --task cola --data FOLDER"),
            ("Save for other libraries", f"infolm export {path} --out FOLDER"),
        ]
        if found.history.contrasts and found.recipe.objective.kind == "skip-gram":
            listed[2:] = [("Save the vectors", f"infolm export {path} --out FILE --as word2vec")]
    if has_codes(found.recipe):
        write = f"infolm generate {path}"
        listed[1:] = [
            ("Measure", f"infolm evaluate {path}"),
            ("Write the samples", f"{write} --num {SAMPLES} --seed {SAMPLE_SEED}"),
            ("Write sentences anew", f"{write} --reconstruct FILE"),
            ("Go between two", f'{write} --interpolate "one" "another" --steps {INTERPOLATION}'),
            ("Find its neighbours", f'{write} --neighbours "one"'),
        ]
    return [
        commands(listed),
        folded("The recipe, every value resolved", found.folder.recipe.read_text("utf-8")),
    ]


def footer() -> str:
    day = datetime.now(UTC).date().isoformat()
    return (
        f"<footer>Written on {day} by infolm {version('infolm')} with torch {torch.__version__} "
        f"and Python {platform.python_version()}.</footer>"
    )


def _typed(path: Path) -> str:
    """The path as one types it in a shell."""
    return shlex.quote(str(path))
