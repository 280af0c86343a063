"""The schemas of requests. Unknown fields are refused, and so are fields that would be ignored."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


def several(given: Any) -> list[Any]:
    """One text, or one list of numbers, is a list of one; None is an empty one."""
    if given is None:
        return []
    single = isinstance(given, str) or (given and isinstance(given[0], int))
    return [given] if single else given


TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Texts = Annotated[list[str], Field(min_length=1, max_length=2048)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Body(BaseModel):
    """model: a name that /v1/models lists."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    model: str

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, given: Any) -> Any:
        """JSON can name half a character, which is no text."""
        try:
            json.dumps(given, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError(
                "a text has half of a surrogate pair, which is not valid Unicode"
            ) from None
        return given


class StreamOptions(BaseModel):
    """include_usage: a last event with the number of tokens."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: bool | None = None


class CompletionRequest(Body):
    """OpenAI's schema; top_k, typical, eta and no_unk are those of `infolm generate`."""

    prompt: (
        str | TokenIds | Texts | Annotated[list[TokenIds], Field(min_length=1, max_length=2048)]
    ) = ""
    max_tokens: int | None = Field(16, ge=0)
    temperature: float | None = Field(1.0, ge=0, le=100)
    top_p: float | None = Field(1.0, gt=0, le=1)
    n: int | None = Field(1, ge=1)
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    seed: Seed | None = None
    echo: bool | None = False
    logprobs: int | None = Field(None, ge=0, le=20)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    best_of: Literal[1] | None = None
    suffix: None = None
    logit_bias: None = None
    presence_penalty: Literal[0] | None = None
    frequency_penalty: Literal[0] | None = None
    top_k: int | None = Field(None, ge=1)
    typical: float | None = Field(None, gt=0, le=1)
    eta: float | None = Field(None, gt=0, le=1)
    no_unk: bool = False


NUMBERS = r"^[0-9.eE+-]{1,30}(,[0-9.eE+-]{1,30}){1,2}$"


class ScoreRequest(Body):
    """As in `infolm score` and `infolm.score`.

    cache: WINDOW,LAMBDA,THETA. dynamic: RATE,DECAY of dynamic evaluation by plain gradient descent;
    segment: tokens from one of its updates to the next.
    """

    texts: str | Texts
    context: Literal["fresh", "carried"] | None = None
    eos: bool = True
    unit: Literal["bits", "nats"] = "bits"
    top: int = Field(0, ge=0, le=20)
    temperature: float | None = Field(None, gt=0.01, le=100)
    cache: str | None = Field(None, pattern=NUMBERS)
    dynamic: str | None = Field(None, pattern=NUMBERS)
    segment: int | None = Field(None, ge=1, le=1000)


class EmbeddingRequest(Body):
    """OpenAI's schema; base64 encodes little-endian float32."""

    input: str | Texts
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: None = None
    user: str | None = None


class SentenceBody(Body):
    """unknown: words that the vocabulary lacks are read as <unk>; else they are refused."""

    unknown: bool = False


class InterpolateRequest(SentenceBody):
    """From the code of one sentence to that of another, both included."""

    a: str
    b: str
    steps: int = Field(9, ge=2, le=100)


class NeighboursRequest(SentenceBody):
    """Training sentences whose codes are nearest."""

    sentence: str
    num: int = Field(10, ge=1, le=100)


class ReconstructRequest(SentenceBody):
    """Reconstructions of sentences."""

    sentences: Annotated[list[str], Field(min_length=1, max_length=256)]
    seed: Seed = 1


class SampleRequest(Body):
    """Sentences of codes from N(0, deviation^2)."""

    num: int = Field(5, ge=1, le=100)
    deviation: float | None = Field(None, gt=0, le=100)
    seed: Seed = 1


class MapRequest(Body):
    """Validation sentences by the first two principal components of their codes."""

    num: int = Field(500, ge=2, le=2000)


class WalkRequest(SentenceBody):
    """A sentence with one unit of its code changed.

    unit: a dimension of a Gaussian code, a variable of one with classes. reach: how far to go on
    either side, in deviations of that dimension over the validation sentences.
    """

    sentence: str
    unit: int = Field(ge=0)
    steps: int = Field(9, ge=2, le=50)
    reach: float = Field(3.0, gt=0, le=100)


class DiagnosisRequest(Body):
    """Whether the codes have collapsed, on validation sentences."""
