"""Monte Carlo dropout: a text's probability averaged over dropout masks.

Gal and Ghahramani (2016), as Melis et al. (2018, 2020) use it: with masks m_1 ... m_M,

    p(w_t | w_<t) = 1/M sum_i p(w_t | w_<t, m_i),

where sample i reads the whole text with its own state. A mask lasts for a chunk of the text, as in
training, and is then redrawn. With one sample and all rates zero this is the model itself.

A softmax's temperature acts within each sample, before the average.

With dynamic evaluation a mask lasts for a segment, and the weights adapt in one of two ways. `own`:
each sample has its own weights, updated by its own gradient under its masks; the average is over M
dynamic evaluations (Melis et al. 2020). `shared`: all samples use weights adapted by the gradient
without dropout, which is cheaper.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt
import torch
from torch import Tensor

from infolm.errors import InfolmError
from infolm.evaluation.likelihood import PLAIN, Chunk, Progress, cuts, tempered
from infolm.models.language import LanguageModel
from infolm.nn.softmax import Tempering

AdaptedBy = Literal["own", "shared"]
"""The gradient that updates a sample's weights in dynamic evaluation."""

ELEMENTS = 2**25
"""Most outputs of a layer at once, for samples read in parallel."""


@dataclass(frozen=True)
class MonteCarloSettings:
    """samples: M. rate: the factor of every dropout rate. span: tokens per mask.

    In dynamic evaluation a mask lasts for a segment instead, and `adaptation` names the gradient
    that updates a sample's weights.
    """

    samples: int = 200
    rate: float = 1.0
    span: int = 70
    seed: int = 1
    adaptation: AdaptedBy = "own"

    def __post_init__(self) -> None:
        if self.samples < 1 or self.span < 1 or not 0 <= self.rate < math.inf:
            raise InfolmError(
                "Monte Carlo dropout needs 1 mask or more, which last for 1 token or more, and a "
                f"factor of 0 or more on the rates, not {self.samples}, {self.span} and {self.rate}"
            )


class MonteCarlo:
    """The M samples during a walk through one text.

    Samples are read in parallel as columns of a batch. Dropout of whole words and of weights has
    one mask for a batch: a model with those reads its samples one after the other.
    """

    def __init__(self, model: LanguageModel, settings: MonteCarloSettings) -> None:
        self.model, self.settings = model, settings
        columns = 1 if model.one_mask else max(1, ELEMENTS // (settings.span * model.activations))
        self._sizes = [columns] * (settings.samples // columns)
        self._sizes += [settings.samples % columns] if settings.samples % columns else []
        self._states = [model.initial_state(size) for size in self._sizes]
        self._seeds = torch.Generator().manual_seed(settings.seed)
        self._tokens = 0
        self._shares = torch.zeros((), dtype=torch.float64)  # (K, M), sums over tokens of p_i / p

    @torch.inference_mode()
    def read(
        self,
        inputs: Tensor,
        targets: Tensor,
        temperatures: Sequence[float],
        tempering: Tempering = "mixture",
    ) -> Chunk:
        """Read a chunk, inputs (T,) and targets (T,), under new masks.

        Its `hidden` is the mean over the samples of the output before its dropout.
        """
        parts, hidden = [], inputs.new_zeros(())
        with self.dropping(self._seeds):
            for i, (columns, state) in enumerate(zip(self._sizes, self._states, strict=True)):
                output = self.model(inputs[:, None].expand(-1, columns), state)
                self._states[i] = output.state
                wide = targets[:, None].expand(-1, columns)
                parts.append(tempered(self.model, output.dropped, wide, temperatures, tempering))
                hidden = hidden + output.hidden.sum(1)
        return self.averaged(torch.cat(parts, 2), hidden, targets)

    def averaged(self, log_p: Tensor, hidden: Tensor, targets: Tensor) -> Chunk:
        """The cut that the samples read with log_p (K, T, M); hidden (T, H), summed over them."""
        mean = log_p.logsumexp(2) - math.log(log_p.shape[2])
        self._tokens += len(targets)
        shares = (log_p - mean[..., None]).exp().sum(1, dtype=torch.float64)
        self._shares = self._shares + shares.cpu()
        return Chunk(mean, hidden / log_p.shape[2], targets)

    def standard_errors(self) -> list[float] | None:
        """The standard error of the mean loss so far, at each temperature, as an estimate for
        infinitely many samples; None for one sample.

        To first order the error of ln(1/M sum_i p_i) is the mean over i of p_i / p - 1. Averaged
        over the tokens, this is one number per sample, and the samples are independent.
        """
        if self.settings.samples < 2:
            return None
        spread = (self._shares / self._tokens).std(1)
        return (spread / math.sqrt(self.settings.samples)).tolist()

    def generators(self) -> list[torch.Generator]:
        """The seeds of the masks of each sample, where each reads the text by itself."""
        firsts = torch.randint(2**62, (self.settings.samples,), generator=self._seeds)
        return [torch.Generator().manual_seed(first) for first in firsts.tolist()]

    @contextmanager
    def dropping(self, seeds: torch.Generator) -> Iterator[None]:
        """Dropout on at its scaled rates, with the next of `seeds`; restored afterwards."""
        training = self.model.training
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with torch.random.fork_rng(devices), self.model.dropout_scaled(self.settings.rate):
            torch.manual_seed(int(torch.randint(2**62, (), generator=seeds)))
            self.model.train()
            try:
                yield
            finally:
                self.model.train(training)


def monte_carlo_stream(
    samples: MonteCarlo,
    tokens: npt.NDArray[Any],
    temperatures: Sequence[float] = PLAIN,
    report: Progress | None = None,
    tempering: Tempering = "mixture",
) -> Generator[Chunk]:
    """Walk through `tokens` (N,) once with all samples, as `one_stream` does with the model."""
    device = samples.model.device
    for inputs, targets in cuts(tokens, samples.settings.span, device, report):
        yield samples.read(inputs, targets, temperatures, tempering)
