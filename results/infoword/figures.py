"""The table and the two figures of results/infoword.md, from json/, which `measure.sh` fills."""

import json
from pathlib import Path

import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent / "json"
ENCODERS = ("fresh", "skip-gram", "mlm", "bert-nce", "lambda-0.4", "lambda-1")
COLUMNS = (("cola", "matthews", 100), ("sst2", "accuracy", 100), ("squad", "f1", 1))


def measured(name: str, metric: str, epoch: str = "last") -> tuple[float, float] | None:
    """Mean and standard deviation over the seeds, on dev, of the last epoch or of the best."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return None
    configurations = json.loads(path.read_text())["configurations"]
    (found,) = (row for row in configurations if row["chosen"])
    value = found[epoch]["dev"][metric]
    return value["mean"], value["deviation"]


def table() -> str:
    lines = ["| encoder | CoLA, Matthews | SST-2, accuracy | XQuAD, F1 |", "| --- " * 4 + "|"]
    for encoder in ENCODERS:
        cells = []
        for task, metric, scale in COLUMNS:
            both = [measured(f"{task}-{encoder}", metric, epoch) for epoch in ("last", "best")]
            cells += [
                " / ".join(f"{scale * v[0]:.1f} ± {scale * v[1]:.1f}" for v in both if v) or "-"
            ]
        lines.append(f"| {encoder} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    compared = {"bert-nce": "BERT-NCE", "lambda-1": "InfoWord, $\\lambda_{DIM}$ = 1"}
    for encoder, label in compared.items():
        shares = {share: f"squad-{encoder}-{share}" for share in (0.25, 0.5)}
        points(left, {**shares, 1: f"squad-{encoder}"}, label, 100)
    left.set_xlabel("training examples, %")
    left.legend(frameon=False)
    weights = {0: "bert-nce", 0.4: "lambda-0.4", 1: "lambda-1"}
    points(right, {weight: f"squad-{name}" for weight, name in weights.items()}, "", 1)
    right.set_xlabel("$\\lambda_{DIM}$")
    left.set_ylabel("XQuAD, F1 on dev")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(Path(__file__).parent / "figure-1.png", dpi=150)


def points(axes: plt.Axes, names: dict[float, str], label: str, scale: float) -> None:
    found = {x: value for x, name in names.items() if (value := measured(name, "f1"))}
    means, deviations = zip(*found.values(), strict=True)
    axes.errorbar([scale * x for x in found], means, deviations, marker="o", capsize=3, label=label)


if __name__ == "__main__":
    print(table())
    draw()
