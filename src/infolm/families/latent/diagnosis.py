"""Whether the codes of a model have collapsed, and what to try if so.

A posterior has collapsed where q(z | x) is the same for every sentence x: a code then tells nothing
of its sentence, and the decoder is a language model that does without it (Bowman et al. 2015).
An encoder can also tell all sentences apart and the decoder make nothing of it.
"""

import math
from typing import Literal, NamedTuple, cast

from infolm.config import Recipe
from infolm.evaluation.posterior import Picture
from infolm.evaluation.reading import Mean, Reading, gain
from infolm.models.latent import AnyLatentConfig, GaussianConfig
from infolm.models.sentence import SentenceConfig
from infolm.models.symbol import SymbolConfig
from infolm.objectives.monte_carlo import MonteCarloConfig
from infolm.objectives.sentence import LatentObjectiveConfig
from infolm.objectives.vae import VaeConfig
from infolm.objectives.vq import VqConfig

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
Verdict = Literal["collapsed", "partly collapsed", "hardly read", "undecided", "healthy"]


class Diagnosis(NamedTuple):
    """sentence: for a person; what one types stands between backticks."""

    verdict: Verdict
    sentence: str


def latent_of(recipe: Recipe) -> AnyLatentConfig:
    """The section of a recipe whose model has codes."""
    return cast(SentenceConfig | SymbolConfig, recipe.model).latent


def has_distribution(recipe: Recipe) -> bool:
    """Whether codes have one; those of an auto-encoder are points."""
    return cast(LatentObjectiveConfig, recipe.objective).has_distribution


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
    floor = cast(GaussianConfig, latent_of(recipe)).least_log_variance
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
    return REMEDIES.get(recipe.objective.kind, _of_decoder)(recipe)


def _of_vae(recipe: Recipe) -> list[Remedy]:
    objective = cast(VaeConfig, recipe.objective)
    latent = cast(GaussianConfig, latent_of(recipe))
    found = []
    if objective.kl.schedule != "cyclical":
        cycles = f"objective.kl.schedule=cyclical objective.kl.steps={objective.kl.steps}"
        found.append(("a KL weight that rises from 0 again and again", cycles))
    if not objective.free_bits.nats:
        free = "objective.free_bits.nats=5 objective.free_bits.per=sentence"
        found.append(("some nats of KL that cost nothing", free))
    if not objective.lagging:
        found.append(("an encoder that may catch up", "objective.lagging=true"))
    if latent.batch_norm is None:
        found.append(("normalised means", "model.latent.batch_norm=0.6"))
    found.append(("a lower KL weight", f"objective.kl.weight={objective.kl.weight / 2:g}"))
    found.append(("or an objective that asks for information", "objective.kind=mim"))
    return found


def _of_monte_carlo(recipe: Recipe) -> list[Remedy]:
    """More weight for the mutual information; an estimator, and samples, that see more of it."""
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
        found.append(("more codes of a sentence", f"objective.samples={samples}"))
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
    what = "longer training, or a decoder that is told fewer of the words before"
    return [(what, f"model.decoder.dropout.embedding={words:g}")]


REMEDIES = {"vae": _of_vae, "monte-carlo": _of_monte_carlo, "vq": _of_vq}
"""By the objective's kind; against all others, those of the decoder."""


def _advice(recipe: Recipe) -> str:
    listed = ", ".join(f"{what} (`{overrides}`)" for what, overrides in remedies(recipe))
    return f"Try one at a time: {listed}."
