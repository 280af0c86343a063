"""The codes of a model in a report: whether they have collapsed, and what to try if so.

A posterior has collapsed where q(z | x) is the same for every sentence x: a code then tells nothing
of its sentence, and the decoder is a language model that does without it (Bowman et al. 2015).
An encoder can also tell all sentences apart and the decoder make nothing of it.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, NamedTuple

from infolm.config import Recipe
from infolm.evaluation.latent_suite import METHOD, OF_DISTRIBUTIONS
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.posterior import Picture
from infolm.evaluation.reading import Mean, Reading, gain
from infolm.generation.latent import Reconstruction
from infolm.models.latent import AnyLatentConfig, GaussianConfig
from infolm.models.sentence import SentenceConfig
from infolm.models.symbol import SymbolConfig
from infolm.objectives.monte_carlo import MonteCarloConfig
from infolm.objectives.sentence import AeConfig
from infolm.objectives.vae import VaeConfig
from infolm.objectives.vq import VqConfig
from infolm.reports.page import code, figure, folded, number, paragraph, strong

NOTHING = 0.1
"""Nats, per sentence: a mean KL below this is no more than a decoder can lose in a single word, and
a code that makes its sentence likelier by less than this is one that the decoder does not read."""
ERRORS = 2.0
"""What is within so many standard errors of nothing cannot be distinguished from it."""
SAME = 0.1
"""Of the reconstructions that there could be: fewer different ones, and the decoder writes much the
same from all codes."""
SLIGHT = 0.05
"""Of BLEU: reconstructions that are nearer to their own sentences by less are so by nothing."""
LITTLE = 1.0
"""Nats: what tells less cannot say which of three sentences it is of (ln 3 = 1.1)."""
FEW = 0.1
"""Below this share of active units most of the code is idle."""
HALF = 0.5
"""Of the ceiling: information beyond this is no sign of a collapse, however few units carry it. Of
the information: a decoder that gains less makes little of its code."""
FULL = 0.95
"""Of the ceiling: from here on the number of sentences is the limit, not the code."""
FAST = 0.9
"""Decay of a codebook's running means that follow the encoder in some ten steps."""
MANY = 16
"""Codes of a sentence beyond which the thesis sees little gain."""
NEAR_FLOOR = 0.5
"""Nats by which the mean of ln sigma^2 may be above its floor and still be called at it."""

MEASURES = {  # metric: what it is, decimals
    "elbo_nll": ("ELBO: bound on the loss", 2),
    "elbo_perplexity": ("ELBO: bound on the perplexity", 2),
    "importance_weighted_nll": ("importance-weighted bound on the loss", 2),
    "importance_weighted_perplexity": ("importance-weighted bound on the perplexity", 2),
    "melbo_nll": ("MELBO: bound on the loss", 2),
    "melbo_perplexity": ("MELBO: bound on the perplexity", 2),
    "reconstruction_nll": ("loss of a sentence given its own code", 2),
    "reconstruction_perplexity": ("perplexity of a sentence given its own code", 2),
    "latent_usage": ("latent usage: what a code holds of its sentence", 3),
    "latent_usage_per_token": ("the same per token", 4),
    "latent_usage_effective": ("effective number of codes behind it", 1),
    "kl": ("KL divergence of q(z|x) from the prior", 3),
    "mutual_information": ("mutual information of sentence and code", 3),
    "active_units": ("active units", 0),
    "units_above_noise": ("units above the noise", 0),
    "likelihood_gain": ("ln p(x|z) given its own code, above another's", 2),
    "latent_entropy": ("entropy of the codes, columns standardised", 2),
    "latent_entropy_unstandardised": ("entropy of the codes, columns as they are", 2),
    "latent_entropy_control": ("the same estimate from draws of N(0, 1)", 2),
    "latent_entropy_normal": ("entropy of N(0, 1)", 2),
    "perplexity_of_classes": ("classes in use, by their perplexity", 2),
    "bleu_mean": ("BLEU of reconstructions from the mean", 3),
    "bleu_likeliest": ("BLEU of reconstructions from the likeliest classes", 3),
    "bleu_nearest": ("BLEU of reconstructions from the nearest entries", 3),
    "bleu_sampled": ("BLEU of reconstructions from a sample", 3),
    "bleu_shuffled": ("BLEU of another's reconstruction", 3),
    "distinct_reconstructions": ("different reconstructions", 3),
}
MEASURES |= {
    f"{name}_perplexity_without_eos": (f"{what}, without <eos>", decimals)
    for name in ("reconstruction", "elbo", "melbo", "importance_weighted")
    for what, decimals in [MEASURES[f"{name}_perplexity"]]
}
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
"""Those that stand at the top of the report, where they are measured."""
WRITTEN = {  # what a reconstruction is written from: a name, and what it is
    "mean": ("the mean", "from the mean of q(z|x)"),
    "likeliest": ("likeliest", "from the likeliest classes"),
    "nearest": ("nearest", "from the nearest entries of the codebooks"),
    "drawn": ("a draw", "from a draw of q(z|x)"),
    "10 times": ("tenfold", "from one with ten times the deviation"),
}

