"""A training step of the race's recipe against its bare matrix products.

The yardstick multiplies matrices of the same shapes, as often, into memory that is there already,
and does nothing else: no activation, dropout, exponential, optimiser or average. A step has
(M, K, N) products forward; of each, two more backward, by the input and by the weight. Recurrent
matrices are multiplied step by step, those that read the whole input, and all gradients by weights,
once for all steps. Both have the whole softmax, also where the recipe samples it first. Where the
recipe has `train.precision=bf16-mixed`, so has the yardstick; the step in single precision is then
measured beside it.

    python benchmarks/race_step.py [RECIPE] [KEY=VALUE ...]
"""

import sys
from collections.abc import Callable
from functools import partial

import torch
from loops import on_noise
from timing import ratio

from infolm.config import load_recipe
from infolm.data.stream import StreamConfig
from infolm.models.recurrent import RecurrentModel
from infolm.nn.softmax import block_elements
from infolm.training.device import keep_freed_memory

VOCABULARY = 10_000
BAR = 1.15


def product(m: int, k: int, n: int, times: int = 1) -> Callable[[], None]:
    """(M, K) by (K, N), so often, in the default precision."""
    a, b, out = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)

    def multiply() -> None:
        for _ in range(times):
            torch.mm(a, b, out=out)

    return multiply


def linear(
    rows: int, steps: int, weight: torch.Tensor, recurrent: bool
) -> list[Callable[[], None]]:
    """y = x W^T forward and backward: of a recurrent one the products by x are step by step."""
    n, k = weight.shape
    often, m = (steps, rows) if recurrent else (1, rows * steps)
    return [product(m, k, n, often), product(m, n, k, often), product(n, rows * steps, k)]


def products(model: RecurrentModel, batch: int, steps: int) -> dict[str, list[Callable[[], None]]]:
    """Those of the recurrent layers and of the softmax."""
    recurrent = [
        multiply
        for name, weight in model.stack.named_parameters()
        if weight.ndim == 2
        # With a mogrifier the input depends on the state, so no matrix can read ahead of it.
        for multiply in linear(batch, steps, weight, recurrent=True)
    ]
    tokens = batch * steps
    projection = model.softmax.projection
    softmax = [] if projection is None else linear(batch, steps, projection, recurrent=False)
    itemsize = torch.get_default_dtype().itemsize
    block = max(16, block_elements(torch.device("cpu"), itemsize) // VOCABULARY)
    size, whole = model.embedding.shape[1], -(-tokens // block)
    rows = tokens // whole
    softmax += [
        product(rows, size, VOCABULARY, whole),
        product(rows, VOCABULARY, size, whole),
        product(VOCABULARY, rows, size, whole),
    ]
    return {"recurrent layers": recurrent, "softmax": softmax}


def run(multiplications: list[Callable[[], None]]) -> None:
    for multiply in multiplications:
        multiply()


def main() -> None:
    source, *overrides = sys.argv[1:] or ["race/ptb"]
    torch.manual_seed(0)
    keep_freed_memory()  # as `infolm train` does
    overrides += ["objective.kind=likelihood", "train.max_steps=1000"]
    recipe = load_recipe(source, overrides)
    loop, model = on_noise(recipe, VOCABULARY)
    assert isinstance(recipe.feed, StreamConfig)
    assert isinstance(model, RecurrentModel)
    rounded = recipe.train.precision != "32-true"
    torch.set_default_dtype(torch.bfloat16 if rounded else torch.float)
    parts = products(model, recipe.feed.batch, recipe.feed.bptt)
    torch.set_default_dtype(torch.float)

    def bare() -> None:
        for each in parts.values():
            run(each)

    value, a, b = ratio(loop._take_step, bare)
    print(f"training step / bare products: {value:.2f} (bar {BAR}; {a:.3f} s / {b:.3f} s)")
    if rounded:
        single, _ = on_noise(
            load_recipe(source, [*overrides, "train.precision=32-true"]), VOCABULARY
        )
        value, a, b = ratio(loop._take_step, single._take_step)
        print(f"{recipe.train.precision} / single precision: {value:.2f} ({a:.3f} s / {b:.3f} s)")
    for name, each in parts.items():
        share, a, _ = ratio(partial(run, each), bare, 3)
        print(f"  of the products, {name}: {share:.0%} ({a:.3f} s)")


if __name__ == "__main__":
    main()
