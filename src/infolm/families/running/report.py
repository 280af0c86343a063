"""A language model's part of a report."""

from collections.abc import Sequence
from functools import cached_property
from html import escape

from infolm.config import Expected
from infolm.data.corpora import Corpus, Truth, truth
from infolm.evaluation import measurement, suite
from infolm.evaluation.measurement import BLOCKS, Measurement
from infolm.evaluation.method import STATIC
from infolm.evaluation.suite import BASELINE, CRITIC, LANGUAGE, NGRAM_ORDER, TrueLogProbs
from infolm.families.findings import Findings
from infolm.families.running.run import LanguageRun
from infolm.families.sections import (
    SAMPLE_SEED,
    SAMPLE_TOKENS,
    SAMPLES,
    SPLITS,
    Parts,
    Sections,
    Titled,
    drawn,
    perplexity,
    perplexity_shown,
)
from infolm.generation.sampling import SamplingSettings
from infolm.generation.text import write
from infolm.metrics import Described, described
from infolm.objectives.bmi import BmiConfig
from infolm.reports.page import code, number, paragraph, strong

BASELINE_TOKENS = 10_000_000
"""The n-grams of a longer training split take minutes and gigabytes: too much for a report."""
COLUMNS = ("perplexity", "nll", "bits_per_character", "bits_per_byte", "nll_above_entropy")
"""Metrics of the table, from left to right."""
FAR, EQUAL = 0.2, 0.02
"""Nats per token by which models are far apart, and within which they are equally good: a fifth and
a fiftieth of the perplexity."""
OF_TEXTS = ("reverse_perplexity", "mutual_information", "mutual_information_shuffled")
"""Metrics of generated text."""
OF_CRITIC = tuple(f"{CRITIC}{name}" for name in suite.OF_CRITIC)
"""Metrics of a regulariser's critic."""


