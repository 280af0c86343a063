"""What is done with the models that are served: a service for each family of runs."""

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.evaluation.latent import encoded
from infolm.families.base import Run, open_run
from infolm.families.contrastive.run import EncoderRun
from infolm.families.latent.run import NO_SAMPLES, LatentRun
from infolm.families.running.run import LanguageRun
from infolm.finetuning.inputs import Inputs, joined
from infolm.generation.latent import distinct, nearest
from infolm.generation.sampling import SamplingSettings, own_uniforms
from infolm.models.base import Capability
from infolm.models.sentence import SentenceModel
from infolm.sentence_vectors import SentenceVectors
from infolm.server.engine import Continuation, Engine
from infolm.server.limits import Limits
from infolm.server.schemas import CompletionRequest, SampleRequest, ScoreRequest
from infolm.server.text import Text

Result = TypeVar("Result")
MOST_CODES = 50_000
"""Training sentences whose codes are kept to find neighbours among."""
SEEDS = 2**62


class RequestError(Exception):
    """What is wrong with a request, for the client to read."""

    def __init__(self, message: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Prompt(NamedTuple):
    """text: as the client wrote it, or as its tokens read; ids: with the `<eos>` before it; first:
    where the client's own tokens begin, 0 if they begin with that `<eos>`."""

    text: str
    ids: list[int]
    first: int


class Service:
    """A run, its engine, and the paths under /v1 that it answers."""

    does: ClassVar[frozenset[str]] = frozenset()
    says: ClassVar[str] = ""
    """What the model is, where it is asked for something else."""

    def __init__(self, run: Any, limits: Limits) -> None:
        self.run, self.limits = run, limits
        self.name, self.created = Path(run.folder.path).resolve().name, int(time.time())
        self.engine = Engine(run.model, limits.slots, limits.waiting)

    def check(self, what: str) -> None:
        """Refuse what the model cannot do."""
        if what not in self.does:
            raise RequestError(
                f"the model '{self.name}' is {self.says}: /v1/{what} needs another; "
                f"it answers {', '.join(f'/v1/{each}' for each in sorted(self.does))}",
                code="model_not_supported",
            )

    def lines_of(self, given: str | Sequence[str]) -> list[str]:
        """Texts within the limits."""
        texts = [given] if isinstance(given, str) else list(given)
        if len(texts) > self.limits.texts:
            raise RequestError(f"{len(texts):,} texts are more than {self.limits.texts:,}")
        return texts

    def check_length(self, tokens: int) -> None:
        if tokens > self.limits.longest:
            raise RequestError(
                f"{tokens:,} tokens are more than {self.limits.longest:,}, the most of a request",
                code="context_length_exceeded",
            )


class LanguageService(Service):
    """A language model writes and scores."""

    does = frozenset({"completions", "score"})
    says = "a language model"
    run: LanguageRun

    def prompts(self, request: CompletionRequest) -> list[Prompt]:
        """The prompts of a request: texts, or tokens by their numbers."""
        given: list[Any] = request.prompt if isinstance(request.prompt, list) else [request.prompt]
        if given and isinstance(given[0], int):
            given = [given]
        return [self._of_text(p) if isinstance(p, str) else self._of_ids(p) for p in given]

    def _of_text(self, text: str) -> Prompt:
        tokenizer = self.run.tokenizer
        ids = tokenizer.encode(tokenizer.adapted(text)).tolist()
        self.check_length(len(ids))
        return Prompt(text, [tokenizer.eos, *ids], 1)

    def _of_ids(self, ids: list[int]) -> Prompt:
        tokenizer = self.run.tokenizer
        self.check_length(len(ids))
        if max(ids) >= len(tokenizer):
            raise RequestError(f"token {max(ids)} is not one of the {len(tokenizer):,} tokens")
        text = tokenizer.decode(ids)
        if ids[0] == tokenizer.eos:
            return Prompt(text, list(ids), 0)
        return Prompt(text, [tokenizer.eos, *ids], 1)

    def continuations(
        self, request: CompletionRequest, prompts: Sequence[Prompt]
    ) -> list[Continuation]:
        """What is to be written: `n` for each prompt, one after the other."""
        limits, tokenizer = self.limits, self.run.tokenizer
        tokens = 16 if request.max_tokens is None else request.max_tokens
        num = (request.n or 1) * len(prompts)
        if num > limits.texts:
            raise RequestError(f"{num:,} completions are more than {limits.texts:,}")
        if tokens > limits.tokens:
            raise RequestError(f"max_tokens is at most {limits.tokens:,} here, not {tokens:,}")
        if not tokens and not request.echo:
            raise RequestError("max_tokens 0 gives nothing without echo: ask for a token")
        stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
        if "" in stops or any(len(stop) > limits.stop for stop in stops):
            raise RequestError(f"a stop string has 1 to {limits.stop} characters")
        settings = self._settings(request)
        seed = request.seed
        generator = torch.Generator()
        deadline = time.monotonic() + limits.seconds
        found = []
        for prompt in prompts:
            # Each prompt has the draws that it would have alone.
            generator.seed() if seed is None else generator.manual_seed(seed)
            for _ in range(request.n or 1):
                blank = not prompt.text[-1:].isspace()
                text = Text(tokenizer, prompt.ids[-1], stops, blank)
                uniforms = own_uniforms(generator, tokens)
                found.append(
                    Continuation(
                        prompt.ids,
                        settings,
                        uniforms,
                        text,
                        deadline,
                        request.logprobs,
                        bool(request.echo),
                    )
                )
        return found

    def _settings(self, request: CompletionRequest) -> SamplingSettings:
        tokenizer = self.run.tokenizer
        temperature = 1.0 if request.temperature is None else request.temperature
        unk = tokenizer.unk
        return SamplingSettings(
            temperature=max(temperature, 1e-3),
            top_k=request.top_k,
            top_p=None if request.top_p in (None, 1) else request.top_p,
            eta=request.eta,
            typical=request.typical,
            greedy=temperature < 1e-3,
            forbid=(unk,) if request.no_unk and unk is not None else (),
        )

    def score(self, request: ScoreRequest) -> Callable[[], list[dict[str, Any]]]:
        """What `infolm score --json` gives."""
        texts = self.lines_of(request.texts)
        self.check_length(sum(map(len, texts)) // 8)  # at the least; the rest is checked by tokens
        options: dict[str, Any] = {
            "context": request.context,
            "eos": request.eos,
            "unit": request.unit,
            "top": request.top,
            "temperature": request.temperature,
            "longest": self.limits.longest,
            "cache": request.cache,
        }
        if request.dynamic:
            options |= {"dynamic": request.dynamic, "dynamic_rule": "sgd"}

        def scored() -> list[dict[str, Any]]:
            return [sentence.to_dict() for sentence in self.run.score(texts, **options)]

        return scored


class LatentService(Service):
    """A model with a latent code: its codes are vectors, and it writes sentences from them."""

    does = frozenset(
        {
            "embeddings",
            "latent/interpolate",
            "latent/neighbours",
            "latent/reconstruct",
            "latent/sample",
        }
    )
    says = "a model with a latent code"
    run: LatentRun

    def embed(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.float32], int]:
        """A vector of each, (S, D), and how many tokens were read."""
        if not isinstance(self.run.model, SentenceModel):
            raise RequestError("a model of single symbols has no vectors of sentences")
        tokenizer = self.run.tokenizer
        tokens = sum(len(tokenizer.encode(text)) + 1 for text in texts)
        self.check_length(tokens)
        return SentenceVectors(self.run.model, tokenizer).encode(texts), tokens

    def interpolate(self, a: str, b: str, steps: int, unknown: bool) -> list[dict[str, Any]]:
        texts = self.run.writer(unknown=unknown).interpolate(a, b, steps)
        return [{"step": step, "text": text} for step, text in enumerate(texts)]

    def reconstruct(
        self, sentences: Sequence[str], seed: int, unknown: bool
    ) -> list[dict[str, Any]]:
        writer, scales = self.run.writer(seed=seed, unknown=unknown), self.run.scales
        found = writer.reconstruct(writer.read(sentences), list(scales.values()))
        return [
            {"sentence": each.sentence, **dict(zip(scales, each.written, strict=True))}
            for each in found
        ]

    def sample(self, request: SampleRequest) -> list[dict[str, Any]]:
        if not self.run.has_distribution:
            raise InfolmError(NO_SAMPLES)
        deviation = self.run.deviation if request.deviation is None else request.deviation
        texts = self.run.writer(seed=request.seed).sample(request.num, deviation)
        return [{"text": text} for text in texts]

    @cached_property
    def _trained_on(self) -> tuple[Lines, torch.Tensor]:
        """Training sentences, each once, and their codes."""
        lines = distinct(self.run.lines("train"))
        if len(lines) > MOST_CODES:
            lines = lines.chosen(np.linspace(0, len(lines) - 1, MOST_CODES).astype(np.int64))
        return lines, encoded(self.run.model, lines).places

    def neighbours(self, sentence: str, num: int, unknown: bool) -> list[dict[str, Any]]:
        query = self.run.writer(unknown=unknown).read([sentence])
        lines, codes = self._trained_on
        distances, numbers = nearest(encoded(self.run.model, query).places, codes, num)
        return [
            {"sentence": self.run.tokenizer.decode(lines[number]), "distance": distance}
            for distance, number in zip(distances[0].tolist(), numbers[0].tolist(), strict=True)
        ]


class EncoderService(Service):
    """An encoder: the vector of a text is the mean over its tokens."""

    does = frozenset({"embeddings"})
    says = "an encoder"
    run: EncoderRun

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.float32], int]:
        """A vector of each, (S, D), and how many tokens were read; a longer text is refused."""
        tokenizer, model = self.run.tokenizer, self.run.model
        length, rows = model.config.length, []
        for text in texts:
            ids = tokenizer.encode(" ".join(text.split()))
            row, _, whole = joined(ids, None, tokenizer.special, length)
            if not whole:
                raise RequestError(
                    f"a text has {len(ids):,} tokens, and the encoder reads {length - 2:,} at most",
                    code="context_length_exceeded",
                )
            rows.append(row)
        inputs = Inputs.of(rows, [len(row) for row in rows], tokenizer.special.pad)
        vectors = np.zeros((len(texts), model.config.hidden), np.float32)
        for numbers in inputs.sorted():
            tokens, inside, _ = (torch.from_numpy(a) for a in inputs.padded(numbers))
            mask = inside.to(model.device)
            hidden = model(tokens.to(model.device), mask)
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            vectors[numbers] = mean.float().cpu().numpy()
        return vectors, sum(map(len, rows))


SERVICES: dict[Capability, type[Service]] = {
    "language": LanguageService,
    "latent": LatentService,
    "encoder": EncoderService,
}


def open_services(runs: Sequence[Path | str], limits: Limits) -> dict[str, Service]:
    """The runs in these folders by their names, or a refusal."""
    opened: list[Run] = [open_run(run) for run in runs]
    names = [Path(run.folder.path).resolve().name for run in opened]
    for name in names:
        if names.count(name) > 1:
            raise InfolmError(
                f"two runs are called '{name}', and a request could not tell them apart: rename "
                "the folder of one"
            )
    for run, name in zip(opened, names, strict=True):
        if not run.recipe.model.reads_sentences:
            raise InfolmError(
                f"{name} is of model.kind {run.recipe.model.kind}, which reads no prompts of "
                "different lengths: serve another run"
            )
    return {n: SERVICES[run.kind](run, limits) for n, run in zip(names, opened, strict=True)}
