"""The model: its size, its initialisation, and that state and padding of chunks change nothing."""

import pytest
import torch

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
