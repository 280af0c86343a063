"""A sentence model as a graph of q(z | x) and two of p(x | z).

    encoder    input_ids, attention_mask (B, T)    -> code, sentence_embedding (B, D), and q(z | x)
    start      code (B, ...)                       -> state_0, ...
    step       input_ids (B,), code, state_0, ...  -> log_probs (B, V), next_state_0, ...

The encoder takes the words of a sentence as they stand, without <eos>. It reads them as the model
does, backwards and where that is bidirectional forwards too, each by a `Scan` of a step; a token
that the mask hides leaves the state as it is. q(z | x) comes by the names that `models.codes` has
for it, and `code` is the one in its middle.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from infolm.exports.graphs.exporter import (
    Leaves,
    Shape,
    axes,
    exported,
    joined,
    kind_of,
    prefixed,
    save,
    scanned,
)
from infolm.models.sentence import SentenceModel
from infolm.nn.stack import Stack

Values = dict[str, tuple[str, Shape]]
SIZES = {"batch": 3, "time": 4}
OF_STATE: Shape = (1, "batch", 0)  # whatever its columns


def latent_graphs(model: SentenceModel, eos: int, folder: Path, int8: bool) -> dict[str, Any]:
    """Write the graphs; what a program must know of them."""
    code = _encoder(model, eos, folder / "encoder.onnx", int8)
    state = _decoder(model, code, folder, int8)
    return {
        "encoder": "encoder.onnx",
        "start": "start.onnx",
        "step": "step.onnx",
        "code": {"shape": ["batch", *code.shape[1:]], "type": kind_of(code)},
        "state": state,
    }


def _axes(*shapes: Shape) -> Any:
    dims = {name: torch.export.Dim(name) for name in SIZES}
    return [axes(shape, dims) for shape in shapes]


# -- q(z | x) -------------------------------------------------------------------------------


class _Words(nn.Module):
    """Sentences (B, T) and their mask -> of each direction what is read (T + 1, B, E), which of it
    counts (T + 1, B), and the state before it."""

    def __init__(self, model: SentenceModel, eos: int, forwards: list[bool]) -> None:
        super().__init__()
        self.model, self.eos, self.forwards = model, eos, forwards

    def forward(self, tokens: Tensor, mask: Tensor) -> list[Tensor]:
        found = []
        for forwards, stack in zip(self.forwards, _stacks(self.model), strict=True):
            words, counts = (x.t() if forwards else x.t().flip(0) for x in (tokens, mask))
            words = torch.cat([torch.full_like(words[:1], self.eos), words])
            counts = torch.cat([torch.ones_like(counts[:1]), counts])
            state = stack.initial_state(tokens.shape[0])
            x = functional.embedding(words, self.model.embedding)
            found += [self.model.scaled(x), counts]
            found += Leaves(state).flat(state)
        return found


class _Reader(nn.Module):
    """One word x (B, E), whether it counts (B,), the state -> the state."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack, self.leaves = stack, Leaves(stack.initial_state(1))

    def forward(self, x: Tensor, counts: Tensor, state: list[Tensor]) -> list[Tensor]:
        _, _, after = self.stack(x[None], self.leaves.whole(state))
        both = zip(self.leaves.flat(after), state, strict=True)
        return [torch.where(counts[:, None] != 0, new, old) for new, old in both]


class _Posterior(nn.Module):
    """The last states (B, H) of all directions -> the code, the sentence's vector, q(z | x)."""

    def __init__(self, model: SentenceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: list[list[Tensor]]) -> list[Tensor]:
        last = [torch.cat([tensor.squeeze(0) for tensor in each], 1) for each in states]
        found = self.model.latent(sum(last) / len(last))
        whole = [found.centre, found.sentence_vectors, *_tensors(found).values()]
        return [tensor.clone() for tensor in whole]  # a graph's outputs are values of their own


def _tensors(proposal: Any) -> dict[str, Tensor]:
    """What describes q(z | x), by name."""
    return {n: value for n, value in proposal._asdict().items() if torch.is_tensor(value)}


def _stacks(model: SentenceModel) -> list[Stack]:
    """Those that read: the one backwards, and the one forwards where there is one."""
    return [model.encoder] if model.forwards is None else [model.encoder, model.forwards]


