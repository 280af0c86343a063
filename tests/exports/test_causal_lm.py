"""Our language models as those of `transformers`: the same numbers by its own programs."""

import subprocess
import sys

import pytest
import torch
from language_models import KINDS, VOCABULARY, section, spread
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, pipeline

from infolm.causal_lm import IGNORED, InfolmForCausalLM
from infolm.causal_lm_config import InfolmConfig
from infolm.errors import InfolmError
from infolm.families.base import open_run
from infolm.finetuning.networks import quiet


@pytest.fixture(params=KINDS)
def network(request):
    torch.manual_seed(1)
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return spread(InfolmForCausalLM(InfolmConfig(section(request.param), VOCABULARY, **ids)))


def text(batch, steps, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (batch, steps), generator=generator)


def left_padded():
    """Rows of 6, 3 and 5 tokens, and their mask."""
    tokens, mask = text(3, 6), torch.ones(3, 6, dtype=torch.long)
    mask[1, :3] = mask[2, :1] = 0
    return tokens.masked_fill(mask == 0, 0), mask


@torch.no_grad()
def test_the_logits_are_the_model_s_own_log_probabilities(network):
    tokens = text(3, 6)
    ours = network.language_model
    true = ours.log_probs(ours(tokens.T, ours.initial_state(3)).hidden).transpose(0, 1)
    torch.testing.assert_close(network(tokens).logits, true)


@torch.no_grad()
def test_a_carried_state_is_one_pass(network):
    tokens, state, parts = text(3, 7), None, []
    for cut in tokens.split([2, 1, 4], 1):
        output = network(cut, cache_params=state)
        state = output.cache_params
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1), network(tokens).logits)


@torch.no_grad()
def test_padding_on_either_side_changes_nothing(network):
    tokens, mask = left_padded()
    for flipped in (False, True):
        if flipped:  # now the padding stands behind
            tokens, mask = tokens.flip(1), mask.flip(1)
        found = network(tokens, attention_mask=mask)
        after = network(text(3, 2, seed=5), cache_params=found.cache_params).logits
        for row in range(3):
            alone = network(tokens[row : row + 1, mask[row].bool()])
            torch.testing.assert_close(found.logits[row, mask[row].bool()], alone.logits[0])
            later = network(text(3, 2, seed=5)[row : row + 1], cache_params=alone.cache_params)
            torch.testing.assert_close(after[row], later.logits[0])


def test_an_empty_row_is_refused(network):
    with pytest.raises(InfolmError, match="no token"):
        network(text(2, 3), attention_mask=torch.tensor([[1, 1, 1], [0, 0, 0]]))


def test_the_loss_is_the_mean_over_labels_that_count(network):
    tokens = text(2, 6)
    labels = tokens.clone()
    labels[0, 3] = IGNORED
    output = network(tokens, labels=labels)
    logits = output.logits[:, :-1].flatten(0, 1)
    true = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=IGNORED)
    torch.testing.assert_close(output.loss, true)
    torch.testing.assert_close(network(tokens, labels=labels, num_items_in_batch=3).loss, 3 * true)


@torch.no_grad()
def test_greedy_batches_are_written_row_by_row(network):
    tokens, mask = left_padded()
    written = network.generate(tokens, attention_mask=mask, max_new_tokens=7, do_sample=False)
    for row in range(3):
        alone = tokens[row : row + 1, mask[row].bool()]
        for _ in range(7):  # by hand
            best = network(alone).logits[:, -1:].argmax(-1)
            alone = torch.cat([alone, best], 1)
            if best.item() == 0:
                break
        new = alone.shape[1] - int(mask[row].sum())
        assert written[row, 6 : 6 + new].tolist() == alone[0, -new:].tolist()


@torch.no_grad()
def test_beams_with_a_state_are_beams_without_one(network):
    tokens, mask = left_padded()
    given = {"attention_mask": mask, "max_new_tokens": 6, "num_beams": 3}
    with_state, without = (network.generate(tokens, **given, use_cache=c) for c in (True, False))
    assert with_state.tolist() == without.tolist()


def test_sampling_needs_only_a_seed(network):
    given = {"max_new_tokens": 6, "do_sample": True, "top_p": 0.9, "num_return_sequences": 2}
    given["attention_mask"] = torch.ones(2, 3, dtype=torch.long)
    torch.manual_seed(3)
    first = network.generate(text(2, 3), **given)
    torch.manual_seed(3)
    assert network.generate(text(2, 3), **given).tolist() == first.tolist()
    assert first.shape[0] == 4


