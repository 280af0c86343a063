"""GLUE's average: as the leaderboard and as the paper print it, from their own columns."""

import json

import pytest

from infolm.finetuning import glue
from infolm.finetuning.tasks import TASKS

ORDER = ("cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte")
TABLE_2 = [  # Kong et al. 2020: CoLA, SST-2, MRPC, QQP, MNLI m / mm, QNLI, RTE, average
    (52.1, 93.5, 88.9, 71.2, (84.6, 83.4), 90.5, 66.4, 78.8),
    (50.8, 93.0, 88.6, 70.5, (83.2, 83.0), 90.9, 65.9, 78.2),
    (53.3, 92.5, 88.7, 71.0, (83.7, 82.4), 91.4, 68.3, 78.9),
    (60.5, 94.9, 89.3, 72.1, (86.7, 85.9), 92.7, 70.1, 81.5),
    (54.7, 93.1, 89.5, 71.2, (85.8, 85.0), 92.7, 72.5, 80.6),
    (57.5, 94.2, 90.2, 71.3, (85.8, 84.8), 92.6, 72.0, 81.1),
]
LEADERBOARD = [  # CoLA, SST-2, MRPC, STS-B, QQP, MNLI m / mm, QNLI, RTE, WNLI, score
    # BERT-large, and MT-DNN without fine-tuning
    (60.5, 94.9, (89.3, 85.4), (87.6, 86.5), (72.1, 89.3), (86.7, 85.9), 92.7, 70.1, 65.1, 80.5),
    (58.9, 94.6, (90.1, 86.4), (89.5, 88.8), (72.7, 89.6), (86.5, 85.8), 93.1, 79.1, 65.1, 81.7),
]


def scores(task, values):
    """Values as `results.json` has them: a part with its metrics, or MNLI's two parts."""
    values = values if isinstance(values, tuple) else (values,)
    if task == "mnli":
        return {p: {"accuracy": v} for p, v in zip(("matched", "mismatched"), values, strict=True)}
    names = TASKS[task].metrics if task in TASKS else ("accuracy",)
    return {"dev": dict(zip(names, values, strict=False))}


@pytest.mark.parametrize("row", TABLE_2)
def test_the_papers_average_is_over_its_columns(row):
    *values, average = row
    found = {task: scores(task, each) for task, each in zip(ORDER, values, strict=True)}
    found["mrpc"]["dev"]["accuracy"] = found["qqp"]["dev"]["accuracy"] = 1.0  # not a column
    found["stsb"] = scores("stsb", (1.0, 1.0))  # nor is this
    assert glue.paper(found) == pytest.approx(average, abs=0.0501)
    assert glue.paper({"stsb": found["stsb"]}) is None


@pytest.mark.parametrize("row", LEADERBOARD)
def test_the_leaderboards_average_is_over_tasks(row):
    *values, average = row
    tasks = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
    found = {task: scores(task, each) for task, each in zip(tasks, values, strict=True)}
    assert glue.leaderboard(found) == pytest.approx(average, abs=0.0501)


def result(folder, name, task, values, fresh=False, share=1, **more):
    told = {"task": task, "fresh": fresh, "share": share}
    told |= {"chosen": {"dev": scores(task, values)}, **more}
    (folder / name).mkdir(parents=True)
    (folder / name / "results.json").write_text(json.dumps(told))


def test_results_of_one_kind_are_averaged(tmp_path):
    half = {"choice": {"on": "half"}}
    result(tmp_path, "rte", "rte", 0.6, **half)
    result(tmp_path, "cola", "cola", 0.2)  # from before dev was halved
    result(tmp_path, "mnli", "mnli", (0.5, 0.7), choice={"on": "dev"})
    result(tmp_path, "stsb", "stsb", (0.8, 0.6), **half)
    result(tmp_path, "squad", "squad_", 90.0, **half)
    result(tmp_path, "rte-fresh", "rte", 0.5, fresh=True, **half)
    result(tmp_path, "rte-0.5", "rte", 0.4, share=0.5, **half)
    plain, half_share, fresh = glue.averages(tmp_path)
    assert list(plain.scores) == ["cola", "mnli", "rte", "stsb"]
    assert plain.missing == ["sst2", "mrpc", "qqp", "qnli"]
    assert plain.chosen_on_dev == ["cola", "mnli"]
    told = plain.told()
    assert told["leaderboard"] == pytest.approx((0.2 + 0.6 + 0.6 + 0.7) / 4)
    assert told["paper"] == pytest.approx((0.2 + 0.5 + 0.7 + 0.6) / 4)
    assert (half_share.share, half_share.told()["paper"]) == (0.5, 0.4)
    assert (fresh.fresh, fresh.told()["leaderboard"]) == (True, 0.5)
    assert glue.averages(tmp_path / "nowhere") == []
