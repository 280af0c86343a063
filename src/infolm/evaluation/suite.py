"""A model measured in every way asked for, on splits of its corpus."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from infolm.data.corpora import Split
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation.kneser_ney import KneserNey
from infolm.evaluation.likelihood import log_probs, one_stream, parallel_log_probs
from infolm.evaluation.measurement import Measurement, TextSize, likelihood_measurements
from infolm.evaluation.neural_cache import (
    CacheSettings,
    NeuralCache,
    WordChange,
    mix,
    tune,
    word_table,
)
from infolm.models.recurrent import RecurrentModel

StageReport = Callable[[str, int, int], None]
WARM_UP = 200
"""Tokens that each of several parallel streams reads before it counts."""
TUNING_TOKENS = 250_000
"""The cache is tuned on at most so many tokens, whose outputs are held in memory."""
NGRAM_ORDER = 5


def text_size(split: Split, tokenizer: Tokenizer) -> TextSize | None:
    """The raw text's length behind the predicted tokens; None where tokens do not spell it out."""
    if tokenizer.kind == "word" or split.unknown:
        return None
    first = tokenizer.decode(split.tokens[:1])
    first_bytes = 1 if tokenizer.kind == "byte" else len(first.encode())
    return TextSize(split.characters - len(first), split.bytes - first_bytes)


def tuned_cache(
    model: RecurrentModel, tokens: npt.NDArray[np.integer], chunk: int, report: StageReport
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
    report: Callable[[int, int], None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ln p without and with the cache, and the targets, each (N - 1,); one carried stream."""
    cache = NeuralCache(settings.window, settings.flatness)
    plain, mixed, targets = [], [], []
    for log_model, hidden, target in one_stream(model, tokens, chunk, report):
        plain.append(log_model)
        mixed.append(mix(log_model, cache.log_prob(hidden, target), settings.weight))
        targets.append(target)
    return torch.cat(plain), torch.cat(mixed), torch.cat(targets)


def evaluate(
    model: RecurrentModel,
    tokenizer: Tokenizer,
    splits: Mapping[str, Split],
    names: Sequence[str],
    chunk: int,
    streams: int,
    cache: CacheSettings | None,
    baseline: bool,
    report: StageReport,
) -> tuple[list[Measurement], list[WordChange]]:
    """Measurements of each named split, and what the cache changes for each word of the last.

    Static: one carried stream, or `streams` parallel ones. `cache` adds the neural cache,
    `baseline` a Kneser-Ney model of the training split.
    """
    if cache and streams > 1:
        raise InfolmError("the cache looks back over one stream: leave out --streams")
    results: list[Measurement] = []
    changes: list[WordChange] = []
    ngrams = None
    if baseline:
        report(f"Kneser-Ney {NGRAM_ORDER}-gram model", 0, 1)
        ngrams = KneserNey.fit(splits["train"].tokens, len(tokenizer), NGRAM_ORDER)
        report(f"Kneser-Ney {NGRAM_ORDER}-gram model", 1, 1)
    for name in names:
        split = splits[name]
        size = text_size(split, tokenizer)

        def progress(done: int, total: int, stage: str = f"reading the {name} split") -> None:
            report(stage, done, total)

        def measured(log_p: npt.NDArray[np.float64], method: str) -> None:
            results.extend(likelihood_measurements(log_p, name, method, size))  # noqa: B023

        if len(split.tokens) < 2:
            raise InfolmError(f"the {name} split has no token to predict: it needs two at least")
        if ngrams:
            measured(ngrams.log_probs(split.tokens), f"Kneser-Ney {NGRAM_ORDER}-gram")
        if cache:
            plain, mixed, targets = with_cache(model, split.tokens, cache, chunk, progress)
            changes = word_table(plain, mixed, targets)
            measured(plain.double().cpu().numpy(), "static, one stream")
            measured(mixed.double().cpu().numpy(), _describe(cache))
        elif streams == 1:
            measured(log_probs(model, split.tokens, chunk, progress), "static, one stream")
        else:
            log_p = parallel_log_probs(model, split.tokens, streams, WARM_UP, chunk, progress)
            measured(log_p, f"static, {streams} parallel streams, warm-up of {WARM_UP} tokens")
    return results, changes


def _describe(cache: CacheSettings) -> str:
    return (
        f"neural cache (window {cache.window}, lambda {cache.weight:.4g}, "
        f"theta {cache.flatness:.4g}), one stream"
    )
