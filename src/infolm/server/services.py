"""The services of the families."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from infolm.errors import InfolmError
from infolm.families.base import Run, open_run
from infolm.families.contrastive.run import EncoderRun
from infolm.families.running.run import LanguageRun
from infolm.finetuning.inputs import Inputs, joined
from infolm.generation.sampling import SamplingSettings, own_uniforms
from infolm.models.base import Capability
from infolm.server.engine import Continuation
from infolm.server.latent import LatentService
from infolm.server.limits import Limits
from infolm.server.schemas import CompletionRequest, ScoreRequest, several
from infolm.server.service import RequestError, Service
from infolm.server.text import Text


class Prompt(NamedTuple):
    """text: as the client wrote it, or as its tokens read; ids: with the `<eos>` before it; first:
    where the client's own tokens begin, 0 if they begin with that `<eos>`."""

    text: str
    ids: list[int]
    first: int


class LanguageService(Service):
    """The service of a language model: completions and scores."""

    does = frozenset({"completions", "score"})
    says = "a language model"
    run: LanguageRun

    def prompts(self, request: CompletionRequest) -> list[Prompt]:
        """The prompts of a request: texts, or tokens by their numbers."""
        return [
            self._of_text(p) if isinstance(p, str) else self._of_ids(p)
            for p in several(request.prompt)
        ]

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
        """The continuations to generate: `n` for each prompt, one after the other."""
        limits, tokenizer = self.limits, self.run.tokenizer
        tokens = 16 if request.max_tokens is None else request.max_tokens
        num = (request.n or 1) * len(prompts)
        if num > limits.texts:
            raise RequestError(f"{num:,} completions are more than {limits.texts:,}")
        if tokens > limits.tokens:
            raise RequestError(f"max_tokens is at most {limits.tokens:,} here, not {tokens:,}")
        if not tokens and not request.echo:
            raise RequestError("max_tokens 0 gives nothing without echo: ask for a token")
        stops = several(request.stop)
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
                uniforms = own_uniforms(generator, tokens).tolist()
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
        texts = self.within_limits(several(request.texts))
        self.check_length(sum(map(len, texts)) // 8)  # at the least; the rest is checked by tokens
        options: dict[str, Any] = {
            "context": request.context,
            "eos": request.eos,
            "unit": request.unit,
            "top": request.top,
            "temperature": request.temperature,
            "longest": self.limits.longest,
            "cache": request.cache,
            "segment": request.segment,
        }
        if request.dynamic:
            options |= {"dynamic": request.dynamic, "dynamic_rule": "sgd"}

        def scored() -> list[dict[str, Any]]:
            return [sentence.to_dict() for sentence in self.run.score(texts, **options)]

        return scored


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
                    f"a text has {len(ids):,} tokens, and the encoder reads at most {length - 2:,}",
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
                f"two runs are called '{name}', and a request could not distinguish them: rename "
                "the folder of one"
            )
    for run, name in zip(opened, names, strict=True):
        if not run.recipe.model.reads_sentences:
            raise InfolmError(
                f"{name} is of model.kind {run.recipe.model.kind}, which reads no prompts of "
                "different lengths: serve another run"
            )
    return {n: SERVICES[run.kind](run, limits) for n, run in zip(names, opened, strict=True)}
