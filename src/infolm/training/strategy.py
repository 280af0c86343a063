"""How several processes hold the parameters of the model that they train.

    replicate       each has all parameters; gradients are summed (the default)
    fully_shard     each process holds a share of every layer's parameters, gradients and
                    optimiser state; the whole layer is gathered while it computes (FSDP2)

Both give the numbers of one process, up to rounding. Files are complete and the same in both, so a
run may be resumed with the other.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn, optim

from infolm.models.base import Model
from infolm.nn.gather import processes
from infolm.optimisation.optimisers import load_optimiser
from infolm.training import checkpoint
from infolm.training.processes import sum_gradients

Kind = Literal["replicate", "fully_shard"]


def strategy(kind: Kind, model: Model) -> "Strategy":
    """The strategy of a recipe; a single process always replicates."""
    sharded = kind == "fully_shard" and processes()[1] > 1
    return FullyShard(model) if sharded else Replicate(model)


class Strategy(ABC):
    """parameters: the optimiser's parameters, in the order of the model's."""

    parameters: Sequence[nn.Parameter]

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @abstractmethod
    def sum_gradients(self, others: Iterable[nn.Parameter]) -> None:
        """After the backward passes: `parameters`, and those of learners, have the gradients of
        the whole batch."""

    @abstractmethod
    def clip(self, fabric: Fabric, optimiser: optim.Optimizer, norm: float) -> Tensor:
        """Scale the gradient of all parameters down to `norm`; returns the norm before."""

    @abstractmethod
    def gathered(self) -> Any:
        """A context in which every process has the whole model and computes without the others."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """The model's complete state; all processes call it."""

    @abstractmethod
    def load_weights(self, path: Path, weights: dict[str, Tensor]) -> None:
        """Load complete weights that were read from `path`."""

    @abstractmethod
    def optimiser_state(self, optimiser: optim.Optimizer) -> dict[str, Any]:
        """The complete optimiser state of `parameters`; all processes call it."""

    @abstractmethod
    def load_optimiser(self, optimiser: optim.Optimizer, state: dict[str, Any]) -> None:
        """Restore it."""


