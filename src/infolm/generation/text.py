"""From a prompt in words to samples in words, and long texts to measure."""

import numpy as np
import numpy.typing as npt
import torch

from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation.likelihood import Progress
from infolm.evaluation.neural_cache import CacheSettings
from infolm.generation.sampling import SamplingSettings, generate
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

    The model always reads an <eos> first, as at the start of a line. A prompt with a word that the
    vocabulary lacks is refused: the model would only see <unk>.
    """
    unknown = tokenizer.unknown(prompt)
    if unknown:
        words = ", ".join(f"'{word}'" for word in unknown[:10])
        raise InfolmError(
            f"the model's vocabulary lacks parts of the prompt: use others than {words}"
        )
    ids = [tokenizer.eos, *tokenizer.encode(prompt).tolist()]
    device = model.device
    generator = torch.Generator().manual_seed(seed)
    start = torch.tensor(ids, device=device)
    most = max(1, min(SIDE_BY_SIDE, AT_ONCE // tokens))
    texts: list[str] = []
    while len(texts) < num:
        count = min(most, num - len(texts))
        written = generate(model, start, tokens, count, settings, generator, cache)
        texts += [tokenizer.decode(sample) for sample in written.cpu().numpy()]
    return texts


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
