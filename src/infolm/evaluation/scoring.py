"""Scores of sentences: the surprisal of each token and word, its rank, likelier alternatives.

The surprisal of a token is -ln p(token | all before it). For a word, the sum over its tokens is not
its surprisal if tokens mark the beginning of a word but not its end: "cat" is also how "cats"
begins. With B the tokens that can stand only where a word has ended (those that begin with white
space, `<eos>`; of word pieces those that do not continue a word), the word w of the pieces w_1 ...
w_n after the context c has the probability

    p(w | c) = p(w_1 ... w_n | c) p(B | c w_1 ... w_n) / p(B | c),    p(B | .) = sum over b in B,

where c itself ended a word (Pimentel and Meister 2024, "How to Compute the Probability of a Word",
theorem 2; Oh and Schuler 2024, "Leading Whitespaces of Language Models' Subword Vocabulary Pose a
Confound for Calculating Word Probabilities"). Words are separated by white space, and include the
white space before them; `<eos>` is a complete word of its own. Then the probabilities of all words
and `<eos>` sum to 1, and the surprisals of a sentence's words and its `<eos>` to that of its
tokens. After `<eos>` any token begins a word, so p(B | c) = 1 there; not with word pieces, where a
continuation piece cannot begin a word. Tokens that are words have B = V: there is nothing to
correct.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infolm.data.episodes import sentence_bounds
from infolm.data.tokens import BLANKS, EOS, Tokenizer
from infolm.errors import InfolmError, RunError
from infolm.evaluation.dynamic import Statistics
from infolm.evaluation.episodic import episodes
from infolm.evaluation.kneser_ney import KneserNey
from infolm.evaluation.likelihood import Progress
from infolm.evaluation.method import STATIC, Method, walk
from infolm.evaluation.neural_cache import NeuralCache, mix
from infolm.models.language import LanguageModel
from infolm.nn.softmax import block_elements

Unit = Literal["bits", "nats"]
Context = Literal["fresh", "carried"]
Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NATS: Mapping[Unit, float] = {"bits": math.log(2), "nats": 1.0}
"""Nats in one of each unit."""
LONGEST = 4096
"""Default maximum tokens of a sentence."""
CHUNK = 200
"""Tokens per chunk of a carried text."""
_WORD = re.compile(f"[^{BLANKS}]+")


# -- the scores of a sentence ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alternative:
    """An alternative token. log_prob in nats, surprisal in the sentence's unit."""

    token: str
    log_prob: float
    surprisal: float


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token and its surprisal in context.

    start, end: its character span in the text; for `<eos>`, after the end. word: the index of its
    word. rank: 1 for the likeliest token; None if the method gives no whole distribution. unknown:
    it was read as `<unk>`. top: the likeliest tokens at its position, as many as requested.
    """

    token: str
    id: int
    start: int
    end: int
    log_prob: float
    surprisal: float
    rank: int | None
    unknown: bool
    word: int | None
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredWord:
    """A word between white space; the last may be `<eos>`.

    surprisal: of the whole word, including its end (see the module). pieces: the plain sum of its
    tokens' surprisals. tokens: their number.
    """

    word: str
    start: int
    end: int
    surprisal: float
    pieces: float
    tokens: int
    unknown: bool


@dataclass(frozen=True, slots=True)
class ScoredSentence:
    """A text on one line. log_prob: the sum over its tokens, in nats; surprisal: the same in
    `unit`, positive. convention: the context, what counts, and the method."""

    text: str
    log_prob: float
    surprisal: float
    unit: Unit
    convention: str
    tokens: tuple[ScoredToken, ...]
    words: tuple[ScoredWord, ...]

    @property
    def perplexity(self) -> float:
        """Perplexity per counted token."""
        return math.exp(min(-self.log_prob / max(1, len(self.tokens)), 700))

    @property
    def unknown(self) -> int:
        """The number of its unknown tokens."""
        return sum(token.unknown for token in self.tokens)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; see `ScoredToken` and `ScoredWord` for what the names mean."""
        return asdict(self)


