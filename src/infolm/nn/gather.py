"""Gathering rows from all processes, each of which has its part of a batch.

The candidates of a contrastive loss may lie in any process. Each process' loss is its share of the
whole batch's, so losses and parameter gradients are summed over the processes; the gradient of
gathered rows is that of the sum, and goes back to the rows' process.
"""

from typing import Any

import torch
from torch import Tensor, distributed


def processes() -> tuple[int, int]:
    """The rank of this process and their number: (0, 1) for a single one."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def gather(rows: Tensor) -> Tensor:
    """The rows of all processes, one process after another, (n_1 + ... + n_W, ...).

    Each may have its own number of rows (n, ...); other dimensions are equal. The gradient of the
    sum of all processes' losses goes back to the rows' process. One process: the rows themselves.
    """
    return rows if processes()[1] == 1 else _Gather.apply(rows)


def summed(rows: Tensor) -> Tensor:
    """The sum of what all processes have, in place, without gradient: of arrays that each has
    filled elsewhere and left at 0, the whole."""
    if processes()[1] > 1:
        distributed.all_reduce(rows)
    return rows


def own_rows(rows: Tensor) -> slice:
    """Where the rows (n, ...) of this process stand in what `gather` gives."""
    rank, count = processes()
    if count == 1:
        return slice(0, len(rows))
    first = int(gather(torch.tensor([len(rows)], device=rows.device))[:rank].sum())
    return slice(first, first + len(rows))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        rank, count = processes()
        sizes = torch.zeros(count, dtype=torch.long, device=rows.device)
        sizes[rank] = len(rows)
        distributed.all_reduce(sizes)
        first = int(sizes[:rank].sum())
        ctx.own = slice(first, first + len(rows))
        # Zeros that are added change nothing, and no process need know the others' sizes before.
        whole = rows.new_zeros(int(sizes.sum()), *rows.shape[1:])
        whole[ctx.own] = rows
        distributed.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        whole = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(whole)
        return whole[ctx.own]