class LanguageSections(Sections):
    """known: the language that the text was drawn from, if known; true: its own losses."""

    def __init__(self, found: Findings) -> None:
        super().__init__(found)
        self.known: Truth | None = None
        self.true: TrueLogProbs = {}
        self.measurements = found.measurements
        if corpus := found.corpus:
            self.known = truth(found.recipe.data, found.tokenizer)
            self.true = suite.true_log_probs(self.known, corpus, ["valid", "test"])
            everything = [
                *found.measurements,
                *baseline(corpus, found.measurements, self.true),
            ]
            self.measurements = measurement.merge(everything, suite.language(self.known, self.true))

    def verdict(self, loss: float) -> str:
        """Compared with the recipe's expected result, and with the n-grams of the same text."""
        told = [beside_expected(self.recipe.expected, loss, self.measurements, self.found.finished)]
        rival = next(
            (
                m.value
                for m in self.measurements
                if (m.method, m.split, m.metric) == (BASELINE, "valid", "nll")
            ),
            None,
        )
        if rival is not None:
            told.append(beside_ngrams(loss, rival, self.longer))
        told.append(self._course())
        return " ".join(filter(None, told)) or (
            f"The validation perplexity is {perplexity_shown(loss)}; there is nothing to compare "
            "it with."
        )

    def _course(self) -> str:
        """Advice on the length of a finished training, from its validations."""
        history = self.found.history
        if not self.found.finished or len(history.validation) < 3 or history.best is None:
            return ""
        step, best = history.best
        *_, before, last = history.validation.values
        if last > best + FAR / 4:
            return (
                f"The validation loss has risen by {number(last - best, 2)} nats since step "
                f"{step:,}: the model overfits, so try more dropout, a smaller "
                "model or more text."
            )
        if last == best and before - last > EQUAL / 4:
            return f"The validation loss was still falling at the end: {self.longer}."
        return ""

    def best(self, loss: float) -> str:
        return f"perplexity is {perplexity_shown(loss)}"

    def beyond(self, loss: float) -> str:
        """How far a validation loss is above the language's entropy, if that is known."""
        if not self.known or not self.true:
            return ""
        above = strong(number(loss + float(self.true["valid"].mean()), 3))
        entropy = number(self.known.entropy, 3)
        return f": {above} nats per token above the true entropy of {entropy}"

    def measured(self) -> Parts:
        """The table, its conventions, and what is missing from it."""
        found, path = self.found, self.path
        measurements = [
            m for m in self.measurements if not _of_text(m) and m.metric not in OF_CRITIC
        ]
        methods = {m.method for m in measurements}
        contest = len(methods - {LANGUAGE}) > 1
        parts = []
        if methods <= {BASELINE, LANGUAGE}:
            when = "" if self.texts else ", after the first validation,"
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
                    f"Counted: {escape('; '.join(conventions))}. Perplexity is e to the power of "
                    f"the nats per token. ± is one standard error, from the spread of {BLOCKS} "
                    "blocks of the split."
                    f"{' The best of each split is bold.' if contest else ''}",
                    "note",
                ),
            ]
            if self.known is not None:
                parts.append(
                    paragraph(
                        "The text was drawn from a language whose entropy is "
                        f"{self.known.entropy:.4f} nats per token: in the long run no model can "
                        "have less. 'Above the entropy' is the mean, over the same tokens, of "
                        "the language's log-probability minus the model's, in nats: their "
                        "KL divergence.",
                        "note",
                    )
                )
        elif found.recipe.expected:
            expected = found.recipe.expected
            parts.append(
                paragraph(
                    f"Expected: {_of(expected.metric).heading} {expected.valid} on the validation "
                    f"and {expected.test} on the test split ({escape(expected.source)})."
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

    def results(self) -> Sequence[Titled]:
        """The measurements of `infolm evaluate --reverse --mi`, by text; empty if there are
        none."""
        texts = by_method(self.measurements, OF_TEXTS)
        return [Titled("Generated text", texts)] if texts else []

    def panels(self) -> str:
        """How validation reads a running text."""
        streams = self.recipe.train.validation_streams
        if streams == 1:
            return "Validation reads its split as one stream."
        return (
            f"Validation during training reads its split as {streams} parallel streams, which is "
            "faster and nearly the same as one."
        )

    def regulariser(self, name: str) -> Parts:
        """The measurements of BMI's critic on the splits."""
        return by_method(self.measurements, OF_CRITIC) if name == BmiConfig.kind else []

    @cached_property
    def texts(self) -> list[str]:
        """Samples of `infolm generate` with the best weights; empty if there are none."""
        if not self.found.folder.model.exists() or self._answers:
            return []
        run = LanguageRun.open(self.found.folder.path)
        settings = SamplingSettings()
        return write(run.model, run.tokenizer, "", SAMPLE_TOKENS, SAMPLES, SAMPLE_SEED, settings)

    @property
    def _answers(self) -> bool:
        """Whether the model is an encoder-decoder, which only continues a text."""
        return self.recipe.model.answers

    def samples(self) -> Parts:
        if self._answers:
            return [paragraph("An encoder-decoder only continues a text that it has read.")]
        if not self.texts:
            return [paragraph("There are no weights to generate with before the first validation.")]
        note = f"Drawn from the model's own distribution, {SAMPLE_TOKENS} tokens each."
        return drawn(note, self.texts)

    def commands(self) -> list[tuple[str, str]]:
        how = f"--tokens {SAMPLE_TOKENS} --num {SAMPLES} --seed {SAMPLE_SEED}"
        return [
            ("Measure", f"infolm evaluate {self.path} --cache --baseline"),
            ("Generate the samples", f"infolm generate {self.path} {how}"),
        ]


def beside_ngrams(loss: float, rival: float, longer: str) -> str:
    """Compare a validation loss with that of the n-gram model, in nats per token."""
    difference = loss - rival
    numbers = (
        f"(validation perplexity {number(perplexity(loss), 1)}, theirs "
        f"{number(perplexity(rival), 1)})"
    )
    of = f"the {NGRAM_ORDER}-grams of the same text {numbers}"
    if difference > FAR:
        return f"{strong('Far worse')} than {of}: {longer}."
    if difference > EQUAL:
        return f"{strong('Worse')} than {of}: {longer}, or search for better settings."
    if difference >= -EQUAL:
        return f"{strong('No better')} than {of}: {longer}."
    return f"{strong('Far better' if difference < -FAR else 'Better')} than {of}."


def beside_expected(
    expected: Expected | None, loss: float, measurements: Sequence[Measurement], finished: bool
) -> str:
    """Compare with the recipe's expected validation result, if that is possible."""
    if expected is None:
        return ""
    static = (
        m.value
        for m in measurements
        if m.metric == expected.metric and m.split == "valid" and m.method.startswith(str(STATIC))
    )
    reached = next(static, perplexity(loss) if expected.metric == "perplexity" else None)
    if reached is None:
        return ""
    decimals, heading = _of(expected.metric).decimals, _of(expected.metric).heading
    numbers = (
        f"({heading} {number(reached, decimals)}, expected {number(expected.valid, decimals)})"
    )
    ratio = reached / expected.valid
    if ratio > 1 + 2 * EQUAL:
        far = "Worse than what" if finished else "Not yet what"
        return f"{strong(far)} this recipe should reach {numbers}."
    near = "Better than expected" if ratio < 1 - 2 * EQUAL else "As expected"
    return f"{strong(near)} for this recipe {numbers}."


def _of_text(found: Measurement) -> bool:
    return found.metric.startswith("reverse_") or found.metric in OF_TEXTS


def _of(metric: str) -> Described:
    return described(metric, "language")


def by_method(measurements: Sequence[Measurement], metrics: Sequence[str]) -> list[str]:
    """The measurements of `metrics` by method, or nothing."""
    shown = [m for m in measurements if m.metric in metrics]
    if not shown:
        return []
    groups = []
    for method in dict.fromkeys(m.method for m in shown):
        rows = [f'<tr><th scope="rowgroup" colspan="3">{escape(method)}</th></tr>']
        for m in (m for m in shown if m.method == method):
            name, decimals = _of(m.metric).heading, _of(m.metric).decimals
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
    drawn from if known, the expected result.

    Each metric has two columns, value and standard error, so that digits align.
    """
    shown = {m.metric for m in measurements} | ({expected.metric} if expected else set())
    metrics = [name for name in COLUMNS if name in shown]
    columns = "".join(f'<th scope="col" colspan="2">{_of(name).heading}</th>' for name in metrics)
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
                # The limit of the language's own loss on an endless text.
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
    """A row of numbers by metric, without errors and tokens."""
    cells = "".join(
        f"<td>{number(values[name], _of(name).decimals) if name in values else ''}</td><td></td>"
        for name in metrics
    )
    return f'<tr class="expected"><th scope="row">{html}</th>{cells}<td></td></tr>'


def _cells(found: Measurement | None) -> str:
    if found is None:
        return '<td></td><td class="error"></td>'
    decimals = _of(found.metric).decimals
    error = "" if found.stderr is None else f"± {number(found.stderr, decimals)}"
    return f'<td>{number(found.value, decimals)}</td><td class="error">{error}</td>'


def baseline(corpus: Corpus, known: Sequence[Measurement], true: TrueLogProbs) -> list[Measurement]:
    """Measure the Kneser-Ney model of the training split on the splits that `known` lacks."""
    measured = {m.split for m in known if m.method == BASELINE}
    missing = [
        name
        for name in ("valid", "test")
        if name not in measured and len(corpus.splits[name].tokens) > 1
    ]
    if not missing or len(corpus.splits["train"].tokens) > BASELINE_TOKENS:
        return []
    return suite.baseline(corpus, missing, true)
