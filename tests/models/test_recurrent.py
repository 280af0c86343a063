"""The model: its size, its initialisation, and that state and padding of chunks change nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from infolm.errors import InfolmError
from infolm.models.recurrent import DropoutConfig, RecurrentConfig, RecurrentModel

SMALL = RecurrentConfig(embedding=6, hidden=10, layers=3)


def test_the_papers_model_has_its_24_2_million_weights():
    with torch.device("meta"):
        model = RecurrentModel(RecurrentConfig(), 10_000)
    assert sum(p.numel() for p in model.parameters()) == 24_221_600


def test_the_full_sized_embedding_has_its_43_million():
    with torch.device("meta"):
        model = RecurrentModel(RecurrentConfig(embedding=1150), 10_000)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(43e6, rel=0.01)


def test_layers_read_and_write_the_sizes_of_the_paper():
    model = RecurrentModel(SMALL, 20)
    assert [(c.inputs, c.hidden) for c in model.stack.cells] == [(6, 10), (10, 10), (10, 6)]
    one = RecurrentModel(RecurrentConfig(embedding=6, hidden=10, layers=1), 20)
    assert [(c.inputs, c.hidden) for c in one.stack.cells] == [(6, 6)]


def test_initialisation_ranges():
    torch.manual_seed(0)
    model = RecurrentModel(RecurrentConfig(embedding=50, hidden=100, layers=2), 1000)
    assert 0.099 < model.embedding.abs().max() <= 0.1
    first = model.stack.cells[0].weight_hh
    assert 0.099 < first.abs().max() <= 100**-0.5
    assert model.softmax.bias.abs().max() <= 100**-0.5


def test_tied_weights_stand_in_the_state_once_and_untied_ones_are_two():
    tied = RecurrentModel(SMALL, 20)
    untied = RecurrentModel(SMALL.model_copy(update={"tied": False}), 20)
    assert untied.softmax.weight.shape == tied.embedding.shape
    assert set(untied.state_dict()) - set(tied.state_dict()) == {"softmax.weight"}


def test_dropout_acts_where_it_should():
    torch.manual_seed(0)
    tokens = torch.randint(0, 20, (4, 3))
    rates = {"embedding": 0.5, "input": 0.5, "hidden": 0.5, "output": 0.5}
    for name, rate in rates.items():
        config = SMALL.model_copy(update={"dropout": DropoutConfig(**{name: rate})})
        model = RecurrentModel(config, 20).train()
        a, b = (model(tokens, model.initial_state(3)) for _ in range(2))
        assert not torch.equal(a.dropped, b.dropped), name
        # Output dropout leaves the undropped output alone: TAR and the cache read that one.
        assert torch.equal(a.hidden, b.hidden) == (name == "output")
        model.eval()
        a, b = (model(tokens, model.initial_state(3)) for _ in range(2))
        assert torch.equal(a.dropped, b.dropped)
        assert torch.equal(a.dropped, a.hidden)


def test_columns_do_not_see_each_other():
    torch.manual_seed(0)
    model = RecurrentModel(SMALL, 20).double().eval()
    tokens = torch.randint(0, 20, (7, 4))
    together = model(tokens, model.initial_state(4)).hidden
    alone = torch.cat(
        [model(tokens[:, i : i + 1], model.initial_state(1)).hidden for i in range(4)], 1
    )
    torch.testing.assert_close(together, alone)


# -- budgets, cells, connections --------------------------------------------------------------


def weights(config, vocabulary=50):
    model = RecurrentModel(config, vocabulary)
    return sum(p.numel() for p in model.parameters()), model.config


@given(
    budget=st.integers(2_000, 200_000),
    ratio=st.floats(0, 2),
    cell=st.sampled_from(["lstm", "gru", "elman", "rewired", "multiplicative"]),
    rounds=st.integers(0, 3),
    connections=st.sampled_from(["stacked", "skip", "residual"]),
    experts=st.sampled_from([1, 3]),
    tied=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_budget_gives_the_largest_model_that_fits(
    budget, ratio, cell, rounds, connections, experts, tied
):
    config = RecurrentConfig(
        cell=cell,
        layers=2,
        connections=connections,
        tied=tied,
        parameters=budget,
        embedding_ratio=ratio,
        mogrifier={"rounds": rounds},
        softmax={"experts": experts},
    )
    count, solved = weights(config)
    assert count <= budget
    assert solved.embedding == max(1, round(min(ratio, 1) * solved.hidden))
    wider = solved.hidden + 1
    larger = config.model_copy(
        update={
            "parameters": None,
            "hidden": wider,
            "embedding": max(1, round(min(ratio, 1) * wider)),
        }
    )
    assert weights(larger)[0] > budget


@pytest.mark.parametrize(("text", "number"), [("24M", 24_000_000), ("1.5M", 1_500_000), (70, 70)])
def test_budgets_are_written_as_people_write_them(text, number):
    assert RecurrentConfig(parameters=text).parameters == number


@pytest.mark.parametrize("text", ["24 apples", "M", "-3M", "0"])
def test_what_is_no_number_of_weights_is_refused(text):
    with pytest.raises(ValidationError):
        RecurrentConfig(parameters=text)


def test_a_budget_that_no_size_can_meet_is_refused():
    with pytest.raises(
        InfolmError, match=r"model.parameters is 90, but the smallest such model has"
    ):
        RecurrentModel(RecurrentConfig(parameters=90), 50)


def test_a_rank_above_the_size_is_refused():
    options = {"rounds": 5, "rank": 9}
    with pytest.raises(InfolmError, match=r"model.mogrifier.rank is 9, above the size"):
        RecurrentModel(RecurrentConfig(embedding=8, hidden=12, mogrifier=options), 20)
    RecurrentModel(RecurrentConfig(embedding=9, hidden=12, mogrifier=options), 20)
    # Without rounds there is no matrix to have a rank.
    RecurrentModel(RecurrentConfig(embedding=8, hidden=12, mogrifier={"rank": 9}), 20)


def test_the_thesis_sizes_for_the_penn_treebank():
    """24M weights, two layers, embedding as wide as the layers: hidden sizes near a thousand."""
    config = RecurrentConfig(connections="residual", layers=2, parameters="24M", capped=True)
    with torch.device("meta"):
        model = RecurrentModel(config, 10_000)
    count = sum(p.numel() for p in model.parameters())
    hidden = model.config.hidden
    # 10,000 (H + 1) for embedding and bias, 8 H^2 + 8 H a layer; the next size is above.
    assert count == 10_000 * (hidden + 1) + 2 * (8 * hidden**2 + 8 * hidden)
    assert 10_000 * (hidden + 2) + 2 * (8 * (hidden + 1) ** 2 + 8 * (hidden + 1)) > 24e6 >= count


def test_layers_of_skip_and_residual_are_all_of_one_size_and_projected():
    for connections in ("skip", "residual"):
        config = SMALL.model_copy(update={"connections": connections})
        model = RecurrentModel(config, 20)
        assert [(c.inputs, c.hidden) for c in model.stack.cells] == [(6, 10), (10, 10), (10, 10)]
        tokens = torch.randint(0, 20, (4, 3))
        output = model(tokens, model.initial_state(3))
        assert output.hidden.shape == (4, 3, 10)
        log_p = model.log_probs(output.hidden)
        torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(4, 3))


def test_locked_or_new_masks_at_input_and_output():
    tokens = torch.zeros(40, 2, dtype=torch.long)
    for locked in (True, False):
        rates = DropoutConfig(output=0.5, locked=locked)
        model = RecurrentModel(SMALL.model_copy(update={"dropout": rates}), 20).train()
        zero = model(tokens, model.initial_state(2)).dropped == 0
        assert bool((zero == zero[0]).all()) == locked


def test_scaling_the_dropout_to_zero_is_evaluation():
    torch.manual_seed(0)
    rates = DropoutConfig(embedding=0.3, input=0.3, hidden=0.3, state=0.3, output=0.3)
    config = SMALL.model_copy(update={"dropout": rates, "weight_drop": 0.3})
    model = RecurrentModel(config, 20).double()
    tokens = torch.randint(0, 20, (4, 3))
    expected = model.eval()(tokens, model.initial_state(3)).dropped
    model.train()
    with model.dropout_scaled(0.0):
        torch.testing.assert_close(model(tokens, model.initial_state(3)).dropped, expected)
    assert not torch.equal(model(tokens, model.initial_state(3)).dropped, expected)
    with pytest.raises(InfolmError, match="dropout rates times 4"), model.dropout_scaled(4.0):
        pass


def test_the_last_layer_may_have_a_size_of_its_own_where_layers_are_stacked():
    config = RecurrentConfig(embedding=6, hidden=9, layers=3, last_hidden=7)
    assert RecurrentModel(config, 11).stack.widths == [9, 9, 7]
    with pytest.raises(ValueError, match="last_hidden is for stacked layers"):
        RecurrentConfig(last_hidden=7, connections="residual")


def test_the_bmi_papers_models_have_their_22_and_35_million_weights():
    for sizes, vocabulary, millions in (
        ((280, 960, 620), 10_000, 22),
        ((300, 1150, 650), 33_278, 35),
    ):
        embedding, hidden, last = sizes
        config = RecurrentConfig(
            embedding=embedding, hidden=hidden, last_hidden=last, softmax={"experts": 15}
        )
        with torch.device("meta"):
            model = RecurrentModel(config, vocabulary)
        weights = sum(parameter.numel() for parameter in model.parameters())
        assert weights / 1e6 == pytest.approx(millions, abs=0.5)
