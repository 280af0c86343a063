"""Continuations of a prompt as text, and long texts to measure."""

from collections.abc import Iterator
from itertools import takewhile

import numpy as np
import numpy.typing as npt
import torch

from infolm.data.tokens import Tokenizer
from infolm.evaluation.likelihood import Progress
from infolm.evaluation.neural_cache import CacheSettings
from infolm.generation.sampling import SamplingSettings, generate, word_by_word
from infolm.models.language import LanguageModel

STREAMS = 100
"""Texts that are written side by side where a long one is wanted."""
SIDE_BY_SIDE = 256
"""Samples that are written together, at most; all others wait."""
AT_ONCE = 2**22
"""Tokens of samples that are written together."""


def write(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str,
    tokens: int,
    num: int,
    seed: int,
    settings: SamplingSettings,
    cache: CacheSettings | None = None,
) -> list[str]:
    """`num` continuations of `prompt`, without the prompt itself, a few at a time.

    The model always reads an <eos> first, as at the start of a line. A word that the vocabulary
    lacks is read as <unk>; `unknown_words` says which.
    """
    ids = _read(tokenizer, prompt)
    generator = torch.Generator().manual_seed(seed)
    start = torch.tensor(ids, device=model.device)
    most = max(1, min(SIDE_BY_SIDE, AT_ONCE // tokens))
    texts: list[str] = []
    while len(texts) < num:
        count = min(most, num - len(texts))
        written = generate(model, start, tokens, count, settings, generator, cache)
        texts += [continuation(tokenizer, ids[1:], sample.tolist()) for sample in written]
    return texts


def stream(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str,
    tokens: int,
    seed: int,
    settings: SamplingSettings,
    cache: CacheSettings | None = None,
) -> Iterator[str]:
    """The first text of `write`, piece by piece.

    A piece is yielded once the next token is known, which decides its blanks.
    """
    ids = _read(tokenizer, prompt)
    generator = torch.Generator().manual_seed(seed)
    start = torch.tensor(ids, device=model.device)
    line, written = ids[1:], list[int]()  # lines that are complete do not change any more
    before, given = "", 0
    for word in word_by_word(model, start, tokens, 1, settings, generator, cache):
        written.append(int(word))
        now = continuation(tokenizer, line, written)
        if written[-1] == tokenizer.eos:
            yield now[given:]
            line, written, before, given = [], [], "", 0
            continue
        agree = (a == b for a, b in zip(before, now, strict=False))
        certain = sum(takewhile(bool, agree))
        yield now[given:certain]
        given, before = max(given, certain), now
    yield before[given:]


def continuation(tokenizer: Tokenizer, prompt: list[int], sample: list[int]) -> str:
    """The continuation, with a blank before it if prose has one."""
    first, both = tokenizer.prose(prompt), tokenizer.prose([*prompt, *sample])
    return both[len(first) :] if both.startswith(first) else f" {tokenizer.prose(sample)}"


def unknown_words(tokenizer: Tokenizer, prompt: str) -> str:
    """A warning about unknown words of the prompt; empty if there are none."""
    unknown = tokenizer.unknown(tokenizer.adapted(prompt))
    if not unknown:
        return ""
    words = ", ".join(f"'{word}'" for word in unknown[:10])
    return f"the model's vocabulary lacks {words}, read as <unk>"


def _read(tokenizer: Tokenizer, prompt: str) -> list[int]:
    return [tokenizer.eos, *tokenizer.encode(tokenizer.adapted(prompt)).tolist()]


def write_long(
    model: LanguageModel, eos: int, tokens: int, seed: int, report: Progress | None = None
) -> npt.NDArray[np.int64]:
    """About `tokens` tokens as the model draws them, (`STREAMS`, T): T is rounded up.

    Each row is a text of its own, from <eos> and a state of zeros on, at temperature 1.
    """
    length = -(-tokens // STREAMS)
    start = torch.tensor([eos], device=model.device)
    generator = torch.Generator().manual_seed(seed)
    text = generate(model, start, length, STREAMS, SamplingSettings(), generator, report=report)
    return text.cpu().numpy()
