"""A report shows what a stranger's run holds, and runs none of it."""

import json

from training_tiny import tiny_file

EVIL = "<script>alert(1)</script>"


def test_a_corpus_a_title_metrics_and_measurements_full_of_scripts(infolm, tmp_path):
    text = tmp_path / "<script>alert(1)<.txt"
    text.write_text(f"a {EVIL} b <img src=x onerror=alert(1)> c\n" * 400)
    recipe = tiny_file(tmp_path, text, max_steps=2)
    run = tmp_path / "run"
    done = infolm("train", recipe, f"title={EVIL}", "data.pretokenised=true", "--out", run)
    assert done.code == 0, done.err
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "event", "step": 2, "name": EVIL}) + "\n")
    entry = dict.fromkeys(("metric", "unit", "split", "method", "convention"), EVIL)
    entries = [entry | {"value": 1.0, "stderr": None, "tokens": 1}]
    (run / "measurements.json").write_text(json.dumps(entries))
    done = infolm("report", run)
    assert done.code == 0, done.err
    page = (run / "report.html").read_text()
    assert "alert(1)" in page  # it is shown
    assert "<script>alert" not in page
    assert "<img src=x" not in page