# -- the scores of a model -------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Scores of N tokens, each predicted from all tokens before it. In nats.

    ranks, log_begins and top are None if the method gives no whole distribution. log_begins: ln
    p(B), that a word ends before the token; 0 if every token begins a word. top: the ids of the K
    likeliest tokens, and their log-probabilities.
    """

    log_probs: Floats  # (N,)
    ranks: Ids | None = None  # (N,)
    log_begins: Floats | None = None  # (N,)
    top: Ids | None = None  # (N, K)
    top_log_probs: Floats | None = None  # (N, K)

    def __len__(self) -> int:
        return len(self.log_probs)

    def taken(self, places: Any) -> "Scores":
        """Those at `places`, a slice or numbers."""
        columns = (self.log_probs, self.ranks, self.log_begins, self.top, self.top_log_probs)
        return Scores(*(None if c is None else c[places] for c in columns))  # type: ignore[arg-type]

    @classmethod
    def joined(cls, parts: Sequence["Scores"]) -> Self:
        """One after the other."""
        columns = zip(
            *((p.log_probs, p.ranks, p.log_begins, p.top, p.top_log_probs) for p in parts),
            strict=True,
        )
        return cls(
            *(None if any(p is None for p in c) else np.concatenate(c) for c in columns)  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class View:
    """What to compute of every distribution. begins: B, (V,), or None if it is all tokens. top: how
    many of the likeliest tokens."""

    begins: npt.NDArray[np.bool_] | None = None
    top: int = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer, top: int = 0) -> Self:
        """`top` of the likeliest, of a vocabulary that may be smaller."""
        begins = tokenizer.begins
        return cls(None if begins.all() else begins, min(top, len(tokenizer)))

    def __call__(self, log_probs: Tensor, targets: Tensor) -> Scores:
        """Of ln p (n, V) and the tokens that stand there, (n,)."""
        own = log_probs.gather(1, targets[:, None])
        ranks = (log_probs > own).sum(1) + 1
        if self.begins is None:
            log_begins = own.new_zeros(len(own))
        else:
            ids = torch.from_numpy(np.flatnonzero(self.begins)).to(targets.device)
            log_begins = log_probs.index_select(1, ids).logsumexp(1)
        top = log_probs.topk(self.top, 1) if self.top else None
        return Scores(
            _floats(own.squeeze(1)),
            ranks.cpu().numpy(),
            _floats(log_begins),
            top.indices.cpu().numpy() if top else np.zeros((len(own), 0), np.int64),
            _floats(top.values) if top else np.zeros((len(own), 0)),
        )

    @torch.inference_mode()
    def of_model(
        self, model: LanguageModel, hidden: Tensor, targets: Tensor, temperature: float
    ) -> Scores:
        """By the outputs (N, H) of a model, a block of logits at a time."""
        rows = max(1, block_elements(hidden.device, hidden.itemsize) // model.vocabulary)
        parts = zip(hidden.split(rows), targets.split(rows), strict=True)
        return Scores.joined([self(model.log_probs(x, temperature), y) for x, y in parts])


def _floats(values: Tensor) -> Floats:
    return values.cpu().double().numpy()


Reader = Callable[[Ids], Scores]
"""Reads sentences one after the other, each with its `<eos>`, (N,), and scores all their tokens."""


def fresh(
    model: LanguageModel,
    eos: int,
    view: View,
    temperature: float = 1.0,
    report: Progress | None = None,
) -> Reader:
    """Each sentence after an `<eos>`, from a state of zeros; batched by length."""

    def read(tokens: Ids) -> Scores:
        parts, places = [], []
        for hidden, targets, where in episodes(model, tokens, eos, report=report):
            parts.append(view.of_model(model, hidden, targets, temperature))
            places.append(where)
        return Scores.joined(parts).taken(np.argsort(np.concatenate(places)))

    return read


def carried(
    model: LanguageModel,
    eos: int,
    view: View,
    method: Method = STATIC,
    statistics: Statistics | None = None,
    report: Progress | None = None,
) -> Reader:
    """All sentences as one text after an `<eos>`, the state carried; by any method.

    The average over dropout masks has no whole distribution: only `log_probs` are known.
    """

    def read(tokens: Ids) -> Scores:
        text = np.append(eos, tokens)
        temperatures = (method.temperature,)
        chunks = walk(model, text, method, CHUNK, temperatures, statistics, report=report)
        cache = NeuralCache(method.cache.window, method.cache.flatness) if method.cache else None
        parts = []
        with closing(chunks):
            for (log_probs,), hidden, targets in chunks:
                if method.monte_carlo:
                    if cache and method.cache:
                        recent = cache.log_prob(hidden, targets)
                        log_probs = mix(log_probs, recent, method.cache.weight)
                    parts.append(Scores(_floats(log_probs)))
                elif cache and method.cache:
                    whole = _with_cache(model, hidden, targets, method, cache)
                    parts += [view(row, target[None]) for row, target in whole]
                else:
                    parts.append(view.of_model(model, hidden, targets, method.temperature))
        found = Scores.joined(parts)
        if not np.isfinite(found.log_probs).all():
            raise RunError(f"{method}: the loss is no longer a finite number: lower the rate")
        return found

    return read


@torch.inference_mode()
def _with_cache(
    model: LanguageModel, hidden: Tensor, targets: Tensor, method: Method, cache: NeuralCache
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each whole distribution mixed with that of the cache, (1, V), and the token there."""
    assert method.cache
    for x, target in zip(hidden, targets, strict=True):
        log_p = model.log_probs(x, method.temperature)
        mixed = mix(log_p, cache.distribution(x, model.vocabulary), method.cache.weight)
        cache.append(x[None], target[None])
        yield mixed[None], target


