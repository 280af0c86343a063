"""Measurements of a model with a latent code: bounds on the likelihood, and its codes."""

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
    Array,
    Weighting,
    draw,
    elbo,
    encoded,
    importance_weighted,
    melbo,
    melbo_meets,
    some,
)
from infolm.evaluation.likelihood import Progress
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.posterior import (
    ABOVE_NOISE,
    ACTIVE,
    above_noise,
    activity,
    classes_in_use,
    code_information,
    contrast,
    latent_entropy,
)
from infolm.evaluation.reading import gain
from infolm.evaluation.usage import usage
from infolm.information.estimate import ceiling
from infolm.metrics import Described, describe
from infolm.models.codes.gaussian import NORMAL
from infolm.models.codes.proposal import Proposal
from infolm.models.latent import LatentModel
from infolm.objectives import estimators

INFORMATION_SENTENCES = 10_000
"""Most sentences for the mutual information, which takes all pairs of them."""
ENTROPY_SENTENCES = 2_000
"""Most sentences for the entropy by nearest neighbours, which is more expensive."""
GAIN_SENTENCES = 2_000
"""Most sentences for the likelihood given another's code."""
METHOD = "latent code"
OF_DISTRIBUTIONS = (
    *("elbo", "importance_weighted", "latent_usage"),
    *("kl", "mutual_information", "units_above_noise", "bleu_sampled"),
)
"""Metrics without meaning if codes are points."""
for _name, _label in {
    "elbo": "ELBO: bound on the {}",
    "importance_weighted": "importance-weighted bound on the {}",
    "melbo": "MELBO: bound on the {}",
    "reconstruction": "{} of a sentence given its own code",
}.items():
    _loss, _perplexity = _label.format("loss"), _label.format("perplexity")
    describe(
        "latent",
        Described(f"{_name}_nll", _loss, "nats per sentence", 2, "down"),
        Described(f"{_name}_perplexity", _perplexity, "perplexity per token", 2, "down"),
        Described(
            f"{_name}_perplexity_without_eos",
            f"{_perplexity}, without <eos>",
            "perplexity per token",
            2,
            "down",
        ),
    )
describe(
    "latent",
    Described(
        "latent_usage", "latent usage: what a code holds of its sentence", "nats per sentence", 3
    ),
    Described("latent_usage_per_token", "the same per token", "nats per token", 4),
    Described("latent_usage_effective", "effective number of codes behind it", "codes", 1),
    Described("melbo_meets", unit="ln of a number of sentences", decimals=3),
    Described("mutual_information", "mutual information of sentence and code", "nats", 3),
    Described("active_units", decimals=0),
    Described("units_above_noise", "units above the noise", decimals=0),
    Described(
        "likelihood_gain",
        "ln p(x|z) given its own code, above another's",
        "nats per sentence",
        2,
        "up",
    ),
    Described("latent_entropy", "entropy of the codes, columns standardised", "nats", 2),
    Described(
        "latent_entropy_unstandardised", "entropy of the codes, columns as they are", "nats", 2
    ),
    Described("latent_entropy_control", "the same estimate from draws of N(0, 1)", "nats", 2),
    Described("latent_entropy_normal", "entropy of N(0, 1)", "nats", 2),
    Described("perplexity_of_classes", "classes in use, by their perplexity", "classes", 2),
)
FEW_CODES = 2.0
"""An effective number of codes below this is too few."""


@dataclass(frozen=True)
class LatentSettings:
    """samples: N_z, codes of each sentence for ELBO, MELBO and reconstruction (eq. 16).

    weighted_samples, weighted_sentences: K of the importance-weighted bound, and the maximum number
    of sentences, drawn from all. eos: whether <eos> counts. competitor: the loss of another model,
    in nats per sentence, for `melbo_meets`. sampled_words: reconstructions for BLEU have drawn
    words instead of the likeliest.
    """

    samples: int = 5
    weighted_samples: int = 100
    weighted_sentences: int = 500
    eos: bool = True
    seed: int = 1
    competitor: float | None = None
    sampled_words: bool = False

    def __post_init__(self) -> None:
        if min(self.samples, self.weighted_samples) < 1 or self.weighted_sentences < 2:
            raise InfolmError(
                "a bound needs 1 code a sentence or more, and 2 sentences or more, not "
                f"{self.samples} and {self.weighted_samples} codes, {self.weighted_sentences} "
                "sentences"
            )


