"""Recipes that come with infolm, made small enough for tests."""

from pathlib import Path

from infolm.config import Recipe
from infolm.models.encoder import EncoderConfig
from infolm.models.sentence import SentenceConfig
from infolm.models.symbol import SymbolConfig
from infolm.models.transformer import TransformerConfig


def small(recipe: Recipe, variant: str, text: Path) -> list[str]:
    """Overrides for a small network and a short text, but for what the variant is about.

    text: a file of short lines, to which the tokens are added that end a sentence.
    """
    text.write_text(text.read_text().replace(" number", " . ! ? number"))
    types = {"wordpiece": 200, "bpe": 300}.get(recipe.data.tokens, "null")
    read = [f"data.path={text}", f"data.vocabulary={types}"]
    if recipe.data.reverse_copy:
        sizes = {"length": 5, "types": 100, "examples": 20, "held_out": 5}
        read = [f"data.reverse_copy.{key}={value}" for key, value in sizes.items()]
    if recipe.data.uniform:
        read = ["data.uniform.symbols=20"]
    return [*read, *small_model(recipe, variant)]


def small_model(recipe: Recipe, variant: str) -> list[str]:
    """Overrides that make the recipe's network small, but for what the variant is about."""
    if isinstance(recipe.model, EncoderConfig):
        return ["model.hidden=8", "model.heads=2", "model.layers=1", "feed.length=32"]
    if isinstance(recipe.model, SentenceConfig | SymbolConfig):
        sizes = {"embedding": 8, "encoder.hidden": 12, "decoder.hidden": 12}
        if isinstance(recipe.model, SymbolConfig):
            sizes = {"hidden": 8}
        latent = "size" if recipe.model.latent.kind == "gaussian" else "embedding"
        return [f"model.{key}={value}" for key, value in {**sizes, f"latent.{latent}": 4}.items()]
    if isinstance(recipe.model, TransformerConfig):
        sizes = {"hidden": 12, "heads": 3, "layers": 2, "parameters": "null"}
        return [f"model.{key}={value}" for key, value in sizes.items()]
    sizes = {"hidden": 12, "embedding": 8, "layers": 2}
    if "embedding" in recipe.variants.get(variant, ""):
        sizes.pop("embedding")
    if recipe.model.last_hidden:
        sizes["last_hidden"] = 7
    sizes["mogrifier.rank"] = min(recipe.model.mogrifier.rank, 5)
    return [*(f"model.{key}={value}" for key, value in sizes.items()), "model.parameters=null"]
