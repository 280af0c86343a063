"""Where training and measuring take place."""

import torch
from lightning_fabric import Fabric

from infolm.errors import InfolmError
from infolm.training.loop import Precision


def one_device(accelerator: str, precision: Precision = "32-true") -> Fabric:
    """One device. Fabric's own choice would be Apple's, which has no double precision."""
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise InfolmError("train.accelerator is cuda, but PyTorch sees none: use auto or cpu")
    return Fabric(accelerator=accelerator, devices=1, precision=precision)
