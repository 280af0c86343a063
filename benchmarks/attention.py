"""The Transformer's attention in bfloat16 on a processor, against PyTorch's own function.

The shapes are those of `transformer/ptb-small --variant race`: 32 columns of 70 tokens that see 139
before them, 4 heads. Then a training step in bfloat16 against one in single precision.

    OMP_NUM_THREADS=1 python benchmarks/attention.py
"""

from collections.abc import Callable

import torch
from loops import on_noise
from timing import ratio
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from infolm.config import load_recipe
from infolm.models.transformer import attention, visible
from infolm.training.device import keep_freed_memory

COLUMNS, HEADS, STEPS, CONTEXT, SIZE, VOCABULARY = 32, 4, 70, 140, 64, 10_000
RECIPE = ("transformer/ptb-small", ["model.parameters=6M", "train.max_steps=1000"])


def forward_and_backward(
    function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], precision: torch.dtype
) -> Callable[[], None]:
    torch.manual_seed(0)
    before = CONTEXT - 1
    seen = visible(STEPS, before, CONTEXT, None, torch.device("cpu"))
    lengths = (STEPS, before + STEPS, before + STEPS)
    queries, keys, values = (
        torch.randn(COLUMNS, HEADS, length, SIZE, dtype=precision).requires_grad_()
        for length in lengths
    )
    derivative = torch.randn(COLUMNS, HEADS, STEPS, SIZE, dtype=precision)
    return lambda: function(queries, keys, values, seen).backward(derivative)


def own(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    return attention(queries, keys, values, seen, 0.0)


def step(precision: str) -> Callable[[], object]:
    source, changes = RECIPE
    recipe = load_recipe(source, [*changes, f"train.precision={precision}"])
    return on_noise(recipe, VOCABULARY)[0]._take_step


def main() -> None:
    keep_freed_memory()  # as `infolm train` does
    ours = forward_and_backward(own, torch.bfloat16)
    for precision in (torch.bfloat16, torch.float):
        theirs = forward_and_backward(scaled_dot_product_attention, precision)
        value, a, b = ratio(ours, theirs)
        print(
            f"attention in bfloat16 / PyTorch's in {precision}: {value:.2f} ({a:.3f} / {b:.3f} s)"
        )
    value, a, b = ratio(step("bf16-mixed"), step("32-true"), 3)
    print(f"training step in bfloat16 / single precision: {value:.2f} ({a:.3f} / {b:.3f} s)")


if __name__ == "__main__":
    main()
