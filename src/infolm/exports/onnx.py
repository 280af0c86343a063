"""A model as ONNX graphs, which onnxruntime and others run without PyTorch.

A language model becomes two graphs. `step.onnx` reads a token of each text, `sequence.onnx` texts
of any one length; both take the state and give it back, so that a program can read on:

    step        input_ids (B,), state_0, ...     -> log_probs (B, V), next_state_0, ...
    sequence    input_ids (B, T), state_0, ...   -> log_probs (B, T, V), next_state_0, ...

PyTorch's exporter writes what reads, tokens to the vectors before the softmax, and the softmax.
Where a step keeps the state's shapes, as a recurrent model's does, the sequence is an ONNX `Scan`
of the step, and the softmax reads the vectors of all steps at once. Where the state grows, as a
Transformer's memory does, the sequence is written by itself.
"""

import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from infolm.errors import InfolmError
from infolm.exports.base import EXPORTS, Export
from infolm.families.base import Run
from infolm.models.language import LanguageModel
from infolm.nn.recurrence.driver import use

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

OPSET = 20
NEEDED = "this needs onnx and onnxruntime: install them with `pip install 'infolm[onnx]'`"
DESCRIPTION, TOKENIZER = "model.json", "tokenizer.json"


@EXPORTS.register
@dataclass(frozen=True)
class Onnx(Export):
    """int8: weights of 8 bits instead of 32; numbers are then close, not the same."""

    int8: bool = False

    kind: ClassVar[str] = "onnx"
    reads: ClassVar[str] = "onnxruntime"
    needs: ClassVar[dict[str, str]] = {"int8": "ONNX graphs"}

    def language(self, run: Run, making: Path) -> None:
        _require()
        if not run.recipe.model.reads_sentences:
            raise InfolmError(
                f"{run.folder.path} has a model of kind {run.recipe.model.kind}, which does not "
                "read word by word: take a recurrent model or a Transformer"
            )
        tokenizer = run.tokenizer
        making.mkdir()
        described = language_graphs(run.model.cpu(), making, self.int8)
        described |= {"eos": tokenizer.eos, "unk": tokenizer.unk}
        self._describe(run, making, described)

    def _describe(self, run: Run, making: Path, described: Mapping[str, Any]) -> None:
        known = {
            "kind": run.recipe.model.kind,
            "vocabulary": len(run.tokenizer),
            "weights": "int8" if self.int8 else "float32",
            **described,
        }
        (making / DESCRIPTION).write_text(json.dumps(known, indent=2) + "\n", "utf-8")
        shutil.copyfile(run.folder.tokenizer, making / TOKENIZER)


def _require() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError:
        raise InfolmError(NEEDED) from None


# -- a language model -----------------------------------------------------------------------


class State:
    """The tensors in a model's state, one after the other, with their shapes.

    shapes: an axis is a number, "batch", or "memory" where it grows with the text read.
    """

    def __init__(self, model: LanguageModel) -> None:
        leaves, self.form = pytree.tree_flatten(model.initial_state(2))
        self.present = [isinstance(leaf, Tensor) for leaf in leaves]
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

    def flat(self, state: Any) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, Tensor)]

    def whole(self, tensors: Sequence[Tensor]) -> Any:
        """The state that the model itself reads."""
        given = iter(tensors)
        leaves = [next(given) if there else None for there in self.present]
        return pytree.tree_unflatten(leaves, self.form)

    def examples(self, sizes: Mapping[str, int]) -> list[Tensor]:
        return [
            tensor.new_zeros([sizes[axis] if isinstance(axis, str) else axis for axis in shape])
            for tensor, shape in zip(self.first, self.shapes, strict=True)
        ]

    def described(self) -> list[dict[str, Any]]:
        return [
            {
                "input": name,
                "output": f"next_{name}",
                "shape": shape,
                "type": str(tensor.dtype).removeprefix("torch."),
            }
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
    import onnx

    state = State(model)
    names = ["hidden", *(f"next_{name}" for name in state.names)]
    sizes = {"batch": 3, "time": 4, "memory": 5}
    dims = {name: torch.export.Dim(name) for name in sizes}

    def axes(shape: Sequence[int | str]) -> dict[int, Any]:
        return {i: dims[axis] for i, axis in enumerate(shape) if isinstance(axis, str)}

    def reading(shape: list[str]) -> "ModelProto":
        tokens = torch.zeros([sizes[axis] for axis in shape], dtype=torch.long)
        return exported(
            _Reading(model, state, one=len(shape) == 1),
            (tokens, state.examples(sizes)),
            (axes(shape), [axes(each) for each in state.shapes]),
            ["tokens", *state.names],
            names,
            int8,
        )

    step = reading(["batch"])
    rows = torch.zeros(3, model.widths[-1])
    softmax = exported(
        _Distribution(model), (rows,), ({0: dims["batch"]},), ["rows"], ["distribution"], int8
    )
    kind = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}
    for name in ("step", "sequence"):
        one = name == "step"
        if one:
            inner = step.graph
        elif state.grows:
            inner = reading(["time", "batch"]).graph
        else:
            inner = _scanned(step.graph, state)
        graph = _completed(inner, softmax.graph, one)
        shape = ["batch"] if one else ["batch", "time"]
        info = onnx.helper.make_tensor_value_info
        inputs = [info("input_ids", onnx.TensorProto.INT64, shape)]
        outputs = [info("log_probs", onnx.TensorProto.FLOAT, [*shape, model.vocabulary])]
        for each in state.described():
            inputs.append(info(each["input"], kind[each["type"]], each["shape"]))
            after = ["memory_after" if axis == "memory" else axis for axis in each["shape"]]
            outputs.append(info(each["output"], kind[each["type"]], after))
        del graph.input[:], graph.output[:]
        graph.input.extend(inputs)
        graph.output.extend(outputs)
        whole = onnx.helper.make_model(
            graph, opset_imports=step.opset_import, ir_version=step.ir_version
        )
        onnx.checker.check_model(whole)
        onnx.save_model(whole, folder / f"{name}.onnx")
    return {"step": "step.onnx", "sequence": "sequence.onnx", "state": state.described()}


