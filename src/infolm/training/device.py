"""Where training and measuring take place."""

import os

import torch
from lightning_fabric import Fabric

from infolm.errors import InfolmError
from infolm.training.loop import Precision
from infolm.training.processes import launched


def on_cuda(accelerator: str) -> bool:
    """Whether train.accelerator means a GPU here."""
    return accelerator == "cuda" or (accelerator == "auto" and torch.cuda.is_available())


def one_device(accelerator: str, precision: Precision = "32-true") -> Fabric:
    """One device. Fabric's own choice would be Apple's, which has no double precision."""
    if accelerator == "auto":
        accelerator = "cuda" if on_cuda(accelerator) else "cpu"
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise InfolmError("train.accelerator is cuda, but PyTorch sees none: use auto or cpu")
    # Of several processes on a machine, torchrun tells each which device is its own.
    own = int(os.environ.get("LOCAL_RANK", "0")) if launched() else 0
    devices = [own] if accelerator == "cuda" else 1
    return Fabric(accelerator=accelerator, devices=devices, precision=precision)