class Replicate(Strategy):
    """Every process has all parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.parameters = list(model.parameters())

    def sum_gradients(self, others: Iterable[nn.Parameter]) -> None:
        sum_gradients([*self.parameters, *others])

    def clip(self, fabric: Fabric, optimiser: optim.Optimizer, norm: float) -> Tensor:
        found = fabric.clip_gradients(
            self.model, optimiser, max_norm=norm, error_if_nonfinite=False
        )
        assert found is not None  # it is None only when clipping by value
        return found

    @contextmanager
    def gathered(self) -> Iterator[None]:
        yield

    def weights(self) -> dict[str, Tensor]:
        return self.model.state_dict()

    def load_weights(self, path: Path, weights: dict[str, Tensor]) -> None:
        checkpoint.restore_weights(path, self.model, weights)

    def optimiser_state(self, optimiser: optim.Optimizer) -> dict[str, Any]:
        return optimiser.state_dict()

    def load_optimiser(self, optimiser: optim.Optimizer, state: dict[str, Any]) -> None:
        load_optimiser(optimiser, state)


class FullyShard(Strategy):
    """Each process holds rows of every weight of the model's `alike` layers, by PyTorch's
    `fully_shard`; the rest (word vectors, heads) is replicated.

    The optimiser is given the process' own rows as plain tensors that share memory with PyTorch's:
    its rules are elementwise, so rows are updated as in the whole.
    """

    def __init__(self, model: Model) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor

        super().__init__(model)
        rank, count = processes()
        self.mesh = init_device_mesh(model.device.type, (count,))
        self.layers = [
            fully_shard(layer, mesh=self.mesh, reshard_after_forward=True)
            for layer in model.alike()
        ]
        self.sharded = {
            name: parameter
            for name, parameter in model.named_parameters()
            if isinstance(parameter, DTensor)
        }
        # A parameter's own rows by its name.
        self.own = {
            name: nn.Parameter(parameter.to_local().detach(), parameter.requires_grad)
            for name, parameter in self.sharded.items()
        }
        self.names = [name for name, _ in model.named_parameters()]
        self.parameters = [
            self.own.get(name, parameter) for name, parameter in model.named_parameters()
        ]
        self.replicated = [p for n, p in model.named_parameters() if n not in self.own]
        self.rank, self.count = rank, count

    def sum_gradients(self, others: Iterable[nn.Parameter]) -> None:
        sum_gradients([*self.replicated, *others])
        for name, parameter in self.sharded.items():
            gradient: Any = parameter.grad
            # PyTorch has taken the mean over the processes; losses here are shares of a sum.
            self.own[name].grad = None if gradient is None else gradient.to_local() * self.count
            parameter.grad = None

    def clip(self, fabric: Fabric, optimiser: optim.Optimizer, norm: float) -> Tensor:
        every = [p.grad for p in self.parameters if p.grad is not None]
        squares = _squares([p.grad for p in self.own.values() if p.grad is not None], every[0])
        torch.distributed.all_reduce(squares)
        squares += _squares([p.grad for p in self.replicated if p.grad is not None], every[0])
        found = squares.sqrt()
        torch._foreach_mul_(every, torch.clamp(norm / (found + 1e-6), max=1.0))
        return found

    @contextmanager
    def gathered(self) -> Iterator[None]:
        for layer in self.layers:
            layer.set_reshard_after_forward(False)
            layer.unshard()
        try:
            yield
        finally:
            for layer in self.layers:
                layer.reshard()
                layer.set_reshard_after_forward(True)

    def weights(self) -> dict[str, Tensor]:
        return {
            name: self._whole(self.own[name].detach(), name) if name in self.own else tensor
            for name, tensor in self.model.state_dict().items()
        }

    def load_weights(self, path: Path, weights: dict[str, Tensor]) -> None:
        weights = checkpoint.check_weights(path, self.model, weights)
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                if name in self.own:
                    self.own[name].copy_(self._rows(weights[name]))
                else:
                    tensor.copy_(weights[name])

    def optimiser_state(self, optimiser: optim.Optimizer) -> dict[str, Any]:
        state = optimiser.state_dict()
        slots = {
            index: {
                key: self._whole(value, name) if self._is_sharded(value, name) else value
                for key, value in slot.items()
            }
            for (index, slot), name in self._named(optimiser, state)
        }
        return {**state, "state": slots}

    def load_optimiser(self, optimiser: optim.Optimizer, state: dict[str, Any]) -> None:
        slots = {
            index: {
                key: self._rows(value) if self._is_whole(value, name) else value
                for key, value in slot.items()
            }
            for (index, slot), name in self._named(optimiser, state)
        }
        load_optimiser(optimiser, {**state, "state": slots})

    def _named(
        self, optimiser: optim.Optimizer, state: dict[str, Any]
    ) -> Iterator[tuple[tuple[Any, dict[str, Any]], str]]:
        """Each slot of the optimiser with the name of its parameter, by the groups' order."""
        names = {id(p): name for p, name in zip(self.parameters, self.names, strict=True)}
        order = [names[id(p)] for group in optimiser.param_groups for p in group["params"]]
        for index, slot in state["state"].items():
            yield (index, slot), order[int(index)]

    def _is_sharded(self, value: Any, name: str) -> bool:
        """Whether a value of the optimiser belongs to a parameter's rows, and is not a step
        count."""
        return name in self.own and torch.is_tensor(value) and value.dim() > 0

    def _is_whole(self, value: Any, name: str) -> bool:
        return self._is_sharded(value, name) and value.shape == self.sharded[name].shape

    def _whole(self, rows: Tensor, name: str) -> Tensor:
        """The rows of all processes."""
        from torch.distributed.tensor import DTensor, Shard

        shape = self.sharded[name].shape
        stride = torch.empty(shape, device="meta").stride()
        whole = DTensor.from_local(
            rows, self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
        )
        return whole.full_tensor()

    def _rows(self, whole: Tensor) -> Tensor:
        """This process' rows, as PyTorch cuts them."""
        chunks = whole.chunk(self.count)
        return chunks[self.rank] if self.rank < len(chunks) else whole[:0]


def _squares(gradients: Sequence[Tensor], like: Tensor) -> Tensor:
    """The sum of all numbers' squares."""
    if not gradients:
        return like.new_zeros(())
    return torch.stack(torch._foreach_norm(list(gradients))).square().sum()
