"""`infolm recipes` and `infolm corpora`: the lists."""

import json
import shutil
import sys
import textwrap
from typing import Annotated, Any

import typer

from infolm.cli.app import JsonOption, app, print_table
from infolm.errors import InfolmError

NO_LIMIT = 10**6
"""The width of output to a program or a file."""


@app.command()
def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="Print this one as YAML, to copy and edit. With --keys: a section or a key.",
        ),
    ] = None,
    keys: Annotated[
        bool,
        typer.Option("--keys", help="Print the keys of a recipe: type, default, range, meaning."),
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="With --keys: as a page of Markdown.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the recipes with corpus and expected result, or print one with its size and variants."""
    from infolm.shelf import RECIPES  # not infolm.config, which would load PyTorch

    if markdown and not keys:
        raise InfolmError("--markdown is for --keys: give --keys too")
    if markdown and as_json:
        raise InfolmError("--markdown and --json are two formats: give one of them")
    if keys:
        _print_keys(name, markdown, as_json)
        return
    if name:
        _print_recipe(name, as_json)
        return
    rows = [_about(each, RECIPES.tree(each)) for each in RECIPES.names()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    width = _width()
    longest = max(len(row["recipe"]) for row in rows)
    for row in rows:
        print(f"{row['recipe']:{longest}}  {row['corpus']}")
        for line in filter(None, (row["title"], _expected(row["expected"]))):
            print(textwrap.fill(line, width, initial_indent="    ", subsequent_indent="    "))


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else NO_LIMIT


def _print_keys(name: str | None, markdown: bool, as_json: bool) -> None:
    from dataclasses import asdict

    from infolm.keys import as_markdown, as_text, beginning, reference

    groups = beginning(reference(), name) if name else reference()
    if as_json:
        print(json.dumps([asdict(group) for group in groups], indent=2))
    elif markdown:
        print(as_markdown(groups), end="")
    else:
        print(as_text(groups, _width()), end="")


def _about(name: str, tree: dict[str, Any]) -> dict[str, Any]:
    """The list's entry for a recipe, from its YAML."""
    return {
        "recipe": name,
        "title": tree.get("title", ""),
        "paper": tree.get("paper", ""),
        "corpus": tree["data"].get("corpus"),
        "expected": tree.get("expected"),
        "variants": tree.get("variants", {}),
    }


def _print_recipe(name: str, as_json: bool) -> None:
    """Print the YAML to standard output and the rest to standard error, so that `> mine.yaml`
    works.

    As JSON: the list's entry, and the number of parameters.
    """
    from infolm.shelf import RECIPES

    if not as_json:
        print(RECIPES.text(name), end="", flush=True)
    from infolm.config import load_recipe
    from infolm.console import err
    from infolm.families.train import parameters

    recipe = load_recipe(name)
    try:
        count = parameters(recipe)
    except InfolmError:  # the vocabulary comes from a text not yet read, or a package is missing
        count = None
    if as_json:
        about = _about(name, recipe.model_dump(mode="json"))
        print(json.dumps(about | {"parameters": count}, indent=2))
        return
    if count:
        err.print(f"\n{count:,} parameters")
    if recipe.variants:
        err.print(f"\nVariants, for `infolm train {name} --variant NAME`:")
        width = max(map(len, recipe.variants))
        for variant, changes in recipe.variants.items():
            err.print(f"  {variant:{width}}  {changes or '(the recipe as it is)'}", markup=False)


@app.command()
def corpora(as_json: JsonOption = False) -> None:
    """List the corpora that recipes can name."""
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
    unit = expected.get("metric", "perplexity").replace("_", " ")
    values = f"{expected['valid']} on the validation split, {expected['test']} on the test split"
    return f"{unit} {values} ({expected['source']})"
