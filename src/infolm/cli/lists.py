"""`infolm recipes` and `infolm corpora`: what there is."""

import json
from typing import Annotated, Any

import typer

from infolm.cli.app import JsonOption, app, print_table


@app.command()
def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="Print this one, to copy and edit.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes with paper, corpus, size and expected result, or print one."""
    from infolm.config import load_recipe, recipe_names, recipe_text
    from infolm.families.train import parameters

    if name:
        print(recipe_text(name), end="")
        return
    rows: list[dict[str, Any]] = []
    for each in recipe_names():
        recipe = load_recipe(each)
        rows.append(
            {
                "recipe": each,
                "title": recipe.title,
                "paper": recipe.paper,
                "corpus": recipe.data.corpus,
                "parameters": parameters(recipe),
                "expected": recipe.expected.model_dump() if recipe.expected else None,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print_table(
        ["recipe", "paper", "corpus", "weights", "expected valid / test"],
        [
            [
                row["recipe"],
                row["paper"],
                row["corpus"],
                f"{row['parameters'] / 1e6:.1f}M",
                _expected(row["expected"]),
            ]
            for row in rows
        ],
    )


@app.command()
def corpora(as_json: JsonOption = False) -> None:
    """List the corpora that are known by name."""
    from dataclasses import asdict

    from infolm.data.corpora import registry

    infos = list(registry().values())
    if as_json:
        print(json.dumps([asdict(info) for info in infos], indent=2))
        return
    print_table(
        ["corpus", "what it is", "tokens", "download", "licence"],
        [
            [
                info.name,
                info.title,
                info.tokens,
                _megabytes(sum(file.size for file in info.downloads)),
                info.licence,
            ]
            for info in infos
        ],
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size else "none"


def _expected(expected: dict[str, Any] | None) -> str:
    if not expected:
        return ""
    unit = expected["metric"].replace("_", " ")
    return f"{unit} {expected['valid']} / {expected['test']} ({expected['source']})"
