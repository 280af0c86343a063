"""Diagnosis of posterior collapse, with remedies.

A posterior has collapsed if q(z | x) is the same for every sentence x: a code then carries no
information about its sentence, and the decoder is a language model that ignores it (Bowman et al.
2015). An encoder can also distinguish all sentences while the decoder ignores the code.
"""

import math
from typing import Literal, NamedTuple, cast

from infolm.config import Recipe
from infolm.evaluation.posterior import Picture
from infolm.evaluation.reading import Mean, Reading, gain
from infolm.models.codes.base import CodeConfig
from infolm.models.codes.gaussian import GaussianConfig
from infolm.models.sentence import SentenceConfig
from infolm.models.symbol import SymbolConfig
from infolm.objectives.monte_carlo import MonteCarloConfig
from infolm.objectives.sentence import LatentObjectiveConfig
from infolm.objectives.vae import VaeConfig
from infolm.objectives.vq import VqConfig

NOTHING = 0.1
"""Nats per sentence. A mean KL below this is what a decoder can lose in a single word; a decoder
whose sentence gains less than this from its code ignores the code."""
ERRORS = 2.0
"""A value within this many standard errors of zero cannot be distinguished from zero."""
SAME = 0.1
"""Share of possible reconstructions: with fewer different ones, the decoder writes much the same
from all codes."""
SLIGHT = 0.05
"""Least difference in BLEU by which reconstructions are nearer to their own sentences."""
LITTLE = 1.0
"""Nats: a code with less information cannot identify one of three sentences (ln 3 = 1.1)."""
FEW = 0.1
"""Below this share of active units most of the code is idle."""
HALF = 0.5
"""Share of the ceiling: with more information there is no collapse, however few units carry it.
Share of the information: a decoder that gains less makes little use of its code."""
FULL = 0.95
"""Share of the ceiling above which the number of sentences is the limit, not the code."""
FAST = 0.9
"""Decay of a codebook's running means that follow the encoder within about ten steps."""
MANY = 16
"""Codes per sentence beyond which the thesis sees little gain."""
NEAR_FLOOR = 0.5
"""Nats above its floor at which the mean of ln sigma^2 still counts as at the floor."""
Verdict = Literal["collapsed", "partly collapsed", "hardly read", "undecided", "healthy"]


class Diagnosis(NamedTuple):
    """sentence: for people; commands and settings are in backticks."""

    verdict: Verdict
    sentence: str


def latent_of(recipe: Recipe) -> CodeConfig:
    """The section of a recipe whose model has codes."""
    return cast(SentenceConfig | SymbolConfig, recipe.model).latent


def has_distribution(recipe: Recipe) -> bool:
    """Whether codes have a distribution; those of an auto-encoder are points."""
    return cast(LatentObjectiveConfig, recipe.objective).has_distribution


def diagnosis(picture: Picture, recipe: Recipe, reading: Reading | None = None) -> Diagnosis:
    """Whether the posterior has collapsed, the evidence, and remedies.

    collapsed: the mutual information cannot be distinguished from 0, the mean KL, which is never
    less than it, is below `NOTHING`, or the decoder does not read the code. The last can happen
    with narrow posteriors too: the encoder distinguishes all sentences, but the decoder ignores the
    code. partly collapsed: less than `HALF` of the ceiling, and `LITTLE` or in `FEW` units. hardly
    read: the encoder distinguishes sentences, but the decoder makes little use of it; see `unread`
    and `same_for_all`.
    undecided: the sentences are too few to distinguish zero from `LITTLE` or more.
    A negative verdict requires `ERRORS` standard errors, so too few sentences never cause one.
    """
    verdict = _verdict(picture, reading)
    if not has_distribution(recipe):
        verdict = _verdict_of_points(picture, reading)
        found = _of_points(picture)
    elif latent_of(recipe).certain:
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
    """Whether the value exceeds `nothing`; unclear if it may be zero or `LITTLE` and more."""
    if nats.value - ERRORS * nats.stderr > nothing:
        return "some"
    return "none" if nats.value + ERRORS * nats.stderr < LITTLE else "unclear"


def unread(picture: Picture) -> bool:
    """Whether the decoder gains less than `HALF` of the code's information about its sentence.

    If p(x | z) were q's own posterior of sentences, the gain would be I(x; z) plus the reverse
    divergence, since another sentence's code then misleads:

        E ln p(x | z) - E_x E_z ln p(x | z) = KL(q(x, z) || q(x) q(z)) + KL(q(x) q(z) || q(x, z))
    """
    nats, error = heard(picture)
    return nats + ERRORS * error < HALF * picture.information


