"""A tiny encoder and tasks that it can learn, for tests."""

import json
from pathlib import Path

import numpy as np
import torch

from infolm.data.tokens import Tokenizer
from infolm.finetuning.networks import Pretrained
from infolm.models.encoder import EncoderConfig, transformers_config

NOUNS = "cat dog bird fish child king river stone tree song".split()
WORDS = [*NOUNS, *"good bad the is what a and near old new what ? .".split()]


def tiny_tokenizer() -> Tokenizer:
    texts = [" ".join(np.random.default_rng(i).permutation(WORDS)) for i in range(20)]
    return Tokenizer.from_wordpiece(texts, 200, lowercase=True)


def tiny_encoder(architecture: str = "bert", length: int = 32, dropout: float = 0.0) -> Pretrained:
    """2 layers of 16 columns, with weights drawn by seed 0."""
    from transformers import BertModel, XLNetModel

    tokenizer = tiny_tokenizer()
    config = EncoderConfig(
        architecture=architecture, layers=2, hidden=16, heads=2, dropout=dropout, length=length
    )
    sizes = transformers_config(config, len(tokenizer), tokenizer.special.pad)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if architecture == "xlnet":
            model = XLNetModel(sizes)
        else:
            model = BertModel(sizes, add_pooling_layer=False)
        weights = {k: w + 0.1 * torch.randn_like(w) for k, w in model.state_dict().items()}
    return Pretrained(sizes, weights, tokenizer, length)


def phrase(rng: np.random.Generator, words: int) -> str:
    return " ".join(rng.choice(NOUNS, words))


def sst2_folder(folder: Path, train: int = 96, dev: int = 32) -> Path:
    """A sentence is of class 1 if it has the word good, of 0 if it has the word bad."""
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train.tsv", train), ("dev.tsv", dev)):
        lines = ["sentence\tlabel"]
        for i in range(count):
            word = ("bad", "good")[i % 2]
            lines.append(f"{phrase(rng, rng.integers(1, 4))} {word} {phrase(rng, 2)}\t{i % 2}")
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def squad_folder(folder: Path, articles: int = 12) -> Path:
    """The answer is the word after is."""
    rng = np.random.default_rng(2)
    folder.mkdir(parents=True, exist_ok=True)
    data = []
    for a in range(articles):
        paragraphs = []
        for p in range(8):
            before, answer = f"the {phrase(rng, rng.integers(1, 4))} is ", rng.choice(NOUNS)
            context = f"{before}{answer} and {phrase(rng, 2)} ."
            asked = {
                "id": f"q{a}-{p}",
                "question": "what is the ?",
                "answers": [{"answer_start": len(before), "text": str(answer)}],
            }
            paragraphs.append({"context": context, "qas": [asked]})
        data.append({"title": f"article {a}", "paragraphs": paragraphs})
    (folder / "toy.json").write_text(json.dumps({"version": "1.1", "data": data}))
    return folder
