"""A measurement: a number with unit, convention, tokens, standard error, split and method."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infolm import files
from infolm.errors import InfolmError, RunError
from infolm.metrics import Described, describe
from infolm.training import checkpoint
from infolm.trees import encodable, fits

CONVENTION = (
    "every token of the split but the first is predicted, <eos> included; the losses are summed "
    "and divided by the number of what the unit names"
)
EPISODIC = (
    "each sentence is predicted by itself, from <eos> and a state of zeros, so every token of the "
    "split is, the first and <eos> included; the losses are summed and divided by the number of "
    "what the unit names"
)
OF_TEXT = (
    "the text is read behind an <eos>, so every token of it is predicted, the first and the <eos> "
    "of each line included; the losses are summed and divided by the number of what the unit names"
)
BLOCKS = 100
"""Blocks of the batch-means standard error."""

describe(
    "language",
    Described("perplexity", unit="perplexity per token", decimals=2, better="down"),
    Described("bits_per_character", unit="bits per character", better="down"),
    Described("bits_per_byte", unit="bits per byte", better="down"),
    Described("word_perplexity", unit="perplexity per word and <eos>", decimals=2, better="down"),
    Described(
        "nll_above_entropy",
        unit="nats per token",
        better="down",
        meaning="nll less that of the language that the text was drawn from",
        heading="above the entropy",
    ),
    Described("true_entropy", unit="nats per token", meaning="entropy of the language itself"),
)


@dataclass(frozen=True)
class Measurement:
    """One result of an evaluation.

    stderr: the standard error of `value` as an estimate for the kind of text of the split; None if
    there are too few tokens.
    """

    metric: str
    value: float
    unit: str
    stderr: float | None
    tokens: int
    split: str
    method: str
    convention: str


@dataclass(frozen=True)
class TextSize:
    """The length of the raw text of the predicted tokens, if they spell it out exactly.

    words: separated by white space, plus one <eos> per line; None if the text has no blanks.
    """

    characters: int
    bytes: int
    words: int | None = None


def standard_error(losses: npt.NDArray[np.float64]) -> float | None:
    """Standard error of the mean of neighbouring, dependent losses, by batch means.

    The sequence is cut into `BLOCKS` blocks, longer than the dependence between tokens; the
    spread of their means gives the error. None for fewer than ten tokens per block.
    """
    size = len(losses) // BLOCKS
    if size < 10:
        return None
    means = losses[: size * BLOCKS].reshape(BLOCKS, size).mean(1)
    return float(means.std(ddof=1) / math.sqrt(BLOCKS))


def likelihood_measurements(
    log_probs: npt.NDArray[np.float64],
    split: str,
    method: str,
    text: TextSize | None = None,
    true: npt.NDArray[np.float64] | None = None,
    convention: str = CONVENTION,
) -> list[Measurement]:
    """All measurements from the log-probabilities (N,) of a split's tokens, in nats.

        nll = -1/N sum ln p           perplexity = exp(nll)
        bits per character (byte) = nll N / (ln 2 x characters (bytes) of the predicted text)
        word perplexity = exp(nll N / words of the text)

        nll above entropy = 1/N sum (ln p_true - ln p)

    The bits and the word perplexity are given if `text` is: if the tokens determine the text (and
    are not words). The first token of a stream is not predicted, though its word counts: one
    character's loss is missing from the sum. `true` (N,) are the same tokens' log-probabilities
    under the language they were drawn from, if known. The mean of the differences estimates the
    divergence KL(language || model) per token, which is the cross entropy less the entropy of the
    language; since a token improbable to one is improbable to both, its standard error is far
    smaller than that of the nll.
    """
    losses = -np.asarray(log_probs, dtype=np.float64)
    count = len(losses)
    nll, error = float(losses.mean()), standard_error(losses)

    def measure(metric: str, value: float, slope: float, unit: str) -> Measurement:
        stderr = None if error is None else abs(slope) * error
        return Measurement(metric, value, unit, stderr, count, split, method, convention)

    perplexity = math.exp(min(nll, 700))
    results = [
        measure("nll", nll, 1.0, "nats per token"),
        measure("perplexity", perplexity, perplexity, "perplexity per token"),
    ]
    if text is not None:
        for name, length in (("character", text.characters), ("byte", text.bytes)):
            scale = count / (length * math.log(2))
            results.append(measure(f"bits_per_{name}", nll * scale, scale, f"bits per {name}"))
        if text.words:
            scale = count / text.words
            value = math.exp(min(nll * scale, 700))
            results.append(
                measure("word_perplexity", value, scale * value, "perplexity per word and <eos>")
            )
    if true is not None:
        above = losses + true
        value, error = float(above.mean()), standard_error(above)
        results.append(measure("nll_above_entropy", value, 1.0, "nats per token"))
    return results


def language_measurements(
    true: npt.NDArray[np.float64], entropy: float, split: str, method: str
) -> list[Measurement]:
    """The language itself as a model of a split, and its entropy, which is exact."""
    exact = ("true_entropy", entropy, "nats per token", 0.0, len(true), split, method, CONVENTION)
    return [*likelihood_measurements(true, split, method), Measurement(*exact)]


def as_json(measurements: Sequence[Measurement]) -> str:
    return json.dumps([asdict(measurement) for measurement in measurements], indent=2)


def read(path: Path) -> list[Measurement]:
    """The measurements in a file; empty if there is no file."""
    if not path.exists():
        return []
    try:
        return [_checked(**entry) for entry in json.loads(path.read_bytes())]
    except (ValueError, TypeError, RecursionError) as error:
        raise InfolmError(
            f"{path} holds no measurements ({error}): `infolm repair {path.parent}` moves it away"
        ) from error


def _checked(**entry: Any) -> Measurement:
    found = Measurement(**entry)
    words = (found.metric, found.unit, found.split, found.method, found.convention)
    numbers = (found.value, found.tokens, 0.0 if found.stderr is None else found.stderr)
    if not fits(tuple[str, ...], words) or not all(map(encodable, words)):
        raise TypeError("an entry has no words where they should be")
    if not fits(tuple[float, ...], numbers):
        raise TypeError(f"the entry {found.metric} has no numbers where they should be")
    return found


def merge(old: Sequence[Measurement], new: Sequence[Measurement]) -> list[Measurement]:
    """`new` after those of `old` that it does not replace (same metric, split and method)."""
    replaced = {(m.metric, m.split, m.method) for m in new}
    return [m for m in old if (m.metric, m.split, m.method) not in replaced] + list(new)


class NotKeptError(RunError):
    """The measurements could not be written; they are attached."""

    def __init__(self, message: str, measurements: Sequence[Measurement]) -> None:
        super().__init__(message)
        self.measurements = list(measurements)


def keep(path: Path, new: Sequence[Measurement]) -> None:
    """Add measurements to a file atomically; see `merge`. Other processes may do so at the same
    time."""
    try:
        with files.held(path):
            text = as_json(merge(read(path), new))
            checkpoint.atomically(
                path, lambda temporary: temporary.write_text(text, encoding="utf-8")
            )
    except InfolmError as error:
        raise NotKeptError(f"the measurements could not be saved: {error}", new) from error