def test_a_folder_gives_the_same_parameters_back_and_keeps_a_tied_one_once(network, tmp_path):
    with quiet():
        network.save_pretrained(tmp_path)
        again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert network.state_dict().keys() == again.state_dict().keys()
    for name, parameter in network.state_dict().items():
        assert torch.equal(parameter, again.state_dict()[name])
    assert again.get_input_embeddings().weight is again.language_model.embedding
    tied = network.config.architecture.get("tied", True)
    tables = [p for p in again.parameters() if p.shape == network.language_model.embedding.shape]
    assert len(tables) == (1 if tied else 2)


# -- of a run ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    from infolm.exports.base import export, made

    out = tmp_path_factory.mktemp("export") / "folder"
    export(open_run(trained), made("transformers", {"licence": "cc-by-4.0"}), out)
    return out


@pytest.fixture(scope="module")
def read(folder):
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(folder)
        return model, AutoTokenizer.from_pretrained(folder)


TEXTS = [
    "the cat sees a dog",
    "a bird\nand then\n",
    "zebra <eos> <unk>",
    "",
    "\u2028 don't",
    "<eos>the cat",
]


def test_the_tokenizer_gives_our_ids(trained, read):
    ours, theirs = open_run(trained).tokenizer, read[1]
    for text_ in TEXTS:
        assert theirs(text_)["input_ids"] == ours.encode(text_).tolist()
    assert theirs.bos_token_id == theirs.eos_token_id == ours.eos


def test_the_model_is_the_run_s(trained, read):
    run, (model, tokenizer) = open_run(trained), read
    tokens = torch.tensor([tokenizer("<eos> the cat sees a dog")["input_ids"]])
    with torch.no_grad():
        output = run.model(tokens.T, run.model.initial_state(1))
        true = run.model.log_probs(output.hidden)[:, 0]
        torch.testing.assert_close(model(tokens).logits[0], true)


def test_a_program_that_imports_infolm_reads_it_in_either_order(folder):
    """In a process of its own: this one has imported everything already."""
    program = """
import sys
{first}
{second}
m = AutoModelForCausalLM.from_pretrained({folder!r})
print(type(m).__name__)
"""
    orders = [("import infolm", "from transformers import AutoModelForCausalLM")]
    orders.append(orders[0][::-1])
    codes = [program.format(first=a, second=b, folder=str(folder)) for a, b in orders]
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for code in codes
    ]
    for process in both:
        out, err = process.communicate()
        assert out.strip() == "InfolmForCausalLM", err


def test_infolm_alone_imports_neither_library():
    code = "import sys, infolm; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_a_pipeline_writes(read):
    model, tokenizer = read
    with quiet():
        writer = pipeline("text-generation", model=model, tokenizer=tokenizer)
        found = writer("the cat", max_new_tokens=5, do_sample=False)
    assert found[0]["generated_text"].startswith("the cat")


def test_the_trainer_learns(trained, folder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer("the cat sees a dog and then")["input_ids"]
    rows = [{"input_ids": ids, "labels": ids}] * 16
    settings = TrainingArguments(
        str(tmp_path), max_steps=10, learning_rate=0.05, per_device_train_batch_size=4,
        report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, logging_steps=1,
    )  # fmt: skip
    trainer = Trainer(model, settings, train_dataset=rows)
    with quiet():
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 10
    assert losses[-1] < losses[0] - 0.5


def test_the_card_has_the_licence_the_recipe_and_how_to_use_it(trained, folder):
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlicense: cc-by-4.0\n")
    assert open_run(trained).folder.recipe.read_text().strip() in card
    assert "AutoModelForCausalLM" in card


def test_what_exists_is_not_touched(infolm, trained, tmp_path):
    out = tmp_path / "there"
    out.write_text("mine")
    done = infolm("export", trained, "--out", out)
    assert (done.code, out.read_text()) == (2, "mine")
    assert "exists already" in done.err


@pytest.mark.parametrize(
    ("form", "sentence"),
    [("word2vec", "cannot hold"), ("paper", "--to is"), ("sentence-transformers", "cannot hold")],
)
def test_a_form_that_cannot_hold_it_is_refused(infolm, trained, tmp_path, form, sentence):
    done = infolm("export", trained, "--out", tmp_path / "out", "--to", form)
    assert done.code == 2
    assert sentence in done.err
    assert not list(tmp_path.iterdir())
