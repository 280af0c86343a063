"""What tables measure, on folders made by hand and on tiny runs."""

import json
import math

import pytest
from encoder_runs import recipe
from encoder_tiny import sst2_folder
from training_tiny import Silent, quiet

from infolm.config import load_recipe
from infolm.data.answers import read_questions
from infolm.data.questions import parts as divide
from infolm.errors import InfolmError
from infolm.evaluation.measurement import Measurement
from infolm.evaluation.ranking import rank
from infolm.families.base import open_run
from infolm.families.train import train
from infolm.finetuning import search
from infolm.finetuning.networks import open_encoder
from infolm.finetuning.problems import Options, read_problem
from infolm.studies.tables.measures.evaluate import EvaluatedConfig, pick
from infolm.studies.tables.measures.finetune import FinetuneConfig
from infolm.studies.tables.measures.history import HistoryConfig
from infolm.studies.tables.measures.rank import RankConfig
from infolm.studies.tables.measures.tails import TailsConfig


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


def test_the_lengths_of_tails(tmp_path):
    """Peaks 2, 4, 4, 3: of 6 pairs 3 rise, 1 is equal. Valleys 1, 2, 3, 1: the same."""
    names = {"peaks", "valleys", "falls", "raw-falls", "switches"}
    figures = {name: {"label": name, "of": name} for name in names}
    measure = TailsConfig.model_validate({"figures": figures}).measure
    # step: (loss, raw, length of the short mean, of the long one, whether it is a switch)
    history = {
        1: (5.0, 5.0, 1, 2, True),
        2: (4.5, 5.5, 1, 2, False),
        3: (4.25, 4.75, 2, 4, True),
        4: (4.125, 5.0, 3, 4, True),
        5: (4.25, 4.75, 1, 3, True),
    }
    lines = []
    for step, (loss, raw, short, long, switched) in history.items():
        lengths = {"short_length": short, "long_length": long}
        lines += [{"kind": "validation", "step": step, "loss": loss, "raw": raw, **lengths}]
        lines += [{"kind": "event", "step": step, "name": "switched" if switched else "emptied"}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert measure([tmp_path], silent) == {
        "peaks": 3.5 / 6,
        "valleys": 3.5 / 6,
        "falls": 3 / 4,
        "raw-falls": 2 / 4,
        "switches": 4,
    }
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines[:4])) + "\n")
    with pytest.raises(InfolmError, match="switched less than twice"):
        measure([tmp_path], silent)


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


def test_answers_are_ranked_in_each_part(tmp_path, monkeypatch):
    """Chance is exact, and all methods are those of `infolm evaluate --rank` on the part alone."""
    monkeypatch.setenv("INFOLM_DATA", str(tmp_path))
    monkeypatch.setenv("INFOLM_CACHE", str(tmp_path / "cache"))
    places = ["north", "south", "east", "west"]
    context = " ".join(f"The {place} is cold." for place in places)

    def entry(number):
        place = places[number % 4]
        start = context.index(place)
        answer = {"text": place, "answer_start": start}
        return {"question": f"Which of {number} is cold?", "answers": [answer]}

    paragraphs = [{"context": context, "qas": [entry(number) for number in range(30)]}]
    path = tmp_path / "xquad" / "xquad.en.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    sizes = "model.embedding=4 model.latent.size=3 model.encoder.hidden=5 model.decoder.hidden=5"
    small = load_recipe("sentence-mim/xquad-small", [*sizes.split(), "train.max_steps=2"])
    run = tmp_path / "run"
    train(small, run, False, Silent(), quiet)
    parts = {"seen": "seen", "chosen": "chosen", "unseen": "unseen"}
    figures = {name: {"label": name, "part": part} for name, part in parts.items()}
    figures["chance"] = {"label": "chance", "part": "unseen", "method": "chance"}
    measure = RankConfig.model_validate({"figures": figures})
    measure.check(small)
    found = measure.measure([run], silent)
    assert math.isclose(found["chance"], (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    questions, _ = read_questions(path)
    opened = open_run(run)
    for part, asked in divide(questions).items():
        alone = rank(opened.model, opened.tokenizer, asked)
        assert math.isclose(found[part], alone.reciprocal.mean())
    with pytest.raises(InfolmError, match=r"set data\.corpus=xquad"):
        measure.check(load_recipe("sentence-mim/ptb-small"))