def _encoder(model: SentenceModel, eos: int, path: Path, int8: bool) -> Tensor:
    """Write the encoder's graph; the code of a batch of examples."""
    batch, time = SIZES["batch"], SIZES["time"]
    tokens = torch.zeros(batch, time, dtype=torch.long)
    stacks = _stacks(model)
    forwards = [False, True][: len(stacks)]
    names, states, parts = [], [], []
    for i, stack in enumerate(stacks):
        first = stack.initial_state(batch)
        leaves = Leaves(first).flat(first)
        state, after = ([f"{w}_{i}_{j}" for j in range(len(leaves))] for w in ("state", "last"))
        read = [f"words_{i}", f"counts_{i}"]
        names += [*read, *state]
        states.append(leaves)
        x = torch.zeros(batch, model.config.embedding)
        shapes = _axes(["batch"], ["batch"], *(OF_STATE for _ in leaves))
        step = exported(
            _Reader(stack),
            (x, torch.ones(batch, dtype=torch.long), leaves),
            (shapes[0], shapes[1], shapes[2:]),
            [*read, *state],
            after,
            int8,
        )
        reading = scanned(step.graph, state, after, read)
        parts.append(prefixed(reading, f"read_{i}/", {*read, *state, *after}))
    whole = ["batch", "time"]
    given = (tokens, torch.ones_like(tokens))
    inputs = ["input_ids", "attention_mask"]
    words = exported(
        _Words(model, eos, forwards), given, tuple(_axes(whole, whole)), inputs, names, int8
    )
    with torch.no_grad():
        found = model.latent(torch.zeros(batch, sum(t.shape[-1] for t in states[0])))
    outputs = {
        "code": found.centre,
        "sentence_embedding": found.sentence_vectors,
        **_tensors(found),
    }
    last = [f"last_{i}_{j}" for i, each in enumerate(states) for j in range(len(each))]
    posterior = exported(
        _Posterior(model),
        (states,),
        ([_axes(*(OF_STATE for _ in each)) for each in states],),
        last,
        [*outputs],
        int8,
    )
    graph = joined(
        prefixed(words.graph, "before/", {*inputs, *names}),
        *parts,
        prefixed(posterior.graph, "after/", {*last, *outputs}),
    )
    save(
        graph,
        words,
        dict.fromkeys(inputs, ("int64", whole)),
        {name: (kind_of(t), ["batch", *t.shape[1:]]) for name, t in outputs.items()},
        path,
    )
    return found.centre


# -- p(x | z) -------------------------------------------------------------------------------


class _Start(nn.Module):
    """A code (B, ...) -> the decoder's state before <eos>."""

    def __init__(self, model: SentenceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, code: Tensor) -> list[Tensor]:
        state = self.model.initial_state(code)
        return Leaves(state).flat(state)


class _Step(nn.Module):
    """A word (B,), the code and the state -> ln p of the next word (B, V), and the state."""

    def __init__(self, model: SentenceModel, leaves: Leaves) -> None:
        super().__init__()
        self.model, self.leaves = model, leaves

    def forward(
        self, words: Tensor, code: Tensor, state: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        hidden, after = self.model.step(words, code, self.leaves.whole(state))
        return self.model.log_probs(hidden), self.leaves.flat(after)


def _decoder(model: SentenceModel, code: Tensor, folder: Path, int8: bool) -> list[dict[str, Any]]:
    """Write the decoder's graphs; what there is to know of the state."""
    with torch.no_grad():
        first = model.initial_state(code)
    leaves = Leaves(first)
    state = leaves.flat(first)
    names = [f"state_{i}" for i in range(len(state))]
    after = [f"next_{name}" for name in names]
    shapes: list[Shape] = [[1, "batch", tensor.shape[-1]] for tensor in state]
    values: Values = {n: (kind_of(t), s) for n, t, s in zip(names, state, shapes, strict=True)}
    coded: Values = {"code": (kind_of(code), ["batch", *code.shape[1:]])}
    of_code, of_words, *of_state = _axes(["batch"], ["batch"], *shapes)
    start = exported(_Start(model), (code,), (of_code,), ["code"], names, int8)
    save(start.graph, start, coded, values, folder / "start.onnx")
    step = exported(
        _Step(model, leaves),
        (torch.zeros(len(code), dtype=torch.long), code, state),
        (of_words, of_code, of_state),
        ["input_ids", "code", *names],
        ["log_probs", *after],
        int8,
    )
    save(
        step.graph,
        step,
        {"input_ids": ("int64", ["batch"]), **coded, **values},
        {
            "log_probs": ("float32", ["batch", model.vocabulary]),
            **{f"next_{name}": value for name, value in values.items()},
        },
        folder / "step.onnx",
    )
    return [
        {"input": n, "output": f"next_{n}", "shape": [*shape], "type": kind}
        for n, (kind, shape) in values.items()
    ]
