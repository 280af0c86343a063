"""`infolm export`: what other libraries read gives the encoder's own numbers."""

import json
import logging
import sys
import warnings

import numpy as np
import pytest
import torch
from encoder_runs import train_encoders

from infolm.families.base import open_run
from infolm.finetuning.networks import quiet as without_remarks

SENTENCES = ["The cat sees a dog.", "river", "a king follows the stone number 7"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each head, for reading only."""
    return train_encoders(tmp_path_factory.mktemp("encoders"))


def read(out, kind="AutoModel"):
    import transformers

    with without_remarks():
        return getattr(transformers, kind).from_pretrained(out, local_files_only=True)


def remarks(load):
    """What the libraries log of a load, warnings and worse."""
    heard = []

    class Heard(logging.Handler):
        def emit(self, record):
            heard.append(record.getMessage())

    handler, loggers = Heard(logging.WARNING), ["transformers", "sentence_transformers"]
    for name in loggers:
        logging.getLogger(name).addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load()
    finally:
        for name in loggers:
            logging.getLogger(name).removeHandler(handler)
    return heard


@pytest.mark.parametrize(
    ("kind", "reader"),
    [("infoword", "AutoModelForMaskedLM"), ("permutation", "AutoModel"), ("nsp", "AutoModel")],
)
def test_transformers_remarks_on_nothing(infolm, runs, tmp_path, kind, reader):
    import transformers

    infolm("export", runs / kind, "--out", tmp_path / "out")
    assert remarks(lambda: getattr(transformers, reader).from_pretrained(tmp_path / "out")) == []


def test_of_a_word_head_the_card_s_lines_draw_no_weights(infolm, runs, tmp_path):
    """`AutoModel` says that it leaves the head; a pooler drawn at random it must not have."""
    import transformers

    infolm("export", runs / "infoword", "--out", tmp_path / "out")
    assert '"FOLDER", add_pooling_layer=False)' in (tmp_path / "out/README.md").read_text()

    def load():
        transformers.AutoModel.from_pretrained(tmp_path / "out", add_pooling_layer=False)

    assert not any("pooler" in said or "MISSING" in said for said in remarks(load))


def test_the_pooler_of_an_encoder_without_a_head_is_of_cls_alone(infolm, runs, tmp_path):
    infolm("export", runs / "nsp", "--out", tmp_path / "out")
    with torch.no_grad():
        found = read(tmp_path / "out").eval()(torch.arange(12).view(2, 6))
    torch.testing.assert_close(found.pooler_output, found.last_hidden_state[:, 0].tanh())


@pytest.mark.parametrize("kind", ["infoword", "permutation", "nsp"])
def test_transformers_reads_the_same_encoder_and_the_same_tokens(infolm, runs, tmp_path, kind):
    out = tmp_path / "new" / "folder"
    done = infolm("export", runs / kind, "--out", out)
    assert (done.code, done.out, done.err) == (0, f"{out}\n", "")
    tokenizer, model = read(out, "AutoTokenizer"), read(out).eval()
    given = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    own = open_run(runs / kind)
    special = own.tokenizer.special
    for sentence, ids, mask in zip(
        SENTENCES, given["input_ids"], given["attention_mask"], strict=True
    ):
        true = [special.cls, *own.tokenizer.encode(sentence), special.sep]
        assert ids[mask.bool()].tolist() == true
    with torch.no_grad():
        found = model(given["input_ids"], attention_mask=given["attention_mask"])[0]
        true = own.model(given["input_ids"], given["attention_mask"])
    assert torch.equal(found, true)
    assert tokenizer.model_max_length == 24
    assert (tokenizer.mask_token_id, tokenizer.pad_token_id) == (special.mask, special.pad)
    assert [path.name for path in out.parent.iterdir()] == ["folder"]


def test_its_words_are_predicted_as_before(infolm, runs, tmp_path):
    infolm("export", runs / "infoword", "--out", tmp_path / "out")
    model = read(tmp_path / "out", "AutoModelForMaskedLM").eval()
    own = open_run(runs / "infoword").model
    tokens = torch.arange(20).view(2, 10)
    with torch.no_grad():
        true = own.head(own(tokens)) @ own.embedding.T + own.head.bias
        torch.testing.assert_close(model(tokens).logits, true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_sentence_transformers_reads_it(infolm, runs, tmp_path, pooling):
    package = pytest.importorskip("sentence_transformers")
    given = ["--pooling", pooling] if pooling == "cls" else []
    out = tmp_path / "out"
    done = infolm(
        "export", runs / "infoword", "--out", out, "--as", "sentence-transformers", *given, "--json"
    )
    assert json.loads(done.out) == {
        "run": str(runs / "infoword"),
        "as": "sentence-transformers",
        "out": str(out),
    }
    assert (
        remarks(lambda: package.SentenceTransformer(str(out), device="cpu", local_files_only=True))
        == []
    )
    with without_remarks():
        model = package.SentenceTransformer(str(out), device="cpu", local_files_only=True)
    found = model.encode(SENTENCES, show_progress_bar=False)
    opened = open_run(runs / "infoword")
    tokenizer, own = opened.tokenizer, opened.model
    special = tokenizer.special
    for sentence, vector in zip(SENTENCES, found, strict=True):
        tokens = torch.tensor([[special.cls, *tokenizer.encode(sentence), special.sep]])
        with torch.no_grad():
            hidden = own(tokens)[0]
        true = hidden.mean(0) if pooling == "mean" else hidden[0]
        np.testing.assert_allclose(vector, true, atol=1e-5)
    assert model.max_seq_length == 24
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def padded(tokenizer, sentences):
    """Sentences as onnxruntime reads them, by the tokenizer's file alone."""
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(tokenizer))
    backend.enable_padding()
    found = backend.encode_batch(sentences)
    columns = ("ids", "attention_mask", "type_ids")
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {
        name: np.array([getattr(each, column) for each in found])
        for name, column in zip(names, columns, strict=True)
    }


