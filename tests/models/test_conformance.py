"""What is true of every language model in the registry, whatever its state looks like.

A new kind of model is tested here by being registered.
"""

import pytest
import torch
from language_models import KINDS, VOCABULARY, section, spread
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from infolm.models.base import MODELS
from infolm.models.language import LanguageModel
from infolm.training import checkpoint


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def make(kind, **settings):
    torch.manual_seed(1)
    model = MODELS[kind].model_validate(section(kind, **settings)).build(VOCABULARY)
    return spread(model.double())


def text(steps, batch, seed=2):
    return torch.randint(VOCABULARY, (steps, batch), generator=torch.Generator().manual_seed(seed))


def read(model, tokens, state=None):
    with torch.no_grad():
        return model(tokens, model.initial_state(tokens.shape[1]) if state is None else state)


def test_there_are_models_to_test():
    assert {"recurrent", "transformer"} <= set(KINDS)


def test_it_is_a_language_model(kind):
    model = make(kind)
    assert isinstance(model, LanguageModel)
    output = read(model, text(5, 3))
    assert output.hidden.shape == output.dropped.shape
    assert [layer.shape for layer in output.layers] == [(5, 3, width) for width in model.widths]
    total = model.log_probs(output.hidden).logsumexp(-1)
    torch.testing.assert_close(total, torch.zeros_like(total))


@pytest.mark.parametrize("cuts", [[1] * 12, [5, 7], [11, 1]])
def test_cuts_with_the_state_carried_change_nothing(kind, cuts):
    model, tokens = make(kind), text(12, 3)
    whole, state, parts = read(model, tokens).hidden, model.initial_state(3), []
    for cut in tokens.split(cuts):
        output = read(model, cut, state)
        state = output.state
        parts.append(output.hidden)
    torch.testing.assert_close(torch.cat(parts), whole)


def test_the_state_matters(kind):
    model = make(kind)
    further = text(2, 3, seed=4)
    states = [read(model, text(6, 3, seed)).state for seed in (2, 3)]
    first, second = (read(model, further, state).hidden for state in states)
    assert not torch.allclose(first, second)


def test_a_future_token_changes_nothing(kind):
    model, tokens = make(kind), text(8, 2)
    other = tokens.clone()
    other[5:] = (other[5:] + 1) % VOCABULARY
    before, after = read(model, tokens).hidden, read(model, other).hidden
    torch.testing.assert_close(before[:5], after[:5])
    assert not torch.allclose(before[5:], after[5:])


def test_columns_know_nothing_of_each_other(kind):
    model, tokens = make(kind), text(6, 4)
    together = read(model, tokens).hidden
    for column in range(4):
        alone = read(model, tokens[:, column : column + 1]).hidden
        torch.testing.assert_close(together[:, column : column + 1], alone)


@pytest.mark.parametrize("columns", [[0, 0, 0, 1, 1, 1], [2, 0], [1]])
def test_selected_columns_stand_in_the_order_named(kind, columns):
    model, tokens, further = make(kind), text(5, 3), text(3, len(columns), seed=5)
    state = model.selected(read(model, tokens).state, torch.tensor(columns))
    found = read(model, further, state).hidden
    for place, column in enumerate(columns):
        one = read(model, tokens[:, column : column + 1]).state
        alone = read(model, further[:, place : place + 1], one).hidden
        torch.testing.assert_close(found[:, place : place + 1], alone)


def test_columns_of_texts_of_any_length_can_be_selected(kind):
    model, further = make(kind), text(4, 2, seed=5)
    states = [read(model, text(n, 1)).state for n in (3, 11, 6)]
    state = model.selected(model.joined(states), torch.tensor([2, 0]))
    found = read(model, further, state).hidden
    for place, column in enumerate((2, 0)):
        alone = read(model, further[:, place : place + 1], states[column]).hidden
        torch.testing.assert_close(found[:, place : place + 1], alone)


