"""What tables measure, on folders made by hand and on tiny runs."""

import json
import math

import pytest
from encoder_runs import recipe
from encoder_tiny import sst2_folder
from training_tiny import Silent, quiet

from infolm.errors import InfolmError
from infolm.evaluation.measurement import Measurement
from infolm.families.train import train
from infolm.finetuning import search
from infolm.finetuning.networks import open_encoder
from infolm.finetuning.problems import Options, read_problem
from infolm.studies.tables.measures.evaluate import EvaluatedConfig, pick
from infolm.studies.tables.measures.finetune import FinetuneConfig
from infolm.studies.tables.measures.history import HistoryConfig


def silent(stage):
    pass


def test_the_history_at_moments(tmp_path):
    losses = {10: 5.0, 20: 4.0, 30: 4.5, 40: 4.25}
    lines = [{"kind": "step", "step": 5}]
    lines += [{"kind": "validation", "step": step, "loss": loss} for step, loss in losses.items()]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    shares = {"half": 0.5, "before": 0.74, "end": 1, "best": None}
    figures = {name: {"label": name, "share": share} for name, share in shares.items()}
    found = HistoryConfig.model_validate({"figures": figures}).measure([tmp_path], silent)
    assert found == {"half": 4.0, "before": 4.0, "end": 4.25, "best": 4.0}
    early = HistoryConfig.model_validate({"figures": {"a": {"label": "a", "share": 0.1}}})
    with pytest.raises(InfolmError, match="not validated up to step 4"):
        early.measure([tmp_path], silent)


def test_a_measurement_is_picked_by_metric_split_and_method(tmp_path):
    def made(value, method, split="test"):
        return Measurement("perplexity", value, "", None, 1, split, method, "")

    several = [made(9, "static", "valid"), made(1, "static, one stream"), made(2, "cache, x")]
    assert pick(several, EvaluatedConfig(label="a", method="cache*"), tmp_path) == 2
    assert pick(several, EvaluatedConfig(label="a"), tmp_path) == 1
    assert pick(several, EvaluatedConfig(label="a", metric="kl", optional=True), tmp_path) is None
    with pytest.raises(InfolmError, match="nothing measured is kl on test"):
        pick(several, EvaluatedConfig(label="a", metric="kl"), tmp_path)


def test_fine_tuning_is_that_of_the_command(tmp_path, monkeypatch):
    """The mean of the chosen rate on the half that is reported, as `search` has it."""
    monkeypatch.setenv("INFOLM_DATA", str(tmp_path))
    data = sst2_folder(tmp_path / "sst2")
    text = tmp_path / "text.txt"
    text.write_text("the cat is good . the dog is bad .\n" * 60)
    run = tmp_path / "run"
    train(recipe(text, "mlm"), run, False, Silent(), quiet)
    tree = {"task": "sst2", "folder": "sst2", "rates": [0.01, 0.001], "epochs": 1, "seeds": 2}
    figures = {"half": {"label": "half", "share": 0.5}}
    found = FinetuneConfig.model_validate({**tree, "figures": figures}).measure([run], silent)
    encoder = open_encoder(run)
    problem = read_problem("sst2", data, encoder, Options(share=0.5))
    tried = search.grid([0.01, 0.001], [16], 1, 2)
    with search.resumable(tmp_path / "again", problem, encoder) as state:
        alone = search.search(problem, encoder, tried, lambda share, text: None, state)
    rate = alone.trials[alone.chosen].settings.learning_rate
    trials = [each for each in alone.trials if each.settings.learning_rate == rate]
    scores = [next(iter(each.epochs[each.best].dev.values())) for each in trials]
    mean = sum(each["accuracy"] for each in scores) / 2
    assert math.isclose(found["half"], mean)
