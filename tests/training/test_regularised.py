"""A run with a regulariser: two phases, a critic that is kept, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from training_tiny import Silent, quiet, tiny_tree

from infolm.config import Recipe
from infolm.data.corpora import load
from infolm.data.pairs import HeldOutPairs
from infolm.errors import InfolmError
from infolm.families.base import build_terms
from infolm.families.running.run import LanguageRun
from infolm.families.train import train
from infolm.models.recurrent import RecurrentModel
from infolm.training import checkpoint


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    """Lines that share their words with their neighbours."""
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(24)]
    lines = []
    for i in range(300):
        topic = 6 * (i // 15 % 4)
        lines.append(" ".join(rng.choice(words[topic : topic + 6], rng.integers(1, 9))))
    path = tmp_path / "topics.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def recipe(text: Path, bmi: dict | None, steps: int = 20, **sections) -> Recipe:
    tree = tiny_tree(text, max_steps=steps) | {"regularisers": {"bmi": bmi}}
    for section, values in sections.items():
        tree[section] = tree[section] | values if isinstance(values, dict) else values
    return Recipe.model_validate(tree)


def run(wanted: Recipe, out: Path, resume: bool = False) -> Silent:
    watcher = Silent()
    train(wanted, out, resume, watcher, quiet)
    return watcher


def records(out: Path, kind: str) -> list[dict]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def weights(out: Path, file: str) -> dict:
    return checkpoint.load(out / file)


def last_checkpoint(out: Path) -> dict:
    return checkpoint.load(checkpoint.checkpoints(out / "checkpoints")[-1])


def same(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


BMI = {"weight": 0.5, "batch": 6}


def test_phase_two_that_has_not_begun_is_phase_one_to_the_bit(tmp_path, topics):
    never = {"averaging": {"kind": "none"}}
    for name, bmi in {
        "base": BMI | {"phase_two": False},
        "waiting": BMI | {"phase_two": True, "switch": 1, "geometric": 0.6, "temperature": 3.0},
    }.items():
        tree = recipe(topics, bmi).model_dump(mode="json") | never
        run(Recipe.model_validate(tree), tmp_path / name)
    base, waiting = (last_checkpoint(tmp_path / name) for name in ("base", "waiting"))
    for part in ("model", "learners", "random", "losses"):
        assert same(base[part], waiting[part]), part


def test_phase_two_begins_with_averaging_and_is_logged(tmp_path, topics):
    run(recipe(topics, BMI | {"switch": 1}), tmp_path / "run")
    events = [(record["step"], record["name"]) for record in records(tmp_path / "run", "event")]
    assert [name for _, name in events] == ["triggered", "phase two"]
    assert events[0][0] == events[1][0]
    for record in records(tmp_path / "run", "step"):
        assert 0 <= record["bmi/accuracy"] <= 1
        assert record["bmi/jensen_shannon"] < 0
        assert ("bmi/raml" in record) == (record["step"] > events[0][0])
        if "bmi/raml" in record:
            assert 0 < record["bmi/effective"] <= 1


def test_each_validation_reads_the_critic_on_its_split(tmp_path, topics):
    wanted = recipe(topics, BMI | {"switch": 1, "batch": 3})
    run(wanted, tmp_path / "run")
    found = records(tmp_path / "run", "validation")
    assert len(found) > 1
    quantities = ("jensen_shannon", "accuracy", "mine")
    for record in found:
        assert record["bmi/pairs"] > 0
        assert all(record[f"bmi/{name}_stderr"] >= 0 for name in quantities)
    # The weights that were kept say the same again.
    opened = LanguageRun.open(tmp_path / "run")
    best = min(found, key=lambda record: record["loss"])
    pairs = wanted.regularisers.bmi.held_out(opened.corpus, "valid")
    again = opened.bmi().read(opened.model, pairs)
    for name in quantities:
        assert again[name].value == pytest.approx(best[f"bmi/{name}"], rel=1e-4, abs=1e-5)
    results = opened.evaluate(chunk=20).measurements
    (accuracy,) = (m for m in results if (m.metric, m.split) == ("critic_accuracy", "valid"))
    assert accuracy.value == again["accuracy"].value
    assert accuracy.stderr == again["accuracy"].stderr
    assert accuracy.method.startswith(f"critic of BMI, {pairs.pairs} pairs of neighbours, 2 random")
    of_critic = [m.metric for m in results if m.split == "test" and "critic" in m.metric]
    assert of_critic == ["critic_accuracy", "critic_jensen_shannon", "critic_mine"]


def test_reading_the_critic_changes_nothing_of_the_training(tmp_path, topics, monkeypatch):
    wanted = recipe(topics, BMI | {"switch": 0.5, "critic": {"dropout": 0.3}})
    run(wanted, tmp_path / "read")
    monkeypatch.setattr(HeldOutPairs, "draw", lambda *_: None)
    run(wanted, tmp_path / "not")
    assert "bmi/pairs" not in records(tmp_path / "not", "validation")[0]
    one, two = (last_checkpoint(tmp_path / name) for name in ("read", "not"))
    for part in ("model", "learners", "random", "losses"):
        assert same(one[part], two[part]), part


def test_the_regulariser_weighs_what_the_recipe_says(topics):
    wanted = recipe(topics, BMI | {"weight": 0.25})
    corpus = load(wanted.data)
    model = RecurrentModel(wanted.model, len(corpus.tokenizer))
    main, bmi = build_terms(wanted, corpus, model)
    assert (main.name, main.weight, bmi.name, bmi.weight) == ("likelihood", 1, "bmi", 0.25)


def test_a_record_that_spans_the_switch_averages_over_what_there_was(tmp_path, topics):
    # The switch comes with the validation after step 10, a record with every third step: the one
    # after step 12 has two steps of phase two. Stretches of one length all cost about ln 26.
    frozen = {"optimiser": {"learning_rate": 1e-30}, "model": {"weight_drop": 0, "dropout": {}}}
    constant = BMI | {"switch": 0.5, "critic": {"learning_rate": 1e-30}, "segment": 4}
    run(recipe(topics, constant, 20, **frozen), tmp_path / "run")
    values = [r["bmi/raml"] for r in records(tmp_path / "run", "step") if "bmi/raml" in r]
    assert len(values) == 3
    assert values[0] == pytest.approx(values[1], rel=0.1)


@pytest.mark.parametrize(
    "model",
    [
        {"mogrifier": {"rounds": 2}},
        {"cell": "rewired"},
        {"cell": "gru", "connections": "residual"},
        {"softmax": {"experts": 3}, "last_hidden": 10},
    ],
    ids=["mogrifier", "rewired", "gru", "mixture"],
)
@pytest.mark.parametrize("averaging", ["two-tailed", "none"])
def test_one_line_regularises_every_model(tmp_path, topics, model, averaging):
    tree = recipe(topics, {"weight": 0.1}, 10, model=model).model_dump(mode="json")
    tree["averaging"] = {"kind": averaging}
    run(Recipe.model_validate(tree), tmp_path / "run")
    assert [record["name"] for record in records(tmp_path / "run", "event")][-1] == "phase two"


def test_the_critic_learns_and_moves_no_more_than_the_seed_says(tmp_path, topics):
    for name in ("one", "two"):
        run(recipe(topics, BMI, 6), tmp_path / name)
    one, two = (last_checkpoint(tmp_path / name)["learners"]["bmi"] for name in ("one", "two"))
    assert same(one, two)
    assert one["critic"]["rest.1.weight"].abs().max() > 0  # it began at 0


def test_fine_tuning_keeps_the_critic_its_optimiser_and_its_phase(tmp_path, topics):
    run(recipe(topics, BMI | {"switch": 0}, 10), tmp_path / "first")
    kept = weights(tmp_path / "first", "bmi.safetensors")
    tuned = recipe(topics, BMI | {"switch": 1}, 1, start_from=str(tmp_path / "first"))
    watcher = run(tuned, tmp_path / "second")
    assert "with the bmi trained there" in watcher.said[0]
    after = last_checkpoint(tmp_path / "second")["learners"]["bmi"]
    assert after["phase_two"]
    assert not any(r["name"] == "phase two" for r in records(tmp_path / "second", "event"))
    steps = [slot["step"].item() for slot in after["optimiser"]["state"].values()]
    before = [slot["step"].item() for slot in kept["optimiser"]["state"].values()]
    assert steps == [step + 1 for step in before]
    # One step of Adam moves a weight by no more than about the rate.
    for name, tensor in after["critic"].items():
        assert (tensor - kept["critic"][name]).abs().max() < 1e-3


def test_a_run_from_before_there_were_regularisers_can_be_resumed(tmp_path, topics):
    run(recipe(topics, None, 4), tmp_path / "run")
    path = tmp_path / "run" / "recipe.yaml"
    before = yaml.safe_load(path.read_text())
    del before["regularisers"], before["model"]["last_hidden"]
    path.write_text(yaml.safe_dump(before))
    assert "resumed at step 4" in run(recipe(topics, None, 6), tmp_path / "run", resume=True).said


def test_fine_tuning_a_plain_run_begins_with_a_new_critic(tmp_path, topics):
    run(recipe(topics, None, 5), tmp_path / "plain")
    watcher = run(recipe(topics, BMI, 2, start_from=str(tmp_path / "plain")), tmp_path / "second")
    assert "bmi starts untrained" in watcher.said[0]


def test_the_critic_of_another_model_is_refused(tmp_path, topics):
    run(recipe(topics, BMI, 5), tmp_path / "one")
    run(recipe(topics, BMI, 5, seed=2), tmp_path / "two")
    stolen = (tmp_path / "two" / "bmi.safetensors").read_bytes()
    (tmp_path / "one" / "bmi.safetensors").write_bytes(stolen)
    with pytest.raises(InfolmError, match="critic of another model"):
        run(recipe(topics, BMI, 2, start_from=str(tmp_path / "one")), tmp_path / "three")
    assert not (tmp_path / "three").exists()


def test_a_loss_that_blows_up_takes_the_critic_back_too(tmp_path, topics, monkeypatch):
    from infolm.objectives.bmi import Bmi

    calls, original = [0], Bmi.__call__

    def sometimes_nan(self, model, batch, carry):
        calls[0] += 1
        estimate = original(self, model, batch, carry)
        if calls[0] == 8:
            estimate.loss = estimate.loss * torch.nan
        return estimate

    monkeypatch.setattr(Bmi, "__call__", sometimes_nan)
    wanted = recipe(topics, BMI, 12)
    wanted = Recipe.model_validate(
        wanted.model_dump(mode="json") | {"train": wanted.train.model_dump() | {"recover": True}}
    )
    watcher = run(wanted, tmp_path / "run")
    assert any("diverged" in line for line in watcher.said)
    critic = last_checkpoint(tmp_path / "run")["learners"]["bmi"]["critic"]
    assert all(torch.isfinite(tensor).all() for tensor in critic.values())


def one_line(error: pytest.ExceptionInfo) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_corpus_of_one_sentence_is_refused(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "valid", "test"):
        (text / f"{split}.txt").write_text(" ".join(f"w{i % 7}" for i in range(300)))
    with pytest.raises(InfolmError) as error:
        run(recipe(text, BMI | {"longest": 1000}), tmp_path / "run")
    assert "1 sentence," in one_line(error)
    assert "regularisers.bmi.segment" in str(error.value)
    assert not (tmp_path / "run").exists()
    run(recipe(text, BMI | {"segment": 10}, 3), tmp_path / "run")  # the advice helps


def test_a_corpus_of_empty_lines_is_refused(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "valid", "test"):
        (text / f"{split}.txt").write_text("\n" * 50)
    with pytest.raises(InfolmError, match="0 sentences"):
        run(recipe(text, BMI), tmp_path / "run")


def test_a_sentence_above_the_limit_is_refused(tmp_path, topics):
    with pytest.raises(InfolmError) as error:
        run(recipe(topics, BMI | {"longest": 5}), tmp_path / "run")
    assert "9 tokens, more than regularisers.bmi.longest, 5" in one_line(error)
    assert not (tmp_path / "run").exists()


def test_an_unknown_end_of_sentences_is_refused(tmp_path, topics):
    with pytest.raises(InfolmError, match=r"regularisers\.bmi\.ends: '!' is not one token"):
        run(recipe(topics, BMI | {"ends": ["!"]}), tmp_path / "run")


def test_an_encoder_decoder_is_refused(topics):
    with pytest.raises(ValueError, match=r"regularisers\.bmi reads single sentences"):
        recipe(topics, BMI, model={"kind": "encoder-decoder"})