def per_sentence(nats: Array) -> tuple[float, float]:
    """The mean of values (S,) and its standard error."""
    return float(nats.mean()), float(nats.std(ddof=1)) / math.sqrt(len(nats))


def per_token(nats: Array, tokens: Array) -> tuple[float, float]:
    """sum nats / sum tokens of S sentences, (S,) each, and its standard error.

    That of a ratio R = sum a / sum t is to first order that of the mean of a - R t, over mean t.
    """
    ratio = float(nats.sum() / tokens.sum())
    _, error = per_sentence(nats - ratio * tokens)
    return ratio, error / float(tokens.mean())


def perplexity(nll: Array, tokens: Array) -> tuple[float, float]:
    """exp of the loss per token, and its standard error."""
    ratio, error = per_token(nll, tokens)
    value = math.exp(min(ratio, 700))
    return value, value * error


def latent_measurements(
    model: LatentModel,
    lines: Lines,
    split: str,
    settings: LatentSettings,
    weightings: Sequence[Weighting] = (Weighting(),),
    points: bool = False,
    report: Report | None = None,
) -> tuple[list[Measurement], list[str]]:
    """All measurements of two sentences or more, and warnings.

    points: codes are points, as an auto-encoder's: metrics that need a distribution are left out.

    Per sentence, and as perplexities per token: `reconstruction` is -E_q ln p(x | z); `elbo`,
    `melbo`, and `importance_weighted` with each of the weightings, are bounds on -ln p(x) from
    above, under the priors that their conventions name (see `evaluation.latent`). If <eos> counts,
    `..._perplexity_without_eos` are the same without it. `latent_usage`: see `usage_measurements`.
    `likelihood_gain`: see `reading.gain`. Of the codes: `kl` to the prior, `mutual_information`,
    `active_units`; of Gaussian ones `units_above_noise`, `latent_entropy` and its controls, of
    others `perplexity_of_classes`.
    """
    if len(lines) < 2:
        raise InfolmError(
            f"the {split} split has {len(lines)} sentence{'s'[: len(lines) != 1]} with a word, "
            "and measuring needs two: give more text, one sentence per line"
        )
    posterior = encoded(model, lines, _stage(report, f"encoding the {split} split"))
    results = bound_measurements(model, lines, posterior, split, settings, report)
    remarks = []
    for weighting in weightings:
        found, said = weighted_measurements(model, lines, weighting, split, settings, report)
        results += found
        remarks += said
    results.append(gain_measurement(model, lines, split, settings))
    tokens = int(_tokens(model, lines, settings).sum())
    found, said = code_measurements(posterior, tokens, split, settings.seed)
    results += found
    if points:
        return [m for m in results if not m.metric.startswith(OF_DISTRIBUTIONS)], []
    return results, remarks + said


