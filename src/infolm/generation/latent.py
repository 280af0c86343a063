"""The uses of a latent code (Livne et al. 2020, sections 4.6 and 4.7): encoding, decoding,
interpolation and neighbours.

Codes are Gaussian, or have several variables with classes: an interpolation then changes one
variable at a time, and the distance is the number of variables that differ.

Every sentence has its own random numbers, for its code and for its words: other sentences in the
batch change only rounding. Models are in evaluation mode.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infolm.data.sentences import Lines, SentencesConfig
from infolm.data.tokens import NO_TOKEN, Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation.latent import encoded, placed, posteriors
from infolm.evaluation.likelihood import Progress
from infolm.generation.sampling import SamplingSettings, draw, own_uniforms
from infolm.models.codes.base import Latent
from infolm.models.codes.gaussian import Posterior
from infolm.models.codes.proposal import Proposal
from infolm.models.latent import LatentModel

Tokens = npt.NDArray[np.int64]
"""A sentence, (n,), without its <eos>."""

MEAN, SAMPLE, PERTURBED = 0.0, 1.0, 10.0
"""Factors of the standard deviation of q(z | x), for the three reconstructions of table 11. Classes
have the likeliest, `MEAN`, and a draw, `SAMPLE`; quantised codes only the first."""

GREEDY = SamplingSettings(greedy=True)

ENTRIES = 2**24
"""Probabilities or distances in memory at a time: 64 or 128 MiB."""


# -- codes ----------------------------------------------------------------------------------


def drawn(proposal: Proposal, scale: float, generator: torch.Generator) -> Tensor:
    """z ~ N(mean, (scale sigma)^2), (S, Z): 0 is the mean itself, 1 a draw from q(z | x). Of
    classes 0 is the likeliest, and all else a draw; a quantised code is as it is."""
    if proposal.gaussian is not None:
        return proposal.gaussian.at(scale * _normal(generator, *proposal.centre.shape))
    if proposal.certain or scale == MEAN or proposal.over_classes is None:
        return proposal.centre
    log_probs = proposal.over_classes.log_probs
    count, variables, _ = log_probs.shape
    chances = _uniform(generator, count, variables).flatten()
    return draw(log_probs.flatten(0, 1), chances).view(count, variables)


def of_prior(latent: Latent, num: int, deviation: float, generator: torch.Generator) -> Tensor:
    """`num` codes of N(0, deviation^2), or of classes that are all as likely."""
    config = latent.config
    if not config.classes:
        return deviation * _normal(generator, num, config.places)
    return latent.code((_uniform(generator, num, config.places) * config.classes).long())


def placed_at(proposal: Proposal, scale: float, generator: torch.Generator) -> Tensor:
    """`places`, but of codes `drawn` at a scale; quantised ones are where they are."""
    if proposal.certain:
        return proposal.places
    return drawn(proposal, scale, generator)


def between(a: Tensor, b: Tensor, steps: int) -> Tensor:
    """`steps` codes from a to b, both included: (Z,), (Z,) -> (steps, Z).

    Vectors at equal distances. Classes, which are whole numbers, change from a's to b's one
    variable after the other, at equal shares of those that differ.
    """
    if a.is_floating_point():
        return torch.lerp(a, b, torch.linspace(0, 1, steps, dtype=a.dtype)[:, None])
    differ = a != b
    changed = torch.linspace(0, int(differ.sum()), steps, dtype=torch.float64).round()
    return torch.where(differ & (differ.cumsum(0) <= changed[:, None]), b, a)


def nearest(queries: Tensor, codes: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """The `num` codes (S, Z) nearest to each query (Q, Z), exactly: their distances and their
    numbers, (Q, num) each, the nearest first. Of vectors the distance is Euclidean; of classes the
    number of variables that differ."""
    distances, numbers = [], []
    for block in queries.split(max(1, ENTRIES // len(codes))):
        if codes.is_floating_point():
            # A product of matrices would be faster, and lose what is between codes that nearly
            # agree.
            every = torch.cdist(block, codes, compute_mode="donot_use_mm_for_euclid_dist")
        else:
            every = torch.cdist(block.double(), codes.double(), p=0)
        found = every.sort(stable=True, dim=1)
        distances.append(found.values[:, :num])
        numbers.append(found.indices[:, :num])
    return torch.cat(distances), torch.cat(numbers)


def distinct(lines: Lines) -> Lines:
    """Each sentence where it stands first."""
    first: dict[bytes, int] = {}
    for number, sentence in enumerate(lines):
        first.setdefault(sentence.tobytes(), number)
    return lines.chosen(np.fromiter(first.values(), np.int64))


def _normal(generator: torch.Generator, num: int, size: int) -> Tensor:
    """N(0, 1), (num, size), each row from a seed of its own."""
    rows = torch.empty(num, size, dtype=torch.float64)
    for row, seed in zip(rows, torch.randint(2**62, (num,), generator=generator), strict=True):
        row.normal_(generator=torch.Generator().manual_seed(int(seed)))
    return rows


def _uniform(generator: torch.Generator, num: int, size: int) -> Tensor:
    """In [0, 1), (num, size), each row from a seed of its own."""
    return torch.stack([own_uniforms(generator, size) for _ in range(num)])


def _generators(seed: int) -> list[torch.Generator]:
    """For choosing sentences, for codes and for words: what one gives does not depend on how much
    another has given."""
    seeds = torch.randint(2**62, (3,), generator=torch.Generator().manual_seed(seed))
    return [torch.Generator().manual_seed(one) for one in seeds.tolist()]


# -- sentences ------------------------------------------------------------------------------


@torch.inference_mode()
def decode(
    model: LatentModel,
    z: Tensor,
    settings: SamplingSettings,
    longest: int,
    eos: int,
    generator: torch.Generator,
) -> list[Tokens]:
    """The sentences of codes z (B, ...), each up to its <eos> or to `longest` tokens.

    All are written side by side, a word a step; those that have ended leave the batch. A model of
    single symbols writes one word.
    """
    rows = max(1, ENTRIES // model.vocabulary)
    written: list[Tokens] = []
    for part in placed(model, z).split(rows):
        uniforms = [own_uniforms(generator, longest) for _ in part]
        if not uniforms:
            continue
        written += _decoded(model, part, settings, uniforms, eos)
    return written


def _decoded(
    model: LatentModel,
    z: Tensor,
    settings: SamplingSettings,
    uniforms: list[Tensor],
    eos: int,
) -> list[Tokens]:
    """As `decode`; each sentence has the random numbers of its words, (longest,)."""
    chances = torch.stack(uniforms, 1).to(z.device)
    longest = min(len(chances), model.config.longest or len(chances))
    written = torch.full((longest, len(z)), eos, device=z.device)
    unfinished = torch.arange(len(z), device=z.device)
    words, state = torch.full_like(unfinished, eos), model.initial_state(z)
    for t in range(longest):
        hidden, state = model.step(words, z, state)
        words = _next(model.log_probs(hidden), settings, chances[t, unfinished])
        kept = (words != eos).nonzero().squeeze(1)
        if len(kept) < len(words):
            unfinished, words, z = unfinished[kept], words[kept], z[kept]
            state = [tuple(tensor.index_select(1, kept) for tensor in layer) for layer in state]
        written[t, unfinished] = words
        if not len(kept):
            break
    lengths = (written != eos).sum(0).tolist()
    return [row[:n] for row, n in zip(written.t().cpu().numpy(), lengths, strict=True)]


def _next(log_probs: Tensor, settings: SamplingSettings, uniforms: Tensor) -> Tensor:
    if settings.greedy:  # at once, without the distribution that has all its mass there
        return replace(settings, greedy=False)(log_probs).argmax(-1)
    return draw(settings(log_probs), uniforms)


def reconstruct(
    model: LatentModel,
    lines: Lines,
    scale: float,
    settings: SamplingSettings,
    longest: int,
    seed: int,
) -> list[Tokens]:
    """Reconstruct each sentence from its code at `MEAN`, `SAMPLE` or `PERTURBED` scale."""
    _, of_codes, of_words = _generators(seed)
    z = drawn(encoded(model, lines), scale, of_codes)
    return decode(model, z, settings, longest, lines.eos, of_words)


# -- text -----------------------------------------------------------------------------------


class Reconstruction(NamedTuple):
    """A sentence as the model reads it, and as written from its code at each scale."""

    sentence: str
    written: tuple[str, ...]


class Neighbour(NamedTuple):
    """A sentence, and how far its code is from that of the one asked about."""

    sentence: str
    distance: float


class Answer(NamedTuple):
    """words: how many were asked for. text: what follows the first "?" of `written`, the whole
    sentence; empty if there is no "?"."""

    words: int
    text: str
    written: str


def read_sentences(path: Path) -> list[str]:
    """The sentences of a text file, one a line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InfolmError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InfolmError(f"{path} is not UTF-8 text: save it as such") from error
    sentences = text.removesuffix("\n").split("\n")
    for number, sentence in enumerate(sentences, 1):
        if not sentence.strip():
            raise InfolmError(f"line {number} of {path} is empty: give a sentence on every line")
    return sentences


