"""A latent-variable model's part of a report: its codes and reconstructions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, cast

from infolm.config import Recipe
from infolm.data.sentences import Lines
from infolm.evaluation.latent import some
from infolm.evaluation.latent_suite import METHOD, OF_DISTRIBUTIONS
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.posterior import Picture, picture
from infolm.evaluation.reading import Reading, reading
from infolm.families.latent.diagnosis import diagnosis, has_distribution, heard, latent_of, remedies
from infolm.families.latent.run import LatentRun
from infolm.families.sections import (
    SAMPLE_SEED,
    SAMPLES,
    Parts,
    Sections,
    Titled,
    drawn,
    perplexity_shown,
)
from infolm.generation.latent import GREEDY, MEAN, Reconstruction, reconstruct
from infolm.metrics import described
from infolm.objectives.monte_carlo import MonteCarloConfig
from infolm.objectives.sentence import LatentObjectiveConfig
from infolm.reports.page import code, figure, folded, number, paragraph, strong

if TYPE_CHECKING:  # it needs matplotlib, as only reports do
    from infolm.families.latent.picture import LatentPlots

RECONSTRUCTIONS, INTERPOLATION = 5, 9
"""Reconstructed sentences of the validation split, and the steps of an interpolation."""
READ = 200
"""Sentences reconstructed to see whether the decoder uses their codes."""
SPLITS = {"train": "training split", "valid": "validation split", "test": "test split"}
GLANCE = (
    "elbo_perplexity",
    "importance_weighted_perplexity",
    "melbo_perplexity",
    "latent_usage",
    "bleu_mean",
    "bleu_likeliest",
    "bleu_nearest",
    "bleu_sampled",
)
"""The metrics at the top of the report, if they are measured."""
WRITTEN = {  # sources of a reconstruction: a name and a description
    "mean": ("the mean", "from the mean of q(z|x)"),
    "likeliest": ("likeliest", "from the likeliest classes"),
    "nearest": ("nearest", "from the nearest entries of the codebooks"),
    "drawn": ("a draw", "from a draw of q(z|x)"),
    "10 times": ("tenfold", "from a draw with ten times the standard deviation"),
}
KL_CAPTION = (
    "KL divergence of q(z|x) from the prior by dimension of the code, the largest first. A unit is "
    "active if the mean of q(z|x) varies between sentences, its variance being above 0.01; it "
    "stands above the noise if that variance exceeds the mean variance of q(z|x)."
)
KL_OF_CLASSES_CAPTION = (
    "KL divergence of q(z|x) from the prior by variable of the code, the largest first. A unit is "
    "active if its class carries more than 0.01 nats about a sentence."
)
HISTOGRAM_CAPTION = (
    "Log-likelihood of a sentence given its own code and given another's; if codes are drawn "
    "from a distribution, also of a code given its own sentence and another. The less the two "
    "overlap, the more information a code carries (figure 3 of Livne et al. 2020). Each histogram "
    "is scaled to its own height; the outer 1% of each, on both sides, is beyond the axis."
)
BOUNDS_CAPTION = (
    "Left, the loss that MELBO allows when it is computed from fewer of the sentences, with a band "
    "of one standard deviation over random choices of them (figure 5 of Livne et al. 2020). "
    "Right, the "
    "bounds on ln p(x) of single sentences, with dashed means (figure 6); the outer 1% "
    "of each, on both sides, is beyond the axis."
)
Row = tuple[str, str, str, str]
"""A name, a value, its error, and a unit or note."""


@dataclass(frozen=True, eq=False)
class LatentFindings:
    """reconstructions: from each of `scales`, which are keys of `WRITTEN`. interpolation: sentences
    decoded between two codes, ends included. samples: decoded from codes of N(0, deviation^2), or
    of classes drawn uniformly; None for an auto-encoder. reading: statistics of more
    reconstructions; None for single words, where the likelihood is enough."""

    picture: Picture
    reconstructions: Sequence[Reconstruction]
    interpolation: Sequence[str]
    samples: Sequence[str]
    deviation: float = 0.1
    scales: Sequence[str] = ("mean", "drawn", "10 times")
    reading: Reading | None = None


class LatentSections(Sections):
    """Whether the codes are useful, and what is decoded from them."""

    @property
    def objective(self) -> LatentObjectiveConfig:
        return cast(LatentObjectiveConfig, self.recipe.objective)

    @cached_property
    def codes(self) -> LatentFindings | None:
        """Statistics of the validation split's codes, and texts decoded from codes with the best
        weights; None if there are no weights yet, or no corpus."""
        corpus, folder = self.found.corpus, self.found.folder
        if corpus is None or not folder.model.exists():
            return None
        run = LatentRun.open(folder.path)
        return of_run(run, run.feed.lines(corpus, "valid"))

    def verdict(self, loss: float) -> str:
        if self.codes is None:
            return f"Nothing is known of the codes: {self._unknown}."
        found = diagnosis(self.codes.picture, self.recipe, self.codes.reading).verdict
        told = {
            "collapsed": "the decoder ignores the code",
            "partly collapsed": "the code carries little information about its sentence",
            "hardly read": "the decoder makes little use of the code",
            "undecided": "the validation split has too few sentences to judge the code",
            "healthy": "the code distinguishes sentences, and the decoder uses it",
        }[found]
        advice = ""
        if found not in ("healthy", "undecided"):
            what, overrides = remedies(self.recipe)[0]
            advice = f" Try {escape(what)} ({code(overrides)}); more remedies are below."
        return f"{strong(found.capitalize())}: {told}.{advice}"

    @property
    def _unknown(self) -> str:
        """Why nothing is known of the codes."""
        if self.found.missing:
            return f"the corpus could not be loaded ({escape(self.found.missing)})"
        return "there are no weights before the first validation"

    def best(self, loss: float) -> str:
        if bound := self.objective.bound:
            return f"perplexity is at most {perplexity_shown(loss)}, by {bound}"
        return f"loss is {strong(number(loss, 3))} nats per token"

    def opening(self) -> Sequence[Titled]:
        return [Titled("The latent code", self._of_codes())]

    def _of_codes(self) -> Parts:
        if self.codes is None:
            return [paragraph(f"Nothing is known of the codes: {self._unknown}.")]
        plots = latent_plots(self.codes, self.recipe)
        return latent_section(self.codes, plots, self.recipe, self.found.measurements, self.path)

    def measured(self) -> Parts:
        measurements = self.found.measurements
        return latent_table(self.recipe, measurements) if measurements else self.not_measured()

    def results(self) -> Sequence[Titled]:
        if self.codes is None:
            return []
        return [Titled("From code to sentence", reconstruction_section(self.codes))]

    def samples(self) -> Parts:
        if self.codes is None:
            return [paragraph("There are no weights to generate with before the first validation.")]
        if not self.codes.samples:
            return [paragraph("An auto-encoder has no distribution of codes to draw from.")]
        note = f"The likeliest words, from codes drawn from N(0, {self.codes.deviation:g}²)."
        if latent_of(self.recipe).classes:
            note = "The likeliest words, from codes whose classes are drawn uniformly."
        return drawn(note, self.codes.samples)

    def panels(self) -> str:
        config, codes = self.objective, self.found.history.codes
        if latent_of(self.recipe).certain:
            return (
                "Both losses are bounds: the loss of a sentence given its code, plus the cost of "
                "the code."
            )
        if config.kind == "monte-carlo":
            config = cast(MonteCarloConfig, config)
            said = (
                f"The first panel shows the bound on the loss with {config.samples:,} "
                f"code{'s'[: config.samples != 1]} per sentence; the second the validation loss, "
                "in "
                "which the codes' information has the objective's weight."
            )
            told = (
                "the estimated information of a code about its sentence under the model's own "
                "posterior"
            )
        else:
            said = (
                "The first panel shows the loss of a sentence given its code; the second the "
                "validation loss, which includes the objective's terms for codes."
            )
            told = "the mutual information of sentence and code"
        if not codes or not len(codes.kl):
            return said
        return (
            f"{said} Below are the KL divergence of q(z|x) from the prior, the thin line in "
            f"training, and {told}, both of the validation split."
        )

    def commands(self) -> list[tuple[str, str]]:
        write = f"infolm generate {self.path}"
        return [
            ("Measure", f"infolm evaluate {self.path}"),
            ("Generate the samples", f"{write} --num {SAMPLES} --seed {SAMPLE_SEED}"),
            ("Reconstruct sentences", f"{write} --reconstruct FILE"),
            (
                "Interpolate between two",
                f'{write} --interpolate "one" "another" --steps {INTERPOLATION}',
            ),
            ("Find its neighbours", f'{write} --neighbours "one"'),
        ]


def of_run(run: LatentRun, text: Lines) -> LatentFindings:
    """Statistics of a text's codes, and texts decoded from some of them."""
    chosen = some(text, RECONSTRUCTIONS, SAMPLE_SEED)
    longest = 2 * int(chosen.lengths.max())  # a perturbed code may never end
    writer = run.writer(seed=SAMPLE_SEED, longest=longest, unknown=True)
    first, second = (run.tokenizer.decode(chosen[i]) for i in (0, -1))
    return LatentFindings(
        picture(run.model, text),
        writer.reconstruct(chosen, list(run.scales.values())),
        writer.interpolate(first, second, INTERPOLATION),
        writer.sample(SAMPLES, run.deviation) if run.has_distribution else [],
        run.deviation,
        list(run.scales),
        read_anew(run, some(text, READ, SAMPLE_SEED)) if run.model.ends else None,
    )


