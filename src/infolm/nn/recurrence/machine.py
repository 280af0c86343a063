"""Programs run over time by the native machine: allocation of memory for every value.

Values that outlive a step (states, saved values, adjoints for the products) are in tensors over all
steps; the rest is in a few reused rows of scratch memory, which stay in the processor's cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infolm.nn.recurrence import native
from infolm.nn.recurrence.native import BEFORE, FIXED, NOW, Code, Instruction
from infolm.nn.recurrence.program import Node, Procedure, Program


class Machine:
    """Runs `program` over time; the same interface as `steps.Steps`. rounded: linear maps multiply
    numbers rounded to bfloat16."""

    def __init__(self, program: Program, rounded: bool = False) -> None:
        self.program, self.rounded = program, rounded
        self.saving = _Layout(program.forward, program.forward.outputs, {})
        states = list(zip(program.before, program.after, strict=True))
        self.passing = _Layout(program.inference, program.after[:1], dict(states[1:]))
        gradients = dict(zip(program.carried, program.gradients_before, strict=True))
        self.backing = _Layout(
            program.backward, program.backward.outputs[len(gradients) :], gradients
        )

    def forward(
        self,
        given: dict[Node, Tensor],
        state: Sequence[Tensor],
        weights: Sequence[Tensor],
        sizes: Sequence[int],
        save: bool,
    ) -> tuple[Tensor, list[Tensor], dict[Node, list[Tensor]]]:
        program, batch, total = self.program, sizes[0], sum(sizes)
        tensors = dict(given)
        for before, after, first in zip(program.before, program.after, state, strict=True):
            if save or after is program.after[0]:
                # A state's memory: the first one, then what each step leaves.
                whole = first.new_empty(batch + total, before.size)
                whole[:batch] = first
                tensors |= {before: whole, after: whole[batch:]}
            else:
                tensors[before] = first.clone()
        layout = self.saving if save else self.passing
        tensors |= layout.run(tensors, weights, sizes, self.rounded)
        outputs = tensors[program.after[0]]
        last = [
            _last(tensors[after], sizes) if after in tensors else tensors[before]
            for before, after in zip(program.before, program.after, strict=True)
        ]
        kept = {node: [tensor] for node, tensor in tensors.items() if node not in given}
        return outputs, last, kept if save else {}

    def backward(
        self,
        given: dict[Node, Tensor],
        kept: dict[Node, list[Tensor]],
        weights: Sequence[Tensor],
        sizes: Sequence[int],
        gradient: Tensor,
        last: Sequence[Tensor],
    ) -> tuple[list[Tensor], dict[Node, Tensor]]:
        carried = [tensor.clone(memory_format=torch.contiguous_format) for tensor in last]
        tensors = given | {node: tensor for node, (tensor,) in kept.items()}
        tensors |= zip(self.program.carried, carried, strict=True)
        tensors[self.program.gradient] = gradient.contiguous()
        return carried, self.backing.run(tensors, weights, sizes, self.rounded, reverse=True)

    def rows(self, node: Node, kept: dict[Node, list[Tensor]], sizes: Sequence[int]) -> Tensor:
        """What was kept of `node`, for all steps (N, size)."""
        (tensor,) = kept[node]
        if node.operation != "before":
            return tensor
        if sizes[0] == sizes[-1]:
            return tensor[: sum(sizes)]
        blocks = tensor.split([sizes[0], *sizes])
        return torch.cat([block[:n] for block, n in zip(blocks, sizes, strict=False)])


def _last(after: Tensor, sizes: Sequence[int]) -> Tensor:
    """The state in which each row ends, (B, H): rows end from the last one on."""
    if sizes[0] == sizes[-1]:
        return after[-sizes[0] :].clone()
    blocks = zip(after.split(list(sizes)), [*sizes[1:], 0], strict=True)
    return torch.cat([block[end:] for block, end in blocks][::-1])


@dataclass(eq=False)
class _Buffer:
    """Memory of `size` numbers a row: of its own at each step, or the same at all (FIXED)."""

    size: int
    when: int = FIXED


@dataclass
class _Life:
    """The first instruction that writes a scratch buffer and the last that reads it."""

    first: int
    last: int


class _Layout:
    """The code of a procedure, and where its values are.

    stored: what is to be had of every step, beside the leaves. carried: leaves that are read at the
    beginning of a step and overwritten with a value at its end.
    """

    def __init__(
        self, procedure: Procedure, stored: Sequence[Node], carried: dict[Node, Node]
    ) -> None:
        self.procedure = procedure
        self.stored = stored
        self.places: dict[Node, tuple[_Buffer, int]] = {}
        for leaf in {*procedure.leaves, *carried}:
            fixed = leaf.operation in ("keep", "vector", "carried") or leaf in carried
            when = FIXED if fixed else BEFORE if leaf.operation == "before" else NOW
            self.places[leaf] = _Buffer(leaf.size, when), 0
        self.given = {buffer for buffer, _ in self.places.values()}
        body = set(procedure.body)
        for node in reversed(procedure.body):  # what is joined comes after its parts
            if node in stored and node not in self.places:
                self._settle(node, _Buffer(node.size, NOW), 0, body)
        for node in reversed(procedure.body):
            if node.operation == "slice" or node in self.places:
                continue
            self._settle(node, _Buffer(node.size), 0, body)
        for node in procedure.body:
            if node.operation == "slice":
                buffer, start = self.places[node.inputs[0]]
                self.places[node] = buffer, start + node.start
        self._compile(carried)

    def _settle(self, node: Node, buffer: _Buffer, start: int, body: set[Node]) -> None:
        """The parts of what is joined are computed where they belong."""
        self.places[node] = buffer, start
        if node.operation == "join":
            for part in node.inputs:
                if part in body and part not in self.places and part.operation != "slice":
                    self._settle(part, buffer, start, body)
                start += part.size

    def _compile(self, carried: dict[Node, Node]) -> None:
        numbers: dict[tuple[_Buffer, int, int], int] = {}  # of operands, columns of buffers
        weights: dict[tuple[int, bool], int] = {}
        instructions: list[Instruction] = []
        lives: dict[_Buffer, _Life] = {}
        # Of linear maps: where their vectors are, which their results must not overwrite.
        read: dict[int, _Buffer] = {}

        def operand(buffer: _Buffer, start: int, size: int) -> int:
            now = len(instructions)
            lives.setdefault(buffer, _Life(now, now)).last = now
            return numbers.setdefault((buffer, start, size), len(numbers))

        def value(node: Node) -> int:
            return operand(*self.places[node], node.size)

        def copy(node: Node, buffer: _Buffer, start: int) -> None:
            source, target = value(node), operand(buffer, start, node.size)
            instructions.append(Instruction("affine", target, source, length=node.size))

        for node in self.procedure.body:
            match node.operation:
                case "slice":
                    continue
                case "join":
                    buffer, start = self.places[node]
                    for part in node.inputs:
                        if self.places[part] != (buffer, start):
                            copy(part, buffer, start)
                        start += part.size
                    continue
                case "linear":
                    key = node.weight, node.transposed
                    weight = weights.setdefault(key, len(weights))
                    read[len(instructions)] = self.places[node.inputs[0]][0]
                    v, init = [*(value(n) for n in node.inputs), -1][:2]
                    one = Instruction("linear", value(node), v, c=init, weight=weight)
                case operation:
                    a, b, c = [*(value(n) for n in node.inputs), -1, -1][:3]
                    options = node.size, node.alpha, node.beta
                    one = Instruction(operation, value(node), a, b, c, -1, *options)
            instructions.append(one)
        for leaf, node in carried.items():
            copy(node, *self.places[leaf])
        shared = self._share(lives, read)
        self.operands = [
            (shared.get(buffer, buffer), start, size) for buffer, start, size in numbers
        ]
        self.weights = list(weights)
        self.code = Code(instructions)

    def _share(
        self, lives: dict[_Buffer, _Life], read: dict[int, _Buffer]
    ) -> dict[_Buffer, _Buffer]:
        """Scratch buffers of one size that never live at once become one buffer."""
        scratch = [b for b in lives if b.when == FIXED and b not in self.given]
        shared: dict[_Buffer, _Buffer] = {}
        free: list[tuple[int, _Buffer]] = []
        for buffer in sorted(scratch, key=lambda b: lives[b].first):
            first = lives[buffer].first
            taken = read.get(first)
            taken = shared.get(taken, taken) if taken else None
            for last, old in free:
                if last <= first and old.size == buffer.size and old is not taken:
                    free.remove((last, old))
                    shared[buffer] = old
                    break
            free.append((lives[buffer].last, shared.get(buffer, buffer)))
        return shared

    def run(
        self,
        tensors: dict[Node, Tensor],
        weights: Sequence[Tensor],
        sizes: Sequence[int],
        rounded: bool,
        reverse: bool = False,
    ) -> dict[Node, Tensor]:
        """The `stored` values of all steps (N, size), in the memory given for them if any is."""
        total, like = sum(sizes), next(iter(tensors.values()))
        memory = {
            buffer: tensors[node]
            for node, (buffer, start) in self.places.items()
            if node in tensors and start == 0 and node.size == buffer.size
        }
        for leaf in self.procedure.leaves:
            if leaf.operation == "vector":
                memory[self.places[leaf][0]] = weights[leaf.weight]
        operands = []
        for buffer, start, size in self.operands:
            if buffer not in memory:
                rows = total if buffer.when == NOW else sizes[0]
                memory[buffer] = like.new_empty(rows, buffer.size)
            tensor = memory[buffer]
            part = tensor if size == buffer.size else tensor.narrow(-1, start, size)
            operands.append((part, buffer.when))
        matrices = [(weights[weight], transposed) for weight, transposed in self.weights]
        threads = torch.get_num_threads()
        native.run(self.code, operands, matrices, sizes, reverse, threads, rounded)
        found = {}
        for node in self.stored:
            buffer, start = self.places[node]
            found[node] = memory[buffer].narrow(1, start, node.size)
        return found
