"""Predictions as the official programs take them."""

import collections
import json
import re
import string

import numpy as np
import pytest
import torch
from encoder_tiny import squad_folder, sst2_folder, tiny_encoder

from infolm.finetuning import search, submission
from infolm.finetuning.problems import Options, read_problem
from infolm.finetuning.tasks import TASKS, Example, read_task


def rows(text):
    assert text.endswith("\n")
    return [line.split("\t") for line in text[:-1].split("\n")]


def asked(count, **more):
    return [Example(f"a {i}", None, np.nan, index=str(i), **more) for i in range(count)]


def test_files_have_the_names_that_the_server_knows():
    names = {submission.glue_name(TASKS[task], "test") for task in TASKS if task != "mnli"}
    names |= {submission.glue_name(TASKS["mnli"], part) for part in ("matched", "mismatched")}
    assert names == {
        f"{name}.tsv" for name in "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE".split()
    }


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("cola", ["0", "1"]),
        ("sst2", ["0", "1"]),
        ("mrpc", ["0", "1"]),
        ("qqp", ["0", "1"]),
        ("mnli", ["entailment", "neutral", "contradiction"]),
        ("qnli", ["entailment", "not_entailment"]),
        ("rte", ["entailment", "not_entailment"]),
    ],
)
def test_classes_are_written_in_the_words_of_the_task(task, words):
    answers = np.arange(len(words), dtype=float)
    told = rows(submission.glue_file(TASKS[task], asked(len(words)), answers))
    assert told == [["index", "prediction"], *([str(i), w] for i, w in enumerate(words))]


def test_scores_are_numbers_from_0_to_5():
    told = rows(submission.glue_file(TASKS["stsb"], asked(3), np.array([-0.2, 3.14159, 5.2])))
    assert told[1:] == [["0", "0.000"], ["1", "3.142"], ["2", "5.000"]]


def test_the_index_is_the_files_own_or_the_place():
    examples = [Example("a", None, np.nan, index="7"), Example("b", None, np.nan)]
    told = rows(submission.glue_file(TASKS["cola"], examples, np.array([1.0, 0.0])))
    assert told[1:] == [["7", "1"], ["1", "0"]]


def test_a_test_file_without_labels_is_answered(tmp_path):
    folder = sst2_folder(tmp_path)
    lines = [f"{10 + i}\tthe {word} cat" for i, word in enumerate(["good", "bad", "bad", "good"])]
    (folder / "test.tsv").write_text("\n".join(["index\tsentence", *lines, "14\t"]) + "\n")
    labelled = read_task("sst2", folder)
    assert labelled.test == {}
    assert [e.index for e in labelled.asked["test"]] == ["10", "11", "12", "13", "14"]
    encoder = tiny_encoder()
    problem = read_problem("sst2", folder, encoder)
    found = search.search(
        problem, encoder, search.grid([0.01], [8], 5, 1), lambda *_: None, tmp_path / "state"
    )
    told = rows(found.files["SST-2.tsv"])
    assert told[0] == ["index", "prediction"]
    assert told[1:5] == [["10", "1"], ["11", "0"], ["12", "0"], ["13", "1"]]
    assert told[5][0] == "14"  # an empty sentence has an answer too
    search.write(tmp_path / "out", found, encoder, 32, search.results(problem, found))
    assert (tmp_path / "out" / "SST-2.tsv").read_text() == found.files["SST-2.tsv"]
    assert json.loads((tmp_path / "out" / "results.json").read_text())["chosen"]["files"] == [
        "SST-2.tsv"
    ]


def test_without_a_test_file_there_is_nothing_to_answer(tmp_path):
    encoder = tiny_encoder()
    problem = read_problem("sst2", sst2_folder(tmp_path), encoder)
    assert problem.files(problem.network(encoder)) == {}


# SQuAD's official definition, slowly: evaluate-v1.1 of Rajpurkar et al. 2016, from its description.


def words_of(text):
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return [w for w in re.split(r"\s+", kept) if w and w not in ("a", "an", "the")]


def official(predictions, dataset):
    """Exact match and F1 in percent over all questions of a file."""
    total, exact, f1 = 0, 0.0, 0.0
    for article in dataset["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                total += 1
                if qa["id"] not in predictions:
                    continue
                said = words_of(predictions[qa["id"]])
                truths = [words_of(answer["text"]) for answer in qa["answers"]]
                exact += max(said == true for true in truths)
                best = 0.0
                for true in truths:
                    same = sum((collections.Counter(said) & collections.Counter(true)).values())
                    if same:
                        precision, recall = same / len(said), same / len(true)
                        best = max(best, 2 * precision * recall / (precision + recall))
                f1 += best
    return {"exact_match": 100 * exact / total, "f1": 100 * f1 / total}


def test_squads_predictions_have_the_official_scores_that_are_reported(tmp_path):
    folder = squad_folder(tmp_path / "squad")
    tree = json.loads((folder / "toy.json").read_text())
    for name, data in (("train.json", tree["data"][:9]), ("dev.json", tree["data"][9:])):
        (folder / name).write_text(json.dumps({"version": "1.1", "data": data}))
    # An answer that another person gave longer, and one in capitals with an article.
    dev = json.loads((folder / "dev.json").read_text())
    for paragraph in dev["data"][0]["paragraphs"]:
        (qa,) = paragraph["qas"]
        (answer,) = qa["answers"]
        longer = f"{answer['text']} and"
        qa["answers"].append({"answer_start": answer["answer_start"], "text": longer})
    (folder / "dev.json").write_text(json.dumps(dev))
    encoder = tiny_encoder()
    problem = read_problem("squad", folder, encoder, Options(choose_on="dev"))
    found = search.search(
        problem, encoder, search.grid([0.004], [8], 4, 1), lambda *_: None, tmp_path / "state"
    )
    told = search.results(problem, found)
    search.write(tmp_path / "out", found, encoder, 32, told)
    predictions = json.loads((tmp_path / "out" / "predictions.json").read_text())
    ids = {qa["id"] for a in dev["data"] for p in a["paragraphs"] for qa in p["qas"]}
    assert set(predictions) == ids
    scores = official(predictions, dev)
    assert told["chosen"]["dev"]["dev"] == pytest.approx(scores)
    assert 0 < scores["f1"] < 100
    # Of the reported half alone, likewise.
    halved = read_problem("squad", folder, encoder)
    kept = {halved._questions[number].id for number in halved.choice["dev"].reported}
    for article in dev["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [qa for qa in paragraph["qas"] if qa["id"] in kept]
    with torch.inference_mode():
        assert halved.measure(found.network).dev["dev"] == pytest.approx(official(predictions, dev))