def read_anew(run: LatentRun, lines: Lines) -> Reading:
    """Statistics of the decoder's reconstructions."""
    longest = int(lines.lengths.max())
    written = reconstruct(run.model, lines, MEAN, GREEDY, longest, SAMPLE_SEED)
    anew, sentences = ([each.tolist() for each in side] for side in (written, lines))
    return reading(anew, sentences, run.different_codes(lines))


def latent_plots(found: LatentFindings, recipe: Recipe) -> "LatentPlots":
    from infolm.families.latent.picture import draw_latent

    prior = has_distribution(recipe)
    points = not prior or latent_of(recipe).certain
    return draw_latent(found.picture, points, prior)


def glance(found: LatentFindings, recipe: Recipe, measurements: Sequence[Measurement]) -> str:
    """The table at the top: the statistics of the codes, and the measurements on the test split, or
    else on the validation split."""
    picture, of = found.picture, f"of {len(found.picture.active):,}"
    nats, error = heard(picture)
    own = "ln p(x|z) given its own code, above another's, nats"
    rows: list[Row] = [
        (own, f"{nats:,.2f}", f"± {error:,.2f}", ""),
        ("active units", f"{picture.active.sum():,}", "", of),
    ]
    if classes := latent_of(recipe).classes:
        used = f"{picture.classes.mean():.1f}"
        rows.append(("classes in use, by their perplexity", used, "", f"of {classes:,}"))
    if has_distribution(recipe):
        rows = [
            (
                "mutual information of sentence and code, nats",
                f"{picture.information:.3f}",
                f"± {picture.information_error:.3f}",
                f"at most {picture.ceiling:.3f}",
            ),
            ("mean KL from the prior, nats", f"{picture.mean_kl:,.3f}", "", ""),
            *rows,
        ]
        if len(picture.above_noise):
            above = f"{picture.above_noise.sum():,}"
            rows.append(("units above the noise", above, "", of))
    rows += _read(found.reading) if found.reading else []
    head = f"{picture.sentences:,} sentences of the validation split"
    groups = [_group(head, rows)]
    if here := _headline(recipe, measurements):
        groups.append(_group(f"Measured on the {SPLITS[here[0].split]}", _rows(here)))
    return f'<div class="wide"><table>{"".join(groups)}</table></div>'


