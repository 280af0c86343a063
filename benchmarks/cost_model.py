"""What a token costs: measured, fitted by a model of five terms, and predicted for other machines.

    python benchmarks/cost_model.py [--rounds 3]

Training steps of LSTM language models (forward, backward, Adam; one thread, CPU seconds) over
width, depth, vocabulary and dropout samples; of a sentence model over the number of codes; and a
sum over two processes (gloo). The model of a step of n tokens with D dropout samples, layers of H
units that read I (their weights: R = sum 4 H (I + H)), a vocabulary V and embeddings of E:

    seconds per token = a D 6 R + b D 6 V E + c D sum H + d (R + V E) / n + e
    bytes per token kept for the backward pass = f D sum H + g R / n + h V E / n + i

a, b: seconds per floating-point operation (6 per weight and token: 2 forward, 4 backward). Fitted
by non-negative least squares of relative errors; points that were not fitted tell the error.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import nnls
from torch import multiprocessing

from infolm.config import load_recipe
from infolm.data.sentences import Lines
from infolm.data.stream import Batch
from infolm.models.latent import LatentModel
from infolm.models.recurrent import RecurrentConfig, RecurrentModel
from infolm.objectives.likelihood import Likelihood, LikelihoodConfig
from infolm.objectives.monte_carlo import MonteCarlo, MonteCarloConfig
from infolm.training.loop import tensors

STEPS, STREAMS = 20, 16
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """A language model: units, layers, types, dropout samples; embeddings as wide as layers."""

    width: int
    layers: int
    vocabulary: int
    samples: int

    def __str__(self) -> str:
        return (
            f"{self.width:5} units, {self.layers} layers, {self.vocabulary:6,} types, "
            f"{self.samples} samples"
        )

    @property
    def recurrent(self) -> int:
        """Weights of the layers."""
        sizes = [self.width] * (self.layers + 1)
        return sum(4 * h * (i + h) for i, h in pairwise(sizes))

    @property
    def softmax(self) -> int:
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        return self.recurrent + self.softmax  # the embedding is tied to it

    def operations(self) -> tuple[int, int]:
        """Floating-point operations of a token: in the layers, in the softmax."""
        return 6 * self.samples * self.recurrent, 6 * self.samples * self.softmax

    def time_terms(self, tokens: int) -> Vector:
        units = self.samples * self.layers * self.width
        return np.array([*self.operations(), units, self.parameters / tokens, 1.0])

    def memory_terms(self, tokens: int) -> Vector:
        units = self.samples * self.layers * self.width
        return np.array([units, self.recurrent / tokens, self.softmax / tokens, 1.0])


FITTED = [
    *(Shape(width, 2, 5_000, 1) for width in (64, 128, 256, 512)),
    *(Shape(256, layers, 5_000, 1) for layers in (1, 3, 4)),
    *(Shape(128, 2, types, 1) for types in (1_000, 10_000, 30_000)),
    *(Shape(128, 2, 5_000, samples) for samples in (2, 4)),
    Shape(256, 2, 10_000, 4),
]
HELD_OUT = [
    Shape(192, 2, 8_000, 1),
    Shape(384, 3, 5_000, 1),
    Shape(320, 1, 20_000, 1),
    Shape(192, 3, 3_000, 3),
    Shape(448, 2, 12_000, 2),
]


def language_step(shape: Shape) -> tuple[Callable[[], float], float]:
    """A step that gives its CPU seconds, and the bytes it keeps for the backward pass."""
    recipe = load_recipe("awd-lstm/ptb").model
    assert isinstance(recipe, RecurrentConfig)
    sizes = {"embedding": shape.width, "hidden": shape.width, "layers": shape.layers}
    model = RecurrentModel(recipe.model_copy(update=sizes), shape.vocabulary)
    objective = Likelihood(LikelihoodConfig(dropout_samples=shape.samples))
    text = torch.randint(0, shape.vocabulary, (STEPS + 1, STREAMS))
    batch = Batch(text[:-1], text[1:], True, 1.0)
    optimiser = torch.optim.Adam(model.parameters())
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        objective(model, batch, None).loss.backward()

    def step() -> float:
        start = time.process_time()
        optimiser.zero_grad()
        objective(model, batch, None).loss.backward()
        optimiser.step()
        return time.process_time() - start

    return step, sum(kept.values())


def code_step(codes: int) -> Callable[[], float]:
    """A step of a sentence model with so many codes."""
    model = load_recipe("monte-carlo/ptb-continuous").model.build(2_000)
    assert isinstance(model, LatentModel)
    text = np.random.default_rng(0).integers(2, 2_000, (4, 12))
    batch = tensors(Lines.of(list(text), 0).packed(np.arange(4)), torch.device("cpu"))
    objective = MonteCarlo(MonteCarloConfig.model_validate({"samples": codes, "estimator": "iwae"}))

    def step() -> float:
        start = time.process_time()
        model.zero_grad()
        objective(model, batch, None).loss.backward()
        return time.process_time() - start

    return step


def measured(steps: list[Callable[[], float]], rounds: int) -> Vector:
    """The least CPU seconds of each, measured in turns: what is above it is the machine's noise."""
    for step in steps:
        step()
    return np.min([[step() for step in steps] for _ in range(rounds)], axis=0)


