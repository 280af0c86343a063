"""Numbers with their units: what follows from log-probabilities, and how sure we are of it."""

import json
import math

import numpy as np
import pytest

from infolm.errors import InfolmError
from infolm.evaluation.measurement import (
    Measurement,
    TextSize,
    as_json,
    language_measurements,
    likelihood_measurements,
    merge,
    read,
    standard_error,
)
from infolm.information.exact import kullback_leibler
from infolm.information.languages import MarkovChain


def by_metric(measurements):
    return {m.metric: m for m in measurements}


def test_uniform_guessing_over_v_words_has_perplexity_v():
    results = by_metric(likelihood_measurements(np.full(5000, -math.log(37)), "test", "guess"))
    assert results["nll"].value == pytest.approx(math.log(37))
    assert results["perplexity"].value == pytest.approx(37)
    assert results["perplexity"].stderr == pytest.approx(0, abs=1e-9)
    assert results["perplexity"].tokens == 5000
    assert "bits_per_character" not in results


def test_bits_count_the_characters_and_bytes_of_the_text_not_the_tokens():
    log_p = np.full(100, -math.log(8))  # 3 bits a token
    results = by_metric(
        likelihood_measurements(log_p, "valid", "x", TextSize(characters=150, bytes=300))
    )
    assert results["bits_per_character"].value == pytest.approx(2)
    assert results["bits_per_byte"].value == pytest.approx(1)


def test_word_perplexity_shares_the_loss_among_the_words():
    log_p = np.full(1000, -math.log(8))  # 3 bits a character
    size = TextSize(characters=1000, bytes=1000, words=200)
    results = by_metric(likelihood_measurements(log_p, "valid", "x", size))
    assert results["word_perplexity"].value == pytest.approx(2**15)  # 5 characters a word
    assert results["word_perplexity"].unit == "perplexity per word and <eos>"
    without = by_metric(likelihood_measurements(log_p, "valid", "x", TextSize(1000, 1000)))
    assert "word_perplexity" not in without


def test_the_standard_error_is_right_for_dependent_tokens():
    """An autoregressive sequence: the naive error is far too small, that of batch means is not."""
    rng = np.random.default_rng(0)
    rho, n, runs = 0.9, 10_000, 200
    means, errors = [], []
    for _ in range(runs):
        noise = rng.standard_normal(n)
        x = np.empty(n)
        x[0] = noise[0]
        for t in range(1, n):
            x[t] = rho * x[t - 1] + noise[t]
        means.append(x.mean())
        errors.append(standard_error(x))
    spread = np.std(means, ddof=1)
    # The spread of `runs` means is itself known to 1/sqrt(2 runs) = 5%.
    assert np.mean(errors) == pytest.approx(spread, rel=0.2)
    naive = x.std() / math.sqrt(n)
    assert naive < 0.4 * spread


def test_too_few_tokens_give_no_standard_error():
    assert standard_error(np.zeros(999)) is None
    assert likelihood_measurements(np.zeros(50) - 1, "test", "x")[0].stderr is None


def test_a_hopeless_model_has_a_finite_perplexity():
    assert math.isfinite(likelihood_measurements(np.full(10, -1e6), "test", "x")[1].value)


def test_the_language_itself_is_not_above_its_entropy():
    true = MarkovChain([[0.9, 0.1], [0.4, 0.6]]).conditional_log_probs(np.tile([0, 0, 1], 2000))
    above = by_metric(likelihood_measurements(true, "test", "x", true=true))["nll_above_entropy"]
    assert above.value == 0
    assert above.stderr == 0
    itself = by_metric(language_measurements(true, 0.5, "test", "x"))
    assert itself["nll"].value == -true.mean()
    assert itself["true_entropy"].value == 0.5
    assert itself["true_entropy"].stderr == 0


def test_another_model_is_above_it_by_the_divergence():
    """Chain against chain, the rate is sum pi_i KL(true[i] || model[i])."""
    true = MarkovChain([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    model = MarkovChain([[0.4, 0.4, 0.2], [0.2, 0.7, 0.1], [0.3, 0.2, 0.5]])
    rate = sum(
        weight * kullback_leibler(p, q)
        for weight, p, q in zip(true.stationary, true.transition, model.transition, strict=True)
    )
    tokens = true.sample(50_000, np.random.default_rng(0))
    results = by_metric(
        likelihood_measurements(
            model.conditional_log_probs(tokens),
            "test",
            "x",
            true=true.conditional_log_probs(tokens),
        )
    )
    above = results["nll_above_entropy"]
    assert above.value == pytest.approx(rate, abs=4 * above.stderr)
    assert above.value > 4 * above.stderr
    assert above.stderr < 0.5 * results["nll"].stderr


def test_json_has_the_promised_keys_and_can_be_read_back(tmp_path):
    results = likelihood_measurements(np.full(10, -1.0), "test", "static")
    entries = json.loads(as_json(results))
    assert set(entries[0]) == {
        *("metric", "value", "unit", "stderr", "tokens", "split", "method", "convention")
    }
    path = tmp_path / "m.json"
    path.write_text(as_json(results))
    assert read(path) == results
    path.write_text("[{}]")
    with pytest.raises(InfolmError, match="no measurements"):
        read(path)


def test_a_new_measurement_replaces_the_old_one_of_the_same_kind():
    def one(value, method):
        return Measurement("nll", value, "nats", None, 1, "test", method, "")

    merged = merge([one(1, "a"), one(2, "b")], [one(3, "a")])
    assert [(m.value, m.method) for m in merged] == [(2, "b"), (3, "a")]