KL_CAPTION = (
    "KL divergence of q(z|x) from the prior by dimension of the code, the largest first. A unit is "
    "active if the mean of q(z|x) varies between sentences, its variance being above 0.01; it "
    "stands above the noise if that variance exceeds the mean variance of q(z|x)."
)
KL_OF_CLASSES_CAPTION = (
    "KL divergence of q(z|x) from the prior by variable of the code, the largest first. A unit is "
    "active if its class tells more than 0.01 nats of a sentence."
)
HISTOGRAM_CAPTION = (
    "How likely a sentence is given its own code and given another's, and where a code is drawn "
    "from a distribution, how likely the code is given its own sentence and another. The less the "
    "two overlap, the more a code tells (figure 3 of Livne et al. 2020). Each histogram is to its "
    "own height; the outermost hundredth of either, on both sides, is beyond the axis."
)
BOUNDS_CAPTION = (
    "Left, the loss that MELBO allows when it is computed from fewer of the sentences, with a band "
    "of one deviation over random choices of them (figure 5 of Livne et al. 2020). Right, the "
    "bounds on ln p(x) of single sentences, dashed their means (figure 6); the outermost hundredth "
    "of either, on both sides, is beyond the axis."
)

Row = tuple[str, str, str, str]
"""A name, a value, its error, and a unit or what else there is to say."""
Verdict = Literal["collapsed", "partly collapsed", "hardly read", "undecided", "healthy"]


class Diagnosis(NamedTuple):
    """sentence: for a person; what one types stands between backticks."""

    verdict: Verdict
    sentence: str


@dataclass(frozen=True, eq=False)
class LatentFindings:
    """reconstructions: from each of `scales`, which are keys of `WRITTEN`. interpolation: sentences
    written on the way from one code to another, ends included. samples: written from codes of
    N(0, deviation^2), or of classes drawn uniformly, which no sentence has; of an auto-encoder
    none. reading: of more sentences written anew, what the decoder makes of codes; None of single
    words, of which the likelihood says all."""

    picture: Picture
    reconstructions: Sequence[Reconstruction]
    interpolation: Sequence[str]
    samples: Sequence[str]
    deviation: float = 0.1
    scales: Sequence[str] = ("mean", "drawn", "10 times")
    reading: Reading | None = None


@dataclass(frozen=True)
class LatentPlots:
    """Each an SVG: KL by unit, the histograms of figure 3, and those of figures 5 and 6; the first
    empty where the code is a point, the last where there is no prior either."""

    dimensions: str = ""
    histograms: str = ""
    bounds: str = ""


def has_codes(recipe: Recipe) -> bool:
    return isinstance(recipe.model, SentenceConfig | SymbolConfig)


def latent_of(recipe: Recipe) -> AnyLatentConfig:
    """The section of a recipe whose model has codes."""
    assert isinstance(recipe.model, SentenceConfig | SymbolConfig)
    return recipe.model.latent


