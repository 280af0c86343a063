"""Whether a decoder uses its codes. An encoder can distinguish all sentences while the decoder
ignores the codes: then a sentence is as likely given another's code, and all codes decode to the
same text.

Each quantity is a mean over sentences with its standard error, so that few sentences are not
over-interpreted.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from infolm.evaluation.bleu import sentence_bleu
from infolm.evaluation.latent import Array
from infolm.evaluation.measurement import Measurement
from infolm.metrics import Described, describe

describe(
    "latent",
    Described("bleu_shuffled", "BLEU of another's reconstruction", "BLEU-1", 3),
    Described("distinct_reconstructions", "different reconstructions", "share", 3, "up"),
)


class Mean(NamedTuple):
    """Over S sentences, and its standard error, infinite for one sentence."""

    value: float
    stderr: float


def mean(values: Array) -> Mean:
    """Of values (S,), S > 0."""
    count = len(values)
    stderr = float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else math.inf
    return Mean(float(values.mean()), stderr)


def gain(own: Array, other: Array) -> Mean:
    """How much likelier a sentence is given its own code than given another's, in nats: the mean of

        ln p(x_i | z_i) - 1/C sum_c ln p(x_i | z_{j_c})

    own (S,), and other (C S,): of every sentence with a first other, then with a second. 0 if the
    decoder ignores the code.
    """
    return mean(own - other.reshape(-1, len(own)).mean(0))


@dataclass(frozen=True)
class Reading:
    """Statistics of S sentences and their reconstructions.

    written: the number of different reconstructions. distinct: that over the possible number, about
    1/S if the code has no effect. bleu: the mean BLEU-1 of a sentence and its own reconstruction.
    shuffled: that of a sentence and another's. difference: of the two, for each sentence.
    """

    sentences: int
    written: int
    distinct: float
    bleu: Mean
    shuffled: Mean
    difference: Mean


def reading(
    written: Sequence[Sequence[Hashable]],
    sentences: Sequence[Sequence[Hashable]],
    codes: int | None = None,
    others: int = 3,
    seed: int = 1,
) -> Reading:
    """Of S > 1 sentences, and what was written from the code of each. Each stands beside its own
    reconstruction and those of `others`, fewer where there are fewer sentences.

    codes: how many different ones the sentences have, if there are fewer than sentences: no more
    than that can be written from them.
    """
    count = len(sentences)
    shifts = np.random.default_rng(seed).choice(count - 1, min(others, count - 1), False) + 1

    def scores(shift: int) -> Array:
        rolled = (written[(i + shift) % count] for i in range(count))
        return np.array([sentence_bleu(*pair) for pair in zip(rolled, sentences, strict=True)])

    own = scores(0)
    shuffled = np.mean([scores(int(shift)) for shift in shifts], 0)
    different, possible = (len(set(map(tuple, side))) for side in (written, sentences))
    share = different / min(possible, codes or possible)
    return Reading(count, different, share, mean(own), mean(shuffled), mean(own - shuffled))


def reading_measurements(
    written: Sequence[Sequence[Hashable]],
    sentences: Sequence[Sequence[Hashable]],
    split: str,
    method: str,
    how: str,
    codes: int | None = None,
    seed: int = 1,
) -> list[Measurement]:
    """`bleu_shuffled` and `distinct_reconstructions`, which say what a BLEU is worth. how: what was
    written from what. codes: see `reading`."""
    found = reading(written, sentences, codes, seed=seed)
    value, error = found.shuffled
    tail = sum(map(len, sentences)), split, method
    told = f"{len(sentences):,} sentences written anew, {how}"
    shuffled = f"the mean BLEU-1 of a sentence and another's reconstruction; {told}, without <eos>"
    possible = "sentences" if codes is None else "sentences or codes, whichever are fewer"
    distinct = f"different reconstructions over different {possible}; {told}"
    return [
        Measurement("bleu_shuffled", value, "BLEU-1", error, *tail, shuffled),
        Measurement("distinct_reconstructions", found.distinct, "share", None, *tail, distinct),
    ]