def fit(terms: Vector, values: Vector) -> Vector:
    """Non-negative coefficients with the least squares of relative errors."""
    weighted = terms / values[:, None]
    scale = weighted.max(0)
    found, _ = nnls(weighted / scale, np.ones(len(values)))
    return np.asarray(found / scale)


def told(name: str, fitted: Vector, held_out: Vector) -> None:
    """Relative errors of both kinds of points."""
    for what, errors in (("fitted", fitted), ("held out", held_out)):
        absolute = np.abs(errors)
        print(
            f"{name}, {what} points: relative error {statistics.median(absolute):.1%} in the "
            f"median, {absolute.max():.1%} at most"
        )


def _summing(rank: int, sizes: list[int], port: int, queue: Any) -> None:
    from torch import distributed

    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    for size in sizes:
        numbers = torch.zeros(size)
        times = []
        for _ in range(6):
            distributed.barrier()
            start = time.perf_counter()
            distributed.all_reduce(numbers)
            times.append(time.perf_counter() - start)
        if not rank:
            queue.put(min(times[1:]))
    distributed.destroy_process_group()


def sums(sizes: list[int]) -> list[float]:
    """Seconds in which two processes sum so many gradients."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    workers = [context.Process(target=_summing, args=(rank, sizes, port, queue)) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    found = [queue.get() for _ in sizes]
    for worker in workers:
        worker.join()
    return found


@dataclass(frozen=True)
class Machines:
    """Assumed, not measured: sustained operations per second of large products, bytes per second
    of memory, seconds until a step of a layer is launched, bytes per second between processes."""

    name: str
    count: int
    operations: float
    memory: float
    launch: float
    network: float


ASSUMED = [
    Machines("one GPU", 1, 15e12, 1.5e12, 15e-6, 1.0),
    Machines("eight GPUs", 8, 15e12, 1.5e12, 15e-6, 100e9),
    Machines("100 machines, 10 Gbit/s", 100, 15e12, 1.5e12, 15e-6, 1.2e9),
]
AWD = Shape(800, 3, 10_000, 1)  # 23M parameters, as AWD-LSTM on PTB
LARGE = Shape(2_048, 4, 50_000, 1)  # 237M


def predicted(shape: Shape, machines: Machines, steps: int, streams: int) -> tuple[float, str]:
    """Seconds of a step of `steps` x `streams` tokens in all, and what takes the largest part."""
    each = max(1.0, streams / machines.count)
    compute = sum(shape.operations()) * steps * each / machines.operations
    # Forward and backward wait for one step of one layer after another.
    parts = {
        "products": compute,
        "launches of the recurrence": 3 * steps * shape.layers * machines.launch,
        "weights read by the recurrence": 3 * steps * 4 * shape.recurrent / machines.memory,
        "the optimiser": 28 * shape.parameters / machines.memory,
        "summing gradients": 0.0
        if machines.count == 1
        else 8 * shape.parameters * (1 - 1 / machines.count) / machines.network,
    }
    return sum(parts.values()), max(parts, key=lambda part: parts[part])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokens = STEPS * STREAMS
    shapes = [*FITTED, *HELD_OUT]
    built = [language_step(shape) for shape in shapes]
    cost = measured([step for step, _ in built], rounds) / tokens
    kept = np.array([size / tokens for _, size in built])
    n = len(FITTED)
    times = np.stack([shape.time_terms(tokens) for shape in shapes])
    memories = np.stack([shape.memory_terms(tokens) for shape in shapes])
    a, f = fit(times[:n], cost[:n]), fit(memories[:n], kept[:n])
    base = shapes.index(Shape(128, 2, 5_000, 1))
    print("cost of a token and bytes kept for it, over those of the second line; model in brackets")
    for i, shape in enumerate(shapes):
        print(
            f"{shape}{'  held out' if i >= n else ''}: time {cost[i] / cost[base]:.2f} "
            f"({times[i] @ a / cost[base]:.2f}), memory {kept[i] / kept[base]:.2f} "
            f"({memories[i] @ f / kept[base]:.2f})"
        )
    told("time", (times @ a / cost - 1)[:n], (times @ a / cost - 1)[n:])
    told("memory", (memories @ f / kept - 1)[:n], (memories @ f / kept - 1)[n:])
    print(
        f"an operation of the layers takes {a[0] * 1e12:.0f} ps, one of the softmax "
        f"{a[1] * 1e12:.0f} ps; a unit {a[2] * 1e9:.1f} ns, a parameter's update {a[3] * 1e9:.1f} "
        f"ns; {f[0]:.0f} bytes are kept for a unit, {f[1]:.1f} for a weight of the layers and "
        f"{f[2]:.1f} for one of the softmax"
    )
    codes = np.array([1, 4, 16, 8, 32])
    spent = measured([code_step(int(each)) for each in codes], rounds)
    line = np.stack([np.ones(len(codes)), codes.astype(float)], axis=1)
    b = fit(line[:3], spent[:3])
    errors = line @ b / spent - 1
    ratios = ", ".join(f"{k}: {s / spent[0]:.2f}" for k, s in zip(codes, spent, strict=True))
    print(f"codes of a sentence, time over that of one: {ratios}; a code is {b[1] / b.sum():.0%}")
    told("codes", errors[:3], errors[3:])
    sizes = [10**6, 10**7, 3 * 10**6]
    seconds = np.array(sums(sizes))
    rate = fit(np.stack([np.ones(3), 4.0 * np.array(sizes)], axis=1)[:2], seconds[:2])
    guess = rate[0] + rate[1] * 4 * sizes[2]
    print(
        f"two processes sum gradients at {1e-9 / rate[1]:.2f} GB/s (wall clock; held-out point "
        f"{guess / seconds[2] - 1:+.0%}); for {AWD.parameters / 1e6:.0f}M parameters that is "
        f"{4 * AWD.parameters * rate[1] / (AWD.time_terms(70 * 40) @ a * 70 * 40):.1%} of the CPU "
        "time of a step of 70 x 40 tokens here"
    )
    print("predicted, from operations and assumed machines (see Machines):")
    for shape, streams in ((AWD, 40), (AWD, 1_600), (LARGE, 1_600)):
        alone, _ = predicted(shape, ASSUMED[0], 70, streams)
        for machines in ASSUMED:
            name = f"{shape.parameters / 1e6:.0f}M, batch {streams}, {machines.name}"
            if streams < machines.count:
                print(f"  {name}: fewer columns than processes")
                continue
            step, most = predicted(shape, machines, 70, streams)
            print(
                f"  {name}: {70 * streams / step:,.0f} tokens/s, {alone / step:.1f} times one "
                f"GPU; most of it is {most}"
            )


if __name__ == "__main__":
    main()