def bound_measurements(
    model: LatentModel,
    lines: Lines,
    posterior: Proposal,
    split: str,
    settings: LatentSettings,
    report: Report | None = None,
) -> list[Measurement]:
    """Reconstruction, ELBO and MELBO of the S sentences and their posterior."""
    generator = torch.Generator().manual_seed(settings.seed)
    stage = _stage(report, f"decoding the {split} split")
    samples = 1 if posterior.certain else settings.samples
    draws = draw(model, lines, posterior, samples, generator, report=stage)
    log_p = draws.likelihoods.counted(settings.eos)
    count, codes = len(lines), f"{samples:,} codes of q(z | x) a sentence"
    if posterior.certain:
        codes = "from the nearest entries, which q(z | x) is certain of"
    own = (
        f"the prior is the aggregated posterior of these {count:,} sentences themselves, the bound "
        f"-mean ln p(x | z) + ln {count:,}, {codes}"
    )
    prior = posterior.prior.name
    kl = posterior.kl().sum(1).numpy()
    conventions = {
        "reconstruction": f"no bound, but -mean ln p(x | z), {codes}",
        "elbo": f"the prior is {prior}, {codes}, the KL exact",
        "melbo": own,
    }

    def losses(eos: bool) -> dict[str, Array]:
        log_p = draws.likelihoods.counted(eos)
        return {
            "reconstruction": -log_p.mean(0),
            "elbo": -elbo(log_p, kl),
            "melbo": -melbo(log_p, count),
        }

    kept, without = losses(True), losses(False)
    results = [
        measured
        for name, told in conventions.items()
        for measured in _likelihood(
            name, kept[name], without[name], model, lines, split, METHOD, told, settings
        )
    ]
    if settings.competitor is not None:
        found = replace(results[0], metric="melbo_meets", unit="ln of a number of sentences")
        meets = melbo_meets(log_p.mean(0), settings.competitor)
        told = f"how many sentences it would take for MELBO to be {settings.competitor:g} nats each"
        results.append(replace(found, value=meets, convention=f"{told}, if all were like these"))
    return results


