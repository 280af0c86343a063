"""An InfoNCE objective on held-out text, and its hidden words among the whole vocabulary.

How well a word is distinguished from a few negatives depends on these, so it does not compare two
objectives. Predictions among the whole vocabulary do: InfoNCE with negatives drawn from q(b) is
maximal if f(a, b) = ln p(b | a) / q(b) + c(a), so p(b | a) is the softmax of f + ln q. For an
encoder trained among all words, q is uniform, and p(b | a) is the softmax of f.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infolm.data.feed import Feed
from infolm.data.parts import part
from infolm.data.sequences import SequenceBatch
from infolm.evaluation.likelihood import evaluating
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.usage import seeded
from infolm.information import ties
from infolm.metrics import Described, describe
from infolm.models.encoder import Encoder
from infolm.nn import gather
from infolm.objectives.base import TIES, Estimate, Objective
from infolm.objectives.encoding import ALL_WORDS
from infolm.training import processes
from infolm.training.loop import tensors

SEED = 1
"""Seed of the draws besides the feed's own, the same each time."""
LEAST = 10
"""Least batches for a standard error."""
ROWS = 1024
"""Hidden words whose scores of the whole vocabulary are in memory at a time."""
VOCABULARY_NLL = "vocabulary_nll"
ALL = ALL_WORDS
"""The method's name for predictions among the whole vocabulary."""

describe(
    "encoder",
    Described("perplexity", unit="perplexity per hidden token", decimals=2, better="down"),
)


class Tally(NamedTuple):
    """A quantity of n batches: values (n,), each a mean over `counts` (n,) tokens or others."""

    values: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]

    @property
    def mean(self) -> float:
        """sum c_i x_i / sum c_i."""
        return float(self.values @ self.counts / self.counts.sum())

    @property
    def stderr(self) -> float | None:
        """The standard error of the mean, a ratio of two sums: sqrt(n / (n - 1) sum c_i^2 (x_i -
        mean)^2) / sum c_i.

        None for fewer than `LEAST` batches.
        """
        n = len(self.values)
        if n < LEAST:
            return None
        spread = np.sum((self.counts * (self.values - self.mean)) ** 2) * n / (n - 1)
        return float(np.sqrt(spread) / self.counts.sum())


def tallies(
    model: Encoder,
    objective: Objective,
    feed: Feed,
    most: int | None = None,
    report: Callable[[float], None] | None = None,
) -> dict[str, Tally]:
    """The objective's loss and terms on the first pass of `feed`, by name, without dropout.

    Hidden words and negatives are drawn as in training, in batches of the same size, on which
    InfoNCE depends; the draws are the same each time. most: maximum number of batches. Processes
    that train together share each batch, and each has the result.
    """
    feed.load_state_dict({"epoch": 0, "position": 0})
    found = defaultdict(list)
    done = 0
    with evaluating(model) as device, seeded(SEED):
        while feed.epoch == 0 and done != most:
            if report:
                report(feed.fraction())
            batch = part(feed.next(), *gather.processes())
            estimate = objective(model, tensors(batch, device), None)
            for name, value in _of_all(estimate).items():
                found[name].append(value)
            done += 1
    return {name: Tally(*np.array(pairs, np.float64).T) for name, pairs in found.items()}


def _of_all(estimate: Estimate) -> dict[str, tuple[float, float]]:
    """Each value of a batch that the processes shared, and the count that it is a mean over.

    The losses of parts add up to the batch's.
    """
    values = {"loss": estimate.loss} | estimate.terms | {"loss": estimate.loss}
    own = {n: (float(v), float(estimate.per.get(n, estimate.count))) for n, v in values.items()}
    every = processes.everyones(own)
    if len(every) == 1:
        return own
    merged = {}
    for name in dict.fromkeys(name for each in every for name in each):
        parts = [each[name] for each in every if name in each]
        count = sum(n for _, n in parts)
        total = sum(value if name == "loss" else value * n for value, n in parts)
        merged[name] = (total if name == "loss" else total / max(count, 1), count)
    return merged


class AmongAll:
    """A masked objective whose hidden words are also predicted among all words.

    Adds to its terms `vocabulary_nll`, -ln p(b | a), and `accuracy`, the share of hidden words that
    are the likeliest of all, where a word tied with others counts 1 / their number; `ties` is
    the share of such words. log_q: (V,), ln of how likely each word was to be among the others.
    """

    def __init__(self, objective: Objective, log_q: Tensor) -> None:
        self.objective, self.log_q = objective, log_q

    def __call__(self, model: Encoder, batch: SequenceBatch, carry: Any) -> Estimate:
        estimate = self.objective(model, batch, carry)
        anchors = model.head(model(batch.tokens).flatten(0, 1)[batch.places])
        bias = (model.head.bias + self.log_q).to(anchors.dtype)
        losses, better, tied = [], [], []
        for rows, words in zip(anchors.split(ROWS), batch.words.split(ROWS), strict=True):
            scores = torch.addmm(bias, rows, model.embedding.T)
            own = words[:, None]
            losses.append(-scores.log_softmax(1).gather(1, own)[:, 0])
            above, equal = ties.standing(scores, scores.gather(1, own)[:, 0])
            better.append(above)
            tied.append(equal)
        estimate.terms[VOCABULARY_NLL] = torch.cat(losses).mean()
        estimate.terms["accuracy"] = ties.first(torch.cat(better), torch.cat(tied)).mean()
        estimate.terms[TIES] = (torch.cat(tied) > 1).float().mean()
        return estimate


def contrastive_measurements(
    found: Mapping[str, Tally], split: str, method: str, item: str, convention: str
) -> list[Measurement]:
    """The tallies as measurements.

    method: the candidates. item: the unit that the objective's loss is averaged over, such as
    "hidden token". e^vocabulary_nll is the perplexity of the hidden words. How many ties there
    were, if any, is part of the accuracy's convention.
    """
    all_words = ALL if VOCABULARY_NLL in found else method
    about = {  # of other units or methods
        "loss": ("nats, weighted sum", "objective"),
        "dim": ("nats per n-gram", "among the batch's n-grams"),
        "dim_information": ("nats per n-gram", "among the batch's n-grams"),
        "accuracy": (f"share of {item}s", all_words),
        "perplexity": (f"perplexity per {item}", all_words),
    }
    results = []
    for name, tally in found.items():
        if name == TIES:
            continue
        value, stderr = tally.mean, tally.stderr
        if name == VOCABULARY_NLL:
            name, value = "perplexity", math.exp(min(value, 700))
            stderr = None if stderr is None else value * stderr
        unit, told = about.get(name, (f"nats per {item}", method))
        count = int(tally.counts.sum())
        counted = convention
        if name == "accuracy" and (equal := _ties(found)):
            counted += (
                f"; the right one tied with others in {equal:,}: each counts 1 / their number"
            )
        results.append(Measurement(name, value, unit, stderr, count, split, told, counted))
    return results


def _ties(found: Mapping[str, Tally]) -> int:
    tally = found.get(TIES)
    return 0 if tally is None else round(float(tally.values @ tally.counts))
