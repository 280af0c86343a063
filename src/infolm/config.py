"""Recipes: YAML files checked against typed classes, with overrides from the command line."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import yaml
from pydantic import Field, PrivateAttr, ValidationError, create_model, model_validator
from pydantic_core import ErrorDetails

from infolm.averaging.base import AVERAGERS, AveragerConfig
from infolm.averaging.tail import NoAverageConfig
from infolm.data.corpora import DataConfig
from infolm.data.feed import FEEDS, FeedConfig
from infolm.data.stream import StreamConfig
from infolm.errors import InfolmError
from infolm.models.base import MODELS, ModelConfig
from infolm.models.recurrent import RecurrentConfig
from infolm.objectives.base import OBJECTIVES, REGULARISERS, ObjectiveConfig, RegulariserConfig
from infolm.objectives.likelihood import LikelihoodConfig
from infolm.optimisation.optimisers import OPTIMISERS, OptimiserConfig
from infolm.section import OF_A_RUN, Section, nearest
from infolm.shelf import RECIPES, parse_yaml
from infolm.space import Range
from infolm.training.loop import TrainConfig
from infolm.trees import mapping


class RegularisersBase(Section):
    """The terms added to the objective, by name."""

    def chosen(self) -> dict[str, RegulariserConfig]:
        """The regularisers that the recipe names."""
        found = {name: getattr(self, name) for name in REGULARISERS}
        return {name: config for name, config in found.items() if config is not None}


if TYPE_CHECKING:
    AnyAverager: TypeAlias = AveragerConfig
    AnyFeed: TypeAlias = FeedConfig
    AnyModel: TypeAlias = ModelConfig
    AnyObjective: TypeAlias = ObjectiveConfig
    AnyOptimiser: TypeAlias = OptimiserConfig
    Regularisers: TypeAlias = RegularisersBase
else:
    # A recipe names one registered kind of each section, and any number of regularisers.
    AnyAverager, AnyOptimiser = AVERAGERS.section(), OPTIMISERS.section()
    AnyFeed, AnyModel = FEEDS.section("stream"), MODELS.section("recurrent")
    AnyObjective = OBJECTIVES.section("likelihood")
    Regularisers = create_model(
        "RegularisersConfig",
        __base__=RegularisersBase,
        **{
            name: (config | None, Field(None, description=config.about))
            for name, config in REGULARISERS.items()
        },
    )


class Expected(Section):
    """The result that the recipe should reach, and its source."""

    valid: float = Field(description="on the validation split")
    test: float = Field(description="on the test split")
    metric: Literal["perplexity", "bits_per_character", "bits_per_byte"] = Field(
        "perplexity", description="the metric of both numbers"
    )
    source: str = Field(description="the paper's table, or the command that measured it")


class Recipe(Section):
    """One experiment: model, data, training and expected result."""

    title: str = Field("", description="one line for the list of recipes")
    paper: str = Field("", description="where the settings come from")
    expected: Expected | None = Field(None, description="the result that the recipe should reach")
    variants: dict[str, str] = Field(
        default_factory=dict, description="named overrides, such as a paper's ablations"
    )
    seed: int = Field(1, ge=0, description="seed of every random choice in training")
    start_from: Path | None = Field(None, description="a run whose weights training starts from")
    data: DataConfig
    feed: AnyFeed = StreamConfig()
    model: AnyModel = RecurrentConfig()
    objective: AnyObjective = LikelihoodConfig()
    regularisers: Regularisers = Regularisers()
    optimiser: AnyOptimiser
    averaging: AnyAverager = NoAverageConfig()
    train: TrainConfig = TrainConfig()
    tuning: dict[str, Range] = Field(
        default_factory=dict, description="key of the recipe -> the range `infolm tune` searches"
    )
    _brought: list[str] = PrivateAttr(default_factory=list)

    @property
    def brought(self) -> str:
        """The changes that overrides implied, in words; empty if there are none."""
        return ", ".join(self._brought)

    @model_validator(mode="after")
    def _fits_together(self) -> "Recipe":
        """Check what each section needs of the others."""
        if unmet := self._unmet():
            others = [kind for kind, each in OBJECTIVES.items() if each.learns(self.model)]
            if self.objective.kind not in others:  # the person may have meant to change the model
                unmet.append(f"or keep model.kind and set objective.kind to {' or '.join(others)}")
            said = "; ".join(unmet)
            raise ValueError(f"objective.kind {self.objective.kind} needs other settings: {said}")
        faults = [each.fault(self) for each in (self.objective, self.averaging, self.train)]
        faults += [each.fault(self) for each in self.regularisers.chosen().values()]
        for fault in filter(None, faults):
            raise ValueError(fault)
        return self

    def _unmet(self) -> list[str]:
        """The unmet needs of the objective, each as an instruction."""
        unmet = []
        for key, allowed in self.objective.needs.items():
            found: Any = self
            for name in key.split("."):
                found = getattr(found, name, None)
            # A section of the wrong kind lacks the right kind's keys: report the kind only.
            if found is None or found in allowed:
                continue
            section, name = key.split(".")[0], key.split(".")[-1]
            if name in ("capability", "gives"):  # list the kinds that have it
                registry = MODELS if section == "model" else FEEDS
                kinds = [k for k, each in registry.items() if getattr(each, name) in allowed]
                key, allowed, found = f"{section}.kind", tuple(kinds), getattr(self, section).kind
            unmet.append(f"set {key} to {' or '.join(allowed)} (it is {found})")
        return unmet + self.objective.unmet(self)

    def as_yaml(self) -> str:
        """Every resolved value, in a form that can be read back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_recipe(
    source: str, overrides: Sequence[str] | None = None, variants: Sequence[str] = ()
) -> Recipe:
    """The recipe `source` (a name from the list, or a YAML file) with `key=value` overrides.

    variants: names of the recipe's variants, applied in order before the overrides. Keys that a
    run's recipe lacks get their `former_defaults`.
    """
    try:
        tree, of_a_run, brought = _changed(source, overrides or [], variants)
        recipe = _validated(source, tree, of_a_run)
    except InfolmError as error:
        if not overrides and (Path(source).parent / "manifest.json").exists():
            repair = f"`infolm repair {Path(source).parent}` restores the original"
            raise InfolmError(f"{str(error).rstrip('.')}; {repair}") from error
        raise
    recipe._brought.extend(brought)
    return recipe


