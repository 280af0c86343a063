"""A job that trains nothing: it answers at once, as the environment tells it to.

FAKE is JSON: a point's name -> 'fail', 'die' or 'stop'. Each task is noted in told.jsonl.
"""

import json
import os
from pathlib import Path

from infolm.errors import RunError
from infolm.studies.worker import Stop


def answer(task, reporter):
    run = Path(task["folder"])
    run.mkdir(parents=True, exist_ok=True)
    with open(run.parent.parent / "told.jsonl", "a") as file:
        file.write(json.dumps({"name": task["name"], "train": task["train"]}) + "\n")
    (run / "recipe.yaml").write_text(json.dumps(task["recipe"]))
    (run / "model.safetensors").touch()
    (run / "checkpoints").mkdir(exist_ok=True)
    fault = json.loads(os.environ.get("FAKE", "{}")).get(task["name"])
    if fault == "die":
        os._exit(1)
    if fault == "fail":
        raise RunError("the loss is no longer finite")
    if fault == "stop":
        raise Stop("the disk is full")
    reporter.progress(0.5, "training")
    weight = task["recipe"]["objective"]["lambda"]
    number = {"per_sentence": 1 + weight, "per_token": 1 + weight}
    split = {"nll": number, "information": number}
    return {"weights": "", "splits": dict.fromkeys(task["splits"], split)}
