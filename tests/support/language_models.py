"""Small language models of every kind that is registered, for tests of what is done with them."""

from typing import Any

import torch

from infolm.models.base import MODELS

VOCABULARY = 17
SMALL = {"hidden": 16, "embedding": 12, "layers": 2, "heads": 2, "context": 9}
"""Sizes by the names that sections give them; a section takes those that it has."""
KINDS = [
    kind
    for kind, config in MODELS.items()
    if config.capability == "language" and config.reads_sentences
]


def section(kind: str, **settings: Any) -> dict[str, Any]:
    """The section of a small model of this kind."""
    fields = MODELS[kind].model_fields
    sizes = {name: size for name, size in SMALL.items() if name in fields}
    return {"kind": kind, **sizes, **settings}


def spread(model: torch.nn.Module, deviation: float = 0.4, least: int = 2) -> torch.nn.Module:
    """The model with matrices far from zero: nothing is so small that a mistake would hide.

    least: dimensions of the parameters that are drawn; 1: vectors too.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= least:
                parameter.normal_(std=deviation)
    return model.eval()
