"""The validation loss of a latent-variable model or an encoder during training."""

from itertools import islice

import torch
from torch import Tensor

from infolm.data.feed import Feed
from infolm.data.sentences import Lines
from infolm.evaluation.contrastive import tallies
from infolm.evaluation.likelihood import evaluating
from infolm.evaluation.posterior import mutual_information
from infolm.evaluation.usage import weigh
from infolm.models.codes.gaussian import Posterior
from infolm.models.encoder import Encoder
from infolm.models.latent import LatentModel
from infolm.models.sentence import SentenceModel
from infolm.nn import gather
from infolm.objectives.base import Objective
from infolm.objectives.estimators import augmented
from infolm.objectives.monte_carlo import MonteCarlo
from infolm.objectives.sentence import SentenceObjective
from infolm.objectives.vq import Vq
from infolm.training import processes
from infolm.training.loop import Validation

SEED = 1
"""Seed of the codes, the same at every validation, so that they add no noise to the curve."""
MOST = 1000
"""Sentences among which the mutual information is measured: at most ln of their number."""


def monte_carlo_validation(
    model: LatentModel, objective: MonteCarlo | Vq, lines: Lines
) -> Validation:
    """The objective's loss on `lines`, in nats per token, without dropout, with as many codes as in
    training. The terms are those of the objective."""
    draws = weigh(model, lines, objective.settings.drawn, SEED)
    tokens = int(lines.lengths.sum()) + len(lines) * model.ends
    value = float(augmented(objective.settings, draws).value.sum())
    terms = {name: float(term) for name, term in objective.terms(draws, tokens).items()}
    return Validation(-value / tokens, terms)


BATCHES = 200
"""Most batches in a validation of an encoder."""


def contrastive_validation(model: Encoder, objective: Objective, feed: Feed) -> Validation:
    """The objective's loss on the first pass of `feed`, without dropout; see `tallies`."""
    found = tallies(model, objective, feed, BATCHES)
    means = {name: tally.mean for name, tally in found.items()}
    return Validation(means.pop("loss"), means, per="pair")


def sentence_validation(
    model: SentenceModel, objective: SentenceObjective, lines: Lines
) -> Validation:
    """The objective's loss on `lines`, in nats per token, without heuristics and dropout.

    Of the terms, `nll` is -ln p(x | z) in nats per token; `kl` and `information` are nats per
    sentence: the distance of codes from the prior, and how well they distinguish the first
    sentences. Processes that train together share the sentences, and each has the result.
    """
    device, size = model.embedding.device, model.config.latent.width
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(len(lines), size, generator=generator)
    means, log_variances = torch.zeros_like(noise), torch.zeros_like(noise)
    nll = penalty = tokens = 0.0
    with evaluating(model):
        rank, count = gather.processes()
        for numbers, batch in islice(lines.batches(), rank, None, count):
            chosen = torch.from_numpy(numbers)
            own = noise[chosen].to(device)

            def code(posterior: Posterior, own: Tensor = own) -> Tensor:
                return objective.code(posterior, own)

            read, inputs, targets = (torch.from_numpy(x).to(device) for x in batch[:3])
            posterior, z, hidden = model(read, inputs, batch.sizes, code)
            nll -= float(model.log_prob(hidden, targets).double().sum())
            penalty += float(objective.penalty(posterior, z).double().sum())
            means[chosen], log_variances[chosen] = (x.cpu() for x in posterior)
            tokens += batch.tokens
    nll, penalty, tokens = processes.summed([nll, penalty, tokens])
    posterior = Posterior(gather.summed(means), gather.summed(log_variances))
    first = Posterior(means[:MOST].double(), log_variances[:MOST].double())
    terms = {
        "nll": nll / tokens,
        "kl": float(posterior.kl().sum(1).mean()),
        "information": mutual_information(first, first.at(noise[:MOST].double())).value,
    }
    return Validation((nll + penalty) / tokens, terms)
