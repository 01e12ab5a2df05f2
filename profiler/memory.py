"""Memory that is alive: by the allocator on CUDA, by following every storage on CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn, optim
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiler.model import OptimizerFactory


class Meter(Protocol):
    """Bytes alive on a device, less a constant."""

    def live_bytes(self) -> int:
        """Return the bytes alive now."""

    def peak_bytes(self) -> int:
        """Return the most bytes alive since the last call of this."""


class StorageMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows each storage that an op allocates until it is freed.

    A storage counts once, whatever views share it. What an op returns of its own arguments (views, in-place results,
    hence parameters and gradients that stand already) is not its allocation. What a kernel takes and frees inside
    is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive: WeakValueDictionary[int, torch.UntypedStorage] = WeakValueDictionary()
        self._peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {id(storage) for storage in _storages((args, kwargs))}
        self._alive.update({id(storage): storage for storage in _storages(result) if id(storage) not in given})
        self._peak = max(self._peak, self.live_bytes())
        return result

    def live_bytes(self) -> int:
        """Return the bytes alive of what was allocated under this meter."""
        return sum(storage.nbytes() for storage in list(self._alive.values()))

    def peak_bytes(self) -> int:
        """Return the most bytes alive after any op since the last call of this."""
        peak, self._peak = self._peak, self.live_bytes()
        return peak


class AllocatorMeter:
    """Reads the caching allocator of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def live_bytes(self) -> int:
        """Return the bytes that tensors occupy now."""
        return torch.cuda.memory_allocated(self._device)

    def peak_bytes(self) -> int:
        """Return the most bytes that tensors occupied since the last call of this."""
        peak = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return peak


@contextmanager
def meter_for(device: torch.device) -> Iterator[Meter]:
    """Meter what is allocated on a device inside the block."""
    if device.type == "cuda":
        yield AllocatorMeter(device)
    else:
        with StorageMeter() as meter:
            yield meter


def total_bytes(tensors: Any) -> int:
    """Return the bytes of a nest of tensors, each storage once."""
    return sum({id(storage): storage.nbytes() for storage in _storages(tensors)}.values())


StateBytes = Callable[[nn.Parameter], int]
"""Bytes of an optimizer's state of one parameter."""


def static_bytes(module: nn.Module, state_bytes: StateBytes) -> int:
    """Return the bytes of a stage's parameters, buffers, gradients and optimizer state."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    gradients = sum(parameter.numel() * parameter.element_size() for parameter in trainable)
    return total_bytes([*module.parameters(), *module.buffers()]) + gradients + sum(map(state_bytes, trainable))


def state_after_a_step(optimizer: OptimizerFactory) -> StateBytes:
    """Take the state from a step on a copy of one parameter at a time, so that the stage stays as it is."""

    def state_bytes(parameter: nn.Parameter) -> int:
        copy = nn.Parameter(parameter.detach().clone())
        copy.grad = torch.zeros_like(copy)
        stepped = optimizer([copy])
        stepped.step()
        return _state_bytes(stepped, copy)

    return state_bytes


def state_of(optimizer: optim.Optimizer | None) -> StateBytes:
    """Take the state as a running job's optimizer holds it; without one there is none."""
    return lambda parameter: 0 if optimizer is None else _state_bytes(optimizer, parameter)


def _state_bytes(optimizer: optim.Optimizer, parameter: nn.Parameter) -> int:
    state = optimizer.state.get(parameter, {})
    return total_bytes([tensor for tensor in tree_leaves(state) if _on(tensor, parameter.device)])


def _on(value: object, device: torch.device) -> bool:
    return isinstance(value, Tensor) and value.device == device


def _storages(nest: Any) -> Iterator[torch.UntypedStorage]:
    for leaf in tree_leaves(nest):
        if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
            yield leaf.untyped_storage()
