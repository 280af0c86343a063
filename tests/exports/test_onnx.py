"""ONNX graphs give, under onnxruntime, the numbers of the model that they were made of."""

import json
import sys

import numpy as np
import onnxruntime
import pytest
import torch

from infolm.exports.onnx import State, language_graphs
from infolm.families.base import open_run
from infolm.models.base import MODELS
from infolm.nn.cells.base import CELLS

VOCABULARY = 17
SMALL = {"kind": "recurrent", "hidden": 10, "embedding": 6, "layers": 1}
MODELS_TRIED = {
    **{cell: {"cell": cell} for cell in CELLS},
    "mogrifier": {
        "layers": 2,
        "mogrifier": {"rounds": 3, "rank": 2},
        "connections": "residual",
        "softmax": {"experts": 2},
    },
    "transformer": {"kind": "transformer", "hidden": 8, "heads": 2, "layers": 1, "context": 6},
}


def built(name):
    torch.manual_seed(1)
    given = SMALL | MODELS_TRIED[name]
    fields = MODELS[given["kind"]].model_fields
    section = {key: value for key, value in given.items() if key in fields}
    model = MODELS[given["kind"]].model_validate(section).build(VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # nothing so small that a mistake would hide
            parameter.normal_(std=0.4)
    return model


class Graphs:
    """The folder's graphs, read as `model.json` says."""

    def __init__(self, folder, described):
        self.states = described["state"]
        self.step, self.sequence = (
            onnxruntime.InferenceSession(folder / described[name]) for name in ("step", "sequence")
        )

    def start(self, batch):
        sizes = {"batch": batch, "memory": 0}
        return {
            each["input"]: np.zeros([sizes.get(axis, axis) for axis in each["shape"]], each["type"])
            for each in self.states
        }

    def run(self, graph, tokens, state):
        outputs = [each["output"] for each in self.states]
        found, *after = graph.run(["log_probs", *outputs], {"input_ids": tokens, **state})
        return found, dict(zip((each["input"] for each in self.states), after, strict=True))


@torch.no_grad()
def assert_same(model, graphs, tolerance):
    """One pass, one pass in two cuts, and steps; texts of several numbers and lengths."""
    for batch, steps in [(3, 9), (1, 2)]:
        tokens = torch.randint(VOCABULARY, (batch, steps))
        output = model(tokens.T, model.initial_state(batch))
        true = model.log_probs(output.hidden).transpose(0, 1).numpy()
        last = [tensor.numpy() for tensor in State(model).flat(output.state)]
        tokens = tokens.numpy()
        for cuts in ([tokens], [tokens[:, :1], tokens[:, 1:]], [*tokens.T]):
            state, parts = graphs.start(batch), []
            for cut in cuts:
                graph = graphs.sequence if cut.ndim == 2 else graphs.step
                found, state = graphs.run(graph, cut, state)
                parts.append(found if cut.ndim == 2 else found[:, None])
            np.testing.assert_allclose(np.concatenate(parts, 1), true, atol=tolerance, rtol=0)
            for found, expected in zip(state.values(), last, strict=True):
                np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", MODELS_TRIED)
def test_both_graphs_are_the_model(name, tmp_path):
    model = built(name)
    assert_same(model, Graphs(tmp_path, language_graphs(model, tmp_path, int8=False)), 1e-5)


def test_a_run_in_8_bits(infolm, trained, tmp_path):
    """A quarter of the size, but for the names; and close."""
    folder = tmp_path / "new" / "small"
    done = infolm("export", trained, "--to", "onnx", "--int8", "--out", folder)
    assert (done.code, done.out, done.err) == (0, f"{folder}\n", "")
    described = json.loads((folder / "model.json").read_text())
    run = open_run(trained)
    assert described["weights"] == "int8"
    assert (described["vocabulary"], described["eos"]) == (len(run.tokenizer), run.tokenizer.eos)
    assert (folder / "tokenizer.json").read_bytes() == (trained / "tokenizer.json").read_bytes()
    import onnx

    kinds = {
        tensor.data_type
        for tensor in onnx.load(folder / "sequence.onnx").graph.initializer
        if len(tensor.dims) == 2
    }
    assert kinds == {onnx.TensorProto.UINT8}
    tokens = torch.randint(len(run.tokenizer), (2, 20))
    graphs = Graphs(folder, described)
    found, _ = graphs.run(graphs.sequence, tokens.numpy(), graphs.start(2))
    with torch.no_grad():
        output = run.model(tokens.T, run.model.initial_state(2))
        true = run.model.log_probs(output.hidden).transpose(0, 1).numpy()
    np.testing.assert_allclose(found, true, atol=0.1)
    assert not np.allclose(found, true, atol=1e-6)


def test_what_is_refused_leaves_nothing(infolm, trained, tmp_path, monkeypatch):
    out = tmp_path / "out"
    done = infolm("export", trained, "--to", "transformers", "--int8", "--out", out)
    assert (done.code, "add --to onnx" in done.err) == (2, True)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = infolm("export", trained, "--to", "onnx", "--out", out)
    assert (done.code, "infolm[onnx]" in done.err, done.err.count("\n")) == (2, True, 1)
    assert not list(tmp_path.iterdir())
