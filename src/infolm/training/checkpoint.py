"""The whole state of a training run in one file, written atomically.

A state is a tree of dicts and lists whose leaves are tensors, numbers, strings, booleans or None.
The tensors go into a safetensors file, the rest as JSON into that file's metadata, with a SHA-256
over both. Nothing is pickled. The file is written under another name, flushed to the disk and
renamed: at any moment a checkpoint exists completely or not at all.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from infolm import files
from infolm.errors import InfolmError, RunError
from infolm.trees import fits, mapping

METADATA = "infolm"
FORMAT = "infolm checkpoint 1"
KEPT = 2
"""How many checkpoints of a run are kept: the newest, and the one before it in case of a bad
disk."""

_TENSOR = "$tensor"


@singledispatch
def _flatten(node: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The tree with each tensor replaced by its name, and the tensors under those names."""
    return node


@_flatten.register
def _(node: Tensor, path: str, tensors: dict[str, Tensor]) -> Any:
    tensors[path] = node.detach().contiguous()
    return {_TENSOR: path}


@_flatten.register
def _(node: dict, path: str, tensors: dict[str, Tensor]) -> Any:  # type: ignore[type-arg]
    return {str(k): _flatten(v, _join(path, k), tensors) for k, v in node.items()}


@_flatten.register(list)
@_flatten.register(tuple)
def _(node: Sequence[Any], path: str, tensors: dict[str, Tensor]) -> Any:
    return [_flatten(v, _join(path, i), tensors) for i, v in enumerate(node)]


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


@singledispatch
def _unflatten(node: Any, tensors: dict[str, Tensor]) -> Any:
    return node


@_unflatten.register
def _(node: dict, tensors: dict[str, Tensor]) -> Any:  # type: ignore[type-arg]
    if set(node) == {_TENSOR}:
        return tensors[node[_TENSOR]]
    return {k: _unflatten(v, tensors) for k, v in node.items()}


@_unflatten.register
def _(node: list, tensors: dict[str, Tensor]) -> Any:  # type: ignore[type-arg]
    return [_unflatten(v, tensors) for v in node]


def _digest(tree: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(tree.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        # A view of the bytes, no copy; 0-dimensional tensors cannot be viewed as bytes directly.
        data = tensors[name].cpu().reshape(-1).view(torch.uint8)
        digest.update(data.numpy().data)
    return digest.hexdigest()


def atomically(
    path: Path, write: Callable[[Path], object], before: Callable[[Path], object] | None = None
) -> None:
    """`files.replace`, with a sentence if writing fails."""
    try:
        files.replace(path, write, before)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{path} could not be written ({error}): nothing is lost; "
            "free some space or check the disk, and resume"
        ) from error


def writer(state: dict[str, Any]) -> Callable[[Path], None]:
    """A writer of the present `state` to a file."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_flatten(state, "", tensors))
    # Two names for one storage are written twice, as safetensors requires.
    seen: set[int] = set()
    for name, tensor in tensors.items():
        if tensor.data_ptr() in seen and tensor.numel():
            tensors[name] = tensor.clone()
        seen.add(tensor.data_ptr())
    about = json.dumps({"format": FORMAT, "tree": tree, "sha256": _digest(tree, tensors)})
    # One key: several would be written in an order that changes from process to process.
    return lambda path: save_file(tensors, path, {METADATA: about})


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state` to `path`, atomically."""
    atomically(path, writer(state))


def load(path: Path, vouched: bool = False) -> dict[str, Any]:
    """Read what `save` wrote; refuse a damaged or different file.

    vouched: the SHA-256 of the whole file was just verified, and is not computed again.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = mapping(json.loads((file.metadata() or {}).get(METADATA, "{}"))) or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InfolmError(f"{path}: there is no such checkpoint") from None
    except (SafetensorError, OSError, ValueError, RecursionError, MemoryError) as error:
        raise InfolmError(f"{path} is damaged ({error}){_advice(path)}") from error
    if about.get("format") != FORMAT:
        raise InfolmError(f"{path} is not a checkpoint of infolm: it lacks the mark '{FORMAT}'")
    tree: Any = about.get("tree")
    digest = about.get("sha256")
    if not fits(str, tree) or not (vouched or _digest(tree, tensors) == digest):
        raise InfolmError(f"{path} is damaged (its SHA-256 does not match){_advice(path)}")
    try:
        state = _unflatten(json.loads(tree), tensors)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InfolmError(f"{path} is damaged ({error!r}){_advice(path)}") from error
    if mapping(state) is None:
        raise InfolmError(f"{path} is damaged (it holds no state){_advice(path)}")
    return state


def part(path: Path, state: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of the state in `path` that is itself a dict."""
    found = mapping(state.get(name))
    if found is None:
        raise InfolmError(f"{path} is not the state of a training: it lacks '{name}'")
    return found


def mark(path: Path) -> str:
    """The SHA-256 that `save` wrote into the file, without reading all of it."""
    try:
        with safe_open(path, framework="pt") as file:
            return str(json.loads(file.metadata()[METADATA])["sha256"])
    except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
        raise InfolmError(f"{path} is damaged ({error}){_advice(path)}") from error


def _advice(path: Path) -> str:
    inside = path.parent.name == "checkpoints" or checkpoints(path.parent)
    run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    others = [other for other in checkpoints(path.parent) if other != path] if inside else []
    if others:
        return f": `infolm repair {run}` moves it to damaged, to resume from {others[-1].name}"
    if not inside and checkpoints(path.parent / "checkpoints"):
        return f": `infolm repair {run}` restores it from a checkpoint"
    return f": restore it from a copy; `infolm repair {run}` shows what is left of the run"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, oldest first."""
    return files.matching(folder, "step-*.safetensors")


def save_step(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write the checkpoint of `step` and remove all but the newest `KEPT`."""
    files.refuse_link(folder)
    files.make_folder(folder)
    path = folder / f"step-{step:09d}.safetensors"
    save(path, state)
    remove_old(folder)
    return path


def remove_old(folder: Path) -> None:
    """Remove all checkpoints but the newest `KEPT`."""
    files.refuse_link(folder)
    for old in checkpoints(folder)[:-KEPT]:
        old.unlink()


def load_weights(path: Path, model: nn.Module, vouched: bool = False) -> None:
    """Load weights written by `save(path, model.state_dict())` into `model`; see `load`."""
    restore_weights(path, model, load(path, vouched))


def restore_weights(path: Path, model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy `weights` (read from `path`) into `model`, refusing those of another model.

    A model whose weights had other names before lists them in `former_names`.
    """
    model.load_state_dict(check_weights(path, model, weights))


def check_weights(path: Path, model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """`weights` by their present names; refused if they belong to another model."""
    if strange := [k for k, w in weights.items() if not torch.is_tensor(w)]:
        raise InfolmError(f"{path} is of another kind: '{strange[0]}' is not a tensor there")
    for beginning, before in getattr(model, "former_names", {}).items():
        weights = {f"{before}{k}" if k.startswith(beginning) else k: w for k, w in weights.items()}
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(own.keys() | theirs.keys()):
        if own.get(name) != theirs.get(name):
            raise InfolmError(
                f"{path} belongs to another model: '{name}' is {theirs.get(name, 'missing')} there "
                f"and {own.get(name, 'missing')} here"
            )
    for name, tensor in model.state_dict().items():
        if tensor.dtype.is_floating_point != weights[name].dtype.is_floating_point:
            raise InfolmError(f"{path} is of another kind: '{name}' is {weights[name].dtype} there")
    return weights
