"""What is true of every objective and regulariser in the registries: a new kind is tested here by
being registered."""

import copy
import math
import shlex
from functools import cache

import pytest
import torch
from small_recipes import small

from infolm.config import Recipe, load_recipe, recipe_names
from infolm.data.corpora import load
from infolm.errors import InfolmError
from infolm.families.base import build_terms
from infolm.metrics import known
from infolm.objectives.base import OBJECTIVES, REGULARISERS, Learner, Stateful
from infolm.training import checkpoint
from infolm.training.loop import tensors

KINDS = [*(f"objective {kind}" for kind in OBJECTIVES), *(f"regulariser {r}" for r in REGULARISERS)]


@cache
def shown(kind: str) -> tuple[str, list[str]]:
    """A recipe that comes with infolm and has this objective or regulariser, and changes to it.

    It is the recipe's own, or one of its variants', or brought along on the command line.
    """
    what, name = kind.split()
    recipes = {recipe: load_recipe(recipe) for recipe in recipe_names()}

    def has(recipe: Recipe) -> bool:
        if what == "objective":
            return recipe.objective.kind == name
        return name in recipe.regularisers.chosen()

    for recipe, loaded in recipes.items():
        if has(loaded) and loaded.start_from is None:
            return recipe, []
    for recipe, loaded in recipes.items():
        for variant in loaded.variants.values():
            if has(load_recipe(recipe, shlex.split(variant))):
                return recipe, shlex.split(variant)
    for recipe in recipes:
        try:
            load_recipe(recipe, [f"objective.kind={name}"])
        except InfolmError:
            continue
        return recipe, [f"objective.kind={name}"]
    raise AssertionError(f"no recipe shows {kind}")


@pytest.fixture(params=KINDS)
def make(request, small_text):
    """Builds the model and the term, the same every time."""
    name, changes = shown(request.param)
    sizes = small(load_recipe(name, changes), "", small_text)
    recipe = load_recipe(name, [*changes, *sizes, "feed.batch=4"])
    corpus = load(recipe.data)

    def build():
        torch.manual_seed(1)
        model = recipe.model.build(len(corpus.tokenizer), corpus.tokenizer)
        terms = build_terms(recipe, corpus, model)
        return model.train(), terms[request.param.startswith("regulariser")]

    build.capability = recipe.model.capability
    return build


def step(model, term, seed=1):
    """The estimate of the next batch, and the gradient of its loss."""
    torch.manual_seed(seed)
    model.zero_grad()
    estimate = term.objective(
        model, tensors(term.feed.next(), torch.device("cpu")), term.carries.get(0)
    )
    term.carries[0] = estimate.carry
    estimate.loss.backward()
    return estimate


def test_an_estimate_is_finite_and_its_terms_have_names_and_no_gradient(make):
    model, term = make()
    names = None
    for _ in range(2):
        estimate = step(model, term)
        assert estimate.loss.shape == ()
        assert torch.isfinite(estimate.loss)
        assert estimate.count > 0
        assert estimate.terms
        for name, value in estimate.terms.items():
            assert math.isfinite(value), name
            assert not getattr(value, "requires_grad", False), name
            assert known(f"{term.name}/{name}", make.capability), f"{name} is not described"
        assert set(estimate.per) <= set(estimate.terms)
        assert names in (None, set(estimate.terms))
        names = set(estimate.terms)


def test_the_main_term_has_a_negative_log_likelihood(make):
    model, term = make()
    if term.name in OBJECTIVES:
        assert "nll" in step(model, term).terms


def test_the_gradient_reaches_the_model_and_is_finite(make):
    model, term = make()
    step(model, term)
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())
    # A critic learns first, beside a model that it leaves alone.
    assert any(gradient.any() for gradient in gradients.values()) or isinstance(
        term.objective, Learner
    )


def test_it_is_a_function_of_model_batch_and_seed(make):
    first, second = (step(*make()) for _ in range(2))
    assert torch.equal(first.loss, second.loss)
    assert first.terms.keys() == second.terms.keys()


def test_saved_and_restored_it_goes_on_alike(make, tmp_path):
    """Its own state, its feed's and the carry, through a file, as a checkpoint has them."""
    model, term = make()
    for _ in range(2):
        estimate = step(model, term)
        if isinstance(term.objective, Learner):
            term.objective.step()
    if isinstance(term.objective, Stateful):
        terms = {name: float(value) for name, value in estimate.terms.items()}
        term.objective.validated(["switched"], 0.5, {"information": 1.0, **terms})
    own = term.objective.state_dict() if isinstance(term.objective, Stateful) else {}
    state = {"own": own, "feed": term.feed.state_dict(), "carry": term.carries[0]}
    checkpoint.save(tmp_path / "state.safetensors", state)
    read = checkpoint.load(tmp_path / "state.safetensors")
    _, other = make()
    if isinstance(other.objective, Stateful):
        other.objective.load_state_dict(read["own"])
    other.feed.load_state_dict(read["feed"])
    other.carries[0] = read["carry"]
    twin = copy.deepcopy(model)  # one that learns while it reads, as a codebook does
    for seed in (1, 2):
        assert torch.equal(step(model, term, seed).loss, step(twin, other, seed).loss)


def test_a_learner_moves_its_own_weights_and_can_forget_a_gradient(make):
    model, term = make()
    if not isinstance(term.objective, Learner):
        return

    def weights():
        found = {}
        checkpoint._flatten(term.objective.state_dict(), "", found)
        return {name: weight.clone() for name, weight in found.items()}

    step(model, term)
    before = weights()
    term.objective.discard()
    step(model, term)
    term.objective.step()
    after = weights()
    assert any(not torch.equal(before[n], after[n]) for n in before.keys() & after.keys())
    assert all(math.isfinite(v) for v in term.objective.held_out(model.eval()).values())


@pytest.mark.parametrize("config", [*OBJECTIVES.values(), *REGULARISERS.values()])
def test_it_says_what_it_is_and_what_its_keys_mean(config):
    assert config.__doc__
    fields = {name: field for name, field in config.model_fields.items() if name != "kind"}
    assert not [name for name, field in fields.items() if not (field.description or _nested(field))]


def _nested(field) -> bool:
    """Whether it is a section of its own, whose keys say what they are."""
    return hasattr(field.annotation, "model_fields") or field.default_factory is not None