def _changed(
    source: str, overrides: Sequence[str], variants: Sequence[str]
) -> tuple[dict[str, Any], bool, list[str]]:
    """A recipe's tree after variants and overrides, whether it belongs to a run, and the changes
    that the overrides implied."""
    tree, run = RECIPES.tree(source), _of_a_run(source)
    corpus, given_text = _text(tree), _has_own_text(tree)
    changes = [change for name in variants for change in _variant(tree, source, name)]
    every = [*changes, *overrides]
    for override in every:
        _apply(tree, override)
    given = {override.partition("=")[0] for override in every}
    brought = _bring_along(tree, given) + _release_bytes(tree, given)
    if not run and not given_text and "data.path" in given and "data.lowercase" not in given:
        _apply(tree, "data.lowercase=false")  # lowercasing was for the recipe's own corpus
    if brought:  # a section of another kind has dropped the given keys
        for override in every:
            _apply(tree, override)
    elsewhere = _text(tree) != corpus or (run and _kept_expectations(tree))
    if changes or elsewhere:
        tree["expected"] = None  # it was measured on the recipe's own corpus
    titled = any(override.startswith("title=") for override in overrides)
    if (variants or elsewhere) and not titled:
        name = Path(source).parent.name if run else source
        title = name if elsewhere else str(tree.get("title") or name)
        of_variant = f", variant {' and '.join(variants)}" if variants else ""
        on_text = f" on {_text(tree)}" if elsewhere else ""
        tree["title"] = f"{title}{on_text}{of_variant}"
    return tree, run, brought


def written_recipe(source: str, text: str) -> Recipe:
    """Read the text of a recipe that infolm wrote to `source`."""
    return _validated(source, parse_yaml(text, source), of_a_run=True)


def _validated(source: str, tree: Any, of_a_run: bool) -> Recipe:
    try:
        return Recipe.model_validate(tree, context=OF_A_RUN if of_a_run else None)
    except ValidationError as error:
        raise InfolmError(f"{source}: {explain(error, tree)}") from None


def _bring_along(tree: dict[str, Any], given: set[str]) -> list[str]:
    """Set the other keys that the overrides `given` imply, unless they were given too; returns the
    changes.

    An objective sets what it needs, and a value resets keys that have no meaning with it.
    """
    objective = _mapping(tree.get("objective"))
    config = OBJECTIVES.get(str(objective.get("kind", "likelihood")))
    if config is None:
        return []
    brought = []
    if "objective.kind" in given:
        for key, allowed in config.needs.items():
            # Properties of a kind are not recipe keys; the model is never changed silently.
            derived = key.endswith((".capability", ".gives")) or key == "model.kind"
            if not derived and key not in given and _value(tree, key) not in (None, *allowed):
                _apply(tree, f"{key}={allowed[0]}")
                brought.append(f"{key}={allowed[0]}")
    for key, releases in config.releases.items():
        if f"objective.{key}" in given:
            for released in releases.get(str(objective.get(key)), ()):
                if released in objective and f"objective.{released}" not in given:
                    del objective[released]
                    brought.append(f"objective.{released} at its default")
    return brought


