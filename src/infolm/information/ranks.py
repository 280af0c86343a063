"""Columns as normal scores by rank, which are invariant under monotone maps.

    average    equal values have one score, that of their mean rank
    random     equal values are put in random order
    uniform    the same, as random numbers from 0 to 1: hard edges stay hard

With U the random scores of X, X is a function of U, and U given X is noise of its own. Hence
I(U; V) = I(X; Y) exactly, whatever X and Y are: continuous, rounded, counts, classes, or partly
each. So an estimator for densities can read any column.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import rankdata

from infolm.information.estimate import Array

Rows = npt.NDArray[Any]


def average_scores(x: Rows) -> Array:
    """The normal quantile of (rank - 1/2) / N of every value, ties by their mean rank: (N, D)."""
    return ndtri((rankdata(x, axis=0) - 0.5) / len(x))


def random_scores(x: Rows, rng: np.random.Generator) -> Array:
    """The same with ties in random order: every column is the normal quantiles, permuted."""
    samples = len(x)
    scores = ndtri((np.arange(samples) + 0.5) / samples)
    found = np.empty(x.shape)
    for values, out in zip(x.T, found.T, strict=True):
        out[np.lexsort((rng.random(samples), values))] = scores
    return found


def random_uniforms(x: Rows, rng: np.random.Generator) -> Array:
    """Random numbers from 0 to 1 in the order of each column, ties in random order: (N, D)."""
    samples = len(x)
    found = np.empty(x.shape)
    for values, out in zip(x.T, found.T, strict=True):
        out[np.lexsort((rng.random(samples), values))] = np.sort(rng.random(samples))
    return found
