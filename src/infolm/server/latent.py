"""The service of a model with a latent code: sentences from codes, and a map of codes."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infolm.data.sentences import Lines
from infolm.errors import InfolmError
from infolm.evaluation.latent import encoded, some
from infolm.evaluation.posterior import activity, picture
from infolm.families.latent.diagnosis import diagnosis, heard
from infolm.families.latent.report import READ, read_anew
from infolm.families.latent.run import NO_SAMPLES, LatentRun
from infolm.families.sections import SAMPLE_SEED
from infolm.generation.latent import distinct, nearest
from infolm.models.sentence import SentenceModel
from infolm.sentence_vectors import SentenceVectors
from infolm.server.schemas import SampleRequest, WalkRequest
from infolm.server.service import RequestError, Service

MOST_CODES = 50_000
"""Training sentences whose codes are kept to find neighbours among."""
MOST_SHOWN = 2000
"""Validation sentences that are on the map."""


class Codes(NamedTuple):
    """Of S validation sentences: vectors (S, D); activity of each unit of their codes, (Z,)."""

    lines: Lines
    vectors: Tensor
    activity: npt.NDArray[np.float64]


class LatentService(Service):
    """A model with a latent code: its codes are vectors, and it writes sentences from them."""

    does = frozenset(
        {
            "embeddings",
            "latent/diagnosis",
            "latent/interpolate",
            "latent/map",
            "latent/neighbours",
            "latent/reconstruct",
            "latent/sample",
            "latent/walk",
        }
    )
    says = "a model with a latent code"
    run: LatentRun

    def embed(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.float32], int]:
        """A vector of each, (S, D), and how many tokens were read."""
        if not self.run.model.ends:
            raise RequestError("a model of single symbols has no sentence vectors")
        tokenizer = self.run.tokenizer
        tokens = sum(len(tokenizer.encode(text)) + 1 for text in texts)
        self.check_length(tokens)
        return SentenceVectors(cast(SentenceModel, self.run.model), tokenizer).encode(texts), tokens

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

    # -- the map ----------------------------------------------------------------------------

    @cached_property
    def _validated_on(self) -> Codes:
        lines = some(distinct(self.run.lines("valid")), MOST_SHOWN, SAMPLE_SEED)
        found = encoded(self.run.model, lines)
        return Codes(lines, found.sentence_vectors, activity(found))

    def map(self, num: int) -> list[dict[str, Any]]:
        """One map: sentences at the first two principal components of their vectors."""
        codes = self._validated_on
        places, shares = principal(codes.vectors)
        numbers = np.linspace(0, len(places) - 1, min(num, len(places))).round().astype(np.int64)
        points = [
            {"sentence": self.run.tokenizer.decode(codes.lines[n]), "x": x, "y": y}
            for n, (x, y) in zip(numbers.tolist(), places[numbers].tolist(), strict=True)
        ]
        order = np.argsort(-codes.activity, kind="stable").tolist()
        units = [{"unit": unit, "activity": float(codes.activity[unit])} for unit in order]
        return [{"points": points, "variance": shares, "units": units}]

    def walk(self, request: WalkRequest) -> list[dict[str, Any]]:
        """The sentence with a unit of its code at other values; its own is the middle of a
        dimension's."""
        writer = self.run.writer(unknown=request.unknown)
        place = encoded(self.run.model, writer.read([request.sentence])).places[0]
        if request.unit >= len(place):
            raise RequestError(f"unit {request.unit} is not one of the code's {len(place):,}")
        own = place[request.unit].item()
        if classes := self.run.model.config.latent.classes:
            values: list[float] = [*map(float, range(min(classes, request.steps)))]
        else:
            far = request.reach * self._deviation(request.unit)
            values = np.linspace(own - far, own + far, request.steps).tolist()
        texts = writer.walk(request.sentence, request.unit, values)
        return [
            {"value": value, "text": text, "own": own}
            for value, text in zip(values, texts, strict=True)
        ]

    def _deviation(self, unit: int) -> float:
        """Of a dimension over the validation sentences; the prior's where their text is gone."""
        try:
            return float(np.sqrt(self._validated_on.activity[unit]))
        except InfolmError:
            return 1.0

    @cached_property
    def _diagnosis(self) -> dict[str, Any]:
        run, text = self.run, self.run.lines("valid")
        found = picture(run.model, text)
        reading = read_anew(run, some(text, READ, SAMPLE_SEED)) if run.model.ends else None
        verdict, sentence = diagnosis(found, run.recipe, reading)
        nats, error = heard(found)
        answer = {
            "verdict": verdict,
            "sentence": sentence,
            "sentences": found.sentences,
            "heard": {"nats": nats, "stderr": error},
            "units": [
                {"unit": unit, "kl": kl, "active": active}
                for unit, (kl, active) in enumerate(
                    zip(found.kl.tolist(), found.active.tolist(), strict=True)
                )
            ],
        }
        if run.has_distribution:
            answer["information"] = {
                "nats": found.information,
                "stderr": found.information_error,
                "most": found.ceiling,
            }
            answer["kl"] = {"nats": found.mean_kl}
        return answer

    def diagnosis(self) -> list[dict[str, Any]]:
        """Whether the codes have collapsed; see `families.latent.diagnosis`."""
        return [self._diagnosis]


def principal(rows: Tensor) -> tuple[npt.NDArray[np.float64], list[float]]:
    """The first two principal components of rows (S, D): (S, 2), and their shares of the variance.

    With X the centred rows and X = U S V^T they are the first columns of U S, of variance S^2 / S.
    A component's sign is free: here the largest entry of its direction is positive. A second one
    that does not exist is 0.
    """
    centred = (rows - rows.mean(0)).double()
    _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
    chosen = directions[:2]
    chosen = chosen * chosen.gather(1, chosen.abs().argmax(1, keepdim=True)).sign()
    places = np.zeros((len(rows), 2))
    places[:, : len(chosen)] = (centred @ chosen.T).numpy()
    total = float(singular.square().sum()) or 1.0
    shares = (singular[:2].square() / total).tolist()
    return places, [*shares, *[0.0] * (2 - len(shares))]
