"""Random numbers of a part of a batch, equal to those of the whole batch.

If a batch is divided among processes, or read part by part, every mask and every code is drawn for
the whole batch, from a generator that all parts share, and a part takes those of its columns. So
the parts together do what one process does with the whole. Numbers without the batch's column
dimension are drawn from PyTorch's own generator, which differs between processes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from infolm.nn.gather import gather

Draw = Callable[[Sequence[int], torch.Generator | None], Tensor]
"""Numbers of a shape from a generator; None: PyTorch's own."""


@dataclass(frozen=True)
class Part:
    """columns: (n,), the numbers of the part's columns among `total`. generators: by the type of
    their device, alike in all parts."""

    columns: Tensor
    total: int
    generators: dict[str, torch.Generator]


_present: ContextVar[Part | None] = ContextVar("part", default=None)


@contextmanager
def drawing(part: Part | None) -> Iterator[None]:
    """Inside, random numbers are those of a part; None: those of a whole batch."""
    token = _present.set(part)
    try:
        yield
    finally:
        _present.reset(token)


def drawing_again() -> AbstractContextManager[None]:
    """A context that later repeats the random numbers drawn from now on, for activations recomputed
    in the backward pass. PyTorch restores its own generator."""
    part = _present.get()
    before = {} if part is None else _states(part)

    @contextmanager
    def again() -> Iterator[None]:
        if part is None:
            yield
            return
        now = _states(part)
        _set(part, before)
        try:
            with drawing(part):
                yield
        finally:
            _set(part, now)

    return again()


def _states(part: Part) -> dict[str, Tensor]:
    return {device: generator.get_state() for device, generator in part.generators.items()}


def _set(part: Part, states: dict[str, Tensor]) -> None:
    for device, state in states.items():
        part.generators[device].set_state(state)


@contextmanager
def side_by_side(copies: int) -> Iterator[None]:
    """Inside, the batch consists of several copies of its columns, one copy after another."""
    part = _present.get()
    if part is None or copies == 1:
        yield
        return
    columns = torch.cat([part.columns + copy * part.total for copy in range(copies)])
    with drawing(Part(columns, copies * part.total, part.generators)):
        yield


def drawn(draw: Draw, shape: Sequence[int], device: torch.device, dim: int | None) -> Tensor:
    """Numbers of this shape; dim: that of the batch's columns, None: alike for all columns."""
    part = _present.get()
    if part is None or (dim is not None and shape[dim] != len(part.columns)):
        return draw(shape, None)
    generator = part.generators[device.type]
    if dim is None:
        return draw(shape, generator)
    whole = [*shape[:dim], part.total, *shape[dim + 1 :]]
    return draw(whole, generator).index_select(dim, part.columns.to(device))


def uniform(
    shape: Sequence[int], dim: int | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """From [0, 1); see `drawn`."""

    def draw(shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        return torch.rand(*shape, dtype=dtype, device=device, generator=generator)

    return drawn(draw, shape, device, dim)


def normal(
    shape: Sequence[int], dim: int | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Standard normal; see `drawn`."""

    def draw(shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device, generator=generator)

    return drawn(draw, shape, device, dim)


def spread(rows: Tensor, total: int) -> Tensor:
    """The part's rows (n, ...) at their places among `total`, with ones elsewhere."""
    part = _present.get()
    if part is None or total == len(rows):
        return rows
    return rows.new_ones(total, *rows.shape[1:]).index_copy(0, part.columns.to(rows.device), rows)


def together(rows: Tensor) -> Tensor:
    """The rows (n, ...) of all processes in the order of the whole batch's columns."""
    part = _present.get()
    if part is None or len(rows) != len(part.columns):
        return gather(rows)
    return gather(rows)[gather(part.columns.to(rows.device)).argsort()]
