"""Characters and bytes: trained on long cuts, measured in bits of each."""

import json
import math

import pytest
import yaml
from training_tiny import tiny_tree

from infolm.config import load_recipe


@pytest.mark.parametrize(("tokens", "bptt"), [("char", 150), ("byte", 256)])
def test_a_run_gives_bits_per_character_and_per_byte(infolm, tmp_path, tokens, bptt):
    text = "\n".join(f"der Fluß {i} fließt über {i % 7} Steine" for i in range(400)) + "\n"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    tree = tiny_tree(tmp_path / "text.txt", max_steps=3, validate_every=3)
    tree["data"]["tokens"] = tokens
    tree["feed"] = {"kind": "stream", "batch": 4, "bptt": bptt}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(tree))
    run = tmp_path / "run"
    done = infolm("train", tmp_path / "r.yaml", "--out", run)
    assert done.code == 0, done.err
    options = ("--split", "test", "--reverse", "--generated", 10_000, "--json")
    results = json.loads(infolm("evaluate", run, *options).out)
    found = {result["metric"]: result for result in results}
    nll = found["nll"]["value"] * found["nll"]["tokens"] / math.log(2)
    # The test split is the last lines that make 5% of the bytes; its first token is not predicted.
    cut = text.encode().index(b"\n", len(text.encode()) * 95 // 100 - 1) + 1
    tail = text.encode()[cut:]
    sizes = {"character": len(tail.decode()) - 1, "byte": len(tail) - 1}
    assert found["nll"]["tokens"] == sizes["character" if tokens == "char" else "byte"]
    for unit, size in sizes.items():
        assert found[f"bits_per_{unit}"]["value"] == pytest.approx(nll / size)
        bits = found["reverse_nll"]["value"] / found["nll"]["value"] * nll / size
        assert found[f"reverse_bits_per_{unit}"]["value"] == pytest.approx(bits)
    assert found["bits_per_character"]["value"] > found["bits_per_byte"]["value"]


@pytest.mark.parametrize("name", ["mogrifier/ptb-char", "mogrifier/enwik8", "rewired/ptb-char"])
def test_the_recipes_of_characters_read_long_cuts(name):
    recipe = load_recipe(name)
    assert 150 <= recipe.feed.bptt <= 256
    assert recipe.data.tokens == ("byte" if "enwik8" in name else "char")
