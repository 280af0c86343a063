"""The neural cache: a distribution over the words of the recent past, mixed with the model's.

Grave, Joulin and Usunier (2017), as used with AWD-LSTM by Merity, Keskar and Socher (2018). With
h_t the last layer's output that predicts x_{t+1}, and the pairs (h_i, x_{i+1}) of the last `window`
positions i < t,

    p_cache(w) = sum over i with x_{i+1} = w of exp(theta h_t.h_i)  /  sum over i of the same,
    p(w) = (1 - lambda) p_model(w) + lambda p_cache(w).

theta = 0 counts words in the window; lambda = 0 is the model. Before the first pair p_cache is 0/0,
represented as nan; `mix` then returns the model's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infolm.errors import InfolmError

ROWS = 128
"""Tokens scored at a time: this bounds the memory and keeps the scores in the processor's cache."""

WINDOWS = (100, 250, 500, 1000, 2000, 4000)
FLATNESSES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
"""The values that `tune` tries; the paper's lie inside."""


@dataclass(frozen=True)
class CacheSettings:
    """The paper's values for the Penn Treebank; for WikiText-2 they are 3785, 0.1279 and 0.662."""

    window: int = 2000
    weight: float = 0.1  # lambda
    flatness: float = 1.0  # theta

    def __post_init__(self) -> None:
        if self.window < 1 or not 0 <= self.weight <= 1 or not 0 <= self.flatness < float("inf"):
            raise InfolmError(
                "a cache needs a window of 1 or more, a lambda in [0, 1] and a theta of 0 or more, "
                f"not {self.window}, {self.weight} and {self.flatness}"
            )


@dataclass(frozen=True)
class Band:
    """R tokens against the C pairs in any of their windows, the R tokens' own pairs last.

    Row r's own pair is in column C - R + r, so the pairs in its window are the columns from
    C - R + r - window to C - R + r - 1: a band along the diagonal.
    """

    scores: Tensor  # (R, C) h_t.h_i
    match: Tensor  # (R, C) whether x_{i+1} = x_{t+1}

    def log_prob(self, window: int, flatness: float) -> Tensor:
        """ln p_cache of each row's own word, (R,), for a window no longer than the band's.

        Numerator and denominator are sums of the same exponentials, scaled by the largest in the
        row. So in single precision a probability below e^-87 reads -inf, which changes no mixture.
        """
        rows, columns = self.scores.shape
        diagonal = columns - rows
        skipped = max(0, diagonal - window)
        scores = self.scores[:, skipped:] * flatness
        inside = torch.ones_like(scores, dtype=torch.bool)
        inside.triu_(diagonal - skipped - window).tril_(diagonal - skipped - 1)
        scores.masked_fill_(~inside, -torch.inf)
        # A row with no pair at all has -inf - -inf = nan here, and stays nan.
        weights = scores.sub_(scores.amax(1, keepdim=True)).exp_()
        total = weights.sum(1)
        return weights.mul_(self.match[:, skipped:]).sum(1).log() - total.log()


class NeuralCache:
    """The last `window` pairs (h_i, x_{i+1}) of one stream; its memory does not grow."""

    def __init__(self, window: int, flatness: float) -> None:
        self.window = window
        self.flatness = flatness
        # Pairs are written one after another into [0, end); when the buffer is full, the last
        # `window` of them move to the front. So a pair moves at most once, in chunks of any length.
        self.room = 2 * (window + ROWS)
        self.end = 0
        self.hidden = torch.empty(0)
        self.words = torch.empty(0, dtype=torch.long)

    @torch.inference_mode()
    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """ln p_cache(targets[t]) by hidden[t]: (T, E), (T,) -> (T,). The pairs then join the cache.

        -inf where the word is not in the window, nan where the window is empty (the first token of
        a stream). The values do not depend on the chunks in which a text arrives.
        """
        bands = self.bands(hidden, targets)
        return torch.cat([band.log_prob(self.window, self.flatness) for band in bands])

    @torch.inference_mode()
    def distribution(self, hidden: Tensor, vocabulary: int) -> Tensor:
        """ln p_cache(.) by one hidden (E,), shape (V,); all nan where the cache is empty."""
        first = max(0, self.end - self.window)
        if first == self.end:
            return hidden.new_full((vocabulary,), torch.nan)
        scores = self.hidden[first : self.end] @ hidden * self.flatness
        p = hidden.new_zeros(vocabulary)
        return p.index_add_(0, self.words[first : self.end], scores.softmax(0)).log_()

    @torch.inference_mode()
    def append(self, hidden: Tensor, targets: Tensor) -> None:
        """Remember the pairs (hidden[t], targets[t]): (T, E), (T,)."""
        for rows, words in zip(hidden.split(ROWS), targets.split(ROWS), strict=True):
            self._write(rows, words)

    def bands(self, hidden: Tensor, targets: Tensor) -> Iterator[Band]:
        """Append the pairs, at most ROWS at a time, and yield each group against the pairs it may
        see."""
        for rows, words in zip(hidden.split(ROWS), targets.split(ROWS), strict=True):
            self._write(rows, words)
            past = slice(max(0, self.end - len(rows) - self.window), self.end)
            yield Band(rows @ self.hidden[past].T, words[:, None] == self.words[past])

    def _write(self, rows: Tensor, words: Tensor) -> None:
        if not len(self.hidden):
            self.hidden = rows.new_empty(self.room, rows.shape[1])
            self.words = words.new_empty(self.room)
        if self.end + len(rows) > self.room:
            kept = slice(self.end - self.window, self.end)
            self.hidden[: self.window] = self.hidden[kept]
            self.words[: self.window] = self.words[kept]
            self.end = self.window
        new = slice(self.end, self.end + len(rows))
        self.hidden[new] = rows
        self.words[new] = words
        self.end = new.stop


