"""A split measured by every method asked for: what is walked through, and what is counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from training_tiny import quiet

from infolm.data.store import Split
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError, RunError
from infolm.evaluation import method as module
from infolm.evaluation import suite
from infolm.evaluation.dynamic import DynamicSettings
from infolm.evaluation.episodic import episodic_log_probs
from infolm.evaluation.method import STATIC, Method
from infolm.evaluation.monte_carlo import MonteCarloSettings
from infolm.evaluation.neural_cache import CacheSettings
from infolm.evaluation.suite import Subject, text_size
from infolm.models.recurrent import DropoutConfig, RecurrentConfig, RecurrentModel

WORDS = ["<eos>", "<unk>", "a", "b", "c", "|"]


def subject_of(tokenizer):
    torch.manual_seed(0)
    config = RecurrentConfig(embedding=5, hidden=6, layers=2, dropout=DropoutConfig(output=0.4))
    return Subject(RecurrentModel(config, len(tokenizer)).eval(), tokenizer, 20, quiet)


def split_of(tokenizer, text):
    return Split(
        tokens=tokenizer.encode(text).astype(np.uint16),
        lines=text.count("\n"),
        words=len(text.split()),
        characters=len(text),
        bytes=len(text.encode()),
    )


TOKENIZER = Tokenizer.from_words(WORDS)
TEXT = "a b | c\nb | a\nc c b | b c\n" * 30


def test_methods_that_share_a_walk_share_it_and_all_are_shown_in_order(monkeypatch):
    walks = []
    original = module.walk

    def counted(model, tokens, method, *rest):
        walks.append(method.walk)
        return original(model, tokens, method, *rest)

    monkeypatch.setattr(module, "walk", counted)
    dynamic = DynamicSettings(0.1, 0.01, rule="sgd")
    samples, cache = MonteCarloSettings(3), CacheSettings(20, 0.1, 1.0)
    methods = [
        STATIC,
        Method(dynamic),
        Method(None, samples),
        Method(temperature=0.9),
        Method(cache=cache),
        Method(dynamic, samples, 0.8, cache),
    ]
    split = split_of(TOKENIZER, TEXT)
    results, changes = suite.evaluate(subject_of(TOKENIZER), split, "test", methods)
    assert walks == [(None, None), (dynamic, None), (None, samples), (dynamic, samples)]
    assert [r.method for r in results if r.metric == "nll"] == list(map(str, methods))
    assert {r.tokens for r in results} == {len(split.tokens) - 1}
    nll = {r.method: r.value for r in results if r.metric == "nll"}
    saved = (nll[str(STATIC)] - nll[str(Method(cache=cache))]) * (len(split.tokens) - 1)
    assert sum(change.change for change in changes) == pytest.approx(saved, rel=1e-6)


def test_episodic_measurements_say_how_they_count():
    subject, split = subject_of(TOKENIZER), split_of(TOKENIZER, TEXT)
    results = suite.evaluate_episodic(subject, split, "test", None, [1.0, 0.5])
    assert {r.tokens for r in results} == {len(split.tokens)}
    losses = [r.value for r in results if r.metric == "nll"]
    for value, tau in zip(losses, (1.0, 0.5), strict=True):
        log_p = episodic_log_probs(subject.model, split.tokens, TOKENIZER.eos, None, tau)
        assert value == -log_p.mean()
    (copied, _) = suite.evaluate_episodic(subject, split, "test", WORDS.index("|"), [1.0])
    assert copied.convention.startswith("only what follows | in its sentence counts")
    after = [line.split("|")[1].split() for line in TEXT.splitlines()]
    assert copied.tokens == sum(len(words) + 1 for words in after)


def test_words_are_counted_where_blanks_stand_between_them():
    characters = Tokenizer.from_characters(["\n", "<unk>", "a", "b", " ", "_"])
    plain, spelt = (split_of(characters, t) for t in ("a b a\nb ab\n", "a_b_a\nb_ab\n"))
    assert text_size(plain, characters) == suite.TextSize(10, 10, 5 + 2)
    assert text_size(plain, characters, whole=True) == suite.TextSize(11, 11, 5 + 2)
    assert text_size(spelt, characters) == suite.TextSize(10, 10, None)
    assert text_size(split_of(TOKENIZER, "a b\n"), TOKENIZER) is None
    results = suite.evaluate_episodic(subject_of(characters), plain, "test", None, [1.0])
    found = {r.metric: r.value for r in results}
    assert found["word_perplexity"] == pytest.approx(np.exp(found["nll"] * 11 / 7))


@pytest.mark.parametrize(
    "method",
    [STATIC, Method(DynamicSettings(0.05, 0.01, rule="sgd")), Method(None, MonteCarloSettings(4))],
)
def test_a_tuned_temperature_is_no_worse_than_none(method):
    subject, tokens = subject_of(TOKENIZER), split_of(TOKENIZER, TEXT).tokens
    tau = suite.tuned_temperature(subject, tokens, method)
    tuned = Method(method.dynamic, method.monte_carlo, tau)
    plain, better = module.measure(subject.model, tokens, [method, tuned], 20)
    assert better.log_probs.mean() >= plain.log_probs.mean()


def test_a_temperature_of_weights_that_run_away_is_refused():
    wild = Method(DynamicSettings(3e38, 0.0, rule="sgd", segment=5))
    tokens = split_of(TOKENIZER, 9 * TEXT).tokens
    with pytest.raises(RunError, match="no longer a finite number: lower the rate"):
        suite.tuned_temperature(subject_of(TOKENIZER), tokens, wild)


def test_the_tuned_factor_of_the_dropout_rates_is_the_best_of_those_tried():
    subject, tokens = subject_of(TOKENIZER), split_of(TOKENIZER, TEXT).tokens
    with torch.no_grad():  # a model so sure of itself that dropout helps
        for p in subject.model.parameters():
            p.mul_(4)
    samples = MonteCarloSettings(8, span=20)
    found = suite.tuned_dropout_factor(subject, tokens, samples)
    grid = [k / 8 for k in range(17)]

    def loss(factor):
        method = Method(None, replace(samples, rate=factor))
        return -module.measure(subject.model, tokens, [method], 20)[0].log_probs.mean()

    losses = {factor: loss(factor) for factor in grid}
    best = min(suite.FACTORS, key=losses.get)
    tried = [*suite.FACTORS, best - 1 / 8, best + 1 / 8]
    assert found == min(tried, key=losses.get)
    assert found not in suite.FACTORS  # a half step is better, here
    assert losses[found] < losses[0.0]
    subject.model.rates.output = 0.9  # 1.25 times that is no rate
    assert suite.tuned_dropout_factor(subject, tokens, samples) * 0.9 < 1


def test_without_dropout_the_tuned_factor_is_none_at_all():
    subject, tokens = subject_of(TOKENIZER), split_of(TOKENIZER, TEXT).tokens
    subject.model.rates.output = 0.0
    told = []
    watched = replace(subject, report=lambda *done: told.append(done))
    assert suite.tuned_dropout_factor(watched, tokens, MonteCarloSettings(2, span=20)) == 0
    assert told[-1][1:] == (8, 8)


@pytest.mark.parametrize("limit", [1, 20, 1000])
def test_a_temperature_for_sentences_is_tuned_on_whole_ones(limit, monkeypatch):
    monkeypatch.setattr(suite, "TEMPERATURE_TOKENS", limit)
    read = []
    original = suite.episodes

    def watched(model, tokens, *rest):
        read.append(tokens)
        return original(model, tokens, *rest)

    monkeypatch.setattr(suite, "episodes", watched)
    subject, tokens = subject_of(TOKENIZER), split_of(TOKENIZER, TEXT).tokens
    tau = suite.tuned_episodic_temperature(subject, tokens, None)
    (used,) = read
    assert used[-1] == TOKENIZER.eos
    assert len(used) <= max(limit, 5)
    plain, tuned = (
        episodic_log_probs(subject.model, used, TOKENIZER.eos, None, t).mean() for t in (1.0, tau)
    )
    assert tuned >= plain


def test_a_split_of_one_token():
    split = split_of(TOKENIZER, "a")
    with pytest.raises(InfolmError, match="the test split has no token to predict"):
        suite.evaluate(subject_of(TOKENIZER), split, "test", [STATIC])
