"""A sentence model at the Penn Treebank's sizes: a training step, padding, and decoding in a batch.

The step is forward and backward with the loss of MIM, as `sentence-mim/ptb-128` has it: embedding
300, hidden 512, codes of 128, batch 20. The yardstick has the same shapes and no more: two packed
`nn.GRU`s, `nn.Linear`s, dropout on the decoder's words, cross entropy. Bar: 1.15. Sentences are
random words, as long as the treebank's, in the batches that the feed makes of them. Of these,
padding would be the share that is printed (bar: 5 %); packed rows have none. The same step in
bfloat16 reads new batches each time, most of them with another number of words.

Decoding writes 1,000 sentences, each stopped at its <eos>, against the same with all of them kept
in the batch up to the last one's. The model is untrained, with a bias that ends sentences at the
treebank's mean length.

    python benchmarks/sentences.py
"""

import argparse
import math
from collections.abc import Sequence

import numpy as np
import torch
from timing import ratio
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from infolm.config import load_recipe
from infolm.data.sentences import Lines, SentenceBatch, SentenceFeed, SentencesConfig
from infolm.generation.latent import decode
from infolm.generation.sampling import SamplingSettings, draw
from infolm.models.sentence import SentenceConfig, SentenceModel
from infolm.objectives.mim import Mim

VOCABULARY, SENTENCES, EOS = 10_000, 42_000, 0
LENGTH, DEVIATION = 21.0, 10.0
"""Words of a sentence of the Penn Treebank."""


class Bare(nn.Module):
    """What the step cannot do without."""

    def __init__(self, config: SentenceConfig) -> None:
        super().__init__()
        hidden, size = config.encoder.hidden, config.latent.width
        self.embedding = nn.Embedding(VOCABULARY, config.embedding)
        self.encoder = nn.GRU(config.embedding, hidden)
        self.mean, self.log_variance = nn.Linear(hidden, size), nn.Linear(hidden, size)
        self.start = nn.Linear(size, hidden)
        self.decoder = nn.GRU(config.embedding + size, hidden)
        self.softmax = nn.Linear(hidden, VOCABULARY)
        self.rate = config.decoder.dropout.input

    def forward(self, batch: SentenceBatch) -> Tensor:
        sizes = torch.tensor(batch.sizes)
        _, state = self.encoder(PackedSequence(self.embedding(batch.read), sizes))
        mean, deviation = self.mean(state[0]), (0.5 * self.log_variance(state[0])).exp()
        z = mean + deviation * torch.randn_like(mean)
        words = functional.dropout(self.embedding(batch.inputs), self.rate)
        owner = torch.cat([torch.arange(size) for size in batch.sizes])
        rows = PackedSequence(torch.cat([words, z[owner]], 1), sizes)
        hidden, _ = self.decoder(rows, self.start(z)[None])
        logits = self.softmax(hidden.data)
        return functional.cross_entropy(logits, batch.targets, reduction="sum") / batch.sentences


def random_feed(config: SentencesConfig) -> SentenceFeed:
    rng = np.random.default_rng(0)
    lengths = rng.normal(LENGTH, DEVIATION, SENTENCES).round().clip(1, config.longest).astype(int)
    text = [rng.integers(1, VOCABULARY, n) for n in lengths]
    return SentenceFeed(Lines.of(text, EOS), config, seed=0, unk=None)


def as_tensors(batch: SentenceBatch) -> SentenceBatch:
    read, inputs, targets = (torch.from_numpy(rows) for rows in batch[:3])
    return batch._replace(read=read, inputs=inputs, targets=targets)


def padding(batches: Sequence[SentenceBatch]) -> float:
    """The share of a rectangle for each batch that would hold no token."""
    padded = sum(batch.sentences * len(batch.sizes) for batch in batches)
    return 1 - sum(batch.tokens for batch in batches) / padded


def training_step(config: SentenceConfig, feed: SentenceFeed, num: int, repeats: int) -> None:
    batches = [as_tensors(feed.next()) for _ in range(num)]
    model, objective, bare = SentenceModel(config, VOCABULARY), Mim(), Bare(config)

    def ours() -> None:
        for batch in batches:
            model.zero_grad()
            objective(model, batch, None).loss.backward()

    def yardstick() -> None:
        for batch in batches:
            bare.zero_grad()
            bare(batch).backward()

    value, a, b = ratio(ours, yardstick, repeats)
    print(f"training step / bare step: {value:.3f} (bar 1.15; {a / num:.3f} s / {b / num:.3f} s)")


def rounded_step(config: SentenceConfig, feed: SentenceFeed, num: int, repeats: int) -> None:
    model, objective = SentenceModel(config, VOCABULARY), Mim()

    def step(rounded: bool) -> None:
        for _ in range(num):
            batch = as_tensors(feed.next())
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                loss = objective(model, batch, None).loss
            loss.backward()

    value, a, b = ratio(lambda: step(True), lambda: step(False), repeats)
    print(f"in bfloat16 / in single precision: {value:.2f} ({a / num:.3f} s / {b / num:.3f} s)")


def write_all(model: SentenceModel, z: Tensor, longest: int) -> None:
    """Every row in every step, until the last one has ended."""
    with torch.inference_mode():
        words = torch.full((len(z),), EOS)
        state, ended = model.initial_state(z), torch.zeros(len(z), dtype=torch.bool)
        for _ in range(longest):
            hidden, state = model.step(words, z, state)
            chances = torch.rand(len(z), dtype=torch.float64)
            words = draw(model.log_probs(hidden), chances)
            ended |= words == EOS
            if ended.all():
                break


def decoding(config: SentenceConfig, longest: int, num: int, repeats: int) -> None:
    model = SentenceModel(config, VOCABULARY).eval()
    with torch.no_grad():
        model.softmax.bias[EOS] = math.log(VOCABULARY / LENGTH)
    z = 0.1 * torch.randn(num, config.latent.width)

    def ours() -> list[np.ndarray]:
        generator = torch.Generator().manual_seed(0)
        return decode(model, z, SamplingSettings(), longest, EOS, generator)

    lengths = [len(sentence) for sentence in ours()]
    value, a, b = ratio(ours, lambda: write_all(model, z, longest), repeats)
    print(
        f"decoding {num:,} sentences, stopped at <eos> / all up to the last: {value:.2f} "
        f"({a:.1f} s / {b:.1f} s; {np.mean(lengths):.1f} words on average, {max(lengths)} at most)"
    )


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--batches", type=int, default=10, help="of a timed pair")
    arguments.add_argument("--sentences", type=int, default=1000, help="to be decoded")
    arguments.add_argument("--repeats", type=int, default=5)
    asked = arguments.parse_args()
    torch.manual_seed(0)
    recipe = load_recipe("sentence-mim/ptb-128")
    assert isinstance(recipe.model, SentenceConfig)
    assert isinstance(recipe.feed, SentencesConfig)
    feed = random_feed(recipe.feed)
    epoch = [feed.next() for _ in range(SENTENCES // recipe.feed.batch)]
    print(f"padding, were batches padded: {padding(epoch):.1%} (bar 5 %; packed rows: none)")
    training_step(recipe.model, feed, asked.batches, asked.repeats)
    rounded_step(recipe.model, feed, asked.batches, asked.repeats)
    decoding(recipe.model, recipe.feed.longest, asked.sentences, asked.repeats)


if __name__ == "__main__":
    main()
