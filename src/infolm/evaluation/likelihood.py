"""The log-probability of a text under a model: one carried stream, or several in parallel."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infolm.models.base import Model
from infolm.models.language import LanguageModel
from infolm.nn import gather
from infolm.nn.softmax import Tempering

Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all)."""

PLAIN = (1.0,)
"""The plain softmax: one temperature, 1."""


class Chunk(NamedTuple):
    """The results of a pass over a text for T neighbouring tokens.

    log_probs: (K, T), ln p(target | all before) at each of K temperatures of the softmax.
    hidden: (T, H), the output that predicted each target. targets: (T,).
    """

    log_probs: Tensor
    hidden: Tensor
    targets: Tensor


@contextmanager
def evaluating(model: Model) -> Iterator[torch.device]:
    """Inside, dropout and gradients are off; the mode is restored afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield model.device
    finally:
        model.train(training)


def cuts(
    tokens: npt.NDArray[Any], length: int, device: torch.device, report: Progress | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """The stream `tokens` (N,) as inputs (T,) and targets (T,), T = `length` except at the end.

    Every token but the first is a target once. `report` is called for a chunk when the next is
    requested.
    """
    total = len(tokens) - 1
    for start in range(0, total, length):
        end = min(start + length, total)
        cut = torch.from_numpy(tokens[start : end + 1].astype(np.int64)).to(device)
        yield cut[:-1], cut[1:]
        if report:
            report(end, total)


def tempered(
    model: LanguageModel,
    x: Tensor,
    targets: Tensor,
    temperatures: Sequence[float],
    tempering: Tempering = "mixture",
) -> Tensor:
    """ln p(target | x) at each temperature: (..., H), (...) -> (K, ...)."""
    return torch.stack([model.log_prob(x, targets, tau, tempering) for tau in temperatures])


def one_stream(
    model: LanguageModel,
    tokens: npt.NDArray[Any],
    chunk: int,
    temperatures: Sequence[float] = PLAIN,
    report: Progress | None = None,
    tempering: Tempering = "mixture",
) -> Generator[Chunk]:
    """Walk through `tokens` (N,) once, the state carried from chunk to chunk.

    The numbers depend on `chunk` only by rounding.
    """
    state = model.initial_state(1)
    for inputs, targets in cuts(tokens, chunk, model.device, report):
        with evaluating(model):
            output = model(inputs[:, None], state)
            state = output.state
            hidden = output.hidden[:, 0]
            log_probs = tempered(model, hidden, targets, temperatures, tempering)
        yield Chunk(log_probs, hidden, targets)


def log_probs(
    model: LanguageModel,
    tokens: npt.NDArray[Any],
    chunk: int,
    report: Progress | None = None,
) -> npt.NDArray[np.float64]:
    """ln p of every token but the first, (N - 1,): exact."""
    chunks = one_stream(model, tokens, chunk, report=report)
    return np.concatenate([chunk.log_probs[0].cpu().double().numpy() for chunk in chunks])


def parallel_log_probs(
    model: LanguageModel,
    tokens: npt.NDArray[Any],
    streams: int,
    warm_up: int,
    chunk: int,
    report: Progress | None = None,
) -> npt.NDArray[np.float64]:
    """The same, approximately: the text cut into `streams` parts that are read in parallel.

    Each part is preceded by the `warm_up` tokens before it, which are read but not counted, so that
    its state is nearly that of one stream. One stream is exact. Processes that train together share
    the streams, and each has the result.
    """
    rank, processes = gather.processes()
    total = len(tokens) - 1
    length = -(-total // streams)  # targets a stream, rounded up
    streams = -(-total // length)  # so that none is empty
    warm_up = min(warm_up, length)
    tokens = np.asarray(tokens)
    starts = length * np.arange(rank, streams, processes)  # of this process
    log_probs = np.zeros((streams, length))
    with evaluating(model) as device:

        def read(first: int, end: int, begin: Any, state: Any) -> tuple[Tensor, Any]:
            """ln p of the tokens after places [begin + first, begin + end) of each stream."""
            # Past the end of the text the last token is read again, and left out below.
            places = np.minimum(np.arange(first, end + 1)[:, None] + begin, total)
            cut = torch.from_numpy(tokens[places].astype(np.int64)).to(device)
            output = model(cut[:-1], state)
            return model.log_prob(output.hidden, cut[1:]), output.state

        state = model.initial_state(1)
        preceded = starts[starts > 0]
        if len(preceded):
            warm = model.initial_state(len(preceded))
            for first in range(-warm_up, 0, chunk):
                _, warm = read(first, min(first + chunk, 0), preceded, warm)
            state = warm if rank else model.joined([state, warm])
        for first in range(0, length if len(starts) else 0, chunk):
            end = min(first + chunk, length)
            log_p, state = read(first, end, starts, state)
            log_probs[rank::processes, first:end] = log_p.cpu().double().numpy().T
            if report:
                report(min((first + chunk) * streams, total), total)
        gather.summed(torch.from_numpy(log_probs))
    return log_probs.reshape(-1)[:total]
