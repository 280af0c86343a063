"""Episodic evaluation: the probability of each sentence by itself."""

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infolm.data.episodes import group, sentence_bounds
from infolm.errors import InfolmError
from infolm.evaluation.likelihood import Progress, evaluating
from infolm.models.language import LanguageModel
from infolm.nn import gather
from infolm.nn.softmax import Tempering

AREA = 4096
"""Tokens and padding of a batch."""


class Episode(NamedTuple):
    """The counted tokens of some sentences: hidden (n, H) predicted targets (n,), at `places` (n,)
    of the text."""

    hidden: Tensor
    targets: Tensor
    places: npt.NDArray[np.int64]


def episodes(
    model: LanguageModel,
    tokens: npt.NDArray[Any],
    eos: int,
    after: int | None = None,
    report: Progress | None = None,
    turn: tuple[int, int] = (0, 1),
) -> Iterator[Episode]:
    """Read each sentence w_1 ... w_n <eos> of `tokens` (N,) as <eos> w_1 ... w_n, from zeros.

    Every token is a target, also the first. With `after`, only those after that token's first
    occurrence in a sentence are. Sentences of similar length are batched with padding, which
    changes only the speed and the order. turn: (r, W), only the r-th of every W batches.
    """
    bounds = sentence_bounds(tokens, eos)
    starts, lengths = bounds[:-1], np.diff(bounds)
    order = np.argsort(lengths, kind="stable")
    edges = group(lengths[order], AREA)
    device, done = model.device, 0
    for first, end in islice(pairwise(edges), turn[0], None, turn[1]):
        members = order[first:end]
        places = starts[members] + np.arange(lengths[members].max())[:, None]  # (T, B)
        counted = places < starts[members] + lengths[members]
        # After the end of a sentence comes <eos>, which is read there but is not a target.
        targets = np.full(places.shape, eos)
        targets[counted] = tokens[places[counted]]
        inputs = np.concatenate([np.full((1, len(members)), eos), targets[:-1]])
        if after is not None:
            counted &= np.logical_or.accumulate(inputs == after)
        with evaluating(model):
            output = model(torch.from_numpy(inputs).to(device), model.initial_state(len(members)))
            hidden = output.hidden[torch.from_numpy(counted).to(device)]
        yield Episode(hidden, torch.from_numpy(targets[counted]).to(device), places[counted])
        done += int(lengths[members].sum())
        if report:
            report(done, len(tokens))


def episodic_log_probs(
    model: LanguageModel,
    tokens: npt.NDArray[Any],
    eos: int,
    after: int | None = None,
    temperature: float = 1.0,
    report: Progress | None = None,
    tempering: Tempering = "mixture",
) -> npt.NDArray[np.float64]:
    """ln p of every counted token in the order of the text: (N,), or fewer with `after`.

    Processes that train together share the sentences, and each has the result.
    """
    log_p, counted = np.zeros(len(tokens)), np.zeros(len(tokens), dtype=np.int32)
    for hidden, targets, places in episodes(model, tokens, eos, after, report, gather.processes()):
        found = model.log_prob(hidden, targets, temperature, tempering)
        log_p[places] = found.cpu().double().numpy()
        counted[places] = True
    for array in (log_p, counted):
        gather.summed(torch.from_numpy(array))
    if not counted.any():
        raise InfolmError("no token of this text counts: none follows the token of feed.after")
    return log_p[counted > 0]
