"""What a search tells of itself: the best so far, and which key decides."""

import math

import matplotlib
import optuna
import pytest
from optuna.trial import TrialState

from infolm.config import load_recipe, recipe_names
from infolm.reports.curves import STYLE
from infolm.space import Between
from infolm.studies.tuning import parallel
from infolm.studies.tuning.history import ENOUGH, Tried, draw, history, importance, improvements
from infolm.studies.tuning.study import check_space


@pytest.fixture(scope="module")
def searched():
    """The loss depends on the rate alone."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def loss(trial):
        trial.suggest_float("dropout", 0, 1)
        rate = trial.suggest_float("rate", 1e-3, 1, log=True)
        return 4 + math.log(rate / 0.03) ** 2

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(loss, n_trials=60)
    return study


def first(study, count):
    part = optuna.create_study()
    part.add_trials(study.trials[:count])
    return part


def test_the_key_that_decides_has_the_greater_share(searched):
    shares = importance(searched)
    assert list(shares) == ["rate", "dropout"]
    assert shares["rate"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)


def test_too_few_complete_trials_have_no_importance(searched):
    assert importance(first(searched, ENOUGH - 1)) == {}
    assert set(importance(first(searched, ENOUGH))) == {"rate", "dropout"}


def test_history_of_the_complete_trials():
    def trial(state, loss=None):
        return optuna.trial.create_trial(state=state, value=loss)

    done = TrialState.COMPLETE
    study = optuna.create_study()
    study.add_trials([trial(done, 5.0), trial(TrialState.FAIL), trial(done, 6.0), trial(done, 4.0)])
    tried = history(study.trials)
    assert tried == [Tried(0, 5.0, 5.0), Tried(2, 6.0, 5.0), Tried(3, 4.0, 4.0)]
    assert improvements(tried) == [tried[0], tried[2]]
    assert history([]) == []


def test_the_picture(searched, tmp_path):
    tried = history(searched.trials)
    draw(tried, importance(searched), tmp_path / "history.svg")
    drawn = (tmp_path / "history.svg").read_text()
    assert all(text in drawn for text in ('id="best"', "best so far", "importance", ">rate<"))
    assert (tmp_path / "history.png").read_bytes().startswith(b"\x89PNG")
    draw(tried[:1], {}, tmp_path / "one.svg")
    assert "importance" not in (tmp_path / "one.svg").read_text()


def test_the_legend_of_one_parameter_is_whole(searched):
    space = {"rate": Between(low=1e-3, high=1, log=True)}
    with matplotlib.rc_context(STYLE):
        figure = parallel.picture(space, searched.trials)
        figure.canvas.draw()
        legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.endswith("/demo")])
def test_the_demo_recipes_have_ranges_around_their_values(name):
    recipe = load_recipe(name)
    check_space(recipe)
    for variant in recipe.variants:
        check_space(load_recipe(name, variants=[variant]))
    for key, section in recipe.tuning.items():
        value = recipe
        for part in key.split("."):
            value = getattr(value, part)
        assert section.low <= value <= section.high, key
