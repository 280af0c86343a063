"""Vectors of sentences: what the encoder says of them, in order, also through
sentence-transformers."""

import importlib.util
import sys

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm import sentence_vectors
from infolm.data.sentences import Lines
from infolm.data.tokens import Tokenizer
from infolm.evaluation.latent import encoded
from infolm.models.sentence import SentenceConfig, SentenceModel
from infolm.sentence_vectors import SentenceVectors
from infolm.training import checkpoint

WORDS = ["<eos>", "<unk>", "the", "a", "cat", "dog", "sees", "hears"]
SENTENCES = ["the cat sees a dog", "dog", "", "the dog", "a cat hears the zebra", "the cat hears"]
MODEL = {
    "kind": "sentence",
    "embedding": 5,
    "latent": {"size": 4, "batch_norm": 0.5},
    "encoder": {"hidden": 6, "dropout": {"embedding": 0.5}},
    "decoder": {"hidden": 6},
}
RECIPE = {
    "data": {"path": "text.txt"},
    "optimiser": {"kind": "adam", "learning_rate": 1e-3},
    "train": {"epochs": 1},
}


def make() -> SentenceVectors:
    torch.manual_seed(0)
    model = SentenceModel(SentenceConfig(**MODEL), len(WORDS))
    return SentenceVectors(model, Tokenizer.from_words(WORDS))


def alone(vectors: SentenceVectors, sentence: str) -> np.ndarray:
    """The mean of q(z | x), of one sentence at a time."""
    lines = Lines.of([vectors.tokenizer.encode(sentence)], vectors.tokenizer.eos)
    batch = lines.packed(np.array([0]))
    with torch.no_grad():
        return vectors.model.eval().encode(torch.from_numpy(batch.read), batch.sizes).mean[0]


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from(SENTENCES), max_size=8))
def test_each_vector_is_the_sentences_own_whatever_is_beside_it(chosen):
    vectors = make()
    found = vectors.encode(chosen)
    assert found.shape == (len(chosen), 4)
    assert found.dtype == np.float32
    for sentence, vector in zip(chosen, found, strict=True):
        np.testing.assert_allclose(vector, alone(vectors, sentence), atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.permutations(SENTENCES))
def test_a_batch_comes_back_in_the_order_it_came(chosen):
    vectors = make().eval()
    with torch.no_grad():
        found = vectors(vectors.preprocess(chosen))["sentence_embedding"]
    np.testing.assert_allclose(found, vectors.encode(chosen), atol=1e-6)


def test_sentences_differ_and_training_mode_changes_nothing():
    vectors = make()
    found = vectors.train().encode(SENTENCES)
    assert len(np.unique(found.round(6), axis=0)) == len(SENTENCES)
    np.testing.assert_array_equal(found, vectors.eval().encode(SENTENCES))


def test_unknown_words_are_one_word_and_line_breaks_are_blanks():
    found = make().encode(["the zebra", "the gnu", "the cat\nsees", "the cat sees"])
    np.testing.assert_allclose(found[::2], found[1::2], atol=1e-6)


def test_a_run_is_opened_by_its_folder(tmp_path):
    vectors = make()
    vectors.tokenizer.save(tmp_path / "tokenizer.json")
    checkpoint.save(tmp_path / "model.safetensors", vectors.model.state_dict())
    of_sentences = {"model": MODEL, "feed": {"kind": "sentences"}, "objective": {"kind": "mim"}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | of_sentences))
    opened = SentenceVectors.open(str(tmp_path))
    np.testing.assert_array_equal(opened.encode(SENTENCES), vectors.encode(SENTENCES))


def test_it_does_without_sentence_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)  # importing it would now fail
    spec = importlib.util.spec_from_file_location("again", sentence_vectors.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    vectors = make()
    found = again.SentenceVectors(vectors.model, vectors.tokenizer).encode(SENTENCES)
    np.testing.assert_array_equal(found, vectors.encode(SENTENCES))


@pytest.fixture(scope="module")
def package():
    return pytest.importorskip("sentence_transformers")


def test_it_is_a_module_of_sentence_transformers(package):
    vectors = make()
    model = package.SentenceTransformer(modules=[vectors], device="cpu")
    found = model.encode(SENTENCES, batch_size=2)
    np.testing.assert_allclose(found, vectors.encode(SENTENCES), atol=1e-6)
    assert model.get_embedding_dimension() == 4
    prompted = model.encode(["cat"], prompt="the ")
    np.testing.assert_allclose(prompted, vectors.encode(["the cat"]), atol=1e-6)
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    np.testing.assert_allclose(model.similarity(found, found), unit @ unit.T, atol=1e-5)


def test_sentence_transformers_saves_it_and_loads_it_back(package, tmp_path):
    vectors, path = make(), str(tmp_path / "saved")
    before = package.SentenceTransformer(modules=[vectors], device="cpu")
    before.save(path)
    after = package.SentenceTransformer(
        path, device="cpu", trust_remote_code=True, local_files_only=True
    )
    assert isinstance(after[0], SentenceVectors)
    np.testing.assert_array_equal(after.encode(SENTENCES), before.encode(SENTENCES))
    assert after[0].model.config == vectors.model.config
    names = {file.name for file in tmp_path.rglob("*") if file.is_file()}
    assert names >= {"sentence_model.json", "tokenizer.json", "model.safetensors"}
    assert not any(name.endswith((".bin", ".pkl", ".pt")) for name in names)


def test_gradients_reach_the_encoder():
    vectors = make().train()
    vectors(vectors.preprocess(SENTENCES))["sentence_embedding"].square().sum().backward()
    assert all(weight.grad is not None for weight in vectors.model.encoder.parameters())
    assert all(weight.grad is None for weight in vectors.model.decoder.parameters())


SIZES = {"variables": 3, "classes": 4, "embedding": 2}


def of_classes(kind: str) -> SentenceVectors:
    torch.manual_seed(0)
    config = SentenceConfig(**MODEL | {"latent": {"kind": kind, **SIZES}})
    return SentenceVectors(SentenceModel(config, len(WORDS)), Tokenizer.from_words(WORDS)).eval()


def test_vectors_of_categorical_codes_count_how_often_these_agree():
    """Their product is the mean number of variables with the same class."""
    made = of_classes("categorical")
    found = made.encode(SENTENCES)
    assert found.shape == (len(SENTENCES), made.get_embedding_dimension()) == (6, 12)
    np.testing.assert_allclose(found.reshape(6, 3, 4).sum(-1), 1, atol=1e-6)
    q = encoded(made.model, made._lines(SENTENCES[:2]))
    z = q.drawn(4000, torch.Generator().manual_seed(1))
    agree = (z[:, 0] == z[:, 1]).sum(1).double()
    assert abs(agree.mean() - found[0] @ found[1]) < 4 * agree.std() / 4000**0.5


def test_vectors_of_quantised_codes_are_entries():
    made = of_classes("quantised")
    found = made.encode(SENTENCES)
    assert found.shape == (len(SENTENCES), made.get_embedding_dimension()) == (6, 6)
    entries = made.model.latent.codebook.numpy()
    for vector in found.reshape(6, 3, 2):
        for own, codebook in zip(vector, entries, strict=True):
            assert np.isclose(own, codebook, atol=1e-6).all(1).any()


@pytest.mark.parametrize("kind", ["categorical", "quantised"])
def test_gradients_reach_the_encoder_through_classes(kind):
    made = of_classes(kind).train()
    made(made.preprocess(SENTENCES))["sentence_embedding"].square().sum().backward()
    assert all(weight.grad.abs().sum() > 0 for weight in made.model.encoder.parameters())
