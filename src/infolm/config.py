"""Recipes: YAML files checked against typed classes, with overrides from the command line."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from infolm.averaging.ema import EmaConfig
from infolm.averaging.tail import (
    NoAverageConfig,
    PolyakConfig,
    SwaConfig,
    TailConfig,
    TriggeredConfig,
)
from infolm.averaging.two_tailed import TwoTailedConfig
from infolm.data.corpora import DataConfig
from infolm.data.episodes import EpisodesConfig
from infolm.data.sentence_pairs import SentencePairsConfig
from infolm.data.sentences import SentencesConfig
from infolm.data.sequences import SequencesConfig
from infolm.data.stream import StreamConfig
from infolm.data.windows import WindowsConfig
from infolm.errors import InfolmError
from infolm.models.encoder import EncoderConfig
from infolm.models.encoder_decoder import EncoderDecoderConfig
from infolm.models.latent import GaussianConfig, QuantisedConfig
from infolm.models.recurrent import RecurrentConfig
from infolm.models.sentence import SentenceConfig
from infolm.models.symbol import SymbolConfig
from infolm.objectives.bmi import BmiConfig
from infolm.objectives.estimators import REPARAMETRISED
from infolm.objectives.likelihood import LikelihoodConfig
from infolm.objectives.masked import InfoWordConfig, MlmConfig, MlmNceConfig
from infolm.objectives.mim import MimConfig
from infolm.objectives.monte_carlo import MonteCarloConfig
from infolm.objectives.nce import NceConfig
from infolm.objectives.next_sentence import NextSentenceConfig
from infolm.objectives.permutation import PermutationConfig
from infolm.objectives.sentence import AeConfig
from infolm.objectives.skip_gram import SkipGramConfig
from infolm.objectives.vae import VaeConfig
from infolm.objectives.vq import VqConfig
from infolm.section import OF_A_RUN, Section, nearest
from infolm.shelf import RECIPES, parse_yaml
from infolm.training.loop import TrainConfig
from infolm.training.optimisers import OptimiserConfig
from infolm.tuning.space import Range

AveragingConfig = Annotated[
    NoAverageConfig
    | PolyakConfig
    | TailConfig
    | TriggeredConfig
    | EmaConfig
    | SwaConfig
    | TwoTailedConfig,
    Field(discriminator="kind"),
]


def _of_kind(usual: str) -> BeforeValidator:
    """A section that does not say its kind is of the usual one."""
    return BeforeValidator(lambda tree: {"kind": usual, **tree} if isinstance(tree, dict) else tree)


FeedConfig = Annotated[
    StreamConfig
    | EpisodesConfig
    | SentencesConfig
    | SequencesConfig
    | WindowsConfig
    | SentencePairsConfig,
    Field(discriminator="kind"),
    _of_kind("stream"),
]
ModelConfig = Annotated[
    RecurrentConfig | EncoderDecoderConfig | SentenceConfig | SymbolConfig | EncoderConfig,
    Field(discriminator="kind"),
    _of_kind("recurrent"),
]
ObjectiveConfig = Annotated[
    LikelihoodConfig
    | NceConfig
    | MimConfig
    | VaeConfig
    | AeConfig
    | MonteCarloConfig
    | VqConfig
    | SkipGramConfig
    | MlmConfig
    | MlmNceConfig
    | NextSentenceConfig
    | PermutationConfig
    | InfoWordConfig,
    Field(discriminator="kind"),
    _of_kind("likelihood"),
]


_PIECES = {"data.tokens": ("wordpiece",)}
_SEQUENCES = {**_PIECES, "feed.kind": ("sequences",), "model.head": ("words",)}
ENCODING: dict[str, dict[str, tuple[str, ...]]] = {
    "skip-gram": {
        "data.tokens": ("word", "wordpiece"),
        "feed.kind": ("windows",),
        "model.head": ("context",),
    },
    "mlm": {**_SEQUENCES, "feed.masking": ("tokens", "spans")},
    "mlm-nce": {**_SEQUENCES, "feed.masking": ("tokens", "spans")},
    "nsp": {**_PIECES, "feed.kind": ("sentence-pairs",), "model.head": ("next",)},
    "permutation": {
        **_SEQUENCES,
        "feed.masking": ("order",),
        "model.architecture": ("xlnet",),
    },
    "infoword": {**_SEQUENCES, "feed.masking": ("spans",)},
}
"""What each objective of an encoder needs besides model.kind encoder: key -> what it may be."""


class RegularisersConfig(Section):
    """What is added to the objective, by name."""

    bmi: BmiConfig | None = Field(None, description="mutual information of neighbouring sentences")


class Expected(Section):
    """What the recipe should reach, and who says so."""

    valid: float = Field(description="on the validation split")
    test: float = Field(description="on the test split")
    metric: Literal["perplexity", "bits_per_character", "bits_per_byte"] = "perplexity"
    source: str = Field(description="the paper's table, or the command that measured it")


class Recipe(Section):
    """One experiment: what is trained on what, how, and what to expect."""

    title: str = Field("", description="one line for the list of recipes")
    paper: str = Field("", description="where the settings come from")
    expected: Expected | None = None
    variants: dict[str, str] = Field(
        default_factory=dict, description="named overrides, such as a paper's ablations"
    )
    seed: int = Field(1, ge=0)
    start_from: Path | None = Field(None, description="a run whose weights training starts from")
    data: DataConfig
    feed: FeedConfig = StreamConfig()
    model: ModelConfig = RecurrentConfig()
    objective: ObjectiveConfig = LikelihoodConfig()
    regularisers: RegularisersConfig = RegularisersConfig()
    optimiser: OptimiserConfig
    averaging: AveragingConfig = NoAverageConfig()
    train: TrainConfig = TrainConfig()
    tuning: dict[str, Range] = Field(
        default_factory=dict, description="key of the recipe -> the range `infolm tune` searches"
    )

    @model_validator(mode="after")
    def _averaging_begins(self) -> "Recipe":
        steps = self.train.max_steps
        if isinstance(self.averaging, TailConfig | SwaConfig) and steps is not None:
            start = self.averaging.start
            if start > steps:
                raise ValueError(
                    f"averaging.start is {start:,}, but training ends after step {steps:,}, so "
                    "averaging would never begin: lower it, or raise train.max_steps"
                )
        return self

    @model_validator(mode="after")
    def _training_loss_exists(self) -> "Recipe":
        by_training = getattr(self.averaging, "switch_on", "valid") == "train"
        if by_training and (self.model.kind, self.feed.kind) != ("recurrent", "stream"):
            raise ValueError(
                "averaging.switch_on train measures a running text, which needs model.kind "
                f"recurrent and feed.kind stream, not {self.model.kind} and {self.feed.kind}: set "
                "averaging.switch_on=valid"
            )
        return self

    @model_validator(mode="after")
    def _encoders_all_through(self) -> "Recipe":
        kind, encoder = self.objective.kind, isinstance(self.model, EncoderConfig)
        if kind not in ENCODING:
            contrastive = isinstance(
                self.feed, SequencesConfig | WindowsConfig | SentencePairsConfig
            )
            if encoder or contrastive:
                raise ValueError(
                    f"model.kind is {self.model.kind} and feed.kind {self.feed.kind}, but objective"
                    f".kind {kind} is not of an encoder: set that to one of {', '.join(ENCODING)}, "
                    "or model.kind and feed.kind to what it needs"
                )
            return self
        faults = []
        for key, allowed in {"model.kind": ("encoder",), **ENCODING[kind]}.items():
            section, name = key.split(".")
            found = getattr(getattr(self, section), name, None)
            # A section of the wrong kind lacks keys of the right one: its kind is fault enough.
            if found is not None and found not in allowed:
                faults.append(f"{key} to {' or '.join(allowed)} (it is {found})")
        length, most = getattr(self.feed, "length", 0), getattr(self.model, "length", None)
        if getattr(self.model, "checkpoint", None):
            most = None  # that of the checkpoint, when it is read
        if most is not None and length > most and not isinstance(self.feed, WindowsConfig):
            faults.append(f"feed.length to {most} at most, model.length (it is {length})")
        if faults:
            raise ValueError(f"objective.kind {kind} needs other settings: set {'; '.join(faults)}")
        return self

    @model_validator(mode="after")
    def _scores_exist(self) -> "Recipe":
        if isinstance(self.model, EncoderConfig):
            return self
        if isinstance(self.objective, NceConfig) and self.model.softmax.experts > 1:
            raise ValueError(
                "objective.kind is nce, which needs the scores of a single softmax, but model."
                f"softmax.experts is {self.model.softmax.experts}: set that to 1, or "
                "objective.kind to likelihood"
            )
        dropout = self.model.softmax.dropout if isinstance(self.model, RecurrentConfig) else 0
        if isinstance(self.objective, NceConfig) and dropout:
            raise ValueError(
                "objective.kind is nce, whose scores are of whole latent vectors, but model.softmax"
                ".dropout drops them: set that to 0, or objective.kind to likelihood"
            )
        return self

    @model_validator(mode="after")
    def _sentences_can_be_read(self) -> "Recipe":
        if self.regularisers.bmi and not isinstance(self.model, RecurrentConfig):
            raise ValueError(
                "regularisers.bmi is for language models that read a running text: set "
                "regularisers.bmi=null, or model.kind to recurrent"
            )
        if self.regularisers.bmi and isinstance(self.model, EncoderDecoderConfig):
            raise ValueError(
                "regularisers.bmi reads single sentences, which model.kind encoder-decoder cannot: "
                "set regularisers.bmi=null, or model.kind to recurrent"
            )
        return self

    @model_validator(mode="after")
    def _sentences_all_through(self) -> "Recipe":
        if self.objective.kind in ENCODING:
            return self
        latent = {
            "model.kind": isinstance(self.model, SentenceConfig | SymbolConfig),
            "feed.kind": isinstance(self.feed, SentencesConfig),
            "objective.kind": not isinstance(self.objective, LikelihoodConfig | NceConfig),
        }
        if len(set(latent.values())) > 1:
            here = ", ".join(
                f"{key} is {getattr(self, key.removesuffix('.kind')).kind}" for key in latent
            )
            raise ValueError(
                "a model with a latent code has model.kind sentence or symbol, feed.kind sentences "
                "and objective.kind mim, vae, ae, monte-carlo or vq, and no other has any of "
                f"these; here {here}"
            )
        return self

    @model_validator(mode="after")
    def _codes_fit(self) -> "Recipe":
        if not isinstance(self.model, SentenceConfig | SymbolConfig):
            return self
        latent, objective = self.model.latent, self.objective
        if isinstance(self.model, SymbolConfig) and not isinstance(
            objective, MonteCarloConfig | VqConfig
        ):
            raise ValueError(
                f"objective.kind {objective.kind} is for sentences, and model.kind is symbol: take "
                "monte-carlo or vq, or model.kind sentence"
            )
        if isinstance(objective, VqConfig) != isinstance(latent, QuantisedConfig):
            raise ValueError(
                "objective.kind vq goes with model.latent.kind quantised and with no other; here "
                f"objective.kind is {objective.kind} and model.latent.kind {latent.kind}"
            )
        if isinstance(objective, MimConfig | VaeConfig | AeConfig) and latent.kind != "gaussian":
            raise ValueError(
                f"objective.kind {objective.kind} needs Gaussian codes, and model.latent.kind is "
                f"{latent.kind}: take objective.kind monte-carlo, or model.latent.kind gaussian"
            )
        if (
            isinstance(objective, MonteCarloConfig)
            and objective.estimator in REPARAMETRISED
            and not isinstance(latent, GaussianConfig)
        ):
            raise ValueError(
                f"objective.estimator {objective.estimator} sends its gradient through the code, "
                f"which a {latent.kind} one does not let pass: take vimco, or with one sample "
                "reinforce"
            )
        return self

    def as_yaml(self) -> str:
        """Every value, resolved, in a form that can be read back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_recipe(
    source: str, overrides: Sequence[str] | None = None, variants: Sequence[str] = ()
) -> Recipe:
    """The recipe `source` (a name from the list, or a YAML file) with `key=value` overrides.

    variants: names of the recipe's own, applied in their order and before the overrides. Keys that
    the recipe of a run lacks have their `former_defaults`.
    """
    try:
        return _validated(source, *_changed(source, overrides or [], variants))
    except InfolmError as error:
        if not overrides and (Path(source).parent / "manifest.json").exists():
            repair = f"`infolm repair {Path(source).parent}` brings back the one that was written"
            raise InfolmError(f"{str(error).rstrip('.')}; {repair}") from error
        raise


