"""`infolm export`: what other libraries read gives the encoder's own numbers."""

import json
import sys

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
        ([runs / "skip-gram", "--out", out], "take --to word2vec"),
        ([trained, "--out", out, "--to", "word2vec"], "cannot hold"),
        ([tmp_path, "--out", out], "not a run's folder"),
        ([runs / "nsp", "--out", out, "--pooling", "cls"], "add --to sentence-transformers"),
    ]:
        done = infolm("export", *arguments)
        assert (done.code, said in done.err, done.err.count("\n")) == (2, True, 1), done.err
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    done = infolm("export", runs / "nsp", "--out", out, "--as", "sentence-transformers")
    assert (done.code, "infolm[sentences]" in done.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
