"""The picture has an axis for each hyperparameter and a line for each complete trial."""

import re

import optuna
from optuna.trial import TrialState, create_trial

from infolm.space import Between, Choices
from infolm.studies.tuning.parallel import draw, neighbours

SPACE = {
    "optimiser.learning_rate": Between(low=1e-3, high=4e-3, log=True),
    "model.mogrifier.rank": Between(low=-20, high=100, integer=True, clamp=0),
    "model.cell": Choices(choices=["lstm", "rewired"]),
}


def trial(rate, rank, cell, loss, state=TrialState.COMPLETE):
    return create_trial(
        state=state,
        values=[loss] if state == TrialState.COMPLETE else None,
        params={
            "optimiser.learning_rate": rate,
            "model.mogrifier.rank": rank,
            "model.cell": cell,
        },
        distributions={
            "optimiser.learning_rate": optuna.distributions.FloatDistribution(1e-3, 4e-3),
            "model.mogrifier.rank": optuna.distributions.IntDistribution(-20, 100),
            "model.cell": optuna.distributions.CategoricalDistribution(["lstm", "rewired"]),
        },
    )


def test_neighbours_differ_in_no_coordinate_by_more_than_half_the_box():
    points = [[0.5, 0.5], [0.57, 0.43], [0.5, 0.58], [0.5, 0.5], [0.0, 0.5]]
    assert neighbours(points, 0) == [0, 1, 3]


def test_axes_lines_and_labels(tmp_path):
    trials = [
        trial(1e-3, -20, "lstm", 4.5),
        trial(2e-3, 40, "rewired", 4.2),
        trial(4e-3, 100, "rewired", 9.0),
        trial(3e-3, 10, "lstm", 0, TrialState.FAIL),
    ]
    draw(SPACE, trials, tmp_path / "parallel.svg")
    svg = (tmp_path / "parallel.svg").read_text()
    assert set(re.findall(r'id="axis-([^"]+)"', svg)) == {*SPACE, "loss"}
    assert set(re.findall(r'id="trial-(\d+)"', svg)) == {"0", "1", "2"}
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    for label in ("0.001", "0.004", "-20", "100", "lstm", "rewired", "4.200", "66.7"):
        assert label in texts, texts
    assert (tmp_path / "parallel.png").read_bytes().startswith(b"\x89PNG")


def test_one_trial_is_enough(tmp_path):
    draw(SPACE, [trial(2e-3, 0, "lstm", 4.0)], tmp_path / "parallel.svg")
    assert 'id="trial-0"' in (tmp_path / "parallel.svg").read_text()
