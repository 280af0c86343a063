"""Sentence by sentence: against a loop over single sentences, and what counts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.errors import InfolmError
from infolm.evaluation import episodic
from infolm.evaluation.episodic import episodic_log_probs
from infolm.models.recurrent import DropoutConfig, RecurrentConfig, RecurrentModel

EOS, MARK = 3, 5


def make():
    torch.manual_seed(0)
    dropout = DropoutConfig(embedding=0.3, input=0.3, hidden=0.3, output=0.3)
    config = RecurrentConfig(embedding=6, hidden=9, layers=2, weight_drop=0.5, dropout=dropout)
    model = RecurrentModel(config, 12).double().train()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    return model


MODEL = make()


def slow(model, tokens, after=None):
    """One sentence at a time, by the definition."""
    model.eval()
    out, sentence = [], []
    with torch.no_grad():
        for i, token in enumerate(map(int, tokens)):
            sentence.append(token)
            if token != EOS and i < len(tokens) - 1:
                continue
            inputs = torch.tensor([EOS, *sentence[:-1]])
            hidden = model(inputs[:, None], model.initial_state(1)).hidden[:, 0]
            log_p = model.log_probs(hidden)[torch.arange(len(sentence)), torch.tensor(sentence)]
            first = 0
            if after is not None:
                first = sentence.index(after) + 1 if after in sentence else len(sentence)
            out += log_p.tolist()[first:]
            sentence = []
    model.train()
    return np.array(out)


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.lists(st.integers(0, 11), min_size=1, max_size=60),
    area=st.integers(1, 50),
    after=st.sampled_from([None, MARK]),
)
def test_equals_a_loop_whatever_the_batches(tokens, area, after):
    tokens = np.array(tokens, dtype=np.uint16)
    expected = slow(MODEL, tokens, after)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(episodic, "AREA", area)
        if len(expected):
            ours = episodic_log_probs(MODEL, tokens, EOS, after)
            np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)
        else:
            with pytest.raises(InfolmError, match="no token of this text counts"):
                episodic_log_probs(MODEL, tokens, EOS, after)


def test_every_token_is_predicted_the_first_and_empty_sentences_too():
    tokens = np.array([EOS, EOS, 1, 2, EOS, 4], dtype=np.uint16)
    log_p = episodic_log_probs(MODEL, tokens, EOS)
    assert len(log_p) == len(tokens)
    assert log_p[0] == log_p[1]  # the same sentence, from the same start


def test_sentences_know_nothing_of_each_other():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 12, 200).astype(np.uint16)
    ends = np.flatnonzero(tokens == EOS) + 1
    second = tokens[ends[0] : ends[1]]
    whole = episodic_log_probs(MODEL, tokens, EOS)
    np.testing.assert_allclose(
        whole[ends[0] : ends[1]], episodic_log_probs(MODEL, second, EOS), atol=1e-12
    )


def test_temperature_and_progress():
    tokens = np.array([1, 2, EOS, 4, EOS], dtype=np.uint16)
    told = []
    hot = episodic_log_probs(
        MODEL, tokens, EOS, temperature=1e9, report=lambda *done: told.append(done)
    )
    np.testing.assert_allclose(hot, -np.log(12), rtol=1e-6)
    assert told[-1] == (5, 5)
    assert MODEL.training
