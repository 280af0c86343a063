"""Programs run over time by PyTorch, a step at a time, on any device, optionally compiled.

A procedure becomes a function of tensors (n, size), built with `torch.fx`; `compiled`, it goes
through `torch.compile`. The function does not depend on the number of steps, so other lengths need
no recompilation.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from types import MethodType
from typing import Any

import torch
from torch import Tensor, fx, nn

from infolm.nn.recurrence.program import Node, Procedure, Program

Blocks = list[Tensor]
"""A value over time: a tensor (n_t, size) for every step."""


class Steps:
    """Runs `program` over time; the same interface as `machine.Machine`.

    Step t has n_t = `sizes[t]` rows, n_0 >= n_1 >= ...: sentences, the longest first, or a batch of
    equal ones. A tensor for all steps has them one below the other, (N, size), N = sum_t n_t.
    """

    rounded = False
    """Products are in the weights' precision."""

    def __init__(self, program: Program, compiled: bool = False) -> None:
        self.program = program
        self.saving = _Step(program.forward, compiled)
        self.passing = _Step(program.inference, compiled)
        self.backing = _Step(program.backward, compiled)

    def forward(
        self,
        given: dict[Node, Tensor],
        state: Sequence[Tensor],
        weights: Sequence[Tensor],
        sizes: Sequence[int],
        save: bool,
    ) -> tuple[Tensor, list[Tensor], dict[Node, Blocks]]:
        """The outputs (N, H), the state in which each row ends (B, H each) and, with `save`, what
        `backward` reads: of every step the state before, after, and the saved values.

        given: the input and the hoisted maps (N, size), the mask (B, H). state: (B, H) each.
        """
        step = self.saving if save else self.passing
        run = step.over(given, weights, sizes)
        now, made, ended = tuple(state), [], []
        for t, (n, n_next) in enumerate(pairwise([*sizes, 0])):
            before = zip(self.program.before, (_first(tensor, n) for tensor in now), strict=True)
            results = run(t, dict(before))
            now = results[: len(now)]
            made.append(results if save else results[:1])
            if n > n_next:
                ended.append([tensor[n_next:] for tensor in now])
        blocks = [list(one) for one in zip(*made, strict=True)]
        last = [torch.cat(one[::-1]) for one in zip(*ended, strict=True)]
        kept: dict[Node, Blocks] = {}
        if save:
            kept |= zip(step.procedure.outputs, blocks, strict=True)
            for leaf, after, first in zip(
                self.program.before, self.program.after, state, strict=True
            ):
                every = zip([first, *kept[after][:-1]], sizes, strict=True)
                kept[leaf] = [_first(block, n) for block, n in every]
        return torch.cat(blocks[0]), last, kept

    def backward(
        self,
        given: dict[Node, Tensor],
        kept: dict[Node, Blocks],
        weights: Sequence[Tensor],
        sizes: Sequence[int],
        gradient: Tensor,
        last: Sequence[Tensor],
    ) -> tuple[list[Tensor], dict[Node, Tensor]]:
        """The gradients of the first state (B, H each), and the adjoints that `backward` of the
        program puts out, for all steps (N, size). gradient: of the outputs; last: of the state
        in which each row ends."""
        given = given | {self.program.gradient: gradient}
        run = self.backing.over(given, weights, sizes, kept)
        carried = [tensor[:0] for tensor in last]
        made = []
        for t in range(len(sizes) - 1, -1, -1):
            n = sizes[t]
            if n > len(carried[0]):  # rows that end here
                both = zip(carried, last, strict=True)
                carried = [torch.cat([c, g[len(c) : n]]) for c, g in both]
            results = run(t, dict(zip(self.program.carried, carried, strict=True)))
            carried = list(results[: len(carried)])
            made.append(results[len(carried) :])
        outputs = self.backing.procedure.outputs[len(carried) :]
        blocks = zip(*made[::-1], strict=True)
        return carried, {node: torch.cat(one) for node, one in zip(outputs, blocks, strict=True)}

    def rows(self, node: Node, kept: dict[Node, Blocks], sizes: Sequence[int]) -> Tensor:
        """What was kept of `node`, for all steps (N, size)."""
        return torch.cat(kept[node])


