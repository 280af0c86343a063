"""Starting from the folder of a BERT, and giving one back: the same numbers on both sides."""

import json
import shutil

import pytest
import torch
from encoder_tiny import tiny_tokenizer
from safetensors.torch import load_file, save_file
from torch.nn import functional
from training_tiny import Silent, quiet

from infolm.config import Recipe
from infolm.errors import InfolmError
from infolm.families.base import open_run
from infolm.families.train import train
from infolm.finetuning import networks
from infolm.models.encoder import Encoder, EncoderConfig
from infolm.models.pretrained import as_transformers, load_pretrained

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT with all its heads, its vocabulary beside it; for reading only."""
    from transformers import BertConfig, BertForPreTraining

    tokenizer = tiny_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = BertForPreTraining(BertConfig(vocab_size=len(tokenizer), **SIZES))
        for weight in model.parameters():  # no bias is 0, no norm 1
            weight.data += 0.1 * torch.randn_like(weight)
    path = tmp_path_factory.mktemp("bert")
    networks.save(model, tokenizer, 40, path)
    return path


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copied")


def encoder(path, **settings) -> Encoder:
    config = EncoderConfig(checkpoint=path, **settings).resolved()
    torch.manual_seed(0)
    return Encoder(config, len(tiny_tokenizer())).eval()


def started(path, **settings) -> Encoder:
    model = encoder(path, **settings)
    load_pretrained(path, model)
    return model


def batch():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(len(tiny_tokenizer()), (3, 12), generator=generator)
    return tokens, (torch.arange(12) < torch.tensor([[12], [9], [4]])).long()


def rewrite(path, change):
    """Change the tensors of a folder."""
    weights = path / "model.safetensors"
    tensors = change(load_file(weights))
    weights.unlink()
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, weights)


def theirs(path):
    """Of `transformers`' own reading: the last layer, and the loss of every token."""
    from transformers import BertForMaskedLM, BertModel

    tokens, mask = batch()
    with networks.quiet(), torch.no_grad():
        inner = BertModel.from_pretrained(path, local_files_only=True).eval()
        outer = BertForMaskedLM.from_pretrained(path, local_files_only=True).eval()
        hidden = inner(tokens, attention_mask=mask).last_hidden_state
        return hidden, outer(tokens, attention_mask=mask, labels=tokens).loss


def ours(model):
    tokens, mask = batch()
    with torch.no_grad():
        hidden = model(tokens, mask)
        scores = model.head(hidden) @ model.embedding.T + model.head.bias
        return hidden, functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def test_the_numbers_are_those_of_transformers(folder):
    hidden, loss = ours(started(folder))
    true_hidden, true_loss = theirs(folder)
    torch.testing.assert_close(hidden, true_hidden, rtol=0, atol=0)
    torch.testing.assert_close(loss, true_loss, rtol=1e-6, atol=1e-6)


def bare(tensors):
    """As `BertModel` saves them."""
    found = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in found.items() if not name.startswith("cls.")}


def old(tensors):
    """As the first public BERTs have them, with the output table written out."""
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    found = {}
    for name, tensor in tensors.items():
        for new, before in names.items():
            name = name.replace(new, before)
        found[name] = tensor
    table = tensors["bert.embeddings.word_embeddings.weight"]
    return found | {"cls.predictions.decoder.weight": table}


def test_old_names_are_the_same_weights(folder, copied):
    rewrite(copied, old)
    new, before = started(folder).state_dict(), started(copied).state_dict()
    assert all(torch.equal(new[name], before[name]) for name in new)


def test_without_a_head_the_encoder_is_taken_and_the_head_begins_anew(folder, copied):
    rewrite(copied, bare)
    model = encoder(copied)
    fresh = {name: weight.clone() for name, weight in model.head.state_dict().items()}
    assert "starts untrained" in load_pretrained(copied, model)
    torch.testing.assert_close(ours(model)[0], ours(started(folder))[0], rtol=0, atol=0)
    assert all(torch.equal(weight, fresh[name]) for name, weight in model.head.state_dict().items())


def test_a_head_with_an_output_table_of_its_own_is_not_taken(copied):
    untied = {"cls.predictions.decoder.weight": torch.ones(len(tiny_tokenizer()), 16)}
    rewrite(copied, lambda tensors: tensors | untied)
    assert "starts untrained" in load_pretrained(copied, encoder(copied))


@pytest.mark.parametrize("head", ["context", "next"])
def test_other_heads_take_the_encoder_alone(folder, head):
    model = encoder(folder, head=head)
    assert load_pretrained(folder, model) == f"starting from {folder}"
    tokens, mask = batch()
    assert torch.equal(model(tokens, mask), theirs(folder)[0])


def test_there_and_back_is_the_same_file(folder, tmp_path):
    model = started(folder)
    networks.save(as_transformers(model), tiny_tokenizer(), 40, tmp_path)
    again = started(tmp_path).state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in model.state_dict().items())


