"""The softmax over the vocabulary, its mixtures and its substitute: time and peak memory.

- The softmax with its gradient against linear + cross entropy and PyTorch's
  `linear_cross_entropy`. Bar: memory does not grow with tokens x vocabulary.
- A Mixture of Softmaxes with the sizes of Yang et al. (2017) on PTB (15 experts, embedding 280,
  last layer 620, 12 streams of 70 tokens) against the naive one, which makes the (tokens x
  experts x vocabulary) tensor and lets autograd differentiate. Bars: 0.6 of its time, a tenth of
  its memory.
- Eight dropout samples in one batch against eight steps with one sample each, on the same
  tokens. Bar: 1.0.
- Noise-contrastive estimation against the softmax, at the vocabularies of WikiText-2 and
  WikiText-103.

Memory is the growth of the peak resident set over what inputs, weights and their gradients take,
each case in a process of its own (Linux only).

    python benchmarks/heads.py
"""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from timing import ratio
from torch import Tensor
from torch.nn import functional

from infolm.data.stream import Batch
from infolm.models.recurrent import DropoutConfig, RecurrentConfig, RecurrentModel
from infolm.nn.nce import Noise, binary_loss
from infolm.nn.softmax import Softmax
from infolm.objectives.likelihood import Likelihood, LikelihoodConfig

SIZE = 400
SOFTMAXES = ((10_000, 2_800), (33_278, 2_800))
MIXTURE = (10_000, 12 * 70)
EXPERTS, MIXTURE_INPUTS, MIXTURE_SIZE = 15, 620, 280
SAMPLES = 8
NCE = ((33_278, 700), (267_735, 700))
NOISE = 1024


@dataclass
class Case:
    """A loss and the tensors it is differentiated by."""

    tensors: list[Tensor]
    loss: Callable[[], Tensor]

    def step(self) -> None:
        for tensor in self.tensors:
            tensor.grad = None
        self.loss().backward()


def single(kind: str, vocabulary: int, tokens: int) -> Case:
    """One softmax with a tied weight, by `kind`."""
    x = torch.randn(tokens, SIZE, requires_grad=True)
    weight = (0.05 * torch.randn(vocabulary, SIZE)).requires_grad_()
    y = torch.randint(0, vocabulary, (tokens,))
    head = Softmax(vocabulary, SIZE, SIZE, tied=True, experts=1, bound=0.0)
    noise = Noise(torch.ones(vocabulary))

    def plain() -> Tensor:
        logits = functional.linear(x, weight, head.bias)
        return functional.cross_entropy(logits, y, reduction="sum")

    def torch_s_own() -> Tensor:
        # Without options it makes all logits at once; with them it works in chunks of its choice.
        options = torch.nn.LinearCrossEntropyOptions()
        return functional.linear_cross_entropy(
            x, weight, y, linear_bias=head.bias, reduction="sum", options=options
        )

    def nce() -> Tensor:
        words = noise.draw(NOISE)
        own, others = head.scores(x, y, words, weight)
        return binary_loss(noise.log_ratio(own, y, NOISE), noise.log_ratio(others, words, NOISE))

    losses = {
        "lean": lambda: head.nll_sum(x, y, weight),
        "linear_cross_entropy": torch_s_own,
        "plain": plain,
        "nce": nce,
    }
    return Case([x, weight, head.bias], losses[kind])


def mixture(kind: str, vocabulary: int, tokens: int) -> Case:
    """A mixture with a tied weight, ours or the naive one."""
    head = Softmax(vocabulary, MIXTURE_INPUTS, MIXTURE_SIZE, True, EXPERTS, bound=0.05)
    x = torch.randn(tokens, MIXTURE_INPUTS, requires_grad=True)
    weight = (0.1 * torch.randn(vocabulary, MIXTURE_SIZE)).requires_grad_()
    y = torch.randint(0, vocabulary, (tokens,))
    projection, prior = head.projection, head.prior
    assert projection is not None
    assert prior is not None

    def naive() -> Tensor:
        latents = functional.linear(x, projection, head.projection_bias).tanh()
        logits = functional.linear(latents.unflatten(-1, (EXPERTS, -1)), weight, head.bias)
        pi = functional.linear(x, prior).softmax(-1)
        p = (pi[..., None] * logits.softmax(-1)).sum(1)
        return functional.nll_loss(p.log(), y, reduction="sum")

    losses = {"lean mixture": lambda: head.nll_sum(x, y, weight), "naive mixture": naive}
    return Case([x, weight, *head.parameters()], losses[kind])