def _changed(
    source: str, overrides: Sequence[str], variants: Sequence[str]
) -> tuple[dict[str, Any], bool]:
    """The tree of a recipe with its variants and overrides, and whether it is that of a run."""
    tree, run = RECIPES.tree(source), _of_a_run(source)
    corpus = _text(tree)
    changes = [change for name in variants for change in _variant(tree, source, name)]
    for override in [*changes, *overrides]:
        _apply(tree, override)
    elsewhere = _text(tree) != corpus or (run and _kept_expectations(tree))
    if changes or elsewhere:
        tree["expected"] = None  # that is of the recipe itself, on its own corpus
    titled = any(override.startswith("title=") for override in overrides)
    if (variants or elsewhere) and not titled:
        name = Path(source).parent.name if run else source
        title = name if elsewhere else str(tree.get("title") or name)
        of_variant = f", variant {' and '.join(variants)}" if variants else ""
        on_text = f" on {_text(tree)}" if elsewhere else ""
        tree["title"] = f"{title}{on_text}{of_variant}"
    return tree, run


def written_recipe(source: str, text: str) -> Recipe:
    """The recipe that infolm wrote to `source`, from its text."""
    return _validated(source, parse_yaml(text, source), of_a_run=True)


def _validated(source: str, tree: Any, of_a_run: bool) -> Recipe:
    try:
        return Recipe.model_validate(tree, context=OF_A_RUN if of_a_run else None)
    except ValidationError as error:
        raise InfolmError(f"{source}: {explain(error, tree)}") from None


