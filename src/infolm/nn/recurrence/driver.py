"""A cell over a sequence: the choice of its implementation, and the assembly of its gradients.

    plain       the cell's step under autograd, a loop of small operations: the reference
    fused       the programs of the step and of its gradient, run by PyTorch
    compiled    the same through torch.compile, where that works
    native      the same in C++, the whole loop in one call, where there is a compiler

All give the same numbers up to rounding. `INFOLM_CELLS`, or `use` in a program, decides; otherwise
native on a CPU, if available, and fused elsewhere. A single step is always fused: the native
machine's preparation would not pay.

Under autocast to bfloat16 the native path rounds what its matrix products read, and sums in single
precision. The other paths stay in the weights' precision.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from infolm.errors import InfolmError
from infolm.nn.recurrence import compiling, native
from infolm.nn.recurrence.machine import Machine
from infolm.nn.recurrence.program import Node, Program
from infolm.nn.recurrence.steps import Steps
from infolm.nn.rounding import mapped, outer

Path = Literal["plain", "fused", "compiled", "native"]

_chosen: ContextVar[Path | None] = ContextVar("path", default=None)


@contextmanager
def use(path: Path) -> Iterator[None]:
    """Inside, every cell takes this path."""
    token = _chosen.set(path)
    try:
        yield
    finally:
        _chosen.reset(token)


def choose(weight: Tensor, steps: int) -> Path:
    """The path for this many steps of a cell with such weights."""
    path = _chosen.get() or os.environ.get("INFOLM_CELLS")
    possible = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)
    if path is None:
        return "native" if possible and steps > 1 and native.available() else "fused"
    if path not in get_args(Path):
        raise InfolmError(
            f"INFOLM_CELLS is {path!r}: set it to one of {', '.join(get_args(Path))}, or unset it"
        )
    if path == "native" and not (possible and native.available()):
        raise InfolmError(
            "INFOLM_CELLS is native, which needs a CPU, single or double precision and a C++ "
            "compiler: install one (g++ or clang++), or unset the variable"
        )
    if path == "compiled" and weight.device.type == "cpu" and not compiling.compiler():
        raise InfolmError(
            "INFOLM_CELLS is compiled, which needs a C++ compiler: install one (g++ or clang++), "
            "or unset the variable"
        )
    return cast(Path, path)


class Recurrence:
    """Programs of a cell's step, and their runners."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.executor = cache(self._executor)

    def _executor(self, path: Path, rounded: bool) -> Steps | Machine:
        if path == "native":
            return Machine(self.program, rounded)
        return Steps(self.program, compiled=path == "compiled")

    def __call__(
        self,
        path: Path,
        x: Tensor,
        state: Sequence[Tensor],
        weights: Sequence[Tensor],
        keep: Tensor | None,
        sizes: Sequence[int],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs (N, H) and the state in which each row ends, (B, H) each.

        x (N, inputs): step t has `sizes[t]` rows, the steps one below the other.
        """
        device, dtype = x.device.type, weights[0].dtype
        rounded = torch.is_autocast_enabled(device) and dtype == torch.float
        executor = self.executor(path, rounded and path == "native")
        x, state = x.to(dtype), [tensor.to(dtype) for tensor in state]
        # bfloat16 is too coarse for sums over many steps: the state has the weights' precision.
        with torch.autocast(device, enabled=False):
            if torch.is_grad_enabled():
                outputs, *last = _Recurrence.apply(executor, sizes, x, keep, *state, *weights)
            else:
                given = _given(executor, x, keep, weights)
                outputs, last, _ = executor.forward(given, state, weights, sizes, save=False)
        return outputs, tuple(last)


def _given(
    executor: Steps | Machine, x: Tensor, keep: Tensor | None, weights: Sequence[Tensor]
) -> dict[Node, Tensor]:
    """The input, its hoisted maps for all steps at once, the mask."""
    program = executor.program
    given = {program.x: x.contiguous()}
    for node in program.hoisted:
        bias = weights[node.inputs[1].weight] if len(node.inputs) == 2 else None
        if executor.rounded:
            product = mapped(x, weights[node.weight].t())
            given[node] = product if bias is None else product.add_(bias)
        else:
            given[node] = functional.linear(x, weights[node.weight], bias)
    if keep is not None:
        (leaf,) = {leaf for leaf in program.forward.leaves if leaf.operation == "keep"}
        given[leaf] = keep
    return given


class _Recurrence(torch.autograd.Function):
    """Backpropagation through time. A matrix's gradient is one product over all steps."""

    @staticmethod
    def forward(
        ctx: Any,
        executor: Steps | Machine,
        sizes: Sequence[int],
        x: Tensor,
        keep: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        program = executor.program
        state, weights = tensors[: len(program.before)], tensors[len(program.before) :]
        given = _given(executor, x, keep, weights)
        outputs, last, kept = executor.forward(given, state, weights, sizes, save=True)
        read = {*program.backward.leaves, *(product.v for product in program.products)}
        given = {node: tensor for node, tensor in given.items() if node in read}
        ctx.executor, ctx.sizes, ctx.given = executor, sizes, list(given)
        ctx.kept = [(node, len(blocks)) for node, blocks in kept.items()]
        blocks = [block for blocks in kept.values() for block in blocks]
        ctx.save_for_backward(*weights, *given.values(), *blocks)
        ctx.weights = len(weights)
        return outputs, *last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *last: Tensor) -> tuple[Tensor | None, ...]:
        program, sizes, saved = ctx.executor.program, ctx.sizes, list(ctx.saved_tensors)
        rounded = ctx.executor.rounded
        weights, saved = saved[: ctx.weights], saved[ctx.weights :]
        given = dict(zip(ctx.given, saved, strict=False))
        blocks = iter(saved[len(given) :])
        kept = {node: [next(blocks) for _ in range(count)] for node, count in ctx.kept}
        with torch.autocast(gradient.device.type, enabled=False):
            before, adjoints = ctx.executor.backward(given, kept, weights, sizes, gradient, last)
            of_x = adjoints[program.gradient_x] if program.gradient_x else None
            of_weights: list[Tensor | None] = [None] * len(weights)
            for weight, node, v in program.products:
                adjoint = adjoints[node]
                rows = given[v] if v in given else ctx.executor.rows(v, kept, sizes)
                product = outer(adjoint, rows) if rounded else adjoint.t() @ rows
                of_weights[weight] = _sum(of_weights[weight], product)
                if v is program.x and ctx.needs_input_grad[2]:
                    matrix = weights[weight]
                    of_x = _sum(of_x, mapped(adjoint, matrix) if rounded else adjoint @ matrix)
            for weight, node in program.vectors:
                of_weights[weight] = _sum(of_weights[weight], adjoints[node].sum(0))
        return None, None, of_x, None, *before, *of_weights


def _sum(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a + b
