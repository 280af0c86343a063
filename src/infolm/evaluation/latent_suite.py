"""A model with a latent code measured on sentences: bounds on their likelihood, and its codes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from infolm.data.ingest import Report
from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.evaluation.latent import (
    NORMAL,
    Aggregated,
    Array,
    Weighting,
    draw,
    elbo,
    importance_weighted,
    melbo,
    melbo_meets,
    posteriors,
    some,
)
from infolm.evaluation.likelihood import Progress
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.posterior import ACTIVE, latent_entropy, mutual_information, variances
from infolm.information.estimate import ceiling
from infolm.models.sentence import Posterior, SentenceModel

INFORMATION_SENTENCES = 10_000
"""Mutual information is that of at most so many sentences: it takes all pairs of them."""
ENTROPY_SENTENCES = 2_000
"""The same of the entropy by nearest neighbours, which is dearer."""
METHOD = "latent code"
OF_DISTRIBUTIONS = ("elbo", "importance_weighted", "kl", "mutual_information", "bleu_sampled")
"""Metrics that mean nothing where codes are points."""


@dataclass(frozen=True)
class LatentSettings:
    """samples: codes of each sentence for ELBO, MELBO and reconstruction.

    weighted_samples, weighted_sentences: K of the importance-weighted bound, and the sentences at
    most that it is taken on, drawn from all. eos: whether <eos> counts. competitor: the loss of
    another model, in nats per sentence, for `melbo_meets`.
    """

    samples: int = 5
    weighted_samples: int = 100
    weighted_sentences: int = 500
    eos: bool = True
    seed: int = 1
    competitor: float | None = None

    def __post_init__(self) -> None:
        if min(self.samples, self.weighted_samples) < 1 or self.weighted_sentences < 2:
            raise InfolmError(
                "a bound needs 1 code a sentence or more, and 2 sentences or more, not "
                f"{self.samples} and {self.weighted_samples} codes, {self.weighted_sentences} "
                "sentences"
            )


def per_sentence(nll: Array) -> tuple[float, float]:
    """The mean of a loss (S,) and its standard error."""
    return float(nll.mean()), float(nll.std(ddof=1)) / math.sqrt(len(nll))


def perplexity(nll: Array, tokens: Array) -> tuple[float, float]:
    """exp(sum nll / sum tokens) of S sentences, (S,) each, and its standard error.

    That of a ratio R = sum a / sum t is to first order that of the mean of a - R t, over mean t.
    """
    ratio = nll.sum() / tokens.sum()
    _, error = per_sentence(nll - ratio * tokens)
    value = math.exp(min(ratio, 700))
    return value, value * error / float(tokens.mean())


def latent_measurements(
    model: SentenceModel,
    lines: Lines,
    split: str,
    settings: LatentSettings,
    weightings: Sequence[Weighting] = (Weighting(),),
    points: bool = False,
    report: Report | None = None,
) -> tuple[list[Measurement], list[str]]:
    """All measurements of two sentences or more, and what is to be said of them.

    points: codes are points, as an auto-encoder's: what asks for a distribution is left out.

    Per sentence, and as perplexities per token: `reconstruction` is -E_q ln p(x | z); `elbo`,
    `melbo`, and `importance_weighted` with each of the weightings, are bounds on -ln p(x) from
    above, under the priors that their conventions name (see `evaluation.latent`). Of the codes:
    `kl` to N(0, 1), `mutual_information`, `active_units`, `latent_entropy` and its controls.
    """
    if len(lines) < 2:
        raise InfolmError(
            f"the {split} split has {len(lines)} sentence{'s'[: len(lines) != 1]} with a word in "
            "them, and two are the least to measure: bring more text, a sentence a line"
        )
    posterior = posteriors(model, lines, _stage(report, f"encoding the {split} split"))
    results = bound_measurements(model, lines, posterior, split, settings, report)
    for weighting in weightings:
        results += weighted_measurements(model, lines, weighting, split, settings, report)
    tokens = int(_tokens(lines, settings).sum())
    of_codes, remarks = code_measurements(posterior, tokens, split, settings.seed)
    results += of_codes
    if points:
        return [m for m in results if not m.metric.startswith(OF_DISTRIBUTIONS)], []
    return results, remarks


def bound_measurements(
    model: SentenceModel,
    lines: Lines,
    posterior: Posterior,
    split: str,
    settings: LatentSettings,
    report: Report | None = None,
) -> list[Measurement]:
    """Reconstruction, ELBO and MELBO, of the sentences and their posterior, (S, Z)."""
    generator = torch.Generator().manual_seed(settings.seed)
    stage = _stage(report, f"decoding the {split} split")
    draws = draw(model, lines, posterior, settings.samples, generator, report=stage)
    log_p = draws.likelihoods.counted(settings.eos)
    kl = posterior.kl().sum(1).numpy()
    count, codes = len(lines), f"{settings.samples:,} codes of q(z | x) a sentence"
    own = (
        f"the prior is the aggregated posterior of these {count:,} sentences themselves, the bound "
        f"-mean ln p(x | z) + ln {count:,}, {codes}"
    )
    losses = {
        "reconstruction": (-log_p.mean(0), f"no bound, but -mean ln p(x | z), {codes}"),
        "elbo": (-elbo(log_p, kl), f"the prior is {NORMAL.name}, {codes}, the KL exact"),
        "melbo": (-melbo(log_p, count), own),
    }
    results = [
        measured
        for name, (nll, convention) in losses.items()
        for measured in _likelihood(name, nll, lines, split, METHOD, convention, settings)
    ]
    if settings.competitor is not None:
        found = replace(results[0], metric="melbo_meets", unit="ln of a number of sentences")
        meets = melbo_meets(log_p.mean(0), settings.competitor)
        told = f"how many sentences it would take for MELBO to be {settings.competitor:g} nats each"
        results.append(replace(found, value=meets, convention=f"{told}, if all were like these"))
    return results


def weighted_measurements(
    model: SentenceModel,
    lines: Lines,
    weighting: Weighting,
    split: str,
    settings: LatentSettings,
    report: Report | None = None,
) -> list[Measurement]:
    """The importance-weighted bound on some of the sentences."""
    prior, scale = weighting
    lines = some(lines, settings.weighted_sentences, settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    samples = settings.weighted_samples
    stage = _stage(report, f"weighing codes of the {split} split under {prior.name}")
    posterior = posteriors(model, lines)
    draws = draw(model, lines, posterior, samples, generator, prior, scale, stage)
    log_p = draws.likelihoods.counted(settings.eos)
    convention = (
        f"the prior is {prior.name}, {samples:,} codes a sentence from a proposal of {scale:g} "
        "times the deviation of q(z | x), weighed"
    )
    method = f"{METHOD}, {prior.source} prior" if isinstance(prior, Aggregated) else METHOD
    nll = -importance_weighted(log_p, draws.log_ratio)
    return _likelihood("importance_weighted", nll, lines, split, method, convention, settings)


def _likelihood(
    name: str,
    nll: Array,
    lines: Lines,
    split: str,
    method: str,
    convention: str,
    settings: LatentSettings,
) -> list[Measurement]:
    """A loss of each sentence (S,) per sentence and as a perplexity."""
    tokens = _tokens(lines, settings)
    rest = (
        f"<eos> {'kept in' if settings.eos else 'removed from'} both the losses and the number of "
        f"tokens; the losses of {len(nll):,} sentences are summed and divided by the number of "
        "what the unit names"
    )
    method = method if settings.eos else f"{method}, without <eos>"
    tail = int(tokens.sum()), split, method, f"{convention}; {rest}"
    value, error = per_sentence(nll)
    ppl, ppl_error = perplexity(nll, tokens)
    return [
        Measurement(f"{name}_nll", value, "nats per sentence", error, *tail),
        Measurement(f"{name}_perplexity", ppl, "perplexity per token", ppl_error, *tail),
    ]


def code_measurements(
    posterior: Posterior, tokens: int, split: str, seed: int
) -> tuple[list[Measurement], list[str]]:
    """What the codes of S sentences with `tokens` tokens are like, and what is to be said of it."""
    generator = torch.Generator().manual_seed(seed)
    count, size = posterior.mean.shape
    z = posterior.at(torch.randn(posterior.mean.shape, generator=generator, dtype=torch.float64))
    order = torch.randperm(count, generator=generator)
    results, remarks = [], []

    def add(metric: str, value: float, unit: str, stderr: float | None, convention: str) -> None:
        tail = tokens, split, METHOD, convention
        results.append(Measurement(metric, value, unit, stderr, *tail))

    kl, kl_error = per_sentence(posterior.kl().sum(1).numpy())
    exact = f"KL(q(z | x) || {NORMAL.name}), exact, the mean over {count:,} sentences"
    add("kl", kl, "nats per sentence", kl_error, exact)
    units = int((variances(posterior) > ACTIVE).sum())
    active = f"of {size:,}, whose mean has a variance above {ACTIVE:g} over {count:,} sentences"
    add("active_units", units, "dimensions", None, active)

    few = order[:INFORMATION_SENTENCES]
    information = mutual_information(Posterior(*(side[few] for side in posterior)), z[few])
    between = (
        f"I(x; z) under q, x uniform over {len(few):,} sentences, a code each; at most "
        f"ln {len(few):,} = {information.ceiling:.3f}"
    )
    add("mutual_information", information.value, "nats", information.stderr, between)
    if warning := ceiling(information.value, len(few), "sentences"):
        remarks.append(f"the mutual information of sentences and codes is {warning}")

    few = order[:ENTROPY_SENTENCES]
    try:
        entropy = latent_entropy(z[few], generator)
    except InfolmError as error:
        return results, [*remarks, f"the entropy of the codes has no estimate: {error}"]
    nearest = f"by the 3 nearest neighbours of {len(few):,} codes"
    exactly = f"of {NORMAL.name} in {size:,} dimensions, exactly"
    add("latent_entropy", entropy.value, "nats", entropy.stderr, f"{nearest}, one a sentence")
    drawn = f"{nearest} drawn from {NORMAL.name}: what the estimator makes of these"
    add("latent_entropy_control", entropy.control, "nats", entropy.control_stderr, drawn)
    add("latent_entropy_normal", entropy.normal, "nats", 0.0, exactly)
    return results, remarks


def _tokens(lines: Lines, settings: LatentSettings) -> Array:
    """The tokens that count of each sentence, (S,)."""
    return (lines.lengths + settings.eos).astype(np.float64)


def _stage(report: Report | None, stage: str) -> Progress | None:
    return partial(report, stage) if report else None
