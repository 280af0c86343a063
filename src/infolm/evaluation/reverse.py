"""Reverse perplexity: real text under a model trained on generated text (Zhao et al. 2018;
BMI, section 5.1).

    reverse perplexity = exp(-1/N sum_t ln q(x_t | x_<t)),  x the real split, q learnt from the text

If a model has the variety of the language, a new model q learns nearly as much from its text as
from real text of that length. If it leaves out words or phrases, q learns less, however good the
model's own perplexity.

The new model, the yardstick, is the same for every text, so that perplexities are comparable. By
default it is one layer that trains in minutes; a larger one learns more from a long text. It starts
from the words' frequencies. The number of passes is chosen on a held-out part of the same text; the
real splits are not used.
"""

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning_fabric import Fabric

from infolm.averaging.ema import Ema, EmaConfig
from infolm.data.corpora import unigram_counts
from infolm.data.stream import Stream, StreamConfig
from infolm.errors import InfolmError, Interrupted
from infolm.evaluation.likelihood import Progress, log_probs, parallel_log_probs
from infolm.evaluation.measurement import (
    CONVENTION,
    Measurement,
    TextSize,
    likelihood_measurements,
)
from infolm.metrics import Described, describe
from infolm.models.recurrent import DropoutConfig, RecurrentConfig, RecurrentModel
from infolm.objectives.likelihood import Likelihood, LikelihoodConfig
from infolm.optimisation.optimisers import AdamConfig
from infolm.optimisation.schedule import Schedule
from infolm.training import checkpoint
from infolm.training.loop import Loop, Term, TrainConfig, Validation
from infolm.training.run import RunFolder

LEAST_TOKENS = 10_000
"""Least tokens of a text for a comparable result."""
HELD_OUT = 10
"""One row in this many is held out for early stopping."""
WARM_UP = 70
"""Tokens that each parallel stream of the held-out part reads before it counts."""
CHUNK = 200
REVERSE = f"{CONVENTION}; the error is that of the split, not of the text that was learnt from"
describe(
    "language",
    Described("reverse_perplexity", unit="perplexity per token", decimals=2, better="down"),
    Described("reverse_nll", unit="nats per token", better="down"),
)

FEED = StreamConfig(batch=20, bptt=35)
AVERAGING = EmaConfig(beta=0.99)
TRAIN = TrainConfig(epochs=5, validation_streams=20, checkpoint_seconds=1e9, recover=True)

Rows = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Yardstick:
    """The size of the new model: LSTM layers and units; embeddings have as many.

    Adam's rate falls as the units grow, or wide models would diverge.
    """

    layers: int = 1
    units: int = 100

    @classmethod
    def parse(cls, text: str) -> "Yardstick":
        """From '2x650', layers and units, or '650', the units of one layer."""
        found = re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)", text)
        if not found:
            raise InfolmError(f"'{text}' is not the size of an LSTM: try 2x650, or 650 for 1x650")
        return cls(int(found[1] or 1), int(found[2]))

    @property
    def model(self) -> RecurrentConfig:
        return RecurrentConfig(
            layers=self.layers,
            embedding=self.units,
            hidden=self.units,
            dropout=DropoutConfig(input=0.3, output=0.3),
        )

    @property
    def optimiser(self) -> AdamConfig:
        return AdamConfig(learning_rate=1 / self.units, clip=1.0)


SMALL = Yardstick()


def yardstick(
    text: Rows,
    types: int,
    seed: int,
    fabric: Fabric,
    progress: Progress | None = None,
    size: Yardstick = SMALL,
) -> RecurrentModel:
    """A fresh model trained on `text` (S, T), S rows that follow each other, of `types` types.

    One row in `HELD_OUT` is held out: the pass that is best on these is kept. Nothing but
    the text and the seed decides the result.
    """
    held_out = np.arange(len(text)) % HELD_OUT == 0
    train, valid = text[~held_out].reshape(-1), text[held_out].reshape(-1)
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(seed)
        model = RecurrentModel(size.model, types)
        model.softmax.begin_with(torch.from_numpy(unigram_counts(train, types)))
        fabric.to_device(model)
        streams = TRAIN.validation_streams
        loop = Loop(
            fabric,
            model,
            [Term("likelihood", Stream(train, FEED, seed), Likelihood(LikelihoodConfig()))],
            size.optimiser.build(model.parameters()),
            Schedule(size.optimiser.schedule),
            Ema(model, AVERAGING),
            lambda: Validation(
                -float(parallel_log_probs(model, valid, streams, WARM_UP, CHUNK).mean())
            ),
            TRAIN,
            size.optimiser.clip,
            RunFolder(Path(folder)),
            _Watcher(progress),
        )
        try:
            loop.run()
        except Interrupted:
            raise KeyboardInterrupt from None
        checkpoint.load_weights(RunFolder(Path(folder)).model, model)
    return model.eval()


def stretches(tokens: Rows, rows: int, length: int) -> Rows:
    """Blocks of a text (N,) as rows, (rows, length), rows >= 2 and N >= rows length.

    They are spread evenly, from its first token to its last: its beginning may be about one subject
    only, while generated text is about all of them.
    """
    starts = np.arange(rows) * (len(tokens) - length) // (rows - 1)
    return np.stack([tokens[start : start + length] for start in starts])


class _Watcher:
    """A training loop's progress as that of one stage, in thousandths."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress

    def step(self, progress: float, nll: float, tokens: int) -> None:
        if self.progress:
            self.progress(round(1000 * progress), 1000)

    def validated(self, step: int, progress: float, loss: float) -> None:
        pass

    def say(self, text: str) -> None:
        pass


def reverse_measurements(
    model: RecurrentModel,
    tokens: Rows,
    split: str,
    source: str,
    text: TextSize | None,
    true: npt.NDArray[np.float64] | None,
    progress: Progress | None = None,
) -> list[Measurement]:
    """Measure a yardstick on a real split's `tokens` (N,): `likelihood_measurements`, each name
    with `reverse_` before it. source: its training text, as in the method's name."""
    log_p = log_probs(model, tokens, CHUNK, progress)
    weights = sum(parameter.numel() for parameter in model.parameters())
    method = f"an LSTM of {weights:,} weights that learnt from {source}"
    measured = likelihood_measurements(log_p, split, method, text, true, REVERSE)
    return [replace(each, metric=f"reverse_{each.metric}") for each in measured]