def _scanned(step: "GraphProto", state: State) -> "GraphProto":
    """The step's graph repeated over the first axis of its tokens; weights stand outside."""
    import onnx

    make, after = onnx.helper, [f"next_{name}" for name in state.names]
    body = onnx.GraphProto()
    body.CopyFrom(step)
    body.name = "step"
    # Scan reads the state first: its body's inputs are the state and the token, in this order.
    of = {value.name: value for value in (*body.input, *body.output)}
    ordered = [of[name] for name in (*state.names, "tokens")]
    given = [of[name] for name in (*after, "hidden")]
    whole = onnx.GraphProto(name="sequence", initializer=body.initializer)
    inputs, outputs = [_copy(value) for value in ordered], [_copy(value) for value in given]
    del body.input[:], body.output[:], body.initializer[:]
    body.input.extend(inputs)
    body.output.extend(outputs)
    # No name of the body may be one of the graph around it.
    inside = {value.name: f"step/{value.name}" for value in (*body.input, *body.output)}
    for node in body.node:
        inside |= {name: f"step/{name}" for name in node.output if name}
    _renamed(body, inside)
    whole.node.append(
        make.make_node(
            "Scan",
            [*state.names, "tokens"],
            [*after, "hidden"],
            num_scan_inputs=1,
            body=body,
        )
    )
    return whole


def _completed(reading: "GraphProto", softmax: "GraphProto", one: bool) -> "GraphProto":
    """Tokens to vectors, and these to distributions; of a sequence, texts are rows outside."""
    import onnx

    node, whole = onnx.helper.make_node, onnx.GraphProto(name="model")
    after = onnx.GraphProto()
    after.CopyFrom(softmax)
    own = {value.name for value in (*after.input, *after.initializer)}
    own |= {name for each in after.node for name in each.output}
    _renamed(after, {name: f"softmax/{name}" for name in own if name})
    whole.initializer.extend([*reading.initializer, *after.initializer])
    if one:
        before = [node("Identity", ["input_ids"], ["tokens"])]
        between = [node("Identity", ["hidden"], ["softmax/rows"])]
        last = [node("Identity", ["softmax/distribution"], ["log_probs"])]
    else:
        before = [node("Transpose", ["input_ids"], ["tokens"], perm=[1, 0])]
        columns = softmax.input[0].type.tensor_type.shape.dim[1].dim_value
        words = softmax.output[0].type.tensor_type.shape.dim[1].dim_value
        constant = onnx.helper.make_tensor
        whole.initializer.extend(
            [
                constant("rows_shape", onnx.TensorProto.INT64, [2], [-1, columns]),
                constant("words", onnx.TensorProto.INT64, [1], [words]),
            ]
        )
        between = [node("Reshape", ["hidden", "rows_shape"], ["softmax/rows"])]
        last = [
            node("Shape", ["tokens"], ["time_and_batch"]),
            node("Concat", ["time_and_batch", "words"], ["steps_shape"], axis=0),
            node("Reshape", ["softmax/distribution", "steps_shape"], ["of_steps"]),
            node("Transpose", ["of_steps"], ["log_probs"], perm=[1, 0, 2]),
        ]
    whole.node.extend([*before, *reading.node, *between, *after.node, *last])
    return whole


def _copy(message: Any) -> Any:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


def _renamed(graph: "GraphProto", names: Mapping[str, str]) -> None:
    """Give values of a graph, which has none inside it, other names."""
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for listed in (node.input, node.output):
            listed[:] = [names.get(name, name) for name in listed]
    del graph.value_info[:]


# -- PyTorch's exporter ---------------------------------------------------------------------


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