def diagnosis(picture: Picture, recipe: Recipe, reading: Reading | None = None) -> Diagnosis:
    """Whether the posterior has collapsed, by what, and what to try.

    collapsed: the mutual information cannot be distinguished from 0, the mean KL, which is never
    less than it, is below `NOTHING`, or the decoder does not read the code. The last can befall
    narrow posteriors too: an encoder that tells every sentence from every other is no use to a
    decoder that does not listen.
    partly collapsed: less than `HALF` of what can be seen, and `LITTLE` or in `FEW` units.
    hardly read: the encoder tells sentences apart, and the decoder makes little of it; see
    `unread` and `same_for_all`.
    undecided: the sentences are too few to distinguish nothing from `LITTLE` or more.
    A verdict against a model asks for `ERRORS` standard errors, so few sentences do not condemn it.
    """
    verdict = _verdict(picture, reading)
    if isinstance(recipe.objective, AeConfig):
        verdict = _verdict_of_points(picture, reading)
        found = _of_points(picture)
    elif isinstance(recipe.objective, VqConfig):
        found = _of_entries(picture, verdict)
    else:
        found = {
            "collapsed": _collapsed,
            "partly collapsed": _partly_collapsed,
            "hardly read": _told_apart,
            "undecided": _undecided,
            "healthy": _healthy,
        }[verdict](picture)
    if verdict == "hardly read":
        found += f" {_hardly_read(picture, reading)}"
    advice = "" if verdict in ("healthy", "undecided") else f" {_advice(recipe)}"
    floor = f" {_floored(recipe)}" if at_floor(picture, recipe) else ""
    return Diagnosis(verdict, found + advice + floor)


def _verdict(picture: Picture, reading: Reading | None) -> Verdict:
    information = Mean(picture.information, picture.information_error)
    amounts = _amount(information, 0.0), _amount(heard(picture), NOTHING)
    if "none" in amounts or picture.mean_kl < NOTHING:
        return "collapsed"
    most = information.value + ERRORS * information.stderr
    used = picture.active.copy()
    if len(picture.above_noise):
        used |= picture.above_noise
    idle = used.sum() < FEW * len(used)
    if most < HALF * picture.ceiling and (most < LITTLE or idle):
        return "partly collapsed"
    if unread(picture) or (reading and same_for_all(reading)):
        return "hardly read"
    return "undecided" if "unclear" in amounts else "healthy"


def _verdict_of_points(picture: Picture, reading: Reading | None) -> Verdict:
    amount = _amount(heard(picture), NOTHING)
    if amount == "none":
        return "collapsed"
    if reading and same_for_all(reading):
        return "hardly read"
    return "undecided" if amount == "unclear" else "healthy"


def _amount(nats: Mean, nothing: float) -> Literal["none", "unclear", "some"]:
    """Whether there is more than `nothing`; unclear where it may be none, or `LITTLE` and more."""
    if nats.value - ERRORS * nats.stderr > nothing:
        return "some"
    return "none" if nats.value + ERRORS * nats.stderr < LITTLE else "unclear"


def unread(picture: Picture) -> bool:
    """Whether the decoder gains less than `HALF` of what a code tells of its sentence.

    If p(x | z) were q's own posterior of sentences, the gain would be I(x; z) and, since another's
    code then misleads, the divergence the other way round besides:

        E ln p(x | z) - E_x E_z ln p(x | z) = KL(q(x, z) || q(x) q(z)) + KL(q(x) q(z) || q(x, z))
    """
    nats, error = heard(picture)
    return nats + ERRORS * error < HALF * picture.information


def same_for_all(reading: Reading) -> bool:
    """Whether the decoder writes much the same whatever the code: fewer than `SAME` of the
    reconstructions are different, or they are no nearer to their own sentences than to others, the
    difference of BLEU being within `ERRORS` of 0 and of less than `SLIGHT`."""
    value, error = reading.difference
    no_nearer = value <= ERRORS * error and value + ERRORS * error < SLIGHT
    return reading.distinct < SAME or no_nearer


def heard(picture: Picture) -> Mean:
    """How much likelier a sentence is given its own code than given another's, in nats; see
    `gain`."""
    return gain(picture.own_likelihood, picture.other_likelihood)


