"""A cell's step as a straight-line program, and the program of its gradient.

A step is plain PyTorch on rows of a batch. It is traced by calling it once with `Node`s instead of
tensors: linear maps and pointwise operations, in the order of evaluation. The chain rule over the
reversed list gives the second program, a step of backpropagation through time. The runners (`steps`
in PyTorch, `machine` in C++) do not depend on cells, nor cells on runners.

Three rules make the pair fast:

- a linear map of the cell's input alone is computed for all steps before the loop (`hoisted`), its
  gradient after it;
- so is the gradient of every matrix, sum_t a_t v_t^T: one product over all steps of the adjoints a
  and the vectors v (`products`);
- the backward step reads values that are expensive to compute (linear maps, sigmoid, tanh: `saved`)
and recomputes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.nn import functional

LEAVES = frozenset({"x", "before", "keep", "vector", "matrix", "gradient", "carried"})
"""The inputs of a program: the cell's input, its state before the step, the state dropout's mask,
its biases and matrices; backwards also the gradient of the step's output, and of the state after
it."""

DEAR = frozenset({"linear", "sigmoid", "tanh"})


@dataclass(eq=False)
class Node:
    """A value of a program, `size` numbers for each row of the batch.

    operation        value, with inputs a, b, c
    ---------        --------------------------
    linear           W a, W a + b with two inputs; W the matrix `weight`, or its transpose
    slice            elements of a from `start` on
    join             the inputs, one after the other
    add sub mul      a + b, a - b, a b
    muladd           a b + c
    affine           alpha a + beta
    min below        min(a, b), and its derivative by a: 1 if a < b, 1/2 if a = b, else 0
    sigmoid tanh     of a
    dsigmoid dtanh   a b (1 - b), a (1 - b^2): gradients by what b is the sigmoid or tanh of
    """

    tracer: Tracer
    number: int
    operation: str
    size: int
    inputs: tuple[Node, ...] = ()
    weight: int = -1
    transposed: bool = False
    start: int = 0
    alpha: float = 1.0
    beta: float = 0.0

    def __add__(self, other: Node | float) -> Node:
        if isinstance(other, Node):
            return self.tracer.add(self, other)
        return self.tracer.affine(self, 1.0, other)

    def __mul__(self, other: Node | float) -> Node:
        if isinstance(other, Node):
            return self.tracer.make("mul", self.size, (self, other))
        return self.tracer.affine(self, other, 0.0)

    def __sub__(self, other: Node | float) -> Node:
        if isinstance(other, Node):
            return self.tracer.make("sub", self.size, (self, other))
        return self.tracer.affine(self, 1.0, -other)

    def __rsub__(self, other: float) -> Node:
        return self.tracer.affine(self, -1.0, other)

    def __neg__(self) -> Node:
        return self.tracer.affine(self, -1.0, 0.0)

    __radd__, __rmul__ = __add__, __mul__

    def sigmoid(self) -> Node:
        return self.tracer.make("sigmoid", self.size, (self,))

    def tanh(self) -> Node:
        return self.tracer.make("tanh", self.size, (self,))

    def chunk(self, chunks: int, dim: int) -> tuple[Node, ...]:
        return self.split([self.size // chunks] * chunks, dim)

    def split(self, sizes: Sequence[int], dim: int) -> tuple[Node, ...]:
        assert dim == 1
        assert sum(sizes) == self.size
        starts = accumulate(sizes, initial=0)
        return tuple(
            self.tracer.make("slice", size, (self,), start=start)
            for start, size in zip(starts, sizes, strict=False)
        )

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Node:
        if function not in FUNCTIONS:
            name = getattr(function, "__name__", function)
            raise NotImplementedError(
                f"a cell's step uses {name}, which infolm.nn.recurrence.program cannot trace: "
                "use its operations, or add this one with its derivative"
            )
        return FUNCTIONS[function](*args, **(kwargs or {}))


def _linear(v: Node, matrix: Node, bias: Node | None = None) -> Node:
    inputs = (v,) if bias is None else (v, bias)
    return v.tracer.make("linear", matrix.size, inputs, weight=matrix.weight)


FUNCTIONS: dict[Callable[..., Any], Callable[..., Node]] = {
    functional.linear: _linear,
    torch.minimum: lambda a, b: a.tracer.make("min", a.size, (a, b)),
    torch.sigmoid: Node.sigmoid,
    torch.tanh: Node.tanh,
}
"""The PyTorch functions that a step may use, besides the operators and methods of `Node`."""


class Tracer:
    """Makes the nodes, each only once: the same operation on the same inputs is the same node."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Node] = {}

    def make(
        self,
        operation: str,
        size: int,
        inputs: tuple[Node, ...] = (),
        weight: int = -1,
        transposed: bool = False,
        start: int = 0,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Node:
        numbers = tuple(node.number for node in inputs)
        key = (operation, size, numbers, weight, transposed, start, alpha, beta)
        if key not in self._known:
            number = len(self._known)
            self._known[key] = Node(self, number, operation, size, inputs, *key[3:])
        return self._known[key]

    def __len__(self) -> int:
        return len(self._known)

    def affine(self, a: Node, alpha: float, beta: float) -> Node:
        return self.make("affine", a.size, (a,), alpha=float(alpha), beta=float(beta))

    def computed(self, node: Node) -> Node:
        """The node itself, or a copy where it is but read: a value of its own, to be stored."""
        computed = node.operation not in LEAVES | {"slice"} and not _of_input_alone(node)
        return node if computed else self.affine(node, 1.0, 0.0)

    def transposed(self, linear: Node, adjoint: Node) -> Node:
        """W^T a, where `linear` is W v."""
        size = linear.inputs[0].size
        return self.make("linear", size, (adjoint,), weight=linear.weight, transposed=True)

    def add(self, a: Node, b: Node) -> Node:
        """a + b, as part of the operation that makes one of the two where there is such a one."""
        for one, other in ((a, b), (b, a)):
            if one.operation == "linear" and len(one.inputs) == 1 and not _of_input_alone(one):
                return self.make(
                    "linear",
                    one.size,
                    (*one.inputs, other),
                    weight=one.weight,
                    transposed=one.transposed,
                )
        for one, other in ((a, b), (b, a)):
            if one.operation == "mul":
                return self.make("muladd", one.size, (*one.inputs, other))
        return self.make("add", a.size, (a, b))


def _of_input_alone(node: Node) -> bool:
    """Whether it is a linear map of the cell's input, and its bias: the same at every step."""
    return node.operation == "linear" and [n.operation for n in node.inputs] in (
        ["x"],
        ["x", "vector"],
    )


class Product(NamedTuple):
    """A matrix's gradient is sum_t adjoint_t v_t^T."""

    weight: int
    adjoint: Node
    v: Node


class Procedure(NamedTuple):
    """`body` computes `outputs` from `leaves`; matrices are named in the linear maps."""

    leaves: list[Node]
    body: list[Node]
    outputs: list[Node]


@dataclass
class Program:
    """The two steps of a cell.

    forward      leaves x, hoisted, before, keep, vectors -> after, then saved
    inference    the same, nothing saved
    backward     leaves: what it reads of those and of `saved`, gradient, carried -> the gradients
                 of before, then the adjoints of products and vectors, then of x
    """

    x: Node
    before: list[Node]
    after: list[Node]
    hoisted: list[Node]
    gradient: Node
    """Of the step's output, by all that reads it but the next step."""
    carried: list[Node]
    """Gradients of the state after the step, by what comes after it."""
    saved: list[Node] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    vectors: list[tuple[int, Node]] = field(default_factory=list)
    """Biases and the adjoints whose sums over rows and steps are their gradients."""
    gradients_before: list[Node] = field(default_factory=list)
    gradient_x: Node | None = None
    """Without what the hoisted maps add to it."""

    def __post_init__(self) -> None:
        tracer = self.x.tracer
        forward_nodes = len(tracer)
        self._differentiate(tracer)
        self.gradients_before = [tracer.computed(node) for node in self.gradients_before]
        wanted = [product.adjoint for product in self.products]
        wanted += [adjoint for _, adjoint in self.vectors]
        wanted += [self.gradient_x] if self.gradient_x else []
        outputs = list(dict.fromkeys(wanted))
        read = {product.v for product in self.products}
        stored = {*read, *self.after, *self.hoisted}

        def kept(node: Node) -> bool:
            return node in stored or (node.number < forward_nodes and node.operation in DEAR)

        self.backward = _procedure([*self.gradients_before, *outputs], kept)
        for node in [*self.backward.leaves, *_in_order(read)]:
            known = {*self.saved, *self.after, *self.hoisted}
            if node.operation not in LEAVES and node not in known:
                self.saved.append(node)
        hoisted = set(self.hoisted)
        self.forward = _procedure([*self.after, *self.saved], hoisted.__contains__)
        self.inference = _procedure(self.after, hoisted.__contains__)

    def _differentiate(self, tracer: Tracer) -> None:
        """The chain rule, from the state after the step back to the one before it."""
        adjoints: dict[Node, Node] = {}
        parts: dict[Node, list[tuple[Node, Node]]] = {}

        def give(node: Node, adjoint: Node) -> None:
            adjoints[node] = adjoints[node] + adjoint if node in adjoints else adjoint

        for node, adjoint in zip(self.after, self.carried, strict=True):
            give(node, adjoint)
        give(self.after[0], self.gradient)
        for node in reversed(_procedure(self.after, lambda _: False).body):
            if node in parts:
                give(node, _joined(node, parts[node]))
            adjoint, inputs = adjoints[node], node.inputs
            match node.operation:
                case "linear":
                    adjoint = tracer.computed(adjoint)
                    self.products.append(Product(node.weight, adjoint, inputs[0]))
                    if node not in self.hoisted:
                        give(inputs[0], tracer.transposed(node, adjoint))
                    if len(inputs) == 2:
                        give(inputs[1], adjoint)
                case "slice":
                    parts.setdefault(inputs[0], []).append((node, adjoint))
                case "add":
                    give(inputs[0], adjoint)
                    give(inputs[1], adjoint)
                case "sub":
                    give(inputs[0], adjoint)
                    give(inputs[1], -adjoint)
                case "mul" | "muladd":
                    give(inputs[0], adjoint * inputs[1])
                    give(inputs[1], adjoint * inputs[0])
                    if len(inputs) == 3:
                        give(inputs[2], adjoint)
                case "affine":
                    give(inputs[0], adjoint * node.alpha)
                case "min":
                    share = adjoint * tracer.make("below", node.size, inputs)
                    give(inputs[0], share)
                    give(inputs[1], adjoint - share)
                case "sigmoid" | "tanh":
                    inner = tracer.make(f"d{node.operation}", node.size, (adjoint, node))
                    give(inputs[0], inner)
        none = zip(self.before, self.carried, strict=True)
        self.gradients_before = [adjoints.get(node, 0.0 * like) for node, like in none]
        self.gradient_x = tracer.computed(adjoints[self.x]) if self.x in adjoints else None
        self.vectors = [
            (node.weight, tracer.computed(adjoint))
            for node, adjoint in adjoints.items()
            if node.operation == "vector"
        ]


def _joined(whole: Node, parts: list[tuple[Node, Node]]) -> Node:
    """The gradient of `whole` from slices of it and theirs; what no slice reads has none."""

    def unread(start: int, end: int) -> list[Node]:
        if start > end:
            raise NotImplementedError("a cell's step cuts the same vector in two ways: cut it once")
        size = end - start
        return [0.0 * whole.tracer.make("slice", size, (whole,), start=start)] if size else []

    joined: list[Node] = []
    at = 0
    for part, adjoint in sorted(parts, key=lambda pair: pair[0].start):
        joined += [*unread(at, part.start), adjoint]
        at = part.start + part.size
    return whole.tracer.make("join", whole.size, (*joined, *unread(at, whole.size)))


def _procedure(outputs: list[Node], kept: Callable[[Node], bool]) -> Procedure:
    """What leads from leaves, and from nodes that are `kept`, to the outputs."""
    leaves: set[Node] = set()
    body: set[Node] = set()
    left = list(outputs)
    while left:
        node = left.pop()
        if node.operation in LEAVES or kept(node):
            leaves.add(node)
        elif node not in body:
            body.add(node)
            left += node.inputs
    return Procedure(_in_order(leaves), _in_order(body), outputs)


def _in_order(nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: node.number)


def trace(
    step: Callable[..., tuple[Any, ...]],
    inputs: int,
    hidden: int,
    remembered: int,
    weights: Sequence[torch.Tensor],
    masked: bool,
) -> Program:
    """The program of `step(x, state, weights, keep) -> state`.

    Sizes: x `inputs`, each of `remembered` tensors of the state and the mask `hidden`. Of the
    weights only their shapes matter. Without `masked`, keep is None.
    """
    tracer = Tracer()
    x = tracer.make("x", inputs)
    before = [tracer.make("before", hidden, start=index) for index in range(remembered)]
    keep = tracer.make("keep", hidden) if masked else None
    leaves = [
        tracer.make("matrix" if w.dim() == 2 else "vector", len(w), weight=index)
        for index, w in enumerate(weights)
    ]
    after: list[Node] = []
    for node in map(tracer.computed, step(x, tuple(before), tuple(leaves), keep)):
        after.append(tracer.affine(node, 1.0, 0.0) if node in after else node)
    body = _procedure(after, lambda _: False).body
    hoisted = [node for node in body if _of_input_alone(node)]
    gradient = tracer.make("gradient", hidden)
    carried = [tracer.make("carried", hidden, start=index) for index in range(remembered)]
    return Program(x, before, after, hoisted, gradient, carried)