def mix(log_model: Tensor, log_cache: Tensor, weight: float) -> Tensor:
    """ln((1 - lambda) p_model + lambda p_cache), elementwise over tensors of one shape.

    Where log_cache = -inf this is ln(1 - lambda) + log_model; where it is nan, log_model.
    """
    share = torch.tensor(weight, dtype=log_model.dtype, device=log_model.device)
    mixed = torch.logaddexp(log_model + (-share).log1p(), log_cache + share.log())
    return torch.where(log_cache.isnan(), log_model, mixed)


def best_weight(log_model: Tensor, log_cache: Tensor) -> float:
    """The lambda in [0, 1) that makes the words (N,) likeliest, to 2^-30.

    The sum of ln((1 - lambda) a + lambda b) is concave in lambda. With r = b/a - 1 its slope is the
    sum of r / (1 + lambda r), which falls as lambda grows, so halving finds where it is zero.
    """
    used = ~log_cache.isnan()
    log_ratio = log_cache[used].double() - log_model[used].double()
    r = log_ratio.clamp(max=700).expm1()  # beyond e^700 the term is 1/lambda to the last bit
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        if (r / (1 + middle * r)).sum() > 0:
            low = middle
        else:
            high = middle
    return low


@torch.inference_mode()
def tune(
    log_model: Tensor,
    hidden: Tensor,
    targets: Tensor,
    windows: Sequence[int] = WINDOWS,
    flatnesses: Sequence[float] = FLATNESSES,
) -> tuple[CacheSettings, float]:
    """The settings with the lowest loss on a held-out stream, and that loss (mean nats a token).

    log_model (N,) is ln p_model(targets[t]) by hidden[t]; hidden is (N, E), targets (N,). Every
    window is tried with every theta, each time at the best lambda. They share one pass over the
    text and its inner products, and hold N numbers each.
    """
    grid = [(window, flatness) for window in windows for flatness in flatnesses]
    columns = [
        torch.stack([band.log_prob(window, flatness) for window, flatness in grid])
        for band in NeuralCache(max(windows), 1.0).bands(hidden, targets)
    ]
    log_model = log_model.double()
    tried = []
    for (window, flatness), log_cache in zip(grid, torch.cat(columns, 1), strict=True):
        weight = best_weight(log_model, log_cache)
        loss = -float(mix(log_model, log_cache.double(), weight).mean())
        tried.append((CacheSettings(window, weight, flatness), loss))
    return min(tried, key=lambda settings_and_loss: settings_and_loss[1])


@dataclass(frozen=True)
class WordChange:
    """One row of table 3 of the paper: the cache's effect on a word."""

    token: int
    count: int
    change: float  # nats of loss saved over all its occurrences; negative where the cache hurts


def word_table(log_model: Tensor, log_mixed: Tensor, targets: Tensor) -> list[WordChange]:
    """The summed change of loss of each word type in targets (N,), the most helped first."""
    tokens, place, counts = targets.unique(return_inverse=True, return_counts=True)
    saved = log_mixed.double() - log_model.double()
    change = saved.new_zeros(len(tokens)).index_add_(0, place, saved)
    rows = zip(tokens.tolist(), counts.tolist(), change.tolist(), strict=True)
    return sorted((WordChange(*row) for row in rows), key=lambda row: -row.change)
