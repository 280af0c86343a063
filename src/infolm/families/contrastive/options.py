"""The options of an encoder: it is measured by its objective, and generates nothing."""

from dataclasses import dataclass

from infolm.families.options import EVALUATING, GENERATING, EvaluateOptions, GenerateOptions

ENCODES = "{} is an encoder, which is measured by its objective alone: leave this out"
WRITES_NONE = (
    "{} is an encoder, which generates no text: choose a run of a language model, or "
    "fine-tune this one with `infolm finetune`"
)


@EVALUATING.register
@dataclass(frozen=True, kw_only=True)
class EncoderEvaluateOptions(EvaluateOptions):
    """Only the splits."""

    kind = "encoder"
    foreign = ENCODES


@GENERATING.register
@dataclass(frozen=True, kw_only=True)
class EncoderGenerateOptions(GenerateOptions):
    """No option applies: see `WRITES_NONE`."""

    kind = "encoder"
    foreign = WRITES_NONE