@dataclass(frozen=True)
class SentenceWriter:
    """A model with a latent code and its vocabulary, from text to text.

    feed: the training feed; longer sentences are cut or refused, as it says. longest: maximum
    tokens of a decoded text. unknown: unknown words are read as <unk>; otherwise they are refused.
    The same seed gives the same sentences, whatever their number.
    """

    model: LatentModel
    tokenizer: Tokenizer
    feed: SentencesConfig
    longest: int
    settings: SamplingSettings = GREEDY
    seed: int = 1
    unknown: bool = False

    def read(self, sentences: Sequence[str]) -> Lines:
        """The tokens of sentences; refuses those that the model cannot read."""
        tokens = [self._tokens(text, number) for number, text in enumerate(sentences, 1)]
        return Lines.of(tokens, self.tokenizer.eos).cut(self.feed.longest)

    def reconstruct(
        self, lines: Lines, scales: Sequence[float] = (MEAN, SAMPLE, PERTURBED)
    ) -> list[Reconstruction]:
        """Table 11: from the mean, from a draw of q(z | x), from a draw with ten times its standard
        deviation.

        The noise is the same at every scale. Not every kind of code has all of them: see `MEAN`.
        An auto-encoder has only a mean.
        """
        settings = self.settings, self.longest, self.seed
        written = [self._texts(reconstruct(self.model, lines, s, *settings)) for s in scales]
        rows = zip(*written, strict=True)
        return [Reconstruction(*row) for row in zip(self._texts(lines), rows, strict=True)]

    def interpolate(self, a: str, b: str, steps: int, scale: float = MEAN) -> list[str]:
        """From a code of one sentence to one of another, both included (table 10); see `between`.
        The codes are in the middle of q(z | x), or of `SAMPLE` scale drawn from it, the paper's way
        (section 4.7)."""
        _, of_codes, _ = _generators(self.seed)
        start, end = placed_at(encoded(self.model, self.read([a, b])), scale, of_codes)
        return self._written(self.model.latent.code(between(start, end, steps)))

    def walk(self, sentence: str, unit: int, values: Sequence[float]) -> list[str]:
        """The sentence with one unit of its code at each of `values`: a dimension of a Gaussian
        code, or a variable, whose values are classes."""
        place = encoded(self.model, self.read([sentence])).places
        places = place.repeat(len(values), 1)
        places[:, unit] = torch.tensor(values).to(places.dtype)
        return self._written(self.model.latent.code(places))

    def perturb(self, sentence: str, num: int, scale: float = PERTURBED) -> list[str]:
        """`num` sentences from N(mean, (scale sigma)^2) of one."""
        one = posteriors(self.model, self.read([sentence]))
        copies = Posterior(*(tensor.expand(num, -1) for tensor in one))
        _, of_codes, _ = _generators(self.seed)
        return self._written(drawn(copies, scale, of_codes))

    def sample(self, num: int, deviation: float = 0.1) -> list[str]:
        """`num` sentences from N(0, deviation^2), as appendix D.3 has it; 1 is the prior. Of
        classes from the prior, which is uniform."""
        _, of_codes, _ = _generators(self.seed)
        return self._written(of_prior(self.model.latent, num, deviation, of_codes))

    def sample_aggregated(self, lines: Lines, num: int) -> list[str]:
        """`num` sentences from the aggregated posterior 1/S sum_i q(z | x_i) of `lines`: each from
        a code of one of them, which is drawn as well."""
        of_sentences, of_codes, _ = _generators(self.seed)
        numbers = torch.randint(len(lines), (num,), generator=of_sentences).numpy()
        chosen = encoded(self.model, lines.chosen(numbers))
        return self._written(drawn(chosen, SAMPLE, of_codes))

    def neighbours(
        self, sentences: Sequence[str], lines: Lines, num: int, report: Progress | None = None
    ) -> list[list[Neighbour]]:
        """For each sentence the `num` of `lines` whose codes, in the middle of q(z | x), are
        nearest, repeats left out; see `nearest`."""
        queries = encoded(self.model, self.read(sentences)).places
        lines = distinct(lines)
        found = nearest(queries, encoded(self.model, lines, report).places, num)
        return [
            [
                Neighbour(self.tokenizer.decode(lines[number]), distance)
                for distance, number in zip(*row, strict=True)
            ]
            for row in zip(*(tensor.tolist() for tensor in found), strict=True)
        ]

    def answer(
        self, question: str, lengths: Sequence[int] = (5, 10, 15), scale: float = MEAN
    ) -> list[Answer]:
        """Answers of about the given numbers of words (section 4.6).

        "question ? <unk> ... <unk>", with an <unk> for each word of the answer, is reconstructed
        from its mean code, or of `SAMPLE` scale from a draw of q(z | x), as in the paper: the
        likeliest word each time, but never <unk>.
        """
        if not self.model.ends:
            raise InfolmError(
                "a model of single symbols cannot answer questions: choose a run whose "
                "model.kind is "
                "sentence"
            )
        unk, mark = self._blank(), self._question_mark()
        asked = self.read([question.rstrip().removesuffix("?")])[0]
        lines = Lines.of([[*asked, mark, *[unk] * n] for n in lengths], self.tokenizer.eos)
        settings = replace(self.settings, greedy=True, forbid=(*self.settings.forbid, unk))
        written = reconstruct(self.model, lines, scale, settings, self.longest, self.seed)
        answers = [_after(sentence, mark) for sentence in written]
        texts = zip(self._texts(answers), self._texts(written), strict=True)
        return [Answer(n, *both) for n, both in zip(lengths, texts, strict=True)]

    def _written(self, z: Tensor) -> list[str]:
        *_, of_words = _generators(self.seed)
        eos = self.tokenizer.eos
        return self._texts(decode(self.model, z, self.settings, self.longest, eos, of_words))

    def _texts(self, sentences: Iterable[Tokens]) -> list[str]:
        return [self.tokenizer.decode(sentence) for sentence in sentences]

    def _tokens(self, text: str, number: int) -> Tokens:
        text, limit = self.tokenizer.adapted(text), self.feed.longest
        tokens = self.tokenizer.encode(text)
        if not len(tokens):
            raise InfolmError(f"sentence {number} is empty: write at least one word")
        if self.tokenizer.eos in tokens:
            raise InfolmError(f"sentence {number} has more than one line: give it as one")
        if len(tokens) > 1 and not self.model.ends:
            raise InfolmError(
                f"sentence {number} has {len(tokens):,} words, and the model reads single "
                "symbols: give one word"
            )
        if len(tokens) > limit and self.feed.beyond == "refuse":
            raise InfolmError(
                f"sentence {number} has {len(tokens):,} tokens, and the model was trained on "
                f"sentences of at most {limit:,}: shorten it"
            )
        lacking = [] if self.unknown else self.tokenizer.unknown(text)
        if lacking:
            words = ", ".join(f"'{word}'" for word in lacking[:10])
            raise InfolmError(
                f"the model's vocabulary lacks parts of sentence {number}: replace "
                f"{words}, or read them as <unk> with --unknown"
            )
        return tokens

    def _blank(self) -> int:
        """The token that stands for a word of an answer."""
        if self.tokenizer.unk is None:
            raise InfolmError(
                "questions need <unk> for the answer's words, and this "
                "vocabulary has none: train with data.tokens=word"
            )
        return self.tokenizer.unk

    def _question_mark(self) -> int:
        found = self.tokenizer.lookup("?").tolist()
        if found == [NO_TOKEN]:
            raise InfolmError(
                "the model's vocabulary lacks '?', which separates a question from its answer: "
                "train "
                "on a text that has questions"
            )
        return int(found[0])


def _after(sentence: Tokens, mark: int) -> Tokens:
    """What follows the first `mark`; nothing if there is none."""
    places = np.flatnonzero(sentence == mark)
    return sentence[places[0] + 1 :] if len(places) else sentence[:0]
