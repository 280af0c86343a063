"""Two-Tailed Averaging beside tuned tail averages and exponential moving averages.

Figures 3.3 and 3.4 of Melis (2023) from one training: the same iterates go into Two-Tailed
Averaging, into tails from several starts and into moving averages of several decays, so that
nothing but the averaging differs. The tail and the decay of the picture are those with the least
validation loss at the end: tuned in hindsight, which is to their advantage.

    python benchmarks/averaging.py mogrifier/ptb-small --steps 2400 --out runs/averaging

Two-Tailed Averaging is measured every `--period` steps, the others at each `--every`-th of these
validations and at the end. They are fifteen, and each is a pass over the validation split: where
that is long, the error of a large `train.validation_streams` is well worth the time. The records
are the run's `metrics.jsonl`, a line a validation; stopped, the script goes on where it was.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from infolm import experiment
from infolm.averaging.base import RAW, Averager, RunningMean
from infolm.averaging.two_tailed import LONG, SHORT, TwoTailed, TwoTailedConfig
from infolm.config import load_recipe
from infolm.reports.history import History
from infolm.training.run import RunFolder, read_metrics

STARTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # shares of the training
BETAS = (0.9, 0.98, 0.99, 0.995, 0.998, 0.999)
OPENING = 0.15  # the share of training, at its start, that has no say in the picture's height
TWO_TAILED = "two-tailed"
QUARTERS = (0.25, 0.5, 0.75, 1.0)

Record = dict[str, Any]


class Sums:
    """Tails from several starts by one running sum: from s to t it is (C_t - C_s) / (t - s)."""

    def __init__(self, starts: Sequence[int]) -> None:
        self.starts = starts
        self.count = 0
        self.total: list[Tensor] = []
        self.until: dict[str, list[Tensor]] = {}  # C_s, by s

    @torch.no_grad()
    def update(self, weights: Sequence[Tensor]) -> None:
        self.count += 1
        if self.count == 1:
            # In double precision: a difference of long sums of single ones would be rough.
            self.total = [weight.detach().double() for weight in weights]
        else:
            torch._foreach_add_(self.total, [weight.double() for weight in weights])
        if self.count in self.starts:
            self.until[str(self.count)] = [tensor.clone() for tensor in self.total]

    def tail(self, start: int) -> list[Tensor]:
        """The mean of the iterates after `start`, in single precision."""
        until, length = self.until[str(start)], self.count - start
        return [
            ((now - then) / length).float() for now, then in zip(self.total, until, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "total": self.total, "until": self.until}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.total = state["count"], list(state["total"])
        self.until = {start: list(tensors) for start, tensors in state["until"].items()}


class Comparison(Averager):
    """Two-Tailed Averaging, whose answer is the answer, and the others for comparison."""

    def __init__(self, model: nn.Module, last: int, every: int) -> None:
        super().__init__(model)
        self.last, self.every = last, every
        self.two_tailed = TwoTailed(model, TwoTailedConfig())
        self.starts = {tail_name(start): start for start in starts(last)}
        self.sums = Sums(list(self.starts.values()))
        self.means = {ema_name(beta): RunningMean(beta) for beta in BETAS}
        self.validations = 0

    def update(self, step: int) -> None:
        self.two_tailed.update(step)
        self.sums.update(self.parameters)
        for mean in self.means.values():
            mean.update(self.parameters)

    def candidates(self) -> tuple[str, ...]:
        ours = self.two_tailed.candidates()
        if (self.validations + 1) % self.every and self.sums.count < self.last:
            return ours
        begun = [name for name, start in self.starts.items() if start < self.sums.count]
        return (*ours, *begun, *self.means)

    def answer(self, losses: dict[str, float]) -> str:
        return self.two_tailed.answer(losses)

    def validated(self, losses: dict[str, float], progress: float) -> list[str]:
        self.validations += 1
        return self.two_tailed.validated(losses, progress)

    def lengths(self) -> dict[str, int]:
        return self.two_tailed.lengths()

    def weights(self, candidate: str) -> Sequence[Tensor]:
        if candidate in (SHORT, LONG):
            return self.two_tailed.weights(candidate)
        if candidate in self.starts:
            return self.sums.tail(self.starts[candidate])
        return self.means[candidate].tensors

    def state_dict(self) -> dict[str, Any]:
        return {
            "two_tailed": self.two_tailed.state_dict(),
            "sums": self.sums.state_dict(),
            "means": {name: mean.state_dict() for name, mean in self.means.items()},
            "validations": self.validations,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.two_tailed.load_state_dict(state["two_tailed"])
        self.sums.load_state_dict(state["sums"])
        for name, mean in self.means.items():
            mean.load_state_dict(state["means"][name])
        self.validations = state["validations"]


def starts(last: int) -> list[int]:
    return [max(1, round(share * last)) for share in STARTS]


def tail_name(start: int) -> str:
    return f"tail from {start}"


def ema_name(beta: float) -> str:
    return f"EMA {beta:g}"


class Teller:
    """Prints what the training says."""

    def step(self, progress: float, nll: float, tokens: int) -> None:
        pass

    def validated(self, step: int, progress: float, loss: float) -> None:
        pass

    def say(self, text: str) -> None:
        print(text, flush=True)


def curve(validations: Sequence[Record], name: str) -> list[tuple[int, float]]:
    """(step, loss) wherever the others were measured; before a tail's start, the iterate's loss."""
    return [
        (r["step"], r[name] if name in r else r[RAW])
        for r in validations
        if ema_name(BETAS[0]) in r
    ]


def best_at_end(validations: Sequence[Record], names: Sequence[str]) -> str:
    return min(names, key=lambda name: curve(validations, name)[-1][1])


def table(validations: Sequence[Record], last: int) -> str:
    """The loss of each method after a quarter, a half, three quarters and all of the training."""
    tails, means = [tail_name(s) for s in starts(last)], [ema_name(b) for b in BETAS]
    best = {best_at_end(validations, tails), best_at_end(validations, means)}
    rows = ["| method | " + " | ".join(f"{share:.0%}" for share in QUARTERS) + " | perplexity |"]
    rows.append("| --- |" + " ---: |" * (len(QUARTERS) + 1))
    answers = [(r["step"], r["loss"]) for r in validations if ema_name(BETAS[0]) in r]
    curves = {TWO_TAILED: answers, **{n: curve(validations, n) for n in (RAW, *tails, *means)}}
    for name, points in curves.items():
        losses = [
            next((loss for step, loss in reversed(points) if step <= share * last), math.nan)
            for share in QUARTERS
        ]
        title = f"{name} (best at the end)" if name in best else name
        cells = " | ".join(f"{loss:.4f}" for loss in losses)
        rows.append(f"| {title} | {cells} | {math.exp(losses[-1]):.2f} |")
    return "\n".join(rows)


def draw(records: Sequence[Record], last: int, path: Path) -> None:
    """Losses above, the length of the long average below."""
    import matplotlib
    from matplotlib.figure import Figure

    from infolm.reports.curves import STYLE

    history = History.of(list(records))
    validations = [r for r in records if r["kind"] == "validation"]
    tail = best_at_end(validations, [tail_name(start) for start in starts(last)])
    mean = best_at_end(validations, [ema_name(beta) for beta in BETAS])
    lines = {RAW: "#8a9097", mean: "#0072b2", tail: "#00795a", TWO_TAILED: "#d55e00"}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.4, 5.6), layout="constrained")
        upper, lower = figure.subplots(2, sharex=True, height_ratios=[3, 1])
        for name, colour in lines.items():
            key = "loss" if name == TWO_TAILED else name
            points = [(r["step"], r[key]) for r in validations if key in r]
            steps, losses = zip(*points, strict=True)
            upper.plot(steps, losses, color=colour, linewidth=1.2, label=name)
        answers = history.validation.values
        opening = answers[history.validation.steps >= OPENING * last]
        upper.set_ylim(answers.min() - 0.02, opening.max() + 0.05)
        upper.set_ylabel("validation, nats per token")
        upper.legend()
        lower.plot(history.length.steps, history.length.values, color="#a87400", linewidth=1.2)
        lower.set_ylabel("iterates in\nthe long mean")
        lower.set_ylim(0)
        lower.set_xlabel("steps")
        figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", nargs="?", default="mogrifier/ptb-small")
    parser.add_argument("overrides", nargs="*", help="key=value, as for `infolm train`")
    parser.add_argument("--out", type=Path, default=Path("runs/averaging"), help="the run's folder")
    parser.add_argument("--steps", type=int, default=2400, help="the length of the training")
    parser.add_argument("--period", type=int, default=50, help="steps between validations")
    parser.add_argument("--every", type=int, default=6, help="validations between comparisons")
    arguments = parser.parse_intermixed_args()
    last = arguments.steps
    length = ["train.epochs=1000000", f"train.max_steps={last}"]
    period = f"train.validate_every={arguments.period}"
    kind = f"averaging.kind={TWO_TAILED}"
    recipe = load_recipe(arguments.recipe, [*length, period, *arguments.overrides, kind])
    # The comparison takes the place of the averager that the recipe names.
    experiment.build_averager = lambda recipe, model: Comparison(model, last, arguments.every)
    experiment.train(recipe, arguments.out, arguments.out.exists(), Teller(), lambda *_: None)
    records = read_metrics(RunFolder(arguments.out).metrics)
    print(table([r for r in records if r["kind"] == "validation"], last))
    for suffix in ("svg", "png"):
        draw(records, last, arguments.out / f"averaging.{suffix}")
    print(f"pictures: {arguments.out / 'averaging.svg'} and .png")


if __name__ == "__main__":
    main()