def test_states_of_texts_of_any_length_are_joined(kind):
    model, further = make(kind), text(4, 4, seed=5)
    states = [model.initial_state(1), *(read(model, text(n, 1)).state for n in (3, 11))]
    states.append(read(model, text(6, 1)).state)
    found = read(model, further, model.joined(states))
    again = read(model, further, found.state)
    for column, state in enumerate(states):
        alone = read(model, further[:, column : column + 1], state)
        torch.testing.assert_close(found.hidden[:, column : column + 1], alone.hidden)
        later = read(model, further[:, column : column + 1], alone.state)
        torch.testing.assert_close(again.hidden[:, column : column + 1], later.hidden)


def test_columns_that_are_not_kept_start_anew(kind):
    model, tokens, further = make(kind), text(5, 4), text(3, 4, seed=5)
    state = read(model, tokens).state
    kept = torch.tensor([True, False, False, True])
    found = read(model, further, model.kept(state, kept)).hidden
    went_on, anew = read(model, further, state).hidden, read(model, further).hidden
    torch.testing.assert_close(found, torch.where(kept[:, None], went_on, anew))


def test_a_detached_state_has_no_gradient(kind):
    model = make(kind)
    output = model(text(4, 2), model.initial_state(2))
    state = model.detached(output.state)
    hidden = model(text(3, 2, seed=3), state).hidden
    first = torch.autograd.grad(hidden.sum(), output.hidden, allow_unused=True)
    assert first == (None,)
    torch.testing.assert_close(hidden, read(model, text(3, 2, seed=3), output.state).hidden)


def test_a_state_survives_a_checkpoint(kind, tmp_path):
    model, further = make(kind), text(3, 2, seed=3)
    state = read(model, text(5, 2)).state
    checkpoint.save(tmp_path / "state.safetensors", {"carry": state})
    kept = checkpoint.load(tmp_path / "state.safetensors")["carry"]
    torch.testing.assert_close(
        read(model, further, kept).hidden, read(model, further, state).hidden, rtol=0, atol=0
    )


def test_packed_sentences_are_read_each_by_itself(kind):
    model = make(kind)
    sentences = [text(n, 1, seed=n)[:, 0] for n in (3, 8, 1, 8, 5)]
    packed = pack_sequence(sentences, enforce_sorted=False)
    with torch.no_grad():
        output = model(packed, model.initial_state(5))
    hidden, _ = pad_packed_sequence(packed._replace(data=output.hidden))
    further = text(3, 5, seed=9)
    later = read(model, further, output.state).hidden
    for column, sentence in enumerate(sentences):
        alone = read(model, sentence[:, None])
        torch.testing.assert_close(hidden[: len(sentence), column], alone.hidden[:, 0])
        after = read(model, further[:, column : column + 1], alone.state).hidden
        torch.testing.assert_close(later[:, column : column + 1], after)


def test_the_loss_is_the_sum_of_the_log_probabilities_and_reaches_every_parameter(kind):
    model, tokens = make(kind), text(7, 3)
    output = model(tokens[:-1], model.initial_state(3))
    loss = model.nll_sum(output.dropped, tokens[1:])
    log_p = model.log_prob(output.hidden.detach(), tokens[1:])
    torch.testing.assert_close(loss.detach(), -log_p.sum())
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_dropout_is_of_training_alone_and_scaled_to_nothing_is_none(kind):
    fields = MODELS[kind].model_fields
    if "dropout" not in fields:
        pytest.skip("has no dropout")
    model, tokens = make(kind, dropout={"input": 0.4, "hidden": 0.3, "output": 0.4}), text(6, 2)
    plain = read(model, tokens)
    torch.testing.assert_close(plain.hidden, plain.dropped)
    model.train()
    torch.manual_seed(1)
    assert not torch.allclose(read(model, tokens).dropped, plain.dropped)
    with model.dropout_scaled(0.0):
        torch.testing.assert_close(read(model, tokens).dropped, plain.dropped)


def test_the_number_of_parameters_is_known_without_making_them(kind):
    config = make(kind).config
    size = sum(parameter.numel() for parameter in config.build(VOCABULARY).parameters())
    assert config.parameters_of(VOCABULARY) == size
