"""ONNX graphs give, under onnxruntime, the numbers of the model that they were made of."""

import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from language_models import VOCABULARY, spread
from training_tiny import Silent, quiet, tiny_sentences
from whole import WHOLE

from infolm.config import Recipe
from infolm.data.sentences import Lines
from infolm.evaluation.latent import encoded
from infolm.exports.graphs.language import State, language_graphs
from infolm.exports.graphs.latent import latent_graphs
from infolm.families.base import open_run
from infolm.families.train import train
from infolm.models.base import MODELS
from infolm.nn.cells.base import CELLS
from infolm.sentence_vectors import SentenceVectors

SMALL = {"kind": "recurrent", "hidden": 10, "embedding": 6, "layers": 1}
MODELS_TRIED = {
    **({cell: {"cell": cell} for cell in CELLS} if WHOLE else {}),
    "mogrifier": {
        "cell": "rewired",
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
    return spread(MODELS[given["kind"]].model_validate(section).build(VOCABULARY), least=1)


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
    done = infolm("export", trained, "--to", "onnx", "--weights", "int8", "--out", folder)
    assert (done.code, done.out, done.err) == (0, f"{folder}\n", "")
    described = json.loads((folder / "model.json").read_text())
    run = open_run(trained)
    assert described["weights"] == "int8"
    assert (described["vocabulary"], described["eos"]) == (len(run.tokenizer), run.tokenizer.eos)
    assert (folder / "tokenizer.json").read_bytes() == (trained / "tokenizer.json").read_bytes()
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


# -- sentence models -------------------------------------------------------------------------

CODES = {
    "gaussian": {
        "latent": {"size": 3, "batch_norm": 0.6},
        "tied": True,
        "embedding_start": "normal",
    },
    "categorical": {
        "latent": {"kind": "categorical", "variables": 3, "classes": 4, "embedding": 5},
        "bidirectional": True,
        "encoder": {"hidden": 6, "cell": "lstm"},
    },
    "quantised": {
        "latent": {"kind": "quantised", "variables": 3, "classes": 4, "embedding": 5},
        "start": "zeros",
        "decoder": {"hidden": 7, "layers": 2},
    },
}
SENTENCES = [np.array(words, dtype=int) for words in ([3, 4, 5, 6, 7], [9], [1, 2, 3], [])]
EOS = 2


@pytest.mark.parametrize("kind", CODES)
@torch.no_grad()
def test_a_sentence_model_codes_and_writes_as_its_graphs_do(kind, tmp_path):
    sizes = {"embedding": 8, "encoder": {"hidden": 6}, "decoder": {"hidden": 7}}
    section = MODELS["sentence"].model_validate(sizes | CODES[kind])
    model = spread(section.build(VOCABULARY), 0.5, least=1)
    described = latent_graphs(model, EOS, tmp_path, int8=False)
    encoder, start, step = (
        onnxruntime.InferenceSession(tmp_path / described[name])
        for name in ("encoder", "start", "step")
    )
    names = [output.name for output in encoder.get_outputs()]
    for sentences in (SENTENCES, SENTENCES[:1], SENTENCES * 10):
        true = encoded(model, Lines.of(sentences, EOS))
        tokens, mask = np.zeros((2, len(sentences), 6), int)
        for i, words in enumerate(sentences):
            tokens[i, : len(words)], mask[i, : len(words)] = words, 1
        for read in (tokens, np.where(mask, tokens, 11)):  # whatever stands where the mask is 0
            given = {"input_ids": read, "attention_mask": mask}
            found = dict(zip(names, encoder.run(names, given), strict=True))
            known = {"code": true.centre, "sentence_embedding": true.sentence_vectors}
            known |= {n: t for n, t in true._asdict().items() if isinstance(t, torch.Tensor)}
            assert list(known) == names
            for name, value in known.items():
                np.testing.assert_allclose(found[name], value, atol=1e-5, rtol=0)
    code = found["code"]
    z = torch.from_numpy(code)
    state = model.initial_state(z)
    inputs = [each["input"] for each in described["state"]]
    held = dict(zip(inputs, start.run(inputs, {"code": code}), strict=True))
    for word in (EOS, 5, 6):
        given = {"input_ids": np.full(len(code), word), "code": code, **held}
        log_probs, *after = step.run(None, given)
        held = dict(zip(inputs, after, strict=True))
        hidden, state = model.step(torch.full((len(code),), word), z, state)
        np.testing.assert_allclose(log_probs, model.log_probs(hidden), atol=1e-5, rtol=0)


def test_a_run_of_sentences_by_the_command(infolm, tmp_path, small_text):
    recipe = Recipe.model_validate(tiny_sentences(small_text, max_steps=2, validate_every=2))
    train(recipe, tmp_path / "run", False, Silent(), quiet)
    out = tmp_path / "out"
    given = ["--to", "onnx", "--weights", "int8", "--out", out]
    done = infolm("export", tmp_path / "run", *given)
    assert (done.code, done.out, done.err) == (0, f"{out}\n", "")
    described = json.loads((out / "model.json").read_text())
    assert described["code"] == {"shape": ["batch", 3], "type": "float32"}
    run = open_run(tmp_path / "run")
    sentence = run.tokenizer.encode("the cat sees a dog")
    encoder = onnxruntime.InferenceSession(out / described["encoder"])
    given = {"input_ids": sentence[None].astype(int), "attention_mask": np.ones((1, 5), int)}
    (found,) = encoder.run(["sentence_embedding"], given)
    for name in ("encoder", "step"):
        tables = onnx.load(out / described[name]).graph.initializer
        words = [table for table in tables if list(table.dims) == [len(run.tokenizer), 8]]
        assert [table.data_type for table in words] == [onnx.TensorProto.UINT8]
    true = SentenceVectors(run.model, run.tokenizer).encode(["the cat sees a dog"])
    np.testing.assert_allclose(found, true, atol=0.05)


def test_what_is_refused_leaves_nothing(infolm, trained, tmp_path, monkeypatch):
    out = tmp_path / "out"
    done = infolm("export", trained, "--to", "transformers", "--weights", "int8", "--out", out)
    assert (done.code, "option of --to onnx and page" in done.err) == (2, True)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = infolm("export", trained, "--to", "onnx", "--out", out)
    assert (done.code, "infolm[onnx]" in done.err, done.err.count("\n")) == (2, True, 1)
    assert not list(tmp_path.iterdir())
