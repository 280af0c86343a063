"""Several processes that train one model together, started by torchrun.

Each reads its part of every batch and adds its gradient to the others'; then all of them take the
same step. Every process makes the same decisions after a validation, since all have the same
numbers. Only the first process writes and prints.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import TCPStore

from infolm.errors import RunError
from infolm.nn.gather import processes

Value = TypeVar("Value")

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The variables that torchrun sets for its processes."""
PATIENCE = timedelta(hours=2)
"""How long a process waits for a living one: the first may have a large text to read."""
KNOCK = timedelta(seconds=2)
"""How long a process waits at a port that the first process may have left."""
MEETING = "infolm/meeting"
BUCKET = 2**23
"""Gradient elements summed over the processes at a time."""
ALONE = 2**18
"""A gradient with this many elements is summed by itself: copying it would cost more than a
message."""


def launched() -> bool:
    """Whether this process was started as one of several."""
    return all(name in os.environ for name in VARIABLES)


def first() -> bool:
    """Whether this is the process that writes and prints."""
    return processes()[0] == 0 if distributed.is_initialized() else _number() == 0


def _number() -> int:
    return int(os.environ["RANK"]) if launched() else 0


@contextmanager
def together(cuda: bool) -> Iterator[None]:
    """Inside, the processes started by torchrun are connected; a single one needs nothing.

    If one fails, the others end too, and say so.
    """
    if not launched() or distributed.is_initialized():
        yield
        return
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "nccl" if cuda else "gloo"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        rank, count = _number(), int(os.environ["WORLD_SIZE"])
        meeting = _fresh_store(rank, count)
        distributed.init_process_group(
            backend, store=meeting, rank=rank, world_size=count, timeout=PATIENCE
        )
    else:
        distributed.init_process_group(backend, timeout=PATIENCE)
    try:
        yield
    except RuntimeError as error:
        if "gloo" not in str(error) and not isinstance(error, distributed.DistError):
            raise
        raise RunError(
            f"process {processes()[0]} lost another one of this training ({_first_line(error)}): "
            "see its message for the reason; resume with --resume, the last checkpoint is intact"
        ) from error
    finally:
        distributed.destroy_process_group()


def _fresh_store(rank: int, count: int) -> TCPStore:
    """The store where the processes of this start meet, on a port of the first one.

    torchrun's own store outlives a restart and still has the addresses of dead processes, which an
    early process would take for the others'. So it only holds the port; a port where nobody answers
    is an old one.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    known = TCPStore(host, port, is_master=False)
    if rank == 0:
        store = TCPStore(host, 0, count, is_master=True, wait_for_workers=False)
        known.set(MEETING, str(store.port))
        return store
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while True:
        own = int(known.get(MEETING))
        try:
            return TCPStore(host, own, count, is_master=False, timeout=KNOCK)
        except distributed.DistError:
            if time.monotonic() > deadline:
                raise


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def summed(numbers: Sequence[float]) -> list[float]:
    """Each number summed over the processes."""
    if processes()[1] == 1:
        return list(numbers)
    total = torch.tensor(numbers, dtype=torch.float64, device=_device())
    distributed.all_reduce(total)
    return [float(number) for number in total.tolist()]


def largest(number: int) -> int:
    """The largest value of any process."""
    if processes()[1] == 1:
        return number
    found = torch.tensor(number, device=_device())
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return int(found)


def everyones(value: Value) -> list[Value]:
    """The value of each process, in their order."""
    count = processes()[1]
    if count == 1:
        return [value]
    found: list[Any] = [None] * count
    distributed.all_gather_object(found, value)
    return found


def of_the_first(value: Value) -> Value:
    """The value of the first process."""
    if processes()[1] == 1:
        return value
    box = [value]
    distributed.broadcast_object_list(box, 0)
    return box[0]


@contextmanager
def first_goes_ahead() -> Iterator[None]:
    """Inside, the first process finishes before the others start."""
    if not first():
        of_the_first(None)
    yield
    if first():
        of_the_first(None)


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the gradients over the processes, in every one of them.

    Large ones are summed in place, small ones in buckets; each bucket is sent while the next is
    packed. Every process has gradients of the same parameters.
    """
    if processes()[1] == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    under_way = []
    for bucket in _buckets(gradients):
        alone = len(bucket) == 1 and bucket[0].is_contiguous()
        flat = bucket[0] if alone else torch.cat([gradient.reshape(-1) for gradient in bucket])
        under_way.append((distributed.all_reduce(flat, async_op=True), flat, bucket))
    for work, flat, bucket in under_way:
        work.wait()
        if flat is bucket[0]:
            continue
        parts = flat.split([gradient.numel() for gradient in bucket])
        views = [part.view_as(g) for part, g in zip(parts, bucket, strict=True)]
        torch._foreach_copy_(bucket, views)


def _buckets(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Buckets by size only, so that all processes form the same."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        if gradient.numel() >= ALONE:
            yield [gradient]
            continue
        bucket.append(gradient)
        if sum(each.numel() for each in bucket) >= BUCKET:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def _device() -> torch.device:
    """The device of numbers that the processes exchange."""
    cuda = distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
