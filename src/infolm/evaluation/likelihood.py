"""How probable a model finds a text: one carried stream, or several in parallel."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infolm.models.recurrent import RecurrentModel

Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all)."""


@contextmanager
def evaluating(model: RecurrentModel) -> Iterator[torch.device]:
    """Dropout off and no gradients inside; the mode is put back after."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield model.embedding.device
    finally:
        model.train(training)


def one_stream(
    model: RecurrentModel, tokens: npt.NDArray[Any], chunk: int, report: Progress | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Walk through `tokens` (N,) once, the state carried from chunk to chunk.

    Gives, for each chunk of T targets, ln p(target | all before) (T,), the last layer's output
    that predicted it (T, E) and the targets (T,). Every token but the first is a target; the
    numbers do not depend on `chunk` but for rounding.
    """
    with evaluating(model) as device:
        state = model.initial_state(1)
        total = len(tokens) - 1
        for start in range(0, total, chunk):
            cut = torch.from_numpy(tokens[start : start + chunk + 1].astype(np.int64)).to(device)
            cut = cut[: total - start + 1]
            targets = cut[1:]
            output = model(cut[:-1, None], state)
            state = output.state
            yield model.log_prob(output.hidden[:, 0], targets), output.hidden[:, 0], targets
            if report:
                report(min(start + chunk, total), total)


def log_probs(
    model: RecurrentModel, tokens: npt.NDArray[Any], chunk: int, report: Progress | None = None
) -> npt.NDArray[np.float64]:
    """ln p of every token but the first, (N - 1,): exact."""
    chunks = one_stream(model, tokens, chunk, report)
    return np.concatenate([log_p.cpu().double().numpy() for log_p, *_ in chunks])


def parallel_log_probs(
    model: RecurrentModel,
    tokens: npt.NDArray[Any],
    streams: int,
    warm_up: int,
    chunk: int,
    report: Progress | None = None,
) -> npt.NDArray[np.float64]:
    """The same, approximately: the text cut into `streams` parts that are read side by side.

    Each part is preceded by the `warm_up` tokens before it, which are read but not counted, so that
    its state is nearly what one stream would have carried there. One stream is exact.
    """
    total = len(tokens) - 1
    length = -(-total // streams)  # targets a stream, rounded up
    streams = -(-total // length)  # so that none is empty
    warm_up = min(warm_up, length)
    tokens = np.asarray(tokens)
    starts = length * np.arange(streams)
    with evaluating(model) as device:

        def read(first: int, end: int, begin: Any, state: Any) -> tuple[Tensor, Any]:
            """ln p of the tokens after places [begin + first, begin + end) of each stream."""
            # Past the end of the text the last token is read again, and left out below.
            places = np.minimum(np.arange(first, end + 1)[:, None] + begin, total)
            cut = torch.from_numpy(tokens[places].astype(np.int64)).to(device)
            output = model(cut[:-1], state)
            return model.log_prob(output.hidden, cut[1:]), output.state

        state = model.initial_state(1)
        if streams > 1:
            warm = model.initial_state(streams - 1)
            for first in range(-warm_up, 0, chunk):
                _, warm = read(first, min(first + chunk, 0), starts[1:], warm)
            state = [
                (torch.cat([h0, h], 1), torch.cat([c0, c], 1))
                for (h0, c0), (h, c) in zip(state, warm, strict=True)
            ]
        rows = []
        for first in range(0, length, chunk):
            log_p, state = read(first, min(first + chunk, length), starts, state)
            rows.append(log_p.cpu().double().numpy())
            if report:
                report(min((first + chunk) * streams, total), total)
    return np.concatenate(rows).T.reshape(-1)[:total]
