"""Every estimator of arrays by its name.

    estimator("ksg", neighbours=5).estimate(x, y)

A class is imported when its name is used, so only the neural ones need torch.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pkgutil import resolve_name
from typing import Any

from infolm.errors import InfolmError
from infolm.information.estimate import Estimator, Side

RECOMMENDED = "mine"

_NEURAL = "neural:Neural"
_KSG = "nearest:KSG"
_GAUSSIAN = "gaussian:Gaussian"


@dataclass(frozen=True)
class Entry:
    """The description of an estimator, without importing it.

    side: of the truth, for a bound. about, use: a line each. made_by: module and class, a
    dataclass whose fields are the settings. fixed: the settings that make it this estimator.
    categories: whether columns may be codes of words, whose order means nothing.
    """

    side: Side | None
    about: str
    use: str
    made_by: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    categories: bool = False

    def load(self) -> type[Any]:
        found: type[Any] = resolve_name(f"infolm.information.{self.made_by}")
        return found

    @property
    def settings(self) -> list[str]:
        """What may be set: `folds`, `seed` ..."""
        return [each.name for each in fields(self.load()) if each.name not in self.fixed]

    @property
    def neural(self) -> bool:
        return self.made_by == _NEURAL


def _neural(bound: str, side: Side | None, about: str, use: str) -> Entry:
    return Entry(side, about, use, _NEURAL, {"bound": bound})


_FEW_COLUMNS = "continuous data of few columns"
_COUNTS = "discrete data with many pairs a cell"

ESTIMATORS: dict[str, Entry] = {
    "mine": _neural(
        "mine", "lower", "Donsker-Varadhan with MINE's gradient", "the one to start with"
    ),
    "nwj": _neural("nwj", "lower", "Nguyen, Wainwright and Jordan", "to compare: no log of a mean"),
    "js": _neural(
        "js", "lower", "Jensen-Shannon proxy, read by NWJ", "to compare: steady training"
    ),
    "js-dv": _neural(
        "js-dv", "lower", "Jensen-Shannon proxy, read by Donsker-Varadhan", "text, as BMI does"
    ),
    "infonce": _neural(
        "infonce", "lower", "contrastive, at most ln of the pairs", "small values: little spread"
    ),
    "interpolated": _neural(
        "interpolated", "lower", "between NWJ and InfoNCE", "values above InfoNCE's ceiling"
    ),
    "smile": _neural(
        "smile", None, "Donsker-Varadhan with clipped ratios", "large values; bounds nothing"
    ),
    "club": _neural(
        "club", "upper", "contrastive log-ratio of a conditional Gaussian", "a bound from above"
    ),
    "ksg": Entry(
        None, "nearest neighbours, Kraskov et al. (8)", _FEW_COLUMNS, _KSG, {"variant": 1}
    ),
    "ksg2": Entry(
        None, "nearest neighbours, Kraskov et al. (9)", _FEW_COLUMNS, _KSG, {"variant": 2}
    ),
    "mixture": Entry(
        None,
        "nearest neighbours with ties, after Gao et al.",
        "discrete beside continuous data",
        "nearest:Mixture",
        categories=True,
    ),
    "gaussian": Entry(
        None, "canonical correlations", "jointly Gaussian data", _GAUSSIAN, {"copula": False}
    ),
    "copula": Entry(
        None,
        "canonical correlations of normal scores",
        "monotone dependence, any margins",
        _GAUSSIAN,
        {"copula": True},
    ),
    "plug-in": Entry(
        None, "frequencies as probabilities", _COUNTS, "discrete:PlugIn", categories=True
    ),
    "miller-madow": Entry(
        None,
        "plug-in less its bias to first order",
        _COUNTS,
        "discrete:MillerMadow",
        categories=True,
    ),
}


def entry(name: str) -> Entry:
    """The entry of a name, or a sentence with the nearest one."""
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    match = difflib.get_close_matches(name.lower(), ESTIMATORS, n=1, cutoff=0.5)
    hint = f", did you mean '{match[0]}'?" if match else ""
    raise InfolmError(f"there is no estimator '{name}'{hint} (there are {', '.join(ESTIMATORS)})")


def estimator(name: str, **settings: Any) -> Estimator:
    """The estimator of that name, with self-checks; the settings are those of its class."""
    from infolm.information.checks import Checked

    found = entry(name)
    for setting in settings:
        if setting not in found.settings:
            raise InfolmError(
                f"{name} has no setting '{setting}': it takes {', '.join(found.settings)}"
            )
    return Checked(found.load()(**found.fixed, **settings), settings.get("seed", 0))


def side(bound: Side | None) -> str:
    """As a person reads it: 'lower bound', 'upper bound' or 'estimate'."""
    return f"{bound} bound" if bound else "estimate"


def describe() -> list[tuple[str, str, str, str]]:
    """A line for each estimator: its name, what it is, its side of the truth, when to use it."""
    return [(name, e.about, side(e.side), e.use) for name, e in ESTIMATORS.items()]
