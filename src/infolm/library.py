"""What `import infolm` offers: the commands' functions, for programs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.evaluation.measurement import Measurement
    from infolm.evaluation.scoring import ScoredSentence
    from infolm.families.base import Run
    from infolm.information.estimate import Estimate
    from infolm.information.panel import Answer
    from infolm.studies.comparison.comparison import Comparison


def load(run: "str | Path | Run") -> "Run":
    """A trained run, from its folder: its model, vocabulary, recipe and corpus.

    It has `score` of its family; `run.model` is a `torch.nn.Module`.
    """
    from infolm.families.base import Run, open_run

    return run if isinstance(run, Run) else open_run(run)


def train(
    recipe: str | Path,
    *overrides: str,
    out: str | Path,
    variants: Sequence[str] = (),
    resume: bool = False,
    progress: bool = False,
) -> "Run":
    """Train a recipe in the folder `out` and open the result.

    recipe: a name from `recipes()`, or a YAML file. overrides: "key=value", as on the command line.
    variants: names of the recipe's own. resume: go on with a run that is there, to the same bytes.
    progress: show a bar and the validations on standard error.
    """
    from infolm.config import load_recipe
    from infolm.families.train import train as train_run

    loaded = load_recipe(str(recipe), list(overrides), list(variants))
    if progress:
        from infolm.console import StageBars, TrainingBar, bar

        with StageBars() as stages, bar("training") as shown:
            watcher = TrainingBar(shown, perplexity=loaded.model.capability != "encoder")
            train_run(loaded, Path(out), resume, watcher, stages)
    else:
        train_run(loaded, Path(out), resume, _Quiet(), lambda stage, done, total: None)
    return load(out)


class _Quiet:
    """Nobody looks on."""

    def step(self, progress: float, nll: float, tokens: int) -> None: ...
    def validated(self, step: int, progress: float, loss: float) -> None: ...
    def say(self, text: str) -> None: ...


def evaluate(run: "str | Path | Run", **options: Any) -> "list[Measurement]":
    """What `infolm evaluate` measures: each with its unit, convention, tokens and standard error.

    options: those of the command, by name: `split="test"`, and those of the run's family. A
    language model has temperature, dynamic and cache ("tune", "tuned" or values as on the command
    line), mc (masks), streams, baseline and so on; a model with a latent code nz, codes ...
    """
    return load(run).evaluate(**options).measurements


def score(
    run: "str | Path | Run", texts: str | Sequence[str], **options: Any
) -> "list[ScoredSentence]":
    """The surprisal of each token and word of texts, each one sentence; as `infolm score`.

    run: a run of a language model, or "kneser-ney:FOLDER", the n-gram model of a run's text.
    options: context ("fresh": each sentence by itself behind an <eos>; "carried"), eos (whether the
    one at the end counts), unit ("bits", "nats"), top (how many likely tokens to name at each
    place), longest; temperature, dynamic, cache and mc as of `evaluate`.
    """
    from infolm.families.base import Run, settings_of

    if isinstance(run, Run):
        return run.score(texts, **options)
    from infolm.families.running.scoring import ScoreSettings, open_scorer, sentences_of

    return open_scorer(run).score(sentences_of(texts), settings_of(ScoreSettings, options))


def generate(run: "str | Path | Run", **options: Any) -> list[str]:
    """Texts that the run's model writes; the same seed gives the same texts.

    options: those of `infolm generate`, by name: num, seed, temperature, top_k, top_p, eta, typical
    and greedy; prompt, tokens and cache of a language model; interpolate=("a", "b"), steps and so
    on of a model with a latent code.
    """
    return load(run).generate(**options).texts


def compare(
    runs: "Sequence[str | Path | Run]",
    *,
    by: str | None = None,
    metric: str | None = None,
    split: str = "valid",
    method: str | None = None,
    text: bool | None = None,
) -> "Comparison":
    """Runs side by side, those that differ in their seed alone as one group.

    The result has `groups` (runs, seeds, mean, deviation), `tests` against the first group over
    seeds and over the text, each with a sentence, and `differs`, the keys that are not the same.
    The options are those of `infolm compare`.
    """
    from infolm.studies.comparison.comparison import compare as compare_runs

    return compare_runs([Path(run) for run in runs], by, metric, split, method, text)


def mutual_information(
    x: Any, y: Any, estimator: str = "panel", *, unit: str = "nats", **settings: Any
) -> "Estimate | Answer":
    """I(x; y) from samples in rows, (N,) or (N, D): arrays, data frames, tensors or lists.

    estimator: "panel", which asks estimators of several kinds for one answer with a p-value and a
    verdict; "fast", the same without a critic; or a name that `infolm mi --list` shows. settings:
    those of the estimator. The result has a value, an interval and a warning.
    """
    from infolm.information.panel import Panel
    from infolm.information.registry import estimator as made

    if unit not in ("nats", "bits"):
        raise InfolmError(f"unit is nats or bits, not '{unit}'")
    if estimator in ("panel", "fast"):
        answer = Panel(fast=estimator == "fast", **settings).estimate(x, y)
        return answer.to(unit)  # type: ignore[arg-type]
    return made(estimator, **settings).estimate(x, y).to(unit)  # type: ignore[arg-type]


def recipes() -> list[str]:
    """The names of the recipes that come with infolm."""
    from infolm.shelf import RECIPES

    return RECIPES.names()


def corpora() -> list[str]:
    """The names of the corpora that recipes may name."""
    from infolm.data.registry import registry

    return list(registry())