class _Step:
    """A procedure as a function of its leaves' and its matrices' tensors."""

    def __init__(self, procedure: Procedure, compiled: bool) -> None:
        self.procedure, self.compiled = procedure, compiled
        linear = {(n.weight, n.transposed) for n in procedure.body if n.operation == "linear"}
        self.matrices = sorted(linear)

    @cached_property
    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        made = _function(self.procedure, self.matrices)
        return torch.compile(made, dynamic=True) if self.compiled else made

    def over(
        self,
        given: dict[Node, Tensor],
        weights: Sequence[Tensor],
        sizes: Sequence[int],
        kept: dict[Node, Blocks] | None = None,
    ) -> Callable[[int, dict[Node, Tensor]], tuple[Tensor, ...]]:
        """The function of a step and of what changes from step to step."""
        matrices = [weights[w] if transposed else weights[w].t() for w, transposed in self.matrices]
        over_time: dict[Node, Blocks] = dict(kept or {})
        for leaf, tensor in given.items():
            equal = leaf.operation == "keep"
            over_time[leaf] = (
                [_first(tensor, n) for n in sizes] if equal else list(tensor.split(list(sizes)))
            )
        for leaf in self.procedure.leaves:
            if leaf.operation == "vector":
                over_time[leaf] = [weights[leaf.weight]] * len(sizes)

        def run(t: int, now: dict[Node, Tensor]) -> tuple[Tensor, ...]:
            leaves = self.procedure.leaves
            values = [now[leaf] if leaf in now else over_time[leaf][t] for leaf in leaves]
            return self.function(*values, *matrices)

        return run


def _first(tensor: Tensor, n: int) -> Tensor:
    return tensor if len(tensor) == n else tensor[:n]


def _function(
    procedure: Procedure, matrices: Sequence[tuple[int, bool]]
) -> Callable[..., tuple[Tensor, ...]]:
    graph = fx.Graph()
    made = {leaf: graph.placeholder(f"leaf{leaf.number}") for leaf in procedure.leaves}
    weights = {key: graph.placeholder(f"matrix{i}") for i, key in enumerate(matrices)}
    for node in procedure.body:
        inputs = [made[n] for n in node.inputs]
        if node.operation == "linear":
            v, *init = inputs
            product = torch.addmm if init else torch.mm
            arguments = (*init, v, weights[node.weight, node.transposed])
            made[node] = graph.call_function(product, arguments)
        else:
            made[node] = _pointwise(graph, node, inputs)
    graph.output(tuple(made[node] for node in procedure.outputs))
    # As `fx.GraphModule` does it, which keeps every source for as long as the process lives.
    code = graph.python_code("self")
    names: dict[str, Any] = dict(code.globals)
    exec(code.src, names)
    return MethodType(names["forward"], nn.Module())


def _pointwise(graph: fx.Graph, node: Node, inputs: list[fx.Node]) -> fx.Node:
    call = graph.call_function
    match node.operation:
        case "slice":
            return call(torch.narrow, (inputs[0], 1, node.start, node.size))
        case "join":
            return call(torch.cat, (inputs, 1))
        case "affine":
            scaled = inputs[0] if node.alpha == 1 else call(torch.mul, (inputs[0], node.alpha))
            return scaled if node.beta == 0 else call(torch.add, (scaled, node.beta))
        case "muladd":
            a, b, c = inputs
            return call(torch.addcmul, (c, a, b))
        case "below":
            a, b = inputs
            return call(_below, (a, b))
        case _:
            return call(_FUNCTIONS[node.operation], tuple(inputs))


def _below(a: Tensor, b: Tensor) -> Tensor:
    return torch.heaviside(b - a, a.new_full((), 0.5))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "min": torch.minimum,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "dsigmoid": torch.ops.aten.sigmoid_backward.default,
    "dtanh": torch.ops.aten.tanh_backward.default,
}