def ngrams(model: KneserNey, eos: int, view: View, carry: bool) -> Reader:
    """By an n-gram model; `carry`: contexts run across `<eos>`, as in its training text."""

    def of_text(tokens: Ids) -> Scores:
        text, order = np.append(eos, tokens).tolist(), len(model.levels)
        contexts = [tuple(text[max(0, i - order + 1) : i]) for i in range(1, len(text))]
        parts = []
        for context, target in zip(contexts, tokens.tolist(), strict=True):
            if context not in known:
                known[context] = torch.from_numpy(np.log(model.distribution(context)))[None]
            parts.append(view(known[context], torch.tensor([target])))
            if len(known) * model.vocabulary > _REMEMBERED:
                known.clear()
        return Scores.joined(parts)

    known: dict[tuple[int, ...], Tensor] = {}
    return of_text if carry else one_by_one(of_text, eos)


_REMEMBERED = 2**25
"""Log-probabilities of an n-gram model that are kept: 256 MB."""


def one_by_one(read: Reader, eos: int) -> Reader:
    """Each sentence as a separate text: nothing is carried, not even a method's adaptation."""

    def each(tokens: Ids) -> Scores:
        bounds = sentence_bounds(tokens, eos)
        return Scores.joined([read(tokens[a:b]) for a, b in pairwise(bounds.tolist())])

    return each


def once_each(read: Reader, eos: int) -> Reader:
    """Sentences that are the same are read once, so that they tie to the last bit."""

    def different(tokens: Ids) -> Scores:
        bounds = sentence_bounds(tokens, eos)
        sentences = [tokens[a:b] for a, b in pairwise(bounds.tolist())]
        numbers: dict[bytes, int] = {}
        which = [numbers.setdefault(sentence.tobytes(), len(numbers)) for sentence in sentences]
        firsts = dict(zip(reversed(which), reversed(sentences), strict=True))
        unique = [firsts[number] for number in range(len(numbers))]
        starts = np.cumsum([0, *map(len, unique)])
        scores = read(np.concatenate(unique))
        return scores.taken(np.concatenate([np.arange(starts[n], starts[n + 1]) for n in which]))

    return different


# -- sentences -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A sentence as written, where it came from, and its tokens: ids (n,), spans (n, 2)."""

    text: str
    ids: Ids
    spans: Ids

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer, where: str, longest: int = LONGEST) -> Self:
        """where: its name in error messages: 'FILE, line 3'."""
        text = text.rstrip("\n")
        if "\n" in text:
            raise InfolmError(f"{where} has a line break: give each line by itself")
        if not text.strip():
            raise InfolmError(f"{where} is empty: there is nothing to score, so leave it out")
        ids, spans = tokenizer.located(text)
        if not len(ids):
            raise InfolmError(f"{where} has no token of this vocabulary: leave it out")
        if tokenizer.eos in ids:
            raise InfolmError(
                f"{where} holds {tokenizer.token(tokenizer.eos)}, which ends a sentence: put the "
                "rest on its own line"
            )
        if len(ids) > longest:
            raise InfolmError(
                f"{where} has {len(ids):,} tokens, more than {longest:,}: split it, or raise "
                f"--longest"
            )
        return cls(text, ids, spans)