def mean_log_variance(picture: Picture) -> float:
    """ln sigma^2 of q(z | x), the mean over sentences and dimensions.

    As z_i = mean + sigma noise,  E ln q(z_i | x_i) = -1/2 sum_d (1 + ln sigma_d^2 + ln 2 pi).
    """
    per_dimension = float(picture.own_density.mean()) / len(picture.kl)
    return -2 * per_dimension - 1 - math.log(2 * math.pi)


def at_floor(picture: Picture, recipe: Recipe) -> bool:
    """Whether q(z | x) has a variance, and is as narrow as the recipe lets it be."""
    latent = latent_of(recipe)
    if not isinstance(latent, GaussianConfig) or isinstance(recipe.objective, AeConfig):
        return False
    return mean_log_variance(picture) < latent.least_log_variance + NEAR_FLOOR


def _told(picture: Picture) -> str:
    return f"a code tells {picture.information:.2f} ± {picture.information_error:.2f} nats"


def _active(picture: Picture) -> str:
    found = f"{picture.active.sum():,} of {len(picture.active):,} units are active"
    if not len(picture.above_noise):
        return found
    return f"{found} ({picture.above_noise.sum():,} stand above the noise)"


def _collapsed(picture: Picture) -> str:
    if picture.information > ERRORS * picture.information_error and picture.mean_kl >= NOTHING:
        return (
            "The posterior has collapsed: the encoder tells sentences apart, but the decoder does "
            f"not listen, as a sentence is only {heard(picture).value:.2f} nats likelier given its "
            "own code than given another's."
        )
    return (
        f"The posterior has collapsed: {_told(picture)} about its sentence, the mean KL from the "
        f"prior is {picture.mean_kl:.2f} nats and {_active(picture)}, so the decoder does without "
        "the code."
    )


def _told_apart(picture: Picture) -> str:
    return f"The encoder tells sentences apart ({_told(picture)} about its sentence)."


def _hardly_read(picture: Picture, reading: Reading | None) -> str:
    nats, error = heard(picture)
    found = (
        f"But the decoder hardly reads the code: a sentence is {nats:.1f} ± {error:.1f} nats "
        "likelier given its own code than given another's"
    )
    if reading is None:
        return f"{found}."
    value, error = reading.difference
    return (
        f"{found}; from the codes of {reading.sentences:,} sentences it writes "
        f"{reading.written:,} different ones, whose BLEU is {reading.bleu.value:.3f} beside their "
        f"own sentences and {reading.shuffled.value:.3f} beside others (a difference of "
        f"{value:.3f} ± {error:.3f})."
    )


def _undecided(picture: Picture) -> str:
    nats, error = heard(picture)
    return (
        f"{picture.sentences:,} sentences are too few to say whether the posterior has collapsed: "
        f"{_told(picture)} about its sentence, which is {nats:.1f} ± {error:.1f} nats likelier "
        "given its own code than given another's. Bring a longer validation split."
    )


def _partly_collapsed(picture: Picture) -> str:
    return (
        f"The posterior has partly collapsed: {_told(picture)} about its sentence, of the "
        f"{picture.ceiling:.2f} that {picture.sentences:,} sentences can show, and "
        f"{_active(picture)}."
    )


def _healthy(picture: Picture) -> str:
    opening = f"The posterior has not collapsed: {_told(picture)} about its sentence"
    if picture.information >= FULL * picture.ceiling:
        return (
            f"{opening}, as much as {picture.sentences:,} sentences can show, so it may be more; "
            f"{_active(picture)}."
        )
    return (
        f"{opening}, of the {picture.ceiling:.2f} that {picture.sentences:,} sentences can show, "
        f"and {_active(picture)}."
    )


def _of_points(picture: Picture) -> str:
    opening = (
        "The code of an auto-encoder is a point, not a distribution, so KL, mutual information and "
        "ELBO mean nothing here; "
    )
    nats, error = heard(picture)
    if _amount(heard(picture), NOTHING) == "none":
        return (
            f"{opening}but the decoder does not read it, as a sentence is only {nats:.2f} nats "
            "likelier given its own code than given another's."
        )
    return (
        f"{opening}a sentence is {nats:,.1f} ± {error:,.1f} nats likelier given its own code than "
        "given another's."
    )