def _read(reading: Reading) -> list[Row]:
    """The rows on reconstructions."""
    own, others, of = reading.bleu, reading.shuffled, f"{reading.sentences:,} sentences"
    return [
        ("different reconstructions", f"{reading.written:,}", "", f"of {of}"),
        ("BLEU of a reconstruction", f"{own.value:.3f}", f"± {own.stderr:.3f}", of),
        ("BLEU of another's", f"{others.value:.3f}", f"± {others.stderr:.3f}", of),
    ]


def _headline(recipe: Recipe, measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements at the top, all of one split, in the order of `GLANCE`."""
    for split in reversed(SPLITS):
        here = [
            m
            for metric in GLANCE
            for m in shown(recipe, measurements)
            if m.metric == metric and m.split == split
        ]
        if here:
            return here
    return []


def shown(recipe: Recipe, measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements that are meaningful for the recipe's objective."""
    if has_distribution(recipe):
        return list(measurements)
    return [m for m in measurements if not m.metric.startswith(OF_DISTRIBUTIONS)]


def _rows(measurements: Sequence[Measurement]) -> list[Row]:
    """The rows of one split; a metric measured by several methods names the method."""
    metrics = [m.metric for m in measurements]
    rows = []
    for m in measurements:
        about = described(m.metric, "latent")
        name, decimals = about.label, about.decimals
        method = m.method.removeprefix(METHOD).lstrip(" ,")
        name += f"; {method}" if method and metrics.count(m.metric) > 1 else ""
        error = "" if m.stderr is None else f"± {number(m.stderr, decimals)}"
        rows.append((name, number(m.value, decimals), error, m.unit))
    return rows


def _group(heading: str, rows: Sequence[Row]) -> str:
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{value}</td><td class="error">{error}</td>'
        f'<td class="note">{escape(note)}</td></tr>'
        for name, value, error, note in rows
    )
    head = f'<tr><th scope="rowgroup" colspan="4">{escape(heading)}</th></tr>'
    return f"<tbody>{head}{body}</tbody>"


