"""The likelihood of sentences under a model with a latent code, and the code's information.

With K codes z_k ~ q(z | x) and w_k = p(x | z_k) p(z_k) / q(z_k | x), of each sentence x

    nll          -ln p^(x),  p^ = 1/K sum_k w_k                        IWAE's bound, from above
    information  sum_k w_k ln p(x | z_k) / sum_k w_k - ln p^(x)        ~ KL(p(z | x) || p(z))

(Melis 2023, section 5.7.1). The mean of the latter is the mutual information of sentence and code
under the model's own posterior, which q need not be close to. Both are exact as K grows; with few
codes the information is too high if q is narrower than the posterior. This holds for any kind of
code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from infolm.data.parts import part
from infolm.data.sentences import Lines
from infolm.evaluation.likelihood import Progress, evaluating
from infolm.models.latent import LatentModel
from infolm.nn.draws import Part, drawing
from infolm.nn.gather import processes, summed
from infolm.objectives.estimators import Draws, log_mean_weight, weighted_log_likelihood
from infolm.training.loop import tensors

TOGETHER = 2**16
"""Tokens that are decoded together, all codes counted."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, random numbers start from `seed`; the outer generators are not affected."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def weigh(
    model: LatentModel, lines: Lines, samples: int, seed: int = 1, report: Progress | None = None
) -> Draws:
    """`samples` codes of each of S sentences: ln p(x | z_k) and ln p(z_k) / q(z_k | x), (K, S), and
    the exact KL(q(z | x) || p(z)), (S,), in double precision on the CPU.

    Processes that train together share each batch, and each has the result.
    """
    found = torch.zeros(2, samples, len(lines), dtype=torch.float64)
    kl = torch.zeros(len(lines), dtype=torch.float64)
    done, total = 0, int(lines.lengths.sum()) + len(lines)
    with evaluating(model) as device, seeded(seed):
        for numbers, whole in lines.batches():
            own = part(whole, *processes())
            batch, chosen, counts = tensors(own, device), torch.from_numpy(numbers), 1.0
            random = None
            if own.whole is not None:
                columns = torch.from_numpy(own.whole.columns)
                chosen, counts = chosen[columns], own.whole.weight
                random = Part(columns, whole.columns, {"cpu": torch.default_generator})
            proposal: Any = model.encode(batch.read, batch.sizes)
            kl[chosen] = counts * proposal.kl().sum(1).cpu().double()
            together = max(1, TOGETHER // whole.tokens)
            for start in range(0, samples, together):
                with drawing(random):
                    z = proposal.sample(min(together, samples - start))
                ratio = proposal.log_prior(z) - proposal.log_density(z)
                both = torch.stack([model.log_likelihood(z, batch), ratio])
                found[:, start : start + len(z), chosen] = counts * both.cpu().double()
            done += whole.tokens
            if report:
                report(done, total)
    summed(found)
    return Draws(found[0], found[1], summed(kl))


class Usage(NamedTuple):
    """nll, information (S,), in nats per sentence; see the module."""

    nll: npt.NDArray[np.float64]
    information: npt.NDArray[np.float64]


def usage(draws: Draws) -> Usage:
    """Of K codes of S sentences."""
    bound = log_mean_weight(draws).value
    return Usage((-bound).numpy(), (weighted_log_likelihood(draws).value - bound).numpy())
