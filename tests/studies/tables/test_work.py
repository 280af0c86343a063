"""Tables at work: what is trained, what is kept, what is shared."""

import io
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infolm.errors import InfolmError
from infolm.studies.pool import Ended
from infolm.studies.reproduction.measure import measure
from infolm.studies.tables import listing, work
from infolm.studies.tables.job import train_and_measure
from infolm.studies.tables.pages import page
from infolm.studies.tables.work import Runs, reproduce
from infolm.studies.worker import Reporter

from .conftest import written


@pytest.fixture
def fake(monkeypatch, tmp_path, text):
    """Reproduces tables with a job that trains nothing; gives what it was told to train."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(work, "CALL", "fake_job:answer")
    runs = tmp_path / "runs"

    def run(*sources, seeds=None, seconds=None):
        works = listing.opened(tmp_path / "out", "small", list(sources), (f"data.path={text}",))
        told = runs / "told.txt"
        told.unlink(missing_ok=True)
        done = reproduce(
            works,
            Runs(runs),
            seeds,
            1,
            seconds,
            lambda records: None,
            lambda share, said: None,
            lambda line: None,
            lambda stage, done, total: None,
        )
        trained = told.read_text().split() if told.exists() else []
        return done, works, trained

    return run


def test_every_training_once(fake, tmp_path):
    source = written(tmp_path)
    done, (records,), trained = fake(source)
    name = records.work.name
    assert done
    arms = ("low", "high", "further")  # the last starts from the first
    assert trained == [f"{name}/{arm}-{seed}" for seed in (1, 2, 3) for arm in arms]
    assert records.figures["low"] == {
        1: {"perplexity": 1.1},
        2: {"perplexity": 1.2},
        3: {"perplexity": pytest.approx(1.3)},
    }
    assert [each.word for each in records.verdicts()] == ["shown", "shown"]
    assert records.verdicts()[0].difference == pytest.approx(2)
    assert fake(source)[2] == []
    assert fake(source, seeds=4)[2] == [f"{name}/{arm}-4" for arm in ("low", "high", "further")]
    assert listing.hours_left(records) == 0
    assert listing.hours_left(records, 5) == pytest.approx(6 * 6 / 3600)  # 6 s each, 2 seeds more
    kept = json.loads(records.path.read_text())
    assert kept["arms"]["low"]["seeds"]["2"]["seconds"] == {"training": 6.0, "measuring": 0.0}


def test_values_are_chosen_first_on_another_seed(fake, tmp_path):
    """By the loss of the arm that is named, with what was chosen before; then the arms follow."""
    rate = {"with": "high", "key": "optimiser.learning_rate", "values": [0.004, 0.002]}
    units = {"with": "low", "key": "model.hidden model.embedding", "values": [6, 7]}
    tuning = [{**rate, "arms": ["high"]}, units]
    source = written(tmp_path, tuning=tuning, seeds=2)
    done, (records,), trained = fake(source)
    name = records.work.name
    assert done
    assert trained[:4] == [
        f"{name}/high-learning_rate-0.004-11",
        f"{name}/high-learning_rate-0.002-11",
        f"{name}/low-hidden-6-11",
        f"{name}/low-hidden-7-11",
    ]
    assert len(trained) == 4 + 6
    assert records.tuned("low") == ["model.hidden=6", "model.embedding=6"]  # of equals the first
    assert records.tuned("high") == ["optimiser.learning_rate=0.002", *records.tuned("low")]
    assert records.figures["high"] == {1: {"perplexity": 2.1}, 2: {"perplexity": 2.2}}
    assert set(records.figures) == {"low", "high", "further"}
    assert "`optimiser.learning_rate=0.002` (0.004: 5.100; 0.002: 3.100 nats)" in page(records, "")
    assert fake(source)[2] == []
    more = [{**rate, "arms": ["high"], "values": [0.004, 0.002, 0.0005]}, units]
    trained = fake(written(tmp_path, tuning=more, seeds=2))[2]
    assert trained[0] == f"{name}/high-learning_rate-0.0005-11"
    assert [each.split("/")[-1][:6] for each in trained[1:]] == ["high-1", "high-2"]


def test_a_curve_is_one_job_of_several_trainings(tmp_path):
    """With real trainings: all its points are trained, and the figure is that of their frontier."""
    arm = {"label": "DReG", "sweep": {"objective.lambda": [0.2, 0.8]}}
    size = "data.uniform.symbols=8 model.hidden=8 model.latent.size=2 train.max_steps=5"
    recipe = "monte-carlo/synthetic-continuous-small"
    source = written(
        tmp_path,
        seeds=1,
        arms={"dreg": arm, "more": {**arm, "sweep": {"objective.lambda": [0.2, 0.4, 0.8]}}},
        scales={"small": {"recipe": recipe, "set": f"{size} objective.samples=2"}},
        measure={
            "kind": "frontier",
            "samples": 10,
            "figures": {
                "none": {"label": "at any", "nats": -1},
                "all": {"label": "at 100 nats", "nats": 100},
            },
        },
        comparisons=[{"claim": "a", "lower": "more", "higher": "dreg"}],
    )
    works = listing.opened(tmp_path / "out", "small", [source])
    runs = Runs(tmp_path / "runs")
    todo = work.missing(works, None, runs)
    assert [len(each.runs) for each in todo] == [2, 3]
    assert set(todo[0].runs) <= set(todo[1].runs)  # those that both curves have are trained once
    for each in todo:
        job = each.job(tmp_path / "claims")
        result = train_and_measure(job.arguments, Reporter(io.StringIO()))
        work._keep(each, Ended(job, result), lambda records: None)
    (records,) = works
    places = [measure(run, ["train"], None, 10, lambda split, share: None) for run in todo[1].runs]
    nll = [each["splits"]["train"]["nll"]["per_sentence"] for each in places]
    assert records.figures["more"] == {1: {"none": min(nll)}}  # none of them has 100 nats
    assert records.figures["dreg"][1]["none"] >= min(nll)
    assert work.missing(listing.opened(tmp_path / "out", "small", [source]), None, runs) == []


def test_a_failure_is_kept_and_tried_again(fake, monkeypatch, tmp_path):
    source = written(tmp_path)
    name = source.removesuffix(".yaml").lstrip("/")
    monkeypatch.setenv("FAKE", json.dumps({f"{name}/low-2": "fail", f"{name}/high-1": "die"}))
    done, (records,), trained = fake(source)
    assert not done  # what starts from the failed run could not be trained
    assert trained.count(f"{name}/high-1") == 3
    assert f"{name}/further-2" not in trained
    assert set(records.failures) == {"low, seed 2", "high, seed 1"}
    assert records.verdicts()[0].word == "not tried"
    assert records.verdicts()[0].seeds == 1
    monkeypatch.delenv("FAKE")
    done, (records,), trained = fake(source)
    assert done
    assert sorted(trained) == [f"{name}/further-2", f"{name}/high-1", f"{name}/low-2"]
    assert not records.failures


def test_another_measure_or_recipe_makes_it_stale(fake, tmp_path):
    source = written(tmp_path)
    fake(source)
    other = {
        "options": {"split": "test", "streams": 4},
        "figures": {"perplexity": {"label": "perplexity"}},
    }
    _, (records,), trained = fake(written(tmp_path, measure=other))
    assert len(trained) == 9
    former = json.loads(records.path.with_name("tiny.former-1.json").read_text())
    assert former["measure"]["options"]["streams"] == 2
    assert [len(arm["seeds"]) for arm in former["arms"].values()] == [3, 3, 3]
    arms = {"low": {"label": "low"}, "high": {"label": "h", "set": "optimiser.learning_rate=0.01"}}
    only = [{"claim": "a", "lower": "low", "higher": "high"}]
    changed = written(tmp_path, measure=other, arms=arms, comparisons=only)
    trained = fake(changed)[2]  # beside the runs of the other recipe, of which none is lost
    assert len(trained) == 6
    assert all(re.search(r"/(low|high)-[123]-[0-9a-f]{8}$", name) for name in trained)
    assert fake(changed)[2] == []
    formers = sorted(path.name for path in records.path.parent.glob("*.former-*"))
    assert formers == ["tiny.former-1.json", "tiny.former-2.json"]


DAMAGED = [
    (b"", "Expecting value"),
    (b"[" * 5000, "recursion"),
    (b"\xff{}", "utf-8"),
    (b"[]", "its top"),
    (("arms/low/seeds/1/figures/perplexity", "1.5"), "arms.low.seeds.1.figures.perplexity"),
    (("arms/low/seeds/1/figures/perplexity", math.nan), "arms.low.seeds.1.figures.perplexity"),
    (("arms/low/seeds", {"one": {}}), "arms.low.seeds"),
    (("arms/low/recipe", None), "arms.low.recipe"),
    (("overrides", [1]), "overrides.0"),
]


@pytest.mark.parametrize(("damage", "why"), DAMAGED, ids=[row[1] for row in DAMAGED])
def test_a_damaged_record_is_named_and_left_as_it_is(fake, tmp_path, damage, why):
    source = written(tmp_path)
    _, (records,), _ = fake(source)
    if isinstance(damage, tuple):
        tree = json.loads(records.path.read_text())
        *parents, last = damage[0].split("/")
        node = tree
        for parent in parents:
            node = node[parent]
        node[last] = damage[1]
        damage = json.dumps(tree).encode()
    records.path.write_bytes(damage)
    with pytest.raises(InfolmError, match=r"is damaged .*: put a copy of it back") as refused:
        fake(source)
    assert why in str(refused.value)
    assert records.path.read_bytes() == damage


def test_what_is_no_finite_number_is_a_failure(tmp_path, text):
    source = written(tmp_path)
    (records,) = listing.opened(tmp_path / "out", "small", [source], (f"data.path={text}",))
    (recipe,) = records.recipes("low", 1)
    records.keep("low", recipe, 1, {"figures": {"perplexity": math.inf}})
    records.write()
    assert records.failures == {"low, seed 1": "perplexity: not a finite number"}
    assert not records.done("low", recipe, 1)


def test_trainings_are_killed_and_resumed_and_shared(tmp_path, text):
    """With real trainings: a command that is killed outright, the next one, and another table with
    one arm in common, which is not trained again."""
    arms = {
        "low": {"label": "low", "set": "optimiser.learning_rate=0.001"},
        "high": {"label": "high", "set": "optimiser.learning_rate=0.1"},
    }
    only = [{"claim": "Low is better.", "lower": "low", "higher": "high"}]
    first = written(tmp_path, arms=arms, comparisons=only)
    command = [sys.executable, "-m", "infolm", "reproduce", first, f"data.path={text}"]
    command += ["--out", str(tmp_path / "out"), "--seeds", "1"]
    begun = tmp_path / "out/runs" / first.removesuffix(".yaml").lstrip("/") / "low-1/metrics.jsonl"
    with subprocess.Popen(command) as process:
        end = time.monotonic() + 300
        while not begun.exists() and time.monotonic() < end:
            time.sleep(0.01)
        process.kill()
    assert begun.exists()
    done = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    (found,) = json.loads(done.stdout)
    assert found["comparisons"][0]["word"] == "not tried"
    assert set(found["arms"]) == {"low", "high"}
    page = tmp_path / "out" / (first.removesuffix(".yaml").lstrip("/") + ".md")
    assert "| high | 1 |" in page.read_text()
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")

    arms["other"] = {"label": "other", "set": "optimiser.learning_rate=0.02"}
    second = written(tmp_path, "second", arms=arms, comparisons=only)
    works = listing.opened(tmp_path / "out", "small", [second], (f"data.path={text}",))
    todo = work.missing(works, 1, Runs(tmp_path / "out/runs"))
    assert [begun.parent in each.runs for each in todo] == [True, False, False]
    assert not any(folder.exists() for folder in todo[2].runs)


def test_two_commands_do_not_share_a_folder(fake, tmp_path):
    with (
        work._locked(tmp_path),
        pytest.raises(InfolmError, match="another command is working"),
        work._locked(tmp_path),
    ):
        pass