def weighted_measurements(
    model: LatentModel,
    lines: Lines,
    weighting: Weighting,
    split: str,
    settings: LatentSettings,
    report: Report | None = None,
) -> tuple[list[Measurement], list[str]]:
    """The importance-weighted bound on some of the sentences; under the model's own prior also the
    latent usage from the same codes, and warnings."""
    prior, scale = weighting
    lines = some(lines, settings.weighted_sentences, settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    samples = settings.weighted_samples
    stage = _stage(report, f"weighing codes of the {split} split under {prior.name}")
    posterior = encoded(model, lines)
    draws = draw(model, lines, posterior, samples, generator, prior, scale, stage)
    source = "from q(z | x)"
    if posterior.gaussian is not None:
        source = f"from a proposal of {scale:g} times the deviation of q(z | x)"
    convention = f"the prior is {prior.name}, {samples:,} codes a sentence {source}, weighed"
    method = f"{METHOD}, {prior.source} prior" if prior.source else METHOD
    nll, without = (
        -importance_weighted(draws.likelihoods.counted(eos), draws.log_ratio)
        for eos in (True, False)
    )
    tail = model, lines, split, method, convention, settings
    results = _likelihood("importance_weighted", nll, without, *tail)
    if prior.source:
        return results, []
    log_p = draws.likelihoods.counted(settings.eos)
    of_codes, remarks = usage_measurements(log_p, draws.log_ratio, *tail)
    return results + of_codes, remarks


def usage_measurements(
    log_p: Array,
    log_ratio: Array,
    model: LatentModel,
    lines: Lines,
    split: str,
    method: str,
    convention: str,
    settings: LatentSettings,
) -> tuple[list[Measurement], list[str]]:
    """The information of a code about its sentence under the model's own posterior, from ln p(x |
    z_k) and ln p(z_k) / r(z_k | x), (K, S) each: `latent_usage`, the mean over sentences of

        sum_k v_k ln p(x | z_k) - ln 1/K sum_k w_k,    v_k = w_k / sum_j w_j

    (`evaluation.usage`), and `latent_usage_effective`, the mean of 1 / sum_k v_k^2. If one weight
    dominates all others, the latter is 1, and the former only shows how far r is from p(z | x).
    """
    weighed = torch.from_numpy(log_p), torch.from_numpy(log_ratio)
    nats = usage(estimators.Draws(*weighed, kl=torch.zeros(len(lines)))).information
    effective = 1 / (weighed[0] + weighed[1]).softmax(0).square().sum(0).numpy()
    of_codes = (
        "the mean of sum v ln p(x | z) - ln p(x) with self-normalised weights v (Melis 2023, eq. "
        "5.9), an estimate of KL(p(z | x) || p(z)), with few codes too high where they are of a "
        f"narrower distribution than p(z | x); {convention}"
    )
    tokens = _tokens(model, lines, settings)
    tail = int(tokens.sum()), split, _method(method, model, settings)
    counted = f"{of_codes}; {_counting(model, settings)}"
    many = f"the mean of 1 / sum v^2, of {len(log_p):,} codes a sentence; {convention}"
    whole, whole_error = per_sentence(nats)
    share, share_error = per_token(nats, tokens)
    value, error = per_sentence(effective)
    results = [
        Measurement("latent_usage", whole, "nats per sentence", whole_error, *tail, counted),
        Measurement("latent_usage_per_token", share, "nats per token", share_error, *tail, counted),
        Measurement("latent_usage_effective", value, "codes", error, *tail, many),
    ]
    if value >= FEW_CODES:
        return results, []
    return results, [
        f"the latent usage of the {split} split rests on {value:.1f} of {len(log_p):,} codes a "
        "sentence, too few to rely on: q(z | x) is unlike the model's own posterior, or --codes "
        "too low"
    ]


def _likelihood(
    name: str,
    nll: Array,
    without: Array,
    model: LatentModel,
    lines: Lines,
    split: str,
    method: str,
    convention: str,
    settings: LatentSettings,
) -> list[Measurement]:
    """A loss of each sentence (S,) per sentence and as a perplexity, with <eos> or `without` it as
    set; if <eos> counts, also the perplexity without it."""
    if not _counts_eos(model, settings):
        nll = without
    tokens = _tokens(model, lines, settings)
    rest = (
        f"{_counting(model, settings)}; the losses of {len(nll):,} sentences are summed and divided"
        " by the number of what the unit names"
    )
    tail = int(tokens.sum()), split, _method(method, model, settings), f"{convention}; {rest}"
    value, error = per_sentence(nll)
    ppl, ppl_error = perplexity(nll, tokens)
    results = [
        Measurement(f"{name}_nll", value, "nats per sentence", error, *tail),
        Measurement(f"{name}_perplexity", ppl, "perplexity per token", ppl_error, *tail),
    ]
    if not _counts_eos(model, settings):
        return results
    other = replace(settings, eos=False)
    *_, same = _likelihood(name, nll, without, model, lines, split, method, convention, other)
    return [*results, replace(same, metric=f"{same.metric}_without_eos", method=method)]


def gain_measurement(
    model: LatentModel, lines: Lines, split: str, settings: LatentSettings
) -> Measurement:
    """How much likelier some of the sentences are given their own code than given another's."""
    lines = some(lines, GAIN_SENTENCES, settings.seed)
    posterior = encoded(model, lines)
    z = posterior.one_drawn(torch.Generator().manual_seed(settings.seed))
    found = contrast(model, lines, posterior, z, 1, settings.seed)
    value, error = gain(found.own_likelihood, found.other_likelihood)
    convention = (
        f"the mean over {len(lines):,} sentences of ln p(x | z) given a code of q(z | x) less that "
        "given another sentence's, <eos> kept: 0 where the decoder does not read the code"
    )
    tokens = int(lines.lengths.sum()) + len(lines) * model.ends
    tail = "nats per sentence", error, tokens, split, METHOD, convention
    return Measurement("likelihood_gain", value, *tail)


def code_measurements(
    posterior: Proposal, tokens: int, split: str, seed: int
) -> tuple[list[Measurement], list[str]]:
    """Measurements of the codes of S sentences with `tokens` tokens, and warnings."""
    generator = torch.Generator().manual_seed(seed)
    of_units = activity(posterior)
    kl_of_units = posterior.kl()
    count, size = kl_of_units.shape
    z = posterior.one_drawn(generator)
    order = torch.randperm(count, generator=generator)
    results, remarks = [], []

    def add(metric: str, value: float, unit: str, stderr: float | None, convention: str) -> None:
        tail = tokens, split, METHOD, convention
        results.append(Measurement(metric, value, unit, stderr, *tail))

    kl, kl_error = per_sentence(kl_of_units.sum(1).numpy())
    exact = f"KL(q(z | x) || p(z)), exact, the mean over {count:,} sentences; the prior is "
    add("kl", kl, "nats per sentence", kl_error, exact + posterior.prior.name)
    active = f"of {size:,}, whose mean has a variance above {ACTIVE:g} over {count:,} sentences"
    unit = "dimensions"
    if posterior.gaussian is None:
        unit = "variables"
        active = f"of {size:,}, that tell more than {ACTIVE:g} nats of {count:,} sentences"
    add("active_units", int((of_units > ACTIVE).sum()), unit, None, active)
    if posterior.gaussian is not None:
        above = int(above_noise(posterior).sum())
        ratio = f"of {size:,}, whose mean has a variance over {count:,} sentences above "
        ratio += f"{ABOVE_NOISE:g} times the mean variance of q(z | x)"
        add("units_above_noise", above, unit, None, ratio)

    few = order[:INFORMATION_SENTENCES]
    information = code_information(posterior.rows(few), z[few])
    between = (
        f"I(x; z) under q, x uniform over {len(few):,} sentences, a code each; at most "
        f"ln {len(few):,} = {information.ceiling:.3f}"
    )
    add("mutual_information", information.value, "nats", information.stderr, between)
    if warning := ceiling(information.value, len(few), "sentences"):
        remarks.append(f"the mutual information of sentences and codes is {warning}")

    if posterior.gaussian is None:
        used = classes_in_use(posterior)
        among = f"exp of the entropy of a variable's class over {count:,} sentences together, the "
        value, among = float(used.mean()), f"{among}mean over {size:,} variables"
        add("perplexity_of_classes", value, "classes", None, among)
        return results, remarks
    few = order[:ENTROPY_SENTENCES]
    try:
        entropy = latent_entropy(z[few], generator)
    except InfolmError as error:
        return results, [*remarks, f"the entropy of the codes has no estimate: {error}"]
    nearest = f"by the 3 nearest neighbours of {len(few):,} codes"
    exactly = f"of {NORMAL.name} in {size:,} dimensions, exactly"
    standard = f"{nearest}, one a sentence, among columns standardised"
    add("latent_entropy", entropy.value, "nats", entropy.stderr, standard)
    plain = f"{nearest}, one a sentence, among columns as they are (Livne et al. 2020, table 6)"
    raw = entropy.unstandardised, "nats", entropy.unstandardised_stderr
    add("latent_entropy_unstandardised", *raw, plain)
    drawn = f"{nearest} drawn from {NORMAL.name}: what the estimator makes of these"
    add("latent_entropy_control", entropy.control, "nats", entropy.control_stderr, drawn)
    add("latent_entropy_normal", entropy.normal, "nats", 0.0, exactly)
    return results, remarks


def _counts_eos(model: LatentModel, settings: LatentSettings) -> bool:
    return model.ends and settings.eos


def _tokens(model: LatentModel, lines: Lines, settings: LatentSettings) -> Array:
    """The tokens that count of each sentence, (S,)."""
    return (lines.lengths + _counts_eos(model, settings)).astype(np.float64)


def _counting(model: LatentModel, settings: LatentSettings) -> str:
    """The convention on <eos>."""
    if not model.ends:
        return "the <eos> of a single symbol is certain, and no token"
    kept = "kept in" if settings.eos else "removed from"
    return f"<eos> {kept} both the losses and the number of tokens"


def _method(method: str, model: LatentModel, settings: LatentSettings) -> str:
    return f"{method}, without <eos>" if model.ends and not settings.eos else method


def _stage(report: Report | None, stage: str) -> Progress | None:
    return partial(report, stage) if report else None
