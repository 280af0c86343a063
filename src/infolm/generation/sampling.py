"""Sampling from a language model: filters of the next word's distribution, and the draw.

Each filter maps ln p (B, V) to the renormalised ln p (B, V) of the remaining words, with -inf for
excluded ones. Every one keeps at least one word.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from infolm.errors import InfolmError
from infolm.evaluation.likelihood import Progress
from infolm.evaluation.neural_cache import CacheSettings, NeuralCache, mix
from infolm.models.language import LanguageModel

BLOCK = 128
"""Words that are summed up together."""


def temperature(log_probs: Tensor, value: float) -> Tensor:
    """p^(1/value), renormalised: 1 changes nothing, towards 0 it becomes `greedy`."""
    return (log_probs / value).log_softmax(-1)


def greedy(log_probs: Tensor) -> Tensor:
    """Only the likeliest word."""
    return top_k(log_probs, 1)


def top_k(log_probs: Tensor, k: int) -> Tensor:
    """The k likeliest words; k >= V changes nothing."""
    likeliest = log_probs.topk(min(k, log_probs.shape[-1])).indices
    kept = torch.zeros_like(log_probs, dtype=torch.bool)
    return _keep(log_probs, kept.scatter_(-1, likeliest, True))


def nucleus(log_probs: Tensor, p: float) -> Tensor:
    """The fewest words that hold a mass of p, the likeliest first (Holtzman et al., 2020)."""
    return _fewest(log_probs, -log_probs, p)


def typical(log_probs: Tensor, p: float) -> Tensor:
    """The fewest words that hold a mass of p, those first whose surprise -ln p is nearest the
    entropy (Meister et al., 2023: locally typical sampling)."""
    return _fewest(log_probs, (log_probs + _entropy(log_probs)).abs(), p)


def eta(log_probs: Tensor, epsilon: float) -> Tensor:
    """The words more probable than min(epsilon, sqrt(epsilon) exp(-H)), H the entropy in nats
    (Hewitt et al., 2022); the likeliest one in any case."""
    threshold = (epsilon**0.5 * (-_entropy(log_probs)).exp()).clamp(max=epsilon)
    likeliest = log_probs.argmax(-1, keepdim=True)
    return _keep(log_probs, (log_probs > threshold.log()).scatter_(-1, likeliest, True))


def _entropy(log_probs: Tensor) -> Tensor:
    return torch.special.entr(log_probs.exp()).sum(-1, keepdim=True)


def _keep(log_probs: Tensor, kept: Tensor) -> Tensor:
    return log_probs.masked_fill(~kept, -torch.inf).log_softmax(-1)


def _fewest(log_probs: Tensor, rank: Tensor, mass: float) -> Tensor:
    """The fewest words, by ascending rank, that hold `mass`.

    A word is left out when it and all after it hold no more than 1 - mass: added up from the
    end, so that a mass of 1 leaves out nothing that has a probability at all.
    """
    order = rank.argsort(-1)
    rest = log_probs.double().exp().gather(-1, order).flip(-1).cumsum(-1).flip(-1)
    kept = rest > 1 - mass
    kept[:, 0] = True
    return _keep(log_probs, torch.zeros_like(kept).scatter_(-1, order, kept))


@dataclass(frozen=True)
class SamplingSettings:
    """How the next word is chosen; the given filters apply in the order of the fields.

    `forbid` holds words that may never come (<unk>, say), and comes before everything else.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    eta: float | None = None
    typical: float | None = None
    greedy: bool = False
    forbid: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise InfolmError(f"The temperature must be above 0, not {self.temperature}.")
        if self.top_k is not None and self.top_k < 1:
            raise InfolmError(f"top_k must be at least 1, not {self.top_k}.")
        for name in ("top_p", "eta", "typical"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise InfolmError(f"{name} must be above 0 and at most 1, not {value}.")

    def __call__(self, log_probs: Tensor) -> Tensor:
        """ln p of the next word (B, V), filtered."""
        if self.forbid:
            if len(set(self.forbid)) == log_probs.shape[-1]:
                raise InfolmError("Every word of the vocabulary is forbidden: allow at least one.")
            log_probs = log_probs.clone()
            log_probs[:, list(self.forbid)] = -torch.inf
            log_probs = log_probs.log_softmax(-1)
        if self.temperature != 1:
            log_probs = temperature(log_probs, self.temperature)
        if self.top_k is not None:
            log_probs = top_k(log_probs, self.top_k)
        if self.top_p is not None:
            log_probs = nucleus(log_probs, self.top_p)
        if self.eta is not None:
            log_probs = eta(log_probs, self.eta)
        if self.typical is not None:
            log_probs = typical(log_probs, self.typical)
        return greedy(log_probs) if self.greedy else log_probs


def draw(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """One word a row by inverting the distribution function: (B, V), (B,) in [0, 1) -> (B,).

    It is the first word at which the cumulated probability exceeds `uniform` times the total, so
    there is always one, and it is never of probability 0. Probabilities are cumulated over blocks
    of words first, and then within the one block where that happens: with many rows, a running sum
    over all words takes longer than the rest of a step.
    """
    rows, words = log_probs.shape
    blocks = log_probs.new_empty(rows, words + -words % BLOCK)
    torch.exp(log_probs, out=blocks[:, :words])
    blocks[:, words:] = 0
    p = blocks.unflatten(1, (-1, BLOCK))
    cumulated = p.sum(-1).double().cumsum(-1)
    total = cumulated[:, -1]
    # Rounding must not make a product with what is below 1 the total itself.
    goal = (uniform * total).minimum(total.nextafter(torch.zeros_like(total)))[:, None]
    block = torch.searchsorted(cumulated, goal, right=True)
    before = pad(cumulated, (1, 0)).gather(1, block)
    inside = p.gather(1, block[..., None].expand(-1, -1, BLOCK))[:, 0].double()
    place = torch.searchsorted(before + inside.cumsum(-1), goal, right=True)
    # The block's own sum may be rounded up by a hair, so that the goal lies behind its last word.
    last = torch.where(inside > 0, torch.arange(BLOCK, device=p.device), 0).amax(1, keepdim=True)
    return (BLOCK * block + place.minimum(last))[:, 0]


@torch.inference_mode()
def generate(
    model: LanguageModel,
    prompt: Tensor,
    tokens: int,
    num: int,
    settings: SamplingSettings,
    generator: torch.Generator,
    cache: CacheSettings | None = None,
    report: Progress | None = None,
) -> Tensor:
    """`num` continuations of `prompt` (P,), P >= 1, each of `tokens` words: (num, tokens).

    The model must be in evaluation mode. Each continuation has its own random numbers, seeded from
    `generator` (on the CPU) one after another, so the first ones are the same for any `num`, but
    for rounding in the model. With `cache`, each continuation has its own neural cache, which
    starts with the prompt. `report` is called with the tokens of all continuations together.
    """
    words: list[Tensor] = []
    for word in word_by_word(model, prompt, tokens, num, settings, generator, cache):
        words.append(word)
        if report:
            report(len(words) * num, tokens * num)
    return torch.stack(words, 1)


@torch.inference_mode()
def word_by_word(
    model: LanguageModel,
    prompt: Tensor,
    tokens: int,
    num: int,
    settings: SamplingSettings,
    generator: torch.Generator,
    cache: CacheSettings | None = None,
) -> Iterator[Tensor]:
    """As `generate`, the next word of each continuation (num,) as soon as it is drawn."""
    uniforms = torch.stack([own_uniforms(generator, tokens) for _ in range(num)], 1)
    uniforms = uniforms.to(prompt.device)
    output = model(prompt[:, None], model.initial_state(1))
    hidden = output.hidden[-1].expand(num, -1)
    state = model.selected(output.state, torch.zeros(num, dtype=torch.long, device=prompt.device))
    caches = [NeuralCache(cache.window, cache.flatness) for _ in range(num)] if cache else []
    for one in caches:
        one.append(output.hidden[:-1, 0], prompt[1:])
    word = prompt[-1:].expand(num)
    for t in range(tokens):
        if t > 0:
            output = model(word[None], state)
            hidden, state = output.hidden[-1], output.state
        log_probs = model.log_probs(hidden)
        if cache:
            recent = [
                one.distribution(h, log_probs.shape[-1])
                for one, h in zip(caches, hidden, strict=True)
            ]
            log_probs = mix(log_probs, torch.stack(recent), cache.weight)
        word = draw(settings(log_probs), uniforms[t])
        for i, one in enumerate(caches):
            one.append(hidden[i : i + 1], word[i : i + 1])
        yield word


def own_uniforms(generator: torch.Generator, tokens: int) -> Tensor:
    """Random numbers (tokens,) in [0, 1) of a continuation's own."""
    seed = int(torch.randint(2**62, (1,), generator=generator))
    return torch.rand(tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
