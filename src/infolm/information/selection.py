"""Feature selection by mutual information with a target, for scikit-learn.

    selector = InformationSelector().fit(X, y)
    selector.scores_, selector.pvalues_             # nats of each column, and its p-value
    make_pipeline(InformationSelector(), LogisticRegression())
    SelectKBest(information_scores, k=10)           # by the values alone

Each column of X is compared with y by the panel without its critic, so a column's score is
invariant under monotone maps, and classes, counts and rounded columns need no other function.
Information that only several columns carry together is not found.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infolm.errors import InfolmError
from infolm.information.estimate import Array
from infolm.information.evidence import LEAST
from infolm.information.matrix import corrected
from infolm.information.panel import PERMUTATIONS, Panel

try:
    from sklearn.base import BaseEstimator
    from sklearn.feature_selection import SelectorMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise InfolmError(
        "selecting columns needs scikit-learn 1.6 or newer: pip install 'infolm[sklearn]'"
    ) from None

if TYPE_CHECKING:
    from sklearn.utils import Tags


def information_scores(
    X: Any,
    y: Any,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> tuple[Array, Array]:
    """I(X_d; y) of every column in nats, and p-values of independence: (D,) each.

    X: (N, D). y: (N,) or (N, E), numbers or classes. A constant shares nothing: 0 and p = 1.
    """
    columns, target = np.asarray(X), np.asarray(y)
    target = target[:, None] if target.ndim == 1 else target
    if target.dtype.kind not in "biuf":
        codes = [np.unique(each.astype(str), return_inverse=True)[1] for each in target.T]
        target = np.stack(codes, axis=1)
    target = target[:, (target != target[0]).any(0)]
    scores, p_values = np.zeros(columns.shape[1]), np.ones(columns.shape[1])
    panel = Panel(fast=True, permutations=permutations, seed=seed)
    for at in np.flatnonzero((columns != columns[0]).any(0)) if target.shape[1] else ():
        answer = panel.estimate(columns[:, at], target)
        scores[at], p_values[at] = answer.value, answer.p_value
    return scores, p_values


class InformationSelector(SelectorMixin, BaseEstimator):
    """Keeps the columns that share information with y.

    alpha: largest p-value, corrected for the number of columns, of those that are kept: the
    expected share of false ones among them (Benjamini and Hochberg, 1995). After `fit`:
    scores_ (D,) in nats, pvalues_ (D,) as found, corrected_ (D,).
    """

    def __init__(
        self, *, alpha: float = 0.05, permutations: int = PERMUTATIONS, seed: int = 0
    ) -> None:
        self.alpha = alpha
        self.permutations = permutations
        self.seed = seed

    def fit(self, X: Any, y: Any) -> "InformationSelector":
        X, y = validate_data(self, X, y, multi_output=True, ensure_min_samples=LEAST)
        self.scores_, self.pvalues_ = information_scores(
            X, y, permutations=self.permutations, seed=self.seed
        )
        self.corrected_ = corrected(self.pvalues_)
        return self

    def _get_support_mask(self) -> npt.NDArray[np.bool_]:
        check_is_fitted(self)
        kept: npt.NDArray[np.bool_] = self.corrected_ <= self.alpha
        return kept

    def __sklearn_tags__(self) -> "Tags":
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags
