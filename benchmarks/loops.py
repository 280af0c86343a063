"""Training loops for benchmarks: the steps of a recipe, without a run's folder, on noise."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from infolm.config import Recipe
from infolm.data.stream import Stream, StreamConfig
from infolm.models.base import Model
from infolm.objectives.likelihood import Likelihood, LikelihoodConfig
from infolm.optimisation.schedule import Schedule
from infolm.training.device import one_device
from infolm.training.loop import Loop, Nobody, Term, Validation
from infolm.training.run import RunFolder


def loop_of(recipe: Recipe, model: Any, terms: Sequence[Term], device: str = "cpu") -> Loop:
    """The recipe's training of `model`, which is never validated."""
    return Loop(
        one_device(device, recipe.train.precision),
        model,
        list(terms),
        recipe.optimiser.build(model.parameters()),
        Schedule(recipe.optimiser.schedule),
        recipe.averaging.build(model),
        lambda: Validation(0.0),
        recipe.train,
        recipe.optimiser.clip,
        RunFolder(Path()),
        Nobody(),
    )


def on_noise(recipe: Recipe, vocabulary: int, device: str = "cpu") -> tuple[Loop, Model]:
    """The recipe's training of a language model, by the likelihood of random tokens."""
    assert isinstance(recipe.feed, StreamConfig)
    assert isinstance(recipe.objective, LikelihoodConfig)
    feed = recipe.feed
    text = np.random.default_rng(0).integers(0, vocabulary, 100 * feed.batch * feed.bptt)
    term = Term("likelihood", Stream(text, feed, 0), Likelihood(recipe.objective))
    model = recipe.model.build(vocabulary).to(device)
    return loop_of(recipe, model, [term], device), model
