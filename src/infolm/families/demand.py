"""The memory and time that a recipe needs, computed from its settings before allocation.

    memory >= 4 bytes x (parameters x (2 + copies of the optimiser + copies of the averager)
                         + tokens of a batch x rows of the layers' matrices)

The 2 stands for the parameters and their gradients; `rows` is each layer's output per token, kept
for the backward pass. The softmax is computed in parts and left out. So the memory is a lower
bound, and a refused recipe could never run. A step processes each parameter tensor separately,
forward and backward, which takes some time however small it is.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from infolm.config import Recipe
from infolm.errors import InfolmError
from infolm.models.base import Size

MOST_TENSORS = 20_000
"""More parameter tensors than any real model has; one of 100 layers has about 1,000."""
OVERHEAD = 1e-5
"""Least seconds per tensor in a step, forward and backward."""

UNCOUNTED = 2**61
"""Stands for more parameters than PyTorch can count."""


@dataclass(frozen=True)
class Demand:
    """parameters, tensors: of the model. activations: numbers kept per batch for the backward pass.
    copies: numbers kept per parameter, including itself."""

    parameters: int
    tensors: int
    activations: int = 0
    copies: int = 1

    @property
    def bytes(self) -> int:
        return 4 * (self.parameters * self.copies + self.activations)

    @property
    def seconds(self) -> float:
        """Seconds of a step of one token."""
        return OVERHEAD * self.tensors


def of_model(recipe: Recipe, types: int) -> Demand:
    """The demand of the parameters alone, with a vocabulary of this size."""
    size = _size(recipe, types)
    return Demand(size.parameters, size.tensors)


def of_training(recipe: Recipe, types: int, tokens: int) -> Demand:
    """The demand of training on a text of this many tokens."""
    size = _size(recipe, types)
    copies = 2 + recipe.optimiser.copies + recipe.averaging.copies
    activations = min(recipe.feed.tokens, tokens) * size.rows
    return Demand(size.parameters, size.tensors, activations, copies)


def _size(recipe: Recipe, types: int) -> Size:
    try:
        return recipe.model.size_of(types)
    except (RuntimeError, OverflowError, MemoryError):
        return Size(UNCOUNTED, 1, 0)


def refuse_giants(demand: Demand) -> None:
    """Refuse a recipe that does not fit in memory or whose steps would never end."""
    has, weights = memory(), 4 * demand.parameters
    if weights > has:
        raise InfolmError(
            f"the model's parameters take {_gigabytes(weights)} GB, and this computer has "
            f"{_gigabytes(has)}: lower sizes such as model.hidden, model.embedding or "
            "data.vocabulary"
        )
    if demand.bytes > has:
        raise InfolmError(
            f"training takes at least {_gigabytes(demand.bytes)} GB of memory "
            f"({_gigabytes(weights * demand.copies)} for {demand.parameters:,} parameters with "
            f"their gradients, optimiser and averages, {_gigabytes(4 * demand.activations)} for a "
            f"batch), and this computer has {_gigabytes(has)}: lower sizes such as feed.batch, "
            "feed.bptt, feed.length or model.hidden"
        )
    if demand.tensors > MOST_TENSORS:
        raise InfolmError(
            f"the model has {demand.tensors:,} parameter tensors, which are computed one after "
            f"another, in at least {demand.seconds:,.1f} seconds for each token of a text, and the "
            f"limit is {MOST_TENSORS:,}: lower numbers such as model.layers or "
            "model.mogrifier.rounds"
        )


def _gigabytes(size: int) -> str:
    if size >= 4 * UNCOUNTED:
        return f"more than {size / 2**30:,.0f}"
    return f"{size / 2**30:,.0f}" if size >= 10 * 2**30 else f"{size / 2**30:,.2f}"


def memory() -> int:
    """Bytes of memory available to this process: the computer's, or fewer in a container; a huge
    number if the system does not say."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        found = 2**62
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found = min(found, int(Path(limit).read_text()))
        except (OSError, ValueError):  # "max", or no such file
            continue
    return found