def latent_section(
    found: LatentFindings,
    plots: "LatentPlots",
    recipe: Recipe,
    measurements: Sequence[Measurement],
    path: str,
) -> list[str]:
    """The report's part on the codes. path: of the run, as typed in a shell."""
    verdict, sentence = diagnosis(found.picture, recipe, found.reading)
    parts = [
        paragraph(f"{strong(f'{verdict.capitalize()}.')} {_with_code(sentence)}"),
        glance(found, recipe, measurements),
    ]
    if not _headline(recipe, measurements):
        how = f"The bounds and BLEU are measured by {code(f'infolm evaluate {path}')}"
        parts.append(paragraph(f"{how}.", "note"))
    if plots.dimensions:
        of_classes = len(found.picture.classes)
        parts.append(figure(plots.dimensions, KL_OF_CLASSES_CAPTION if of_classes else KL_CAPTION))
    parts.append(figure(plots.histograms, HISTOGRAM_CAPTION))
    if plots.bounds:
        parts.append(figure(plots.bounds, BOUNDS_CAPTION))
    return parts


def _with_code(sentence: str) -> str:
    """Plain text to HTML, with backticks as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(sentence))


def reconstruction_section(found: LatentFindings) -> list[str]:
    """Reconstructions, and an interpolation between two sentences."""
    names, sources = zip(*(WRITTEN[scale] for scale in found.scales), strict=True)
    parts = [
        paragraph(
            f"Sentences of the validation split, and their reconstructions: {', '.join(sources)}.",
            "note",
        )
    ]
    parts += [
        _listed([("sentence", each.sentence), *zip(names, each.written, strict=True)])
        for each in found.reconstructions
    ]
    if found.interpolation:
        last = max(len(found.interpolation) - 1, 1)
        shares = [f"{i / last:.0%}" for i in range(len(found.interpolation))]
        way = "At equal steps from one code to another:"
        if len(found.picture.classes):
            way = "From one code to another, one variable at a time:"
        parts += [
            paragraph(way, "note"),
            _listed(list(zip(shares, found.interpolation, strict=True))),
        ]
    return parts


def _listed(pairs: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs)
    return f'<dl class="sample">{rows}</dl>'


def latent_table(recipe: Recipe, measurements: Sequence[Measurement]) -> list[str]:
    """Every meaningful measurement by split, with its convention."""
    here = shown(recipe, measurements)
    splits = {
        split: [m for m in here if m.split == split]
        for split in dict.fromkeys(m.split for m in here)
    }
    groups = [
        _group(SPLITS.get(split, split).capitalize(), _rows(of)) for split, of in splits.items()
    ]
    header = (
        '<tr><th scope="col">measure</th><th scope="col" colspan="2">value</th>'
        '<th scope="col">unit</th></tr>'
    )
    counted = dict.fromkeys(f"{m.metric}, {m.split} ({m.method}): {m.convention}" for m in here)
    return [
        f'<div class="wide"><table><thead>{header}</thead>{"".join(groups)}</table></div>',
        paragraph("± is one standard error, over sentences.", "note"),
        folded("How each was counted", "\n".join(counted)),
    ]
