"""The C locale, without Python's UTF-8 mode: names and texts with any letters."""

import os
import subprocess
import sys

from training_tiny import tiny_file

C = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_names_texts_titles_and_prompts_may_have_any_letters(tmp_path):
    text = tmp_path / "Bär.txt"
    text.write_text("der Bär sieht die Maus — ja\nДа нет ψ\n" * 200, encoding="utf-8")
    recipe = tiny_file(tmp_path, text, max_steps=1)
    out = tmp_path / "größe"

    def infolm(*arguments):
        command = [os.fsencode(part) for part in (sys.executable, "-m", "infolm", *arguments)]
        done = subprocess.run(command, capture_output=True, env=os.environ | C)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    infolm("train", str(recipe), "title=Bär", "--out", str(out))
    assert "title: Bär" in (out / "recipe.yaml").read_text(encoding="utf-8")
    written = infolm("generate", str(out), "--prompt", "der Bär", "--tokens", "40")
    assert not written.isascii()