def same_for_all(reading: Reading) -> bool:
    """Whether the decoder writes much the same whatever the code: fewer than `SAME` of the
    reconstructions differ, or they are no nearer to their own sentences than to others (a
    difference in BLEU within `ERRORS` standard errors of 0 and below `SLIGHT`)."""
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
    """Whether q(z | x) has a variance, and it is at the recipe's floor."""
    latent = latent_of(recipe)
    if latent.classes or not has_distribution(recipe):
        return False
    floor = cast(GaussianConfig, latent).least_log_variance
    return mean_log_variance(picture) < floor + NEAR_FLOOR


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
            "The posterior has collapsed: the encoder distinguishes sentences, but the decoder "
            f"ignores the code, as a sentence is only {heard(picture).value:.2f} nats likelier "
            "given its "
            "own code than given another's."
        )
    return (
        f"The posterior has collapsed: {_told(picture)} about its sentence, the mean KL from the "
        f"prior is {picture.mean_kl:.2f} nats and {_active(picture)}, so the decoder ignores "
        "the code."
    )


def _told_apart(picture: Picture) -> str:
    return f"The encoder distinguishes sentences ({_told(picture)} about its sentence)."


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
        "given its own code than given another's. Use a longer validation split."
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
        "The code is the nearest entries of codebooks, chosen deterministically, so it always "
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
    floor = cast(GaussianConfig, latent_of(recipe)).least_log_variance
    why = ", as the loss of MIM falls with the variance" if _is_mim(recipe) else ""
    return (
        f"The variance of q(z|x) is at its floor (`model.latent.least_log_variance={floor:g}`)"
        f"{why}: codes are almost points, so read MELBO and the reconstructions rather than KL "
        "and ELBO."
    )


def _is_mim(recipe: Recipe) -> bool:
    return recipe.objective.kind == "mim"


Remedy = tuple[str, str]
"""A remedy in words, and the overrides that switch it on."""


def remedies(recipe: Recipe) -> list[Remedy]:
    """Published remedies against a collapse that the recipe does not use yet."""
    return REMEDIES.get(recipe.objective.kind, _of_decoder)(recipe)


def _of_vae(recipe: Recipe) -> list[Remedy]:
    objective = cast(VaeConfig, recipe.objective)
    latent = cast(GaussianConfig, latent_of(recipe))
    found = []
    if objective.kl.schedule != "cyclical":
        cycles = f"objective.kl.schedule=cyclical objective.kl.steps={objective.kl.steps}"
        found.append(("a cyclical KL weight", cycles))
    if not objective.free_bits.nats:
        free = "objective.free_bits.nats=5 objective.free_bits.per=sentence"
        found.append(("free bits: some nats of KL without cost", free))
    if not objective.lagging:
        found.append(("more encoder updates (lagging inference)", "objective.lagging=true"))
    if latent.batch_norm is None:
        found.append(("normalised means", "model.latent.batch_norm=0.6"))
    found.append(("a lower KL weight", f"objective.kl.weight={objective.kl.weight / 2:g}"))
    found.append(("or an objective that asks for information", "objective.kind=mim"))
    return found


def _of_monte_carlo(recipe: Recipe) -> list[Remedy]:
    """More weight for the mutual information, and estimators or sample counts that see more of
    it."""
    objective, latent = cast(MonteCarloConfig, recipe.objective), latent_of(recipe)
    asked = {
        "none": ("a weight for the information", "objective.augment=kl objective.lambda=0.3"),
        "power": ("a higher power", f"objective.alpha={2 * objective.alpha:g}"),
    }
    more = ("more weight for the information", f"objective.lambda={(1 + objective.weight) / 2:g}")
    found = [asked.get(objective.augment, more)]
    samples = 4 * objective.samples
    if not latent.classes and objective.estimator != "dreg":
        found.append(("a gradient with less noise", "objective.estimator=dreg"))
    if latent.classes and objective.estimator != "vimco":
        vimco = f"objective.estimator=vimco objective.samples={samples}"
        found.append(("a gradient with less noise", vimco))
    if objective.samples < MANY:
        found.append(("more codes per sentence", f"objective.samples={samples}"))
    return [*found, *_of_decoder(recipe)]


def _of_vq(recipe: Recipe) -> list[Remedy]:
    found = []
    if cast(VqConfig, recipe.objective).decay > FAST:
        found.append(("entries that follow the encoder faster", f"objective.decay={FAST:g}"))
    return [*found, *_of_decoder(recipe)]


def _of_decoder(recipe: Recipe) -> list[Remedy]:
    if recipe.model.longest is not None:  # a model of single symbols
        return [("longer training", f"train.epochs={2 * recipe.train.epochs}")]
    words = min(cast(SentenceConfig, recipe.model).decoder.dropout.embedding + 0.25, 0.75)
    what = "longer training, or more dropout of the decoder's input words"
    return [(what, f"model.decoder.dropout.embedding={words:g}")]


REMEDIES = {"vae": _of_vae, "monte-carlo": _of_monte_carlo, "vq": _of_vq}
"""By the objective's kind; for all others, the decoder's."""


def _advice(recipe: Recipe) -> str:
    listed = ", ".join(f"{what} (`{overrides}`)" for what, overrides in remedies(recipe))
    return f"Try one at a time: {listed}."
