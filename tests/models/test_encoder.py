"""Encoders: transformers' own weights and vectors, padding unseen, sizes from a checkpoint."""

import json

import pytest
import torch
from pydantic import ValidationError

from infolm.errors import InfolmError
from infolm.models.encoder import Encoder, EncoderConfig, transformers_config

TYPES = 19
SIZES = {"layers": 2, "hidden": 8, "heads": 2, "inner": 12, "dropout": 0.0, "length": 16}
ARCHITECTURES = ["bert", "xlnet"]


def make(**config):
    torch.manual_seed(0)
    return Encoder(EncoderConfig(**{**SIZES, **config}), TYPES).eval()


def tokens(rows=3, length=9, seed=1):
    torch.manual_seed(seed)
    return torch.randint(5, TYPES, (rows, length))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_vectors_are_those_of_transformers(architecture):
    from transformers import BertModel, XLNetModel

    model, x = make(architecture=architecture), tokens()
    sizes = transformers_config(model.config, TYPES, 0)
    if architecture == "bert":
        theirs = BertModel(sizes, add_pooling_layer=False).eval()
    else:
        theirs = XLNetModel(sizes).eval()
    theirs.load_state_dict(model.transformer.state_dict())
    torch.testing.assert_close(model(x), theirs(x).last_hidden_state)
    assert model(x).shape == (3, 9, 8)
    assert model.embedding.shape == (TYPES, 8)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padding_is_not_seen(architecture):
    """XLNet's is on the right here too, as the n-grams have it."""
    model, x = make(architecture=architecture), tokens()
    padded = torch.cat([x, torch.zeros(3, 4, dtype=torch.long)], 1)
    mask = (padded != 0).long()
    torch.testing.assert_close(model(padded, mask)[:, :9], model(x), atol=1e-5, rtol=1e-4)


def test_each_head_has_what_b_is_looked_up_in():
    names = {
        head: {name.split(".")[0] for name, _ in make(head=head).named_parameters()}
        for head in ("words", "context", "next")
    }
    assert names == {
        "words": {"transformer", "head"},
        "context": {"transformer", "context"},
        "next": {"transformer", "psi"},
    }
    assert make(head="context").context.eq(0).all()


def test_the_words_head_is_a_layer_and_a_norm_by_hand():
    model, h = make(), torch.randn(5, 8)
    head = model.head
    x = h @ head.dense.weight.T + head.dense.bias
    x = x * (1 + torch.erf(x / 2**0.5)) / 2
    x = (x - x.mean(1, keepdim=True)) / x.var(1, correction=0, keepdim=True).add(1e-12).sqrt()
    torch.testing.assert_close(head(h), x * head.norm.weight + head.norm.bias)


def test_heads_divide_the_columns():
    with pytest.raises(ValidationError, match="heads: 3 does not divide hidden, 8"):
        EncoderConfig(hidden=8, heads=3)


def test_a_checkpoint_s_sizes_take_the_place_of_the_recipe_s(tmp_path):
    other = EncoderConfig(layers=1, hidden=12, heads=3, inner=20, length=24)
    transformers_config(other, TYPES, 0).save_pretrained(tmp_path)
    found = EncoderConfig(checkpoint=tmp_path, layers=7).resolved()
    for name in ("layers", "hidden", "heads", "inner", "length"):
        assert getattr(found, name) == getattr(other, name)
    assert EncoderConfig(layers=7).resolved().layers == 7


def test_a_folder_that_is_no_bert_s_is_refused(tmp_path):
    with pytest.raises(InfolmError, match=r"config\.json cannot be read"):
        EncoderConfig(checkpoint=tmp_path).resolved()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(InfolmError, match="a model of type gpt2"):
        EncoderConfig(checkpoint=tmp_path).resolved()