def _of_entries(picture: Picture, verdict: Verdict) -> str:
    opening = (
        "The code is the nearest entries of codebooks, of which nothing is left open, so it always "
        f"costs {picture.mean_kl:.2f} nats; "
    )
    nats = heard(picture)
    deaf = _amount(nats, NOTHING) == "none"
    if deaf and picture.information > ERRORS * picture.information_error:
        return (
            f"{opening}but the decoder does not read it, as a sentence is only {nats.value:.2f}"
            " nats likelier given its own code than given another's."
        )
    shown = f"of the {picture.ceiling:.2f} that {picture.sentences:,} sentences can show"
    what = "the decoder reads it, and" if verdict == "healthy" else "but"
    return f"{opening}{what} {_told(picture)} about its sentence, {shown}, and {_active(picture)}."


def _floored(recipe: Recipe) -> str:
    latent = latent_of(recipe)
    assert isinstance(latent, GaussianConfig)
    floor = latent.least_log_variance
    why = ", as the loss of MIM is the smaller the narrower it is" if _is_mim(recipe) else ""
    return (
        f"The variance of q(z|x) is at its floor (`model.latent.least_log_variance={floor:g}`)"
        f"{why}: codes are all but points, so read MELBO and the reconstructions rather than KL "
        "and ELBO."
    )


def _is_mim(recipe: Recipe) -> bool:
    return recipe.objective.kind == "mim"


Remedy = tuple[str, str]
"""What it is, and the overrides that switch it on."""


def remedies(recipe: Recipe) -> list[Remedy]:
    """What was published against a collapse and the recipe does not do yet."""
    match recipe.objective:
        case VaeConfig() as objective:
            return _of_vae(objective, latent_of(recipe))
        case MonteCarloConfig() as objective:
            return [*_of_monte_carlo(objective, latent_of(recipe)), *_of_decoder(recipe)]
        case VqConfig() as objective if objective.decay > FAST:
            faster = ("entries that follow the encoder faster", f"objective.decay={FAST:g}")
            return [faster, *_of_decoder(recipe)]
        case _:
            return _of_decoder(recipe)


def _of_vae(objective: VaeConfig, latent: AnyLatentConfig) -> list[Remedy]:
    found = []
    if objective.kl.schedule != "cyclical":
        cycles = f"objective.kl.schedule=cyclical objective.kl.steps={objective.kl.steps}"
        found.append(("a KL weight that rises from 0 again and again", cycles))
    if not objective.free_bits.nats:
        free = "objective.free_bits.nats=5 objective.free_bits.per=sentence"
        found.append(("some nats of KL that cost nothing", free))
    if not objective.lagging:
        found.append(("an encoder that may catch up", "objective.lagging=true"))
    if isinstance(latent, GaussianConfig) and latent.batch_norm is None:
        found.append(("normalised means", "model.latent.batch_norm=0.6"))
    found.append(("a lower KL weight", f"objective.kl.weight={objective.kl.weight / 2:g}"))
    found.append(("or an objective that asks for information", "objective.kind=mim"))
    return found


def _of_monte_carlo(objective: MonteCarloConfig, latent: AnyLatentConfig) -> list[Remedy]:
    """More weight for the mutual information; an estimator, and samples, that see more of it."""
    asked = {
        "none": ("a weight for the information", "objective.augment=kl objective.lambda=0.3"),
        "power": ("a higher power", f"objective.alpha={2 * objective.alpha:g}"),
    }
    more = ("more weight for the information", f"objective.lambda={(1 + objective.weight) / 2:g}")
    found = [asked.get(objective.augment, more)]
    samples = 4 * objective.samples
    if isinstance(latent, GaussianConfig) and objective.estimator != "dreg":
        found.append(("a gradient with less noise", "objective.estimator=dreg"))
    if not isinstance(latent, GaussianConfig) and objective.estimator != "vimco":
        vimco = f"objective.estimator=vimco objective.samples={samples}"
        found.append(("a gradient with less noise", vimco))
    if objective.samples < MANY:
        found.append(("more codes of a sentence", f"objective.samples={samples}"))
    return found


