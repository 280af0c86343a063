"""One carried stream gives one value, however it is cut; parallel streams come near it."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.evaluation.likelihood import log_probs, one_stream, parallel_log_probs
from infolm.models.recurrent import DropoutConfig, RecurrentConfig, RecurrentModel


def make():
    torch.manual_seed(0)
    dropout = DropoutConfig(embedding=0.3, input=0.3, hidden=0.3, output=0.3)
    config = RecurrentConfig(embedding=6, hidden=9, layers=2, weight_drop=0.5, dropout=dropout)
    model = RecurrentModel(config, 12).double().train()
    with torch.no_grad():  # larger weights: a state that matters
        for p in model.parameters():
            p.mul_(4)
    return model


MODEL = make()
TOKENS = np.random.default_rng(0).integers(0, 12, 211).astype(np.uint16)


def slow(model, tokens):
    """A token at a time, by the definition."""
    model.eval()
    state, out = model.initial_state(1), []
    with torch.no_grad():
        for x, y in pairwise(tokens):
            output = model(torch.tensor([[int(x)]]), state)
            state = output.state
            out.append(model.log_probs(output.hidden)[0, 0, int(y)].item())
    model.train()
    return np.array(out)


@pytest.mark.parametrize("chunk", [1, 2, 7, 70, 210, 1000])
def test_the_chunk_changes_nothing_and_every_token_but_the_first_is_predicted(chunk):
    ours = log_probs(MODEL, TOKENS, chunk)
    assert ours.shape == (210,)
    np.testing.assert_allclose(ours, slow(MODEL, TOKENS), rtol=0, atol=1e-12)


def test_the_stream_gives_outputs_targets_and_every_temperature():
    parts = list(one_stream(MODEL, TOKENS, 50, (1.0, 0.7)))
    assert sum(len(hidden) for _, hidden, _ in parts) == 210
    assert np.array_equal(torch.cat([targets for *_, targets in parts]).numpy(), TOKENS[1:])
    log_probs, hidden, targets = parts[2]
    for log_p, temperature in zip(log_probs, (1.0, 0.7), strict=True):
        with torch.inference_mode():
            whole = (MODEL.log_probs(hidden) / temperature).log_softmax(1)
        torch.testing.assert_close(whole.gather(1, targets[:, None])[:, 0], log_p)


@pytest.mark.parametrize("cell", ["gru", "elman", "rewired"])
def test_parallel_streams_carry_whatever_state_a_cell_has(cell):
    torch.manual_seed(0)
    model = RecurrentModel(RecurrentConfig(embedding=6, hidden=9, layers=2, cell=cell), 12)
    model = model.double()
    exact, parallel = log_probs(model, TOKENS, 50), parallel_log_probs(model, TOKENS, 3, 70, 20)
    expected = slow(model, TOKENS[:141])[70:]  # the second part, behind its warm-up
    np.testing.assert_allclose(exact, slow(model, TOKENS), atol=1e-12)
    np.testing.assert_allclose(parallel[70:140], expected, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(streams=st.integers(1, 40), warm_up=st.integers(0, 300), chunk=st.integers(1, 90))
def test_parallel_streams_cover_every_token_once_each_after_its_own_warm_up(
    streams, warm_up, chunk
):
    ours = parallel_log_probs(MODEL, TOKENS, streams, warm_up, chunk)
    length = -(-210 // streams)
    warm = min(warm_up, length)
    expected = []
    for start in range(0, 210, length):
        before = min(warm, start)  # the first part has nothing before it
        part = slow(MODEL, TOKENS[start - before : min(start + length, 210) + 1])
        expected.append(part[before:])
    np.testing.assert_allclose(ours, np.concatenate(expected), rtol=0, atol=1e-12)


def test_one_parallel_stream_is_the_exact_value():
    np.testing.assert_allclose(
        parallel_log_probs(MODEL, TOKENS, 1, 30, 20), log_probs(MODEL, TOKENS, 20), atol=1e-12
    )


def test_a_longer_warm_up_comes_nearer():
    exact = log_probs(MODEL, TOKENS, 50)
    errors = [
        np.abs(parallel_log_probs(MODEL, TOKENS, 4, warm, 50) - exact).mean() for warm in (0, 3, 40)
    ]
    assert errors[0] > errors[1] > errors[2]


def test_evaluation_puts_the_training_mode_back_and_draws_no_random_number():
    before = torch.get_rng_state()
    log_probs(MODEL, TOKENS, 50)
    assert MODEL.training
    assert torch.equal(torch.get_rng_state(), before)
