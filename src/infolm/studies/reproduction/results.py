"""Results of a sweep: the points of each curve, and numbers that compare the curves."""

from collections.abc import Mapping
from typing import Any

from infolm.studies.reproduction.frontier import Position, frontier, nll_at
from infolm.studies.reproduction.plan import Plan

LEVELS = (0.25, 0.5, 0.75, 0.9)
"""Shares of the greatest information, at which curves are compared."""

Records = Mapping[str, Mapping[str, Any]]


def positions(plan: Plan, records: Records, curve: str, split: str) -> dict[str, Position]:
    """Of the curve's points that were measured, by name, in the unit of the figures."""
    per = f"per_{plan.reproduction.per}"
    found: dict[str, Position] = {}
    for point in plan.of_curve(curve):
        measured = records.get(point.name, {}).get("splits", {}).get(split)
        if measured:
            found[point.name] = Position(measured["information"][per], measured["nll"][per])
    return found


def optimum(plan: Plan) -> float | None:
    """The entropy of a line in nats, where all points are of one text whose entropy is known."""
    known = {point.optimum for point in plan.points.values()}
    return known.pop() if len(known) == 1 else None


def summary(plan: Plan, records: Records) -> dict[str, Any]:
    """For each split and curve: the points on its frontier, and the lowest nll at some levels of
    information, shares of the greatest that there can be, or that any curve has reached."""
    best = optimum(plan)
    tree: dict[str, Any] = {
        "unit": f"nats per {plan.reproduction.per}",
        "optimum": best,
        "levels": "the lowest NLL at so much information or more, a share of `greatest`; "
        "interpolated along the frontier; null: the curve does not reach it",
        "splits": {},
    }
    for split in plan.reproduction.splits:
        curves = {
            name: places
            for name in plan.reproduction.curves
            if (places := positions(plan, records, name, split))
        }
        reached = [each.information for places in curves.values() for each in places.values()]
        greatest = best if best is not None else max(reached, default=None)
        tree["splits"][split] = {
            "greatest": greatest,
            "curves": {
                name: _of_curve(plan, name, places, greatest) for name, places in curves.items()
            },
        }
    return tree


def _of_curve(
    plan: Plan, name: str, places: dict[str, Position], greatest: float | None
) -> dict[str, Any]:
    names, where = list(places), list(places.values())
    levels = {f"{level:.0%}": nll_at(where, level * (greatest or 0.0)) for level in LEVELS}
    return {
        "label": full_label(plan, name),
        "points": len(names),
        "frontier": [names[i] for i in frontier(where)],
        "nll": levels,
    }


def augmentation(plan: Plan, curve: str) -> str | None:
    """How the mutual information comes into a curve's objective; None: in no way."""
    objective = plan.of_curve(curve)[0].recipe.objective
    found = getattr(objective, "augment", "none")
    return None if found == "none" else str(found)


NAMES = {"kl": "KL", "renyi": "Rényi", "power": "power"}


def full_label(plan: Plan, curve: str) -> str:
    """The label, and the augmentation where another curve has the same label."""
    curves = plan.reproduction.curves
    label = curves[curve].label
    alone = sum(each.label == label for each in curves.values()) == 1
    found = augmentation(plan, curve)
    return label if alone or found is None else f"{label}, {NAMES[found]}"
