"""Peak memory and time of the softmax with its gradient, against linear + cross entropy.

Each case runs in a process of its own; the memory is the growth of its peak resident set over
what inputs, weights and their gradients take. Bar: it does not grow with tokens x vocabulary.

    python benchmarks/softmax.py
"""

import re
import subprocess
import sys
from pathlib import Path

import torch
from timing import ratio
from torch.nn import functional

from infolm.nn.softmax import Softmax

SIZE = 400
CASES = ((10_000, 2_800), (33_278, 2_800), (33_278, 5_600))
KINDS = ("lean", "linear_cross_entropy", "plain")


def make(vocabulary: int, tokens: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    x = torch.randn(tokens, SIZE, requires_grad=True)
    weight = (0.05 * torch.randn(vocabulary, SIZE)).requires_grad_()
    return x, weight, torch.randint(0, vocabulary, (tokens,))


def step(kind: str, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> None:
    x.grad = weight.grad = None
    head = Softmax(len(weight), SIZE, SIZE, tied=True, experts=1, bound=0.0)
    if kind == "lean":
        loss = head.nll_sum(x, y, weight)
    elif kind == "plain":
        logits = functional.linear(x, weight, head.bias)
        loss = functional.cross_entropy(logits, y, reduction="sum")
    else:
        # Without options it makes all logits at once; with them it works in chunks of its choice.
        loss = functional.linear_cross_entropy(
            x,
            weight,
            y,
            linear_bias=head.bias,
            reduction="sum",
            options=torch.nn.LinearCrossEntropyOptions(),
        )
    loss.backward()


def peak(since_now: bool = False) -> float:
    """The largest resident set of this process in MB, from now on if asked (Linux only)."""
    if since_now:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) / 1024


def measure(kind: str, vocabulary: int, tokens: int) -> None:
    step(kind, *make(64, 64))  # libraries and threads are loaded
    x, weight, y = make(vocabulary, tokens)
    x.grad, weight.grad = torch.ones_like(x), torch.ones_like(weight)
    before = peak(since_now=True)
    step(kind, x, weight, y)
    print(peak() - before)


def time_over_plain(kind: str, vocabulary: int, tokens: int) -> float:
    tensors = make(vocabulary, tokens)
    return ratio(lambda: step(kind, *tensors), lambda: step("plain", *tensors), repeats=3)[0]


def main() -> None:
    if len(sys.argv) > 1:
        measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
        return
    for vocabulary, tokens in CASES:
        memory = {}
        for kind in KINDS:
            command = [sys.executable, __file__, kind, str(vocabulary), str(tokens)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            memory[kind] = float(done.stdout)
        times = {kind: time_over_plain(kind, vocabulary, tokens) for kind in KINDS[:2]}
        logits = 4e-6 * vocabulary * tokens
        print(f"V = {vocabulary:,}, {tokens:,} tokens ({logits:.0f} MB of logits)")
        for kind in KINDS:
            time = f", time / plain {times[kind]:.2f}" if kind in times else ""
            print(f"  {kind:>20}: peak memory {memory[kind]:6.0f} MB{time}")


if __name__ == "__main__":
    main()