# -- what is refused ------------------------------------------------------------------------


def without(path, name):
    (path / name).unlink()


def config_with(**changes):
    def change(path):
        found = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(found | changes))

    return change


def pickled(path):
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def cut(path):
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def fewer_words(path):
    name = "bert.embeddings.word_embeddings.weight"
    rewrite(path, lambda tensors: tensors | {name: tensors[name][:-1]})


def lacking_a_layer(path):
    rewrite(path, lambda tensors: {k: w for k, w in tensors.items() if "layer.1.output" not in k})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: without(path, "config.json"), "config.json cannot be read"),
        (lambda path: (path / "config.json").write_text("[1]"), "config.json cannot be read"),
        (config_with(model_type="gpt2"), "type gpt2"),
        (config_with(hidden_act="relu"), "hidden_act relu"),
        (config_with(hidden_size=None), "lacks hidden_size"),
        (config_with(intermediate_size=25), "should be"),
        (lambda path: without(path, "model.safetensors"), "model.safetensors cannot be read"),
        (pickled, "pickle"),
        (cut, "model.safetensors cannot be read"),
        (fewer_words, "give the vocabulary"),
        (lacking_a_layer, "missing"),
    ],
)
def test_a_folder_that_is_no_good_is_refused_and_leaves_no_run(
    copied, small_text, tmp_path, spoil, said
):
    spoil(copied)
    with pytest.raises(InfolmError, match=said) as error:
        train(recipe(small_text, copied), tmp_path / "run", False, Silent(), quiet)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


# -- training -------------------------------------------------------------------------------


def recipe(text, checkpoint=None, steps=6, **changes) -> Recipe:
    return Recipe.model_validate(
        {
            "data": {"path": str(text), "tokens": "wordpiece", "vocabulary": 120},
            "feed": {"kind": "sequences", "batch": 4, "length": 16, "masking": "spans"},
            "model": {"kind": "encoder", "layers": 1, "hidden": 8, "heads": 2, "length": 16}
            | ({"checkpoint": str(checkpoint)} if checkpoint else {}),
            "objective": {"kind": "infoword"},
            "optimiser": {"kind": "adamw", "learning_rate": 1e-3},
            "train": {"max_steps": steps, "validate_every": 3, "log_every": 1},
        }
        | changes
    )


def test_a_run_starts_from_the_folder_and_does_without_it_afterwards(copied, small_text, tmp_path):
    watcher, out = Silent(), tmp_path / "run"
    train(recipe(small_text, copied, steps=3), out, False, watcher, quiet)
    assert watcher.said[0].startswith(f"starting from {copied}, with its head")
    whole = tmp_path / "whole"
    train(recipe(small_text, copied), whole, False, Silent(), quiet)
    shutil.rmtree(copied)
    opened = open_run(out)
    saved, tokenizer = opened.recipe, opened.tokenizer
    assert (saved.model.layers, saved.model.inner, saved.model.length) == (2, 24, 40)
    assert tokenizer.to_json() == tiny_tokenizer().to_json()
    changed = saved.model_copy(update={"train": saved.train.model_copy(update={"max_steps": 6})})
    watcher = Silent()
    train(changed, out, True, watcher, quiet)
    assert not any("starting" in said for said in watcher.said)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_what_is_killed_before_its_first_checkpoint_starts_from_the_folder_again(
    folder, small_text, tmp_path
):
    out = tmp_path / "run"
    train(recipe(small_text, folder), out, False, Silent(), quiet)
    before = (out / "model.safetensors").read_bytes()
    for name in ("checkpoints", "tensorboard"):
        shutil.rmtree(out / name)
    (out / "model.safetensors").unlink()
    train(recipe(small_text, folder), out, True, Silent(), quiet)
    assert (out / "model.safetensors").read_bytes() == before


def test_one_start_at_a_time_and_no_sequence_too_long(folder, small_text, tmp_path):
    out = tmp_path / "run"
    other = recipe(small_text, folder, start_from=str(tmp_path))
    with pytest.raises(InfolmError, match="leave one of them out"):
        train(other, out, False, Silent(), quiet)
    feed = {"kind": "sequences", "batch": 4, "length": 41, "masking": "spans"}
    with pytest.raises(InfolmError, match="reads at most 40 tokens"):
        train(recipe(small_text, folder, feed=feed), out, False, Silent(), quiet)


def test_a_run_starts_from_another(small_text, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    train(recipe(small_text), first, False, Silent(), quiet)
    watcher = Silent()
    frozen = {"kind": "adamw", "learning_rate": 1e-12}
    again = recipe(small_text, steps=1, start_from=str(first), optimiser=frozen)
    train(again, second, False, watcher, quiet)
    assert watcher.said[0] == f"starting from {first}"
    old, new = (open_run(run).model.state_dict() for run in (first, second))
    torch.testing.assert_close(new, old)
