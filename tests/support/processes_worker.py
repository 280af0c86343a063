"""Small trainings that two processes, or one, can do; and a process that does them all.

python processes_worker.py FOLDER TEXT RANK COUNT
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from training_tiny import Silent, quiet, tiny_sentences, tiny_tree

import infolm
from infolm.config import Recipe
from infolm.evaluation.measurement import as_json
from infolm.families.train import train
from infolm.nn.gather import processes
from infolm.training.strategy import FullyShard

TRAIN = {"max_steps": 6, "validate_every": 3, "log_every": 2}
SGD = {"kind": "sgd", "learning_rate": 0.5, "clip": 1.0}
NO_DROPOUT: dict[str, Any] = {"weight_drop": 0, "dropout": {}}
SEQUENCES = {"kind": "sequences", "length": 16, "masking": "spans"}


def _running(text: Path, model: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    tree = tiny_tree(text, **TRAIN)
    tree["feed"] = {"batch": 5, "bptt": 8}  # not the same number for each
    tree["model"] = model if model and "kind" in model else tree["model"] | (model or {})
    return {**tree, "optimiser": {**SGD, "l2_penalty": 1e-4}, **sections}


def _sentences(text: Path, objective: dict[str, Any], **latent: Any) -> dict[str, Any]:
    tree = tiny_sentences(text, **TRAIN)
    dropout = {"input": 0.3, "state": 0.2, "output": 0.1}
    tree["model"]["decoder"]["dropout"] = dropout
    tree["model"]["latent"] = latent or {"size": 3}
    tree["feed"]["batch"] = 7
    return {**tree, "objective": objective, "optimiser": SGD}


def _encoder(text: Path, kind: str, feed: dict[str, Any], **model: Any) -> dict[str, Any]:
    sizes = {"kind": "encoder", "layers": 2, "hidden": 16, "heads": 2, "length": 24, "dropout": 0}
    return {
        "data": {"path": str(text), "tokens": "wordpiece", "vocabulary": 150},
        "feed": {"batch": 5, **feed},
        "model": sizes | model,
        "objective": {"kind": kind},
        "optimiser": SGD,
        "train": TRAIN,
    }


def recipes(text: Path) -> dict[str, Recipe]:
    """By name. Those with dropout have kinds that draw as of the whole batch."""
    categorical = {"kind": "categorical", "variables": 2, "classes": 4, "embedding": 6}
    quantised = {**categorical, "kind": "quantised"}
    likelihood = {"ar": 1, "tar": 1, "dropout_samples": 2, "state_reset": 0.2}
    mixture = {"experts": 2, "dropout": 0.2}
    vae = {"kind": "vae", "free_bits": {"nats": 0.2}, "lagging": True}
    trees = {
        "lstm": _running(text, {"dropout": {"input": 0.2, "state": 0.2, "output": 0.2}}),
        "samples": _running(text, {"softmax": mixture}, objective=likelihood),
        "nce": _running(text, objective={"kind": "nce", "noise": 8}),
        "episodes": _running(text, feed={"kind": "episodes", "batch": 5}),
        "transformer": _running(
            text,
            {
                "kind": "transformer",
                "hidden": 16,
                "layers": 2,
                "heads": 2,
                "context": 12,
                "dropout": {"input": 0.2, "hidden": 0.2, "output": 0.2},
            },
            averaging={"kind": "two-tailed"},
        ),
        "bmi": _running(
            text, NO_DROPOUT, regularisers={"bmi": {"weight": 0.3, "batch": 7, "switch": 0}}
        ),
        "mim": _sentences(text, {"kind": "mim"}),
        "vae": _sentences(text, vae, size=3, batch_norm=0.5),
        "vimco": _sentences(
            text, {"kind": "monte-carlo", "estimator": "vimco", "samples": 3}, **categorical
        ),
        "reinforce": _sentences(
            text,
            {"kind": "monte-carlo", "estimator": "reinforce", "baseline": "mean"},
            **categorical,
        ),
        "vq": _sentences(text, {"kind": "vq"}, **quantised),
        "infoword": _encoder(text, "infoword", SEQUENCES),
        "mlm": _encoder(text, "mlm", {**SEQUENCES, "masking": "tokens"}),
        "permutation": _encoder(
            text, "permutation", {**SEQUENCES, "masking": "order"}, architecture="xlnet"
        ),
        "nsp": _encoder(text, "nsp", {"kind": "sentence-pairs", "length": 24}, head="next"),
        "skip-gram": _encoder(text, "skip-gram", {"kind": "windows", "length": 16}, head="context"),
    }
    return {name: Recipe.model_validate(tree) for name, tree in trees.items()}


def changed(recipe: Recipe, **sections: dict[str, Any]) -> Recipe:
    """The recipe with other settings."""
    tree = recipe.model_dump(mode="json")
    for section, values in sections.items():
        tree[section] |= values
    return Recipe.model_validate(tree)


ADAMW = {"kind": "adamw", "learning_rate": 0.01, "clip": 1.0, "weight_decay": 0.1}


def sharded(text: Path) -> dict[str, Recipe]:
    """Trainings whose layers two processes share out; one process has all of them."""
    own = recipes(text)
    tree = own["transformer"].model_dump(mode="json") | {"averaging": {"kind": "none"}}
    transformer = Recipe.model_validate(tree | {"optimiser": ADAMW})
    shard = {"strategy": "fully_shard"}
    return {
        "transformer": changed(transformer, train={**shard, "accumulate": 2, "samples": 1}),
        "infoword": changed(own["infoword"], train=shard),
        "again": changed(own["mlm"], train=shard, model={"activation_checkpointing": True}),
        "permutation": changed(own["permutation"], train=shard),
    }


def train_all(folder: Path, text: Path) -> None:
    for name, recipe in recipes(text).items():
        train(recipe, folder / name, False, Silent(), quiet)
    for name, recipe in sharded(text).items():
        train(recipe, folder / "sharded" / name, False, Silent(), quiet)
    longer = changed(sharded(text)["transformer"], train={"max_steps": 9})
    train(longer, folder / "sharded" / "transformer", True, Silent(), quiet)
    train(longer, folder / "straight", False, Silent(), quiet)
    found = infolm.evaluate(folder / "lstm", streams=5, split="valid")
    (folder / f"measured {processes()[0]}.json").write_text(as_json(found))
    torch.set_default_dtype(torch.double)
    train(recipes(text)["bmi"], folder / "double" / "bmi", False, Silent(), quiet)
    torch.set_default_dtype(torch.float)


if __name__ == "__main__":
    folder, text, rank, count = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}.meeting", rank=rank, world_size=count
    )
    train_all(folder, text)
    model = sharded(text)["transformer"].model.build(50)
    whole = sum(p.numel() for layer in model.alike() for p in layer.parameters())
    own = sum(p.numel() for p in FullyShard(model).own.values())
    (folder / f"share {rank}.json").write_text(json.dumps([own, whole]))
    torch.distributed.destroy_process_group()
