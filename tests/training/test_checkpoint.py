"""A checkpoint comes back as it was, or is refused with a sentence; the last good one survives."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from infolm.errors import InfolmError, RunError
from infolm.training import checkpoint

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**130), 2**130)  # a random generator's state holds such numbers
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(
        [
            torch.tensor(1.5),
            torch.arange(6).reshape(2, 3),
            torch.zeros(0, 4),
            torch.get_rng_state()[:9],
            torch.randn(3, dtype=torch.double).to(torch.bfloat16),
        ]
    )
)
KEYS = st.text(st.characters(codec="ascii", exclude_characters="$/"), min_size=1, max_size=4)
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b and type(a) is type(b)


@settings(deadline=None, max_examples=50)
@given(tree=TREES)
def test_any_tree_of_tensors_and_values_comes_back(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("c") / "state.safetensors"
    checkpoint.save(path, tree)
    assert same(checkpoint.load(path), tree)


def test_two_names_for_one_tensor_are_both_kept(tmp_path):
    t = torch.randn(3)
    checkpoint.save(tmp_path / "x", {"a": t, "b": t})
    state = checkpoint.load(tmp_path / "x")
    assert torch.equal(state["a"], t)
    assert torch.equal(state["b"], t)


def test_the_newest_two_are_kept(tmp_path):
    for step in (5, 10, 100, 1000):
        checkpoint.save_step(tmp_path, step, {"step": step})
    kept = checkpoint.checkpoints(tmp_path)
    assert [checkpoint.load(path)["step"] for path in kept] == [100, 1000]


@pytest.mark.parametrize("place", ["header", "middle", "end"])
def test_every_flipped_bit_is_noticed(tmp_path, place):
    checkpoint.save_step(tmp_path, 1, {"w": torch.randn(100)})
    path = checkpoint.save_step(tmp_path, 2, {"w": torch.randn(100)})
    data = bytearray(path.read_bytes())
    data[{"header": 40, "middle": len(data) // 2, "end": -1}[place]] ^= 1
    path.write_bytes(data)
    with pytest.raises(InfolmError) as refusal:
        checkpoint.load(path)
    if place != "header":
        assert "damaged" in str(refusal.value)
        assert "resume from step-000000001.safetensors" in str(refusal.value)


def test_a_file_cut_short_is_refused_and_the_one_before_named(tmp_path):
    checkpoint.save_step(tmp_path, 1, {"w": torch.randn(100)})
    path = checkpoint.save_step(tmp_path, 2, {"w": torch.randn(100)})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InfolmError, match=r"damaged.*step-000000001\.safetensors"):
        checkpoint.load(path)


def test_somebody_elses_safetensors_file_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(InfolmError, match="not a checkpoint of infolm"):
        checkpoint.load(tmp_path / "other.safetensors")


def test_the_weights_of_another_model_are_refused_by_name_and_shape(tmp_path):
    checkpoint.save(tmp_path / "w", nn.Linear(3, 4).state_dict())
    with pytest.raises(
        InfolmError, match=r"another model: 'weight' is \(4, 3\) there and \(4, 5\)"
    ):
        checkpoint.load_weights(tmp_path / "w", nn.Linear(5, 4))
    with pytest.raises(InfolmError, match=r"'bias' is .* there and missing here"):
        checkpoint.load_weights(tmp_path / "w", nn.Linear(3, 4, bias=False))


def test_a_full_disk_leaves_the_last_good_checkpoint_and_no_litter(tmp_path):
    """A limit on the size of files makes the write fail half-way, as a full disk does."""
    script = f"""
import resource, sys, torch
from pathlib import Path
from infolm.training import checkpoint
from infolm.errors import RunError
folder = Path({str(tmp_path)!r})
checkpoint.save_step(folder, 1, {{"w": torch.zeros(10)}})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    checkpoint.save_step(folder, 2, {{"w": torch.zeros(100_000)}})
except RunError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "could not be written" in done.stdout
    assert "nothing is lost" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.safetensors"]
    assert checkpoint.load(tmp_path / "step-000000001.safetensors")["w"].shape == (10,)


def test_an_unwritable_place_is_a_clear_error(tmp_path):
    with pytest.raises(RunError, match="could not be written"):
        checkpoint.save(tmp_path / "missing" / "x.safetensors", {"a": 1})


def test_the_weights_have_their_plain_names_for_other_programs(tmp_path):
    from safetensors.torch import load_file

    model = nn.Linear(3, 4)
    checkpoint.save(tmp_path / "m.safetensors", model.state_dict())
    assert set(load_file(tmp_path / "m.safetensors")) == {"weight", "bias"}


def test_the_file_is_the_same_bytes_from_any_process(tmp_path):
    script = (
        "import sys, torch; from pathlib import Path; from infolm.training import checkpoint;"
        "torch.manual_seed(0);"
        "checkpoint.save(Path(sys.argv[1]), {'a': torch.randn(5), 'b': {'c': torch.randn(2)}})"
    )
    for name in "xy":
        subprocess.run([sys.executable, "-c", script, str(tmp_path / name)], check=True)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()