def _variant(tree: dict[str, Any], source: str, name: str) -> list[str]:
    """The overrides of one of the recipe's variants."""
    variants = tree.get("variants") or {}
    if not isinstance(variants, dict) or not variants:
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
    """The text that the recipe reads, as a person names it."""
    data = tree.get("data")
    return str(data.get("path") or data.get("corpus")) if isinstance(data, dict) else ""


def _kept_expectations(tree: dict[str, Any]) -> bool:
    """Whether a run on one's own text has the title and the expected result of its recipe's corpus,
    as the older ones have."""
    data = tree.get("data")
    both = isinstance(data, dict) and data.get("path") and data.get("corpus")
    return bool(both and tree.get("expected"))


def _of_a_run(source: str) -> bool:
    path = Path(source)
    return path.name == "recipe.yaml" and (path.parent / "corpus.json").exists()


def recipe_names() -> list[str]:
    """The recipes that come with infolm, as paper/corpus."""
    return RECIPES.names()


def recipe_text(source: str) -> str:
    """The YAML of a recipe that comes with infolm, or of a file."""
    return RECIPES.text(source)


def _apply(tree: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator or not key:
        raise InfolmError(f"'{override}' is no override: write key=value, as in seed=2")
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        child = node.get(parent)
        if child is None:
            child = node[parent] = {}
        if not isinstance(child, dict):
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
    """Each fault of `tree`: its path, what is wrong, what is allowed, the nearest match."""
    return "; ".join(_explain_one(details, tree) for details in error.errors())


def _explain_one(details: ErrorDetails, tree: Any) -> str:
    keys = []
    for part in details["loc"]:
        # Pydantic puts the kind of a section into the path; it is no key of the recipe.
        if isinstance(tree, dict) and part in tree:
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