def _of_decoder(recipe: Recipe) -> list[Remedy]:
    if not isinstance(recipe.model, SentenceConfig):
        return [("longer training", f"train.epochs={2 * recipe.train.epochs}")]
    words = min(recipe.model.decoder.dropout.embedding + 0.25, 0.75)
    what = "longer training, or a decoder that is told fewer of the words before"
    return [(what, f"model.decoder.dropout.embedding={words:g}")]


def _advice(recipe: Recipe) -> str:
    listed = ", ".join(f"{what} (`{overrides}`)" for what, overrides in remedies(recipe))
    return f"Try one at a time: {listed}."


def glance(found: LatentFindings, recipe: Recipe, measurements: Sequence[Measurement]) -> str:
    """The table at the top: what the picture shows, and what was measured on the test split, or
    else on the validation split."""
    picture, of = found.picture, f"of {len(found.picture.active):,}"
    nats, error = heard(picture)
    own = "ln p(x|z) given its own code, above another's, nats"
    rows: list[Row] = [
        (own, f"{nats:,.2f}", f"± {error:,.2f}", ""),
        ("active units", f"{picture.active.sum():,}", "", of),
    ]
    if not isinstance(latent := latent_of(recipe), GaussianConfig):
        used = f"{picture.classes.mean():.1f}"
        rows.append(("classes in use, by their perplexity", used, "", f"of {latent.classes:,}"))
    if not isinstance(recipe.objective, AeConfig):
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
    """What the decoder writes from codes."""
    own, others, of = reading.bleu, reading.shuffled, f"{reading.sentences:,} sentences"
    return [
        ("different reconstructions", f"{reading.written:,}", "", f"of {of}"),
        ("BLEU of a reconstruction", f"{own.value:.3f}", f"± {own.stderr:.3f}", of),
        ("BLEU of another's", f"{others.value:.3f}", f"± {others.stderr:.3f}", of),
    ]


def _headline(recipe: Recipe, measurements: Sequence[Measurement]) -> list[Measurement]:
    """What is shown at the top, all of one split, in the order of `GLANCE`."""
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
    """The measurements that mean something for the recipe's objective."""
    if not isinstance(recipe.objective, AeConfig):
        return list(measurements)
    return [m for m in measurements if not m.metric.startswith(OF_DISTRIBUTIONS)]


def _rows(measurements: Sequence[Measurement]) -> list[Row]:
    """Of one split. What was measured by several methods says which."""
    metrics = [m.metric for m in measurements]
    rows = []
    for m in measurements:
        name, decimals = MEASURES.get(m.metric, (m.metric.replace("_", " "), 3))
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
    plots: LatentPlots,
    recipe: Recipe,
    measurements: Sequence[Measurement],
    path: str,
) -> list[str]:
    """All that a report says of the codes. path: of the run, as one types it."""
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
    """Plain text to HTML, what stands between backticks as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(sentence))


def reconstruction_section(found: LatentFindings) -> list[str]:
    """What comes back from the codes of sentences, and what lies between two of them."""
    names, sources = zip(*(WRITTEN[scale] for scale in found.scales), strict=True)
    parts = [
        paragraph(
            "Sentences of the validation split, and what the decoder writes from their codes: "
            f"{', '.join(sources)}.",
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
        way = "At equal steps on the way from one code to another:"
        if len(found.picture.classes):
            way = "On the way from one code to another, a variable after the other:"
        parts += [
            paragraph(way, "note"),
            _listed(list(zip(shares, found.interpolation, strict=True))),
        ]
    return parts


def _listed(pairs: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs)
    return f'<dl class="sample">{rows}</dl>'


def latent_table(recipe: Recipe, measurements: Sequence[Measurement]) -> list[str]:
    """Every measurement that means something, by split, and how each was counted."""
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
