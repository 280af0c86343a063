"""PyTorch's ONNX exporter, and graphs put together from those that it writes."""

import logging
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from infolm.nn.recurrence.driver import use

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

OPSET = 20
Shape = Sequence[int | str]
"""An axis is a number, or the name of one that may have any size."""


def exported(
    module: nn.Module,
    given: tuple[Any, ...],
    dynamic: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    int8: bool,
) -> "ModelProto":
    """The module's graph, for inputs whose axes may have other sizes where `dynamic` names them."""
    with torch.no_grad(), use("plain"), _quiet():
        program = torch.export.export(
            module.eval(),
            given,
            dynamic_shapes=dynamic,
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )
        found = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=inputs,
            output_names=outputs,
        )
    assert found is not None
    model = _quantised(found.model_proto) if int8 else found.model_proto
    for node in model.graph.node:  # which say where in this program it comes from
        for field in ("name", "doc_string", "metadata_props"):
            node.ClearField(field)
    return model


def axes(shape: Shape, dims: Mapping[str, Any]) -> dict[int, Any]:
    """The named axes of a shape, as `torch.export` has them."""
    return {i: dims[axis] for i, axis in enumerate(shape) if isinstance(axis, str)}


def save(
    graph: "GraphProto",
    like: "ModelProto",
    inputs: Mapping[str, tuple[str, Shape]],
    outputs: Mapping[str, tuple[str, Shape]],
    path: Path,
) -> None:
    """Write a graph with these inputs and outputs, each of a type and a shape, as a file.

    like: a model that a part of it was taken from.
    """
    import onnx

    kinds = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}
    for listed, values in ((graph.input, inputs), (graph.output, outputs)):
        del listed[:]
        listed.extend(
            onnx.helper.make_tensor_value_info(name, kinds[kind], shape)
            for name, (kind, shape) in values.items()
        )
    whole = onnx.helper.make_model(
        graph, opset_imports=like.opset_import, ir_version=like.ir_version
    )
    onnx.checker.check_model(whole)
    onnx.save_model(whole, path)


def kind_of(tensor: Tensor) -> str:
    """'float32' or 'int64'."""
    return str(tensor.dtype).removeprefix("torch.")


class Leaves:
    """The tensors in a state, a tree of tensors and of places without one, one after the other."""

    def __init__(self, state: Any) -> None:
        leaves, self.form = pytree.tree_flatten(state)
        self.present = [torch.is_tensor(leaf) for leaf in leaves]

    def flat(self, state: Any) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves(state) if torch.is_tensor(leaf)]

    def whole(self, tensors: Sequence[Tensor]) -> Any:
        """The tree again, as a model reads it."""
        given = iter(tensors)
        leaves = [next(given) if there else None for there in self.present]
        return pytree.tree_unflatten(leaves, self.form)


# -- graphs of graphs -----------------------------------------------------------------------


def joined(*graphs: "GraphProto") -> "GraphProto":
    """One after the other: what has the same name is the same value."""
    import onnx

    whole = onnx.GraphProto(name="model")
    for graph in graphs:
        whole.initializer.extend(graph.initializer)
        whole.node.extend(graph.node)
    return whole


def prefixed(graph: "GraphProto", prefix: str, but: Collection[str] = ()) -> "GraphProto":
    """The graph with a prefix before its values' names, but for those that others know."""
    found: GraphProto = _copy(graph)
    own = {value.name for value in (*found.input, *found.initializer)}
    own |= {name for node in found.node for name in node.output}
    _rename(found, {name: f"{prefix}{name}" for name in own if name and name not in but})
    return found


def scanned(
    step: "GraphProto",
    state: Sequence[str],
    after: Sequence[str],
    read: Sequence[str],
    given: Sequence[str] = (),
) -> "GraphProto":
    """The step's graph repeated over the first axis of what it reads; weights stand outside.

    state, after: inputs and outputs that are handed from step to step. read, given: inputs and
    outputs of each step, which are side by side outside.
    """
    import onnx

    body = _copy(step)
    body.name = "step"
    # Scan hands over the state first: its body's inputs are the state and what is read.
    of = {value.name: value for value in (*body.input, *body.output)}
    inputs = [_copy(of[name]) for name in (*state, *read)]
    outputs = [_copy(of[name]) for name in (*after, *given)]
    whole = onnx.GraphProto(name="sequence", initializer=body.initializer)
    del body.input[:], body.output[:], body.initializer[:]
    body.input.extend(inputs)
    body.output.extend(outputs)
    # No name of the body may be one of the graph around it.
    inside = {value.name: f"step/{value.name}" for value in (*body.input, *body.output)}
    for node in body.node:
        inside |= {name: f"step/{name}" for name in node.output if name}
    _rename(body, inside)
    scan = onnx.helper.make_node(
        "Scan", [*state, *read], [*after, *given], num_scan_inputs=len(read), body=body
    )
    whole.node.append(scan)
    whole.input.extend(_copy(of[name]) for name in (*state, *read))
    return whole


def _copy(message: Any) -> Any:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


def _rename(graph: "GraphProto", names: Mapping[str, str]) -> None:
    """Give values of a graph other names, those of graphs inside it that come from it too."""
    import onnx

    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for listed in (node.input, node.output):
            listed[:] = [names.get(name, name) for name in listed]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename(attribute.g, names)
    del graph.value_info[:]


# -- int8 -----------------------------------------------------------------------------------


def _quantised(model: "ModelProto") -> "ModelProto":
    """The same with weights of 8 bits, a scale for each column.

    They are unsigned: products of signed ones overflow on older x86 processors.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    del model.graph.value_info[:]  # shapes of weights that are turned here
    with tempfile.TemporaryDirectory() as folder, _quiet():
        path = Path(folder) / "model.onnx"
        quantize_dynamic(model, path, per_channel=True, weight_type=QuantType.QUInt8)
        return onnx.load_model(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks, which tell a person nothing to do."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "root", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