def make(kind: str, vocabulary: int, tokens: int) -> Case:
    torch.manual_seed(0)
    return (mixture if "mixture" in kind else single)(kind, vocabulary, tokens)


def peak(since_now: bool = False) -> float:
    """The largest resident set of this process in MB, from now on if asked."""
    if since_now:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) / 1024


def measure(kind: str, vocabulary: int, tokens: int) -> None:
    make(kind, 64, 64).step()  # libraries and threads are loaded
    case = make(kind, vocabulary, tokens)
    for tensor in case.tensors:
        tensor.grad = torch.ones_like(tensor)
    before = peak(since_now=True)
    case.step()
    print(peak() - before)


def memory(kind: str, vocabulary: int, tokens: int) -> float:
    command = [sys.executable, __file__, kind, str(vocabulary), str(tokens)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def compare(kinds: list[str], vocabulary: int, tokens: int, repeats: int) -> dict[str, list[float]]:
    """Peak memory of each kind, and its time over that of the last; printed, and given."""
    print(f"V = {vocabulary:,}, {tokens:,} tokens")
    yardstick = make(kinds[-1], vocabulary, tokens)
    results = {}
    for kind in kinds:
        time, seconds = 1.0, ""
        if kind != kinds[-1]:
            case = make(kind, vocabulary, tokens)
            time, a, b = ratio(case.step, yardstick.step, repeats)
            seconds = f" ({a:.2f} s / {b:.2f} s)"
        results[kind] = [memory(kind, vocabulary, tokens), time]
        print(
            f"  {kind:>20}: peak memory {results[kind][0]:6.0f} MB, "
            f"time / {kinds[-1]} {time:.2f}{seconds}",
            flush=True,
        )
    return results


def dropout_samples() -> None:
    torch.manual_seed(0)
    vocabulary = 10_000
    dropout = DropoutConfig(input=0.5, hidden=0.3, output=0.5)
    model = RecurrentModel(
        RecurrentConfig(embedding=200, hidden=200, layers=2, dropout=dropout), vocabulary
    )
    text = torch.randint(0, vocabulary, (36, 20))
    batch = Batch(text[:-1], text[1:], fresh=True, rate_scale=1.0)

    def one_step(samples: int) -> None:
        objective = Likelihood(LikelihoodConfig(dropout_samples=samples))
        objective(model, batch, None).loss.backward()

    def one_by_one() -> None:
        for _ in range(SAMPLES):
            one_step(1)

    value, _, _ = ratio(lambda: one_step(SAMPLES), one_by_one, repeats=5)
    print(f"  time {value:.2f} (bar 1.0)")


def main() -> None:
    if len(sys.argv) > 1:
        measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
        return
    print("the softmax, against linear and cross entropy")
    for vocabulary, tokens in SOFTMAXES:
        compare(["lean", "linear_cross_entropy", "plain"], vocabulary, tokens, repeats=2)
        twice = memory("lean", vocabulary, 2 * tokens)
        print(f"  {'lean, twice as many':>20}: peak memory {twice:6.0f} MB")
    print(f"\na mixture of {EXPERTS} softmaxes, against the naive one")
    both = compare(["lean mixture", "naive mixture"], *MIXTURE, repeats=7)
    (lean, time), (naive, _) = both.values()
    print(f"  time {time:.2f} (bar 0.6), memory {lean / naive:.3f} (bar 0.1)")
    print(f"\n{SAMPLES} dropout samples in one batch, against {SAMPLES} passes")
    dropout_samples()
    print(f"\nnoise-contrastive estimation with {NOISE} noise words, against the lean softmax")
    for vocabulary, tokens in NCE:
        compare(["nce", "lean"], vocabulary, tokens, repeats=1)


if __name__ == "__main__":
    main()
