"""A language model as two graphs, which take its state and give it back.

    step        input_ids (B,), state_0, ...     -> log_probs (B, V), next_state_0, ...
    sequence    input_ids (B, T), state_0, ...   -> log_probs (B, T, V), next_state_0, ...

PyTorch's exporter writes what reads, tokens to the vectors before the softmax, and the softmax.
Where a step keeps the state's shapes, as a recurrent model's does, the sequence is an ONNX `Scan`
of the step, and the softmax reads the vectors of all steps at once. Where the state grows, as a
Transformer's memory does, the sequence is written by itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from infolm.errors import InfolmError
from infolm.exports.graphs.exporter import (
    Leaves,
    Shape,
    axes,
    exported,
    joined,
    kind_of,
    prefixed,
    save,
    scanned,
)
from infolm.models.language import LanguageModel

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto


class State(Leaves):
    """The tensors in a model's state, one after the other, with their shapes.

    shapes: an axis is a number, "batch", or "memory" where it grows with the text read.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model.initial_state(2))
        self.first = self.flat(model.initial_state(2))
        more = self.flat(model.initial_state(3))
        after = self.flat(model(torch.zeros(1, 2, dtype=torch.long), model.initial_state(2)).state)
        if any(tensor.count_nonzero() for tensor in self.first):
            raise InfolmError("the model's state does not begin at zero, which ONNX needs here")
        self.shapes: list[list[int | str]] = [
            [
                "batch" if wide != axis else "memory" if long != axis else axis
                for axis, wide, long in zip(a.shape, b.shape, c.shape, strict=True)
            ]
            for a, b, c in zip(self.first, more, after, strict=True)
        ]

    @property
    def grows(self) -> bool:
        return any("memory" in shape for shape in self.shapes)

    def examples(self, sizes: Mapping[str, int]) -> list[Tensor]:
        return [
            tensor.new_zeros([sizes[axis] if isinstance(axis, str) else axis for axis in shape])
            for tensor, shape in zip(self.first, self.shapes, strict=True)
        ]

    def described(self) -> list[dict[str, Any]]:
        return [
            {"input": name, "output": f"next_{name}", "shape": shape, "type": kind_of(tensor)}
            for name, tensor, shape in zip(self.names, self.first, self.shapes, strict=True)
        ]

    @property
    def names(self) -> list[str]:
        return [f"state_{i}" for i in range(len(self.shapes))]


class _Reading(nn.Module):
    """Tokens (T, B), or (B,) of one step -> vectors before the softmax (T, B, H), or (B, H)."""

    def __init__(self, model: LanguageModel, state: State, one: bool) -> None:
        super().__init__()
        self.model, self.state, self.one = model, state, one

    def forward(self, tokens: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        output = self.model(tokens[None] if self.one else tokens, self.state.whole(state))
        hidden = output.dropped[0] if self.one else output.dropped
        return hidden, self.state.flat(output.state)


class _Distribution(nn.Module):
    """Vectors (N, H) -> ln p over the vocabulary (N, V)."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden: Tensor) -> Tensor:
        return self.model.log_probs(hidden)


def language_graphs(model: LanguageModel, folder: Path, int8: bool) -> dict[str, Any]:
    """Write both graphs; what a program must know of them."""
    state = State(model)
    after = [f"next_{name}" for name in state.names]
    sizes = {"batch": 3, "time": 4, "memory": 5}
    dims = {name: torch.export.Dim(name) for name in sizes}

    def reading(shape: list[str]) -> "ModelProto":
        tokens = torch.zeros([sizes[axis] for axis in shape], dtype=torch.long)
        return exported(
            _Reading(model, state, one=len(shape) == 1),
            (tokens, state.examples(sizes)),
            (axes(shape, dims), [axes(each, dims) for each in state.shapes]),
            ["tokens", *state.names],
            ["hidden", *after],
            int8,
        )

    step = reading(["batch"])
    rows = torch.zeros(3, model.widths[-1])
    softmax = exported(
        _Distribution(model), (rows,), ({0: dims["batch"]},), ["rows"], ["distribution"], int8
    )
    for name in ("step", "sequence"):
        one = name == "step"
        if one:
            inner = step.graph
        elif state.grows:
            inner = reading(["time", "batch"]).graph
        else:
            inner = scanned(step.graph, state.names, after, ["tokens"], ["hidden"])
        shape = ["batch"] if one else ["batch", "time"]
        inputs: dict[str, tuple[str, Shape]] = {"input_ids": ("int64", shape)}
        outputs: dict[str, tuple[str, Shape]] = {
            "log_probs": ("float32", [*shape, model.vocabulary])
        }
        for each in state.described():
            inputs[each["input"]] = each["type"], each["shape"]
            grown = ["memory_after" if axis == "memory" else axis for axis in each["shape"]]
            outputs[each["output"]] = each["type"], grown
        graph = _completed(inner, softmax.graph, one)
        save(graph, step, inputs, outputs, folder / f"{name}.onnx")
    return {"step": "step.onnx", "sequence": "sequence.onnx", "state": state.described()}


def _completed(reading: "GraphProto", softmax: "GraphProto", one: bool) -> "GraphProto":
    """Tokens to vectors, and these to distributions; of a sequence, texts are rows outside."""
    import onnx

    node, constant = onnx.helper.make_node, onnx.helper.make_tensor
    before, between, last = onnx.GraphProto(), onnx.GraphProto(), onnx.GraphProto()
    if one:
        before.node.append(node("Identity", ["input_ids"], ["tokens"]))
        between.node.append(node("Identity", ["hidden"], ["softmax/rows"]))
        last.node.append(node("Identity", ["softmax/distribution"], ["log_probs"]))
    else:
        columns = softmax.input[0].type.tensor_type.shape.dim[1].dim_value
        words = softmax.output[0].type.tensor_type.shape.dim[1].dim_value
        before.node.append(node("Transpose", ["input_ids"], ["tokens"], perm=[1, 0]))
        before.initializer.extend(
            [
                constant("rows_shape", onnx.TensorProto.INT64, [2], [-1, columns]),
                constant("words", onnx.TensorProto.INT64, [1], [words]),
            ]
        )
        between.node.append(node("Reshape", ["hidden", "rows_shape"], ["softmax/rows"]))
        last.node.extend(
            [
                node("Shape", ["tokens"], ["time_and_batch"]),
                node("Concat", ["time_and_batch", "words"], ["steps_shape"], axis=0),
                node("Reshape", ["softmax/distribution", "steps_shape"], ["of_steps"]),
                node("Transpose", ["of_steps"], ["log_probs"], perm=[1, 0, 2]),
            ]
        )
    return joined(before, reading, between, prefixed(softmax, "softmax/"), last)
