"""Pretraining an encoder: what the objectives cost beside the Transformer.

- The head of MLM-NCE (the hidden words told from those of other sequences) against that of MLM (the
  full softmax), forward and backward, at a vocabulary of 30,000. Bar: 1.
- The training loop's own step (feed, objective, backward, clipping, AdamW) against `transformers`'
  bare BERT, forward and backward, on the same tokens: no head, no loss, no optimiser. For InfoWord
  the yardstick reads the n-grams too. Bar: 1.15. For MLM, whose softmax over all words is work that
  a bare BERT does not do, also against `BertForMaskedLM` with its own loss.
- The feed's share of that step.

Words are random, as frequent as Zipf has it; a word has one piece or two.

    python benchmarks/encoders.py [--device cuda]
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from timing import device_option, ratio, seconds
from torch import Tensor

from infolm.averaging.tail import NoAverage
from infolm.data.sequences import SequenceBatch, SequenceFeed, SequencesConfig
from infolm.data.tokens import SPECIAL, Tokenizer
from infolm.models.encoder import Encoder, EncoderConfig
from infolm.objectives.base import Objective
from infolm.objectives.masked import InfoWord, InfoWordConfig, Masked
from infolm.objectives.words import Contrast, Table, among, among_batch, among_vocabulary
from infolm.optimisation.optimisers import AdamWConfig
from infolm.optimisation.schedule import Schedule, ScheduleConfig
from infolm.training.loop import Loop, Term, TrainConfig, Validation, tensors
from infolm.training.run import RunFolder

VOCABULARY = 30_000
HEADS = ((128, 614), (128, 4_915), (768, 614))
"""Columns, and hidden words: 15% of 32 or 256 sequences of 128 tokens."""
PER_SEQUENCE = 19


@dataclass(frozen=True)
class Size:
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    batch: int
    length: int = 128


SIZES = (
    Size(2, 128, 2, 8_000, 32),
    Size(4, 256, 4, VOCABULARY, 32),
    Size(4, 512, 8, VOCABULARY, 8),
)
"""`infoword/small`, and larger ones."""


class Nobody:
    """A watcher that looks away."""

    def step(self, progress: float, nll: float, tokens: int) -> None: ...
    def validated(self, step: int, progress: float, loss: float) -> None:
        pass

    def say(self, text: str) -> None: ...


def zipf(vocabulary: int, count: int) -> np.ndarray:
    """Words by falling frequency, the special ones never."""
    first = len(SPECIAL)
    weights = 1 / np.arange(1, vocabulary - first + 1)
    return first + np.random.default_rng(0).choice(
        vocabulary - first, count, p=weights / weights.sum()
    )


def heads(repeats: int, device: str) -> None:
    for size, count in HEADS:
        anchors = torch.randn(count, size, requires_grad=True, device=device)
        table = Table(
            (0.05 * torch.randn(VOCABULARY, size, device=device)).requires_grad_(),
            torch.zeros(VOCABULARY, requires_grad=True, device=device),
        )
        words = torch.from_numpy(zipf(VOCABULARY, count)).to(device)
        groups = torch.arange(count, device=device) // PER_SEQUENCE

        def backward(
            contrast: Contrast, tensors: tuple[Tensor | None, ...] = (anchors, *table)
        ) -> None:
            torch.autograd.grad(contrast.estimate().loss, [x for x in tensors if x is not None])

        value, a, b = ratio(
            lambda: backward(among_batch(anchors, words, table, groups)),  # noqa: B023
            lambda: backward(among_vocabulary(anchors, words, table)),  # noqa: B023
            repeats,
        )
        print(
            f"  {size} columns, {count:,} words: {value:.3f} (bar 1; {1e3 * a:.0f} ms / "
            f"{1e3 * b:.0f} ms)"
        )


def random_feed(size: Size, masking: str) -> SequenceFeed:
    words = size.vocabulary - len(SPECIAL)
    pieces = [f"w{i}" if i % 4 else f"##w{i}" for i in range(words)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "vocab.txt").write_text("\n".join([*SPECIAL, *pieces]))
        tokenizer = Tokenizer.from_bert(Path(folder))
    config = SequencesConfig.model_validate(
        {"batch": size.batch, "length": size.length, "masking": masking}
    )
    return SequenceFeed(zipf(size.vocabulary, 300_000), config, 0, tokenizer)


def objective(kind: str) -> Objective:
    if kind == "infoword":
        return InfoWord(InfoWordConfig(), among("batch", None, 0), pad=0)
    return Masked(among("batch" if kind == "mlm-nce" else "vocabulary", None, 0))


def step(size: Size, kind: str, repeats: int, steps: int, device: str) -> None:
    from transformers import BertConfig, BertForMaskedLM, BertModel

    feed = random_feed(size, "tokens" if kind == "mlm" else "spans")
    config = EncoderConfig(
        layers=size.layers, hidden=size.hidden, heads=size.heads, length=size.length
    )
    model = Encoder(config, size.vocabulary).to(device)
    optimiser = AdamWConfig(learning_rate=1e-3, clip=1.0, schedule=ScheduleConfig())
    loop = Loop(
        Fabric(accelerator=device, devices=1),
        model,
        [Term(kind, feed, objective(kind))],
        optimiser.build(model.parameters()),
        Schedule(optimiser.schedule),
        NoAverage(model),
        lambda: Validation(0.0),
        TrainConfig(),
        optimiser.clip,
        RunFolder(Path()),
        Nobody(),
    )
    sizes = BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.hidden,
        max_position_embeddings=size.length,
    )
    bare = BertModel(sizes, add_pooling_layer=False).to(device)
    with_loss = BertForMaskedLM(sizes).to(device)
    batches: list[SequenceBatch] = [
        tensors(feed.next(), torch.device(device)) for _ in range(steps)
    ]

    def ours() -> None:
        for _ in range(steps):
            loop._take_step()

    def yardstick() -> None:
        for batch in batches:
            total = bare(batch.tokens)[0].sum()
            if kind == "infoword":
                total = total + bare(batch.ngrams, (batch.ngrams != 0).long())[0].sum()
            bare.zero_grad()
            total.backward()

    def own_loss() -> None:
        for batch in batches:
            labels = torch.full_like(batch.tokens, -100)
            labels.view(-1)[batch.places] = batch.words
            with_loss.zero_grad()
            with_loss(batch.tokens, labels=labels).loss.backward()

    value, a, b = ratio(ours, yardstick, repeats)
    drawn = seconds(lambda: [feed.next() for _ in range(steps)]) / a
    print(
        f"  {kind}: {value:.2f} (bar 1.15; {1e3 * a / steps:.0f} ms / {1e3 * b / steps:.0f} ms), "
        f"of which the feed {drawn:.1%}"
    )
    if kind == "mlm":
        value, a, b = ratio(ours, own_loss, repeats)
        print(
            f"  mlm / BertForMaskedLM: {value:.2f} ({1e3 * a / steps:.0f} ms / "
            f"{1e3 * b / steps:.0f} ms)"
        )


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--steps", type=int, default=2, help="of a timed pair")
    device_option(arguments)
    asked = arguments.parse_args()
    torch.manual_seed(0)
    print(f"the head of MLM-NCE / the full softmax, {VOCABULARY:,} words")
    heads(asked.repeats, asked.device)
    for size in SIZES:
        print(f"a pretraining step / bare BERT, {size}")
        for kind in ("mlm", "mlm-nce", "infoword"):
            step(size, kind, asked.repeats, asked.steps, asked.device)


if __name__ == "__main__":
    main()