@pytest.mark.parametrize(
    ("kind", "weights"), [("infoword", "float32"), ("permutation", "float32"), ("nsp", "int8")]
)
def test_onnxruntime_reads_it(infolm, runs, tmp_path, kind, weights):
    onnxruntime = pytest.importorskip("onnxruntime")
    out, near = tmp_path / "out", {"float32": 1e-5, "int8": 0.1}[weights]
    done = infolm("export", runs / kind, "--out", out, "--to", "onnx", "--weights", weights)
    assert (done.code, done.out, done.err) == (0, f"{out}\n", "")
    about = json.loads((out / "model.json").read_text())
    assert (about["columns"], about["length"], about["weights"]) == (16, 24, weights)
    graph = onnxruntime.InferenceSession(out / about["encoder"])
    own = open_run(runs / kind).model
    for sentences in (SENTENCES, SENTENCES[1:2], ["cat " * 22]):
        given = padded(out / "tokenizer.json", sentences)
        given["token_type_ids"][:, 3:] = 1
        hidden, embedding = graph.run(["last_hidden_state", "sentence_embedding"], given)
        tokens, mask, segments = (torch.from_numpy(each) for each in given.values())
        with torch.no_grad():
            true = own(tokens, mask, segments)
        words = mask.bool()
        np.testing.assert_allclose(hidden[words], true[words], atol=near, rtol=0)
        means = torch.stack([rows[kept].mean(0) for rows, kept in zip(true, words, strict=True)])
        np.testing.assert_allclose(embedding, means, atol=near, rtol=0)
    assert ("words" in about) == (kind == "infoword")
    if "words" in about:
        (found,) = onnxruntime.InferenceSession(out / about["words"]).run(
            None, {"hidden": hidden[0]}
        )
        with torch.no_grad():
            scores = own.head(true[0]) @ own.embedding.T + own.head.bias
        np.testing.assert_allclose(found, scores.log_softmax(-1), atol=near, rtol=0)


def test_word2vec(infolm, runs, tmp_path):
    done = infolm("export", runs / "skip-gram", "--out", tmp_path / "v.txt", "--as", "word2vec")
    assert done.code == 0, done.err
    header, *rows = (tmp_path / "v.txt").read_text().splitlines()
    assert header == f"{len(rows)} 16"
    assert "cat" in {row.split()[0] for row in rows}


def test_what_is_refused_leaves_nothing(infolm, runs, trained, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    out = tmp_path / "out"
    for arguments, said in [
        ([runs / "infoword", "--out", tmp_path / "there"], "exists already"),
        ([runs / "skip-gram", "--out", out], "use --to word2vec"),
        ([runs / "skip-gram", "--out", out, "--to", "onnx"], "use --to word2vec"),
        ([runs / "nsp", "--out", out, "--to", "page"], "cannot hold"),
        ([runs / "nsp", "--out", out, "--weights", "int8"], "option of --to onnx and page"),
        ([trained, "--out", out, "--to", "word2vec"], "cannot hold"),
        ([tmp_path, "--out", out], "not a run's folder"),
        ([runs / "nsp", "--out", out, "--pooling", "cls"], "option of --to sentence-transformers"),
    ]:
        done = infolm("export", *arguments)
        assert (done.code, said in done.err, done.err.count("\n")) == (2, True, 1), done.err
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    done = infolm("export", runs / "nsp", "--out", out, "--as", "sentence-transformers")
    assert (done.code, "infolm[sentences]" in done.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
