"""A worker that trains nothing: it answers at once, as the environment tells it to.

FAKE is JSON: a point's name -> 'fail', 'die' or 'stop'. Each task is noted in told.jsonl.
"""

import json
import os
import sys
from pathlib import Path

faults = json.loads(os.environ.get("FAKE", "{}"))
for line in sys.stdin:
    task = json.loads(line)
    run = Path(task["folder"])
    run.mkdir(parents=True, exist_ok=True)
    with open(run.parent.parent / "told.jsonl", "a") as file:
        file.write(json.dumps({"name": task["name"], "train": task["train"]}) + "\n")
    (run / "recipe.yaml").write_text(json.dumps(task["recipe"]))
    (run / "model.safetensors").touch()
    (run / "checkpoints").mkdir(exist_ok=True)
    fault = faults.get(task["name"])
    if fault == "die":
        sys.exit(1)
    weight = task["recipe"]["objective"]["lambda"]
    number = {"per_sentence": 1 + weight, "per_token": 1 + weight}
    split = {"nll": number, "information": number}
    answer = {
        "fail": {"failure": "the loss is no longer finite"},
        "stop": {"stopped": "the disk is full"},
        None: {"result": {"weights": "", "splits": dict.fromkeys(task["splits"], split)}},
    }[fault]
    print(json.dumps({"progress": 0.5, "stage": "training"}), flush=True)
    print(json.dumps(answer), flush=True)
