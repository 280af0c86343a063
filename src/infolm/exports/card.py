"""The model card: a README with a model's description, measurements and use."""

from pathlib import Path

from infolm.evaluation import measurement
from infolm.evaluation.measurement import Measurement
from infolm.families.base import Run


def model_card(run: Run, use: str, licence: str | None = None) -> str:
    """Markdown with the metadata that model hubs read; use: a few lines of Python."""
    recipe, model = run.recipe, run.model
    parameters = sum(parameter.numel() for parameter in model.parameters())
    described = recipe.model.described(recipe.objective.kind)
    lines = [
        "---",
        f"license: {licence or 'unknown'}",
        "library_name: transformers",
        "tags: [infolm]",
        "---",
        f"# {recipe.title or run.folder.path.name}",
        "",
        f"{described} with {parameters:,} parameters, trained with infolm on {_text(run)}.",
        "" if licence else "No licence is given: ask the author before you pass the model on.",
        "",
        "```python",
        use.rstrip(),
        "```",
        "",
        *_measured(run),
        "## Recipe",
        "",
        "```yaml",
        run.folder.recipe.read_text(encoding="utf-8").rstrip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def _text(run: Run) -> str:
    """The training text; for a person's own file only its name."""
    data = run.recipe.data
    return data.path.name if data.path else str(data.corpus)


def _measured(run: Run) -> list[str]:
    """The measurements, which exist only for the best weights."""
    if run.at is None:
        return _measurements(run.folder.measurements)
    return [f"These are the weights after {run.at:,} words of training text were read.", ""]


def _measurements(path: Path) -> list[str]:
    found = measurement.read(path)
    if not found:
        return ["It has not been measured yet: `infolm evaluate RUN`, then export again.", ""]
    conventions = dict.fromkeys(each.convention for each in found)
    return [
        "## Measurements",
        "",
        "| split | method | metric | value | standard error | unit | tokens |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *map(_row, found),
        "",
        *(f"Convention: {convention}" for convention in conventions),
        "",
    ]


def _row(m: Measurement) -> str:
    error = "" if m.stderr is None else f"{m.stderr:.3g}"
    cells = [m.split, m.method, m.metric, f"{m.value:.5g}", error, m.unit, f"{m.tokens:,}"]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