@dataclass(frozen=True)
class Wording:
    """How scores are presented: vocabulary, unit, whether `<eos>` counts, the convention."""

    tokenizer: Tokenizer
    unit: Unit = "bits"
    eos: bool = True
    convention: str = ""

    @cached_property
    def names(self) -> list[str]:
        """Of each token, as a person reads it; `<eos>` of whichever vocabulary."""
        names = [self.tokenizer.token(i) for i in range(len(self.tokenizer))]
        names[self.tokenizer.eos] = EOS
        return names

    def sentence(self, line: Line, scores: Scores) -> ScoredSentence:
        """Of the scores (n + 1,) of a line's tokens and its `<eos>`."""
        count = len(line.ids) + self.eos
        end = len(line.text)
        ids = [*line.ids.tolist(), self.tokenizer.eos][:count]
        spans: list[tuple[int, int]] = [*map(tuple, line.spans.tolist()), (end, end)][:count]
        words = list(_WORD.finditer(line.text))
        members = _membership(line, words)[:count]
        scale = 1 / NATS[self.unit]
        log_probs = scores.log_probs.tolist()
        ranks = scores.ranks.tolist() if scores.ranks is not None else [None] * len(scores)
        tops = self._tops(scores, scale)
        tokens = tuple(
            ScoredToken(
                self.names[id],
                id,
                spans[i][0],
                spans[i][1],
                log_probs[i],
                -log_probs[i] * scale,
                ranks[i],
                id == self.tokenizer.unk,
                members[i] if members[i] < len(words) or self.eos else None,
                tops[i],
            )
            for i, id in enumerate(ids)
        )
        log_prob = math.fsum(log_probs[:count])
        return ScoredSentence(
            line.text,
            log_prob,
            -log_prob * scale,
            self.unit,
            self.convention,
            tokens,
            tuple(self._words(line, words, members, tokens, scores, scale)),
        )

    def _tops(self, scores: Scores, scale: float) -> list[tuple[Alternative, ...]]:
        if scores.top is None or scores.top_log_probs is None or not scores.top.shape[1]:
            return [()] * len(scores)
        rows = zip(scores.top.tolist(), scores.top_log_probs.tolist(), strict=True)
        return [
            tuple(
                Alternative(self.names[id], log_p, -log_p * scale)
                for id, log_p in zip(ids, log_ps, strict=True)
            )
            for ids, log_ps in rows
        ]

    def _words(
        self,
        line: Line,
        words: Sequence[re.Match[str]],
        members: Sequence[int],
        tokens: Sequence[ScoredToken],
        scores: Scores,
        scale: float,
    ) -> Iterator[ScoredWord]:
        """In their order; the `<eos>`, with white space before it, is the last where it counts."""
        begins = _boundaries(scores, self.tokenizer.kind == "wordpiece")
        for number in range(len(words) + self.eos):
            first, last = bisect_right(members, number - 1), bisect_right(members, number)
            own = tokens[first:last]
            pieces = -math.fsum(token.log_prob for token in own)
            # Behind <eos> nothing has to end: it is complete.
            ends = begins[last] if number < len(words) else 0.0
            whole = pieces + begins[first] - ends if own else 0.0
            text, start, end = EOS, len(line.text), len(line.text)
            if number < len(words):
                text, (start, end) = words[number][0], words[number].span()
            yield ScoredWord(
                text,
                start,
                end,
                whole * scale,
                pieces * scale,
                len(own),
                any(token.unknown for token in own),
            )


def _membership(line: Line, words: Sequence[re.Match[str]]) -> list[int]:
    """Which word each token and the `<eos>` belong to; len(words): that of `<eos>`.

    White space belongs to the word behind it, so the first visible character decides.
    """
    ends = [word.end() for word in words]
    # The first word that ends behind where the token begins: it holds the token, or follows it.
    return [*(bisect_right(ends, begin) for begin, _ in line.spans.tolist()), len(words)]


def _boundaries(scores: Scores, pieces: bool) -> list[float]:
    """ln p(B) before each of a sentence's tokens and its `<eos>`. `pieces`: not all tokens may
    begin a sentence."""
    if scores.log_begins is None:
        return [0.0] * len(scores)
    found: list[float] = scores.log_begins.tolist()
    return found if pieces else [0.0, *found[1:]]


def score_lines(lines: Sequence[Line], read: Reader, wording: Wording) -> list[ScoredSentence]:
    """Each line scored, in their order."""
    if not lines:
        return []
    eos = wording.tokenizer.eos
    scores = read(np.concatenate([np.append(line.ids, eos) for line in lines]))
    ends = np.cumsum([len(line.ids) + 1 for line in lines]).tolist()
    return [
        wording.sentence(line, scores.taken(slice(end - len(line.ids) - 1, end)))
        for line, end in zip(lines, ends, strict=True)
    ]
