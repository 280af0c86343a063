"""The device for training and evaluation."""

import ctypes
import logging
import os
import platform
import sys

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
    # torchrun assigns each of several processes on a machine its own device.
    own = int(os.environ.get("LOCAL_RANK", "0")) if launched() else 0
    devices = [own] if accelerator == "cuda" else 1
    # It would say on the terminal what `train.precision` says.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    return Fabric(accelerator=accelerator, devices=devices, precision=precision)


def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for products in bfloat16. Without them they are
    computed by way of single precision, more slowly than in it."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of the C library's mallopt


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next step, up to 2 GB of it.

    A training step frees and allocates the same large tensors again and again. By default GNU's
    library gives them back to the operating system each time, which then fills every page with
    zeros: a fifth of a step in bfloat16. For a process that does nothing but train.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # musl has none
        library.mallopt(_MMAP_THRESHOLD, 2**25)  # the largest that it takes
        library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