def _release_bytes(tree: dict[str, Any], given: set[str]) -> list[str]:
    """Bytes need no vocabulary: drop the recipe's word settings, unless they were given."""
    data = _mapping(tree.get("data"))
    if "data.tokens" not in given or data.get("tokens") != "byte":
        return []
    dropped = [
        key for key in ("vocabulary", "lowercase") if data.get(key) and f"data.{key}" not in given
    ]
    for key in dropped:
        del data[key]
    return [f"data.{key} at its default" for key in dropped]


def _has_own_text(tree: dict[str, Any]) -> bool:
    return bool(_mapping(tree.get("data")).get("path"))


def _mapping(node: Any) -> dict[str, Any]:
    """The section under a key as written; empty if a plain value stands there."""
    return mapping(node) or {}


def _value(tree: dict[str, Any], key: str) -> Any:
    """The value of `key` in `tree`, or its default; None if the section has no such key."""
    node: Any = tree
    for name in key.split("."):
        node = _mapping(node).get(name)
    if node is not None:
        return node
    section, name = key.split(".")[0], key.split(".")[-1]
    if section not in ("feed", "model") or key.count(".") > 1:
        return None
    kind = _mapping(tree.get(section)).get("kind")
    kinds: Mapping[str, type[Section]] = FEEDS if section == "feed" else MODELS
    config = kinds.get(kind or ("stream" if section == "feed" else "recurrent"))
    field = config.model_fields.get(name) if config else None
    return field.default if field else None


def _variant(tree: dict[str, Any], source: str, name: str) -> list[str]:
    """The overrides of one of the recipe's variants."""
    variants = _mapping(tree.get("variants"))
    if not variants:
        raise InfolmError(f"{source} has no variants: leave --variant out")
    if name not in variants:
        raise InfolmError(
            f"{source} has no variant '{name}'{nearest(name, map(str, variants))} "
            f"(there are {', '.join(map(str, variants))})"
        )
    try:
        return shlex.split(str(variants[name]))
    except ValueError as error:
        raise InfolmError(f"{source}: variants.{name}: {error}") from None


def _text(tree: dict[str, Any]) -> str:
    """The name of the recipe's text, for people."""
    data = _mapping(tree.get("data"))
    if not data:
        return ""
    lines = data.get("train_lines")
    return str(data.get("path") or data.get("corpus")) + (f", {lines} lines" if lines else "")


def _kept_expectations(tree: dict[str, Any]) -> bool:
    """Whether an older run on a person's own text still has the title and expected result of its
    recipe's corpus."""
    data = _mapping(tree.get("data"))
    both = data.get("path") and data.get("corpus")
    return bool(both and tree.get("expected"))


def _of_a_run(source: str) -> bool:
    path = Path(source)
    return path.name == "recipe.yaml" and (path.parent / "corpus.json").exists()


def recipe_names() -> list[str]:
    """The built-in recipes, as paper/corpus."""
    return RECIPES.names()


def _apply(tree: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator or not key:
        raise InfolmError(f"'{override}' is not an override: write key=value, as in seed=2")
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        if node.get(parent) is None:
            node[parent] = {}
        child = mapping(node[parent])
        if child is None:
            raise InfolmError(f"{key}: '{parent}' is a value, not a section")
        node = child
    try:
        new = parse_yaml(value, key)
    except InfolmError as error:
        raise InfolmError(f"{key}: '{value[:100]}' is not valid YAML") from error
    if last == "kind" and node.get("kind", new) != new:
        node.clear()  # another kind has other keys
    node[last] = new


def explain(error: ValidationError, tree: dict[str, Any]) -> str:
    """Each error in `tree`: its path, what is wrong, what is allowed, the nearest match."""
    return "; ".join(_explain_one(details, tree) for details in error.errors())


def _explain_one(details: ErrorDetails, tree: Any) -> str:
    keys = []
    for part in details["loc"]:
        # Pydantic puts the kind of a section into the path; it is not a recipe key.
        if part in _mapping(tree):
            keys.append(str(part))
            tree = tree[part]
        elif details["type"] == "missing" and part == details["loc"][-1]:
            keys.append(str(part))
    path, value, context = ".".join(keys), details["input"], details.get("ctx", {})
    prefix = f"{path}: " if path else ""
    if details["type"] == "missing":
        return f"{prefix}is missing"
    if details["type"] == "value_error":
        return f"{prefix}{context['error']}"
    if details["type"] in {"literal_error", "union_tag_invalid"}:
        if details["type"] == "union_tag_invalid":
            prefix, value = f"{path}.kind: ", context["tag"]
        allowed = re.findall("'([^']*)'", context.get("expected") or context["expected_tags"])
        return f"{prefix}'{value}' is not one of {', '.join(allowed)}{nearest(value, allowed)}"
    return f"{prefix}{details['msg'][0].lower()}{details['msg'][1:]}, not {value!r}"
