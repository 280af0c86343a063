"""A Mixture of Softmaxes against the naive one; dropout samples in one batch or one by one.

The mixture has the sizes of Yang et al. (2017) on PTB: 15 experts, embedding 280, last layer 620,
12 streams of 70 tokens. The naive implementation makes the (tokens x experts x vocabulary) tensor
and lets autograd differentiate. Memory is the growth of the peak resident set over what inputs,
weights and their gradients take, each case in a process of its own. Bars: a quarter of that one
tensor, and the naive time.

D = 8 dropout samples are one step on a batch eight times as wide, with one loss; the yardstick is
eight steps with one sample, on the same tokens. Bar: 1.0.

    python benchmarks/mixture.py
"""

import subprocess
import sys

import torch
from softmax import peak
from timing import ratio
from torch.nn import functional

from infolm.data.stream import Batch
from infolm.models.recurrent import DropoutConfig, RecurrentConfig, RecurrentModel
from infolm.nn.softmax import Softmax
from infolm.objectives.likelihood import Likelihood, LikelihoodConfig

VOCABULARY, INPUTS, SIZE, EXPERTS = 10_000, 620, 280, 15
TOKENS = 12 * 70
SAMPLES = 8
KINDS = ("lean", "naive")

Case = tuple[Softmax, torch.Tensor, torch.Tensor, torch.Tensor]


def make(vocabulary: int = VOCABULARY, tokens: int = TOKENS) -> Case:
    """The softmax, its input, the tied weight and the targets."""
    torch.manual_seed(0)
    head = Softmax(vocabulary, INPUTS, SIZE, True, EXPERTS, bound=0.05)
    x = torch.randn(tokens, INPUTS, requires_grad=True)
    weight = (0.1 * torch.randn(vocabulary, SIZE)).requires_grad_()
    return head, x, weight, torch.randint(0, vocabulary, (tokens,))


def naive_nll(
    head: Softmax, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    assert head.projection is not None
    assert head.prior is not None
    latents = functional.linear(x, head.projection, head.projection_bias).tanh()
    logits = functional.linear(latents.view(-1, EXPERTS, SIZE), weight, head.bias)
    prior = functional.linear(x, head.prior).softmax(-1)
    p = (prior[..., None] * logits.softmax(-1)).sum(1)
    return functional.nll_loss(p.log(), y, reduction="sum")


def step(kind: str, head: Softmax, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> None:
    for tensor in (x, weight, *head.parameters()):
        tensor.grad = None
    loss = head.nll_sum(x, y, weight) if kind == "lean" else naive_nll(head, x, y, weight)
    loss.backward()


def measure(kind: str) -> None:
    step(kind, *make(64, 64))  # libraries and threads are loaded
    head, x, weight, y = make()
    for tensor in (x, weight, *head.parameters()):
        tensor.grad = torch.ones_like(tensor)
    before = peak(since_now=True)
    step(kind, head, x, weight, y)
    print(peak() - before)


def mixture() -> None:
    tensor = 4 * TOKENS * EXPERTS * VOCABULARY / 2**20
    print(
        f"{EXPERTS} experts, V = {VOCABULARY:,}, {TOKENS} tokens: a naive tensor of {tensor:.0f} MB"
    )
    for kind in KINDS:
        done = subprocess.run(
            [sys.executable, __file__, kind], capture_output=True, text=True, check=True
        )
        memory = float(done.stdout)
        bar = " (bar 0.25)" if kind == "lean" else ""
        print(
            f"  {kind:>5}: peak memory {memory:5.0f} MB, {memory / tensor:.2f} of the tensor{bar}"
        )
    case = make()
    value, a, b = ratio(lambda: step("lean", *case), lambda: step("naive", *case), repeats=3)
    print(f"  time lean / naive: {value:.2f} (bar 1.0; {a:.2f} s / {b:.2f} s)")


def dropout_samples() -> None:
    torch.manual_seed(0)
    dropout = DropoutConfig(input=0.5, hidden=0.3, output=0.5)
    model = RecurrentModel(
        RecurrentConfig(embedding=200, hidden=200, layers=2, dropout=dropout), VOCABULARY
    )
    text = torch.randint(0, VOCABULARY, (36, 20))
    batch = Batch(text[:-1], text[1:], fresh=True, rate_scale=1.0)

    def one_step(samples: int) -> None:
        objective = Likelihood(LikelihoodConfig(dropout_samples=samples))
        objective(model, batch, None).loss.backward()

    def one_by_one() -> None:
        for _ in range(SAMPLES):
            one_step(1)

    value, _, _ = ratio(lambda: one_step(SAMPLES), one_by_one, repeats=5)
    print(f"{SAMPLES} dropout samples / {SAMPLES} passes: {value:.2f} (bar 1.0)")


def main() -> None:
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    mixture()
    dropout_samples()


if __name__ == "__main__":
    main()
