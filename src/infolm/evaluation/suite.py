"""A model measured in every way asked for, on splits of its corpus."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from infolm.data.corpora import Corpus, Split, Truth
from infolm.data.ingest import Report
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation.kneser_ney import KneserNey
from infolm.evaluation.likelihood import Progress, log_probs, one_stream, parallel_log_probs
from infolm.evaluation.measurement import (
    Measurement,
    TextSize,
    language_measurements,
    likelihood_measurements,
)
from infolm.evaluation.neural_cache import (
    CacheSettings,
    NeuralCache,
    WordChange,
    mix,
    tune,
    word_table,
)
from infolm.models.recurrent import RecurrentModel

WARM_UP = 200
"""Tokens that each of several parallel streams reads before it counts."""
TUNING_TOKENS = 250_000
"""The cache is tuned on at most so many tokens, whose outputs are held in memory."""
NGRAM_ORDER = 5
BASELINE = f"Kneser-Ney {NGRAM_ORDER}-gram"
STATIC = "static, one stream"
LANGUAGE = "the language itself"

TrueLogProbs = Mapping[str, npt.NDArray[np.float64]]
"""Of each split, ln p of its tokens but the first under the language they were drawn from."""


def text_size(split: Split, tokenizer: Tokenizer) -> TextSize | None:
    """The raw text's length behind the predicted tokens; None where tokens do not spell it out."""
    if tokenizer.kind == "word" or split.unknown:
        return None
    first = tokenizer.decode(split.tokens[:1])
    first_bytes = 1 if tokenizer.kind == "byte" else len(first.encode())
    return TextSize(split.characters - len(first), split.bytes - first_bytes)


def tuned_cache(
    model: RecurrentModel, tokens: npt.NDArray[np.integer], chunk: int, report: Report
) -> CacheSettings:
    """The cache settings that are best on `tokens`, which must be the validation split."""
    tokens = tokens[: TUNING_TOKENS + 1]
    stage = "tuning the cache on the validation split"
    parts = list(one_stream(model, tokens, chunk, lambda done, total: report(stage, done, total)))
    log_model, hidden, targets = (torch.cat(column) for column in zip(*parts, strict=True))
    settings, _ = tune(log_model, hidden, targets)
    return settings


def with_cache(
    model: RecurrentModel,
    tokens: npt.NDArray[np.integer],
    settings: CacheSettings,
    chunk: int,
    report: Progress | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ln p without and with the cache, and the targets, each (N - 1,); one carried stream."""
    cache = NeuralCache(settings.window, settings.flatness)
    plain, mixed, targets = [], [], []
    for log_model, hidden, target in one_stream(model, tokens, chunk, report):
        plain.append(log_model)
        mixed.append(mix(log_model, cache.log_prob(hidden, target), settings.weight))
        targets.append(target)
    return torch.cat(plain), torch.cat(mixed), torch.cat(targets)


def true_log_probs(truth: Truth | None, corpus: Corpus, names: Sequence[str]) -> TrueLogProbs:
    """For the splits named; empty where the language is not known."""
    return {name: truth.log_probs(corpus.splits[name].tokens) for name in names} if truth else {}


def language(truth: Truth | None, true: TrueLogProbs) -> list[Measurement]:
    """What a perfect model would come to on each split; nothing where the language is not known."""
    return [
        measured
        for name, log_p in true.items()
        if truth
        for measured in language_measurements(log_p, truth.entropy, name, LANGUAGE)
    ]


def baseline(
    corpus: Corpus, names: Sequence[str], true: TrueLogProbs, report: Report | None = None
) -> list[Measurement]:
    """A Kneser-Ney model of the training split, measured on the splits named."""
    if report:
        report(BASELINE, 0, 1)
    ngrams = KneserNey.fit(corpus.splits["train"].tokens, len(corpus.tokenizer), NGRAM_ORDER)
    results = []
    for name in names:
        split = corpus.splits[name]
        log_p, size = ngrams.log_probs(split.tokens), text_size(split, corpus.tokenizer)
        results += likelihood_measurements(log_p, name, BASELINE, size, true.get(name))
    if report:
        report(BASELINE, 1, 1)
    return results


def evaluate(
    model: RecurrentModel,
    tokenizer: Tokenizer,
    split: Split,
    name: str,
    chunk: int,
    streams: int,
    cache: CacheSettings | None,
    true: npt.NDArray[np.float64] | None,
    report: Report,
) -> tuple[list[Measurement], list[WordChange]]:
    """Measurements of one split, and what the cache changes for each of its words.

    Static: one carried stream, or `streams` parallel ones. `cache` adds the neural cache to the
    one stream, whatever `streams` says. true: see `likelihood_measurements`.
    """
    if len(split.tokens) < 2:
        raise InfolmError(f"the {name} split has no token to predict: it needs two at least")

    def progress(done: int, total: int) -> None:
        report(f"reading the {name} split", done, total)

    size = text_size(split, tokenizer)
    if cache:
        plain, mixed, targets = with_cache(model, split.tokens, cache, chunk, progress)
        results = [
            measured
            for log, method in ((plain, STATIC), (mixed, _describe(cache)))
            for measured in likelihood_measurements(
                log.cpu().double().numpy(), name, method, size, true
            )
        ]
        return results, word_table(plain, mixed, targets)
    if streams > 1:
        log_p = parallel_log_probs(model, split.tokens, streams, WARM_UP, chunk, progress)
        method = f"static, {streams} parallel streams, warm-up of {WARM_UP} tokens"
        return likelihood_measurements(log_p, name, method, size, true), []
    log_p = log_probs(model, split.tokens, chunk, progress)
    return likelihood_measurements(log_p, name, STATIC, size, true), []


def _describe(cache: CacheSettings) -> str:
    return (
        f"neural cache (window {cache.window}, lambda {cache.weight:.4g}, "
        f"theta {cache.flatness:.4g}), one stream"
    )
