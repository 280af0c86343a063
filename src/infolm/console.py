"""Progress bars and tables on standard error.

Results go to standard output. If standard error is not a terminal, a bar prints a line now and
then.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
TICK = time.get_clock_info("monotonic").resolution
"""Least seconds between updates of the time left."""
LINE_EVERY = 30.0
"""Seconds between lines without a terminal."""


def duration(seconds: float) -> str:
    """3725 -> '1:02:05'."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


class Bar:
    """A bar from 0 to 1, with a text and the time left."""

    def __init__(self, title: str, progress: Progress) -> None:
        self._title, self._progress = title, progress
        self._task: TaskID | None = None
        self._began: tuple[float, float] | None = None  # start time and share done then
        self._last_line = time.monotonic()

    def update(self, share: float, text: str = "") -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = now, share
        began, start = self._began
        left = ""
        if share > start and share < 1:
            left = f"{duration((now - began) * (1 - share) / (share - start))} left"
        if err.is_terminal:
            if self._task is None:
                self._task = self._progress.add_task(self._title, total=1.0, left="", text="")
            self._progress.update(self._task, completed=share, left=left, text=text)
        elif now - self._last_line >= LINE_EVERY:
            self._last_line = now
            err.print(f"{self._title} {share:.0%} {text} {left}".rstrip())


@contextmanager
def bar(title: str) -> Iterator[Bar]:
    """Show a progress bar while the block runs."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[text]}", markup=False),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        yield Bar(title, progress)


class StageBars:
    """A bar for each stage of a `report(stage, done, total)`."""

    def __init__(self) -> None:
        self._columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
        )
        self._progress = Progress(
            *self._columns, console=err, transient=True, disable=not err.is_terminal
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "StageBars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not err.is_terminal:
            if stage not in self._tasks:
                self._tasks[stage] = TaskID(0)
                err.print(f"{stage} ...")
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], completed=done, total=total)


class TrainingBar:
    """The watcher of a training loop: loss, perplexity, tokens/s and time left."""

    SMOOTHING = 0.95
    """Share of the previous value in the running mean of the loss."""

    def __init__(self, bar: Bar, perplexity: bool = True) -> None:
        """perplexity: whether e^loss is a perplexity."""
        self._bar, self._perplexity = bar, perplexity
        self._began = time.monotonic()
        self._loss: float | None = None
        self._tokens = 0

    def step(self, progress: float, nll: float, tokens: int) -> None:
        old = nll if self._loss is None else self._loss
        self._loss = self.SMOOTHING * old + (1 - self.SMOOTHING) * nll
        self._tokens += tokens
        speed = self._tokens / max(time.monotonic() - self._began, TICK)
        text = f"loss {self._loss:.3f}  {speed:,.0f} tokens/s"
        if self._perplexity:
            perplexity = math.exp(min(self._loss, 99))
            text = f"loss {self._loss:.3f}  perplexity {perplexity:.1f}  {speed:,.0f} tokens/s"
        self._bar.update(progress, text)

    def validated(self, step: int, progress: float, loss: float) -> None:
        pass

    def say(self, text: str) -> None:
        err.print(text)
