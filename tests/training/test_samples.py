"""Texts at validations: shown, and of no consequence."""

from training_tiny import Silent, quiet, tiny_recipe

from infolm.families.train import train


def test_samples_are_shown_and_change_no_byte(tmp_path, small_text):
    weights, said = [], []
    for samples in (0, 2):
        out = tmp_path / str(samples)
        watcher = Silent()
        recipe = tiny_recipe(small_text, max_steps=10, validate_every=5, samples=samples)
        train(recipe, out, False, watcher, quiet)
        weights.append((out / "model.safetensors").read_bytes())
        said.append(watcher.said)
    assert weights[0] == weights[1]
    assert len(said[1]) == len(said[0]) + 2 * 2
    assert len(set(said[1]) - set(said[0])) >= 2
    (board,) = (tmp_path / "2" / "tensorboard").iterdir()
    assert b"sample/2" in board.read_bytes()
