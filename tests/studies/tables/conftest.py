"""Tables that are trained in a second, or not at all."""

from pathlib import Path
from typing import Any

import pytest
import yaml

SIZE = (
    "data.vocabulary=40 model.hidden=8 model.embedding=4 feed.batch=2 feed.bptt=10 "
    "train.max_steps=4 train.validate_every=2 train.checkpoint_seconds=0"
)


def tiny(**changes: Any) -> dict[str, Any]:
    return {
        "title": "A tiny table",
        "paper": "none",
        "claim": "A small rate is better.",
        "scales": {"small": {"recipe": "awd-lstm/demo", "set": SIZE, "minutes": 0.1}},
        "arms": {
            "low": {"label": "a low rate", "set": "optimiser.learning_rate=0.001"},
            "high": {
                "label": "a high rate",
                "set": "optimiser.learning_rate=0.003",
                "paper": {"perplexity": 50.0},
            },
            "further": {
                "label": "the low one, further",
                "start": "low",
                "set": "optimiser.learning_rate=0.001 train.max_steps=2",
            },
        },
        "measure": {
            "options": {"split": "test", "streams": 2},
            "figures": {"perplexity": {"label": "test perplexity"}},
        },
        "comparisons": [
            {"claim": "Low is better than high.", "lower": "low", "higher": "high"},
            {"claim": "Further is better.", "lower": "further", "higher": "low"},
        ],
        **changes,
    }


def written(folder: Path, name: str = "tiny", **changes: Any) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tiny(**changes), sort_keys=False))
    return str(path)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    words = "the a cat dog sat ran on under mat tree and saw".split()
    lines = [" ".join(words[(i * j) % 12] for j in range(1, 9)) for i in range(120)]
    path.write_text("\n".join(lines) + "\n")
    return path
