"""Speculation: moving the weights as an optimizer step would, in a way that can be taken back to the last bit.

Undoing the step by arithmetic (Appendix C of the paper) is not exact: floating-point sums do not come back, and nothing
comes back from NaN. Here the step is computed on copies, a few weights at a time, and only the weights that the stages
compute with move. The step itself, with its moments and counters, is made once it is known to be right.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.distributed.tensor import DTensor

from runtime_client.validation_errors import OptimizerUseError
from runtime_client.weights import Weight, Weights

PREVIEWED = (optim.AdamW, optim.Adam, optim.SGD)
"""The optimizers that step each weight by its own gradient, state and group alone."""
CHUNKS = 256
"""A chunk of weights whose step is computed at once is about this fraction of all, and at least one weight."""

Group = dict[str, Any]


class Speculation(ABC):
    """A step that is made before it is known to be right.

    Attributes
    ----------
    kept_bytes
        What is kept from ``advance`` to ``confirm`` or ``take_back``, beside what training without speculation keeps.
    passing_bytes
        The most that ``advance`` holds in addition while it runs.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.kept_bytes = 0
        self.passing_bytes = 0

    @abstractmethod
    def advance(self) -> None:
        """Move the weights of the stages as the unclipped step would."""

    @abstractmethod
    def take_back(self) -> None:
        """Leave everything as if ``advance`` had not been called."""

    @abstractmethod
    def confirm(self) -> None:
        """Make the step that ``advance`` has moved the weights by; they keep their bits."""


def speculation_for(weights: Weights) -> Speculation:
    """Return the way that keeps the least memory: a preview, or a snapshot for an optimizer that is not known."""
    return Preview(weights) if type(weights.optimizer) in PREVIEWED else Snapshot(weights)


class Preview(Speculation):
    """Moves the stages' weights only; moments, counters and masters stay until the step is confirmed.

    A rounded copy of a master needs nothing to be taken back; a weight that is its own master is saved.
    """

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self._saved: list[tuple[nn.Parameter, Tensor]] = []

    @torch.no_grad()
    def advance(self) -> None:  # noqa: D102
        twin = copy.copy(self._weights.optimizer)
        for group, chunk in self._chunks():
            stepped = [self._spare(weight) for weight in chunk]
            state = {
                spare: _copied_values(self._weights.optimizer.state.get(weight.stepped, {}))
                for weight, spare in zip(chunk, stepped, strict=True)
            }
            self.passing_bytes = max(self.passing_bytes, _passing_bytes(chunk, stepped, state))
            _step(twin, group | {"params": stepped}, state)
            for weight, spare in zip(chunk, stepped, strict=True):
                if weight.is_copy:
                    weight.used.copy_(spare)
        self.kept_bytes = sum(bytes_of(saved) for _, saved in self._saved)

    @torch.no_grad()
    def take_back(self) -> None:  # noqa: D102
        for parameter, saved in self._saved:
            parameter.copy_(saved)
        self._saved.clear()
        self._weights.round_masters()

    def confirm(self) -> None:  # noqa: D102
        self.take_back()
        self._weights.step()

    def _spare(self, weight: Weight) -> nn.Parameter:
        """Return what is stepped in place of a master, or the weight itself after saving it."""
        used, master = weight
        if not weight.is_copy:
            self._saved.append((used, used.detach().clone()))
            return used
        spare = nn.Parameter(master.detach().clone())
        spare.grad = used.grad.to(master.dtype)
        return spare

    def _chunks(self) -> Iterator[tuple[Group, list[Weight]]]:
        """Return weights that have a gradient, some of one group at a time."""
        limit = sum(bytes_of(weight.stepped) for weight in self._weights) / CHUNKS
        for group in self._weights.optimizer.param_groups:
            chunk: list[Weight] = []
            size = 0
            for weight in self._weights.of_group(group):
                if weight.used.grad is None:
                    continue
                if chunk and size + bytes_of(weight.stepped) > limit:
                    yield group, chunk
                    chunk, size = [], 0
                chunk.append(weight)
                size += bytes_of(weight.stepped)
            if chunk:
                yield group, chunk


class Snapshot(Speculation):
    """Makes the whole step, whatever the optimizer, and keeps a copy of everything that the step may change."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self._saved: list[tuple[Tensor, Tensor]] = []
        self._state: dict[Tensor, dict[str, Any]] = {}

    def advance(self) -> None:  # noqa: D102
        optimizer = self._weights.optimizer
        self._saved = [(weight.stepped, weight.stepped.detach().clone()) for weight in self._weights]
        self._state = {key: _copied_values(own) for key, own in optimizer.state.items()}
        tensors = [value for own in self._state.values() for value in own.values() if isinstance(value, Tensor)]
        self.kept_bytes = sum(map(bytes_of, [*tensors, *(saved for _, saved in self._saved)]))
        before = hyperparameters(optimizer)
        self._weights.step()
        if not _equal(before, hyperparameters(optimizer)):
            raise OptimizerUseError(
                f"found that {type(optimizer).__name__} changes its parameter groups when it steps; needed an "
                'optimizer that keeps counters in its state, or mode="synchronous"'
            )

    @torch.no_grad()
    def take_back(self) -> None:  # noqa: D102
        for stepped, saved in self._saved:
            stepped.copy_(saved)
        self._weights.optimizer.state = defaultdict(dict, self._state)
        self._weights.round_masters()
        self._forget()

    def confirm(self) -> None:  # noqa: D102
        self._forget()

    def _forget(self) -> None:
        self._saved, self._state = [], {}


def hyperparameters(optimizer: optim.Optimizer) -> list[Group]:
    """Return a copy of each group's learning rate and the like."""
    return [
        _copied_values({name: value for name, value in group.items() if name != "params"})
        for group in optimizer.param_groups
    ]


@contextmanager
def with_hyperparameters(optimizer: optim.Optimizer, then: Sequence[Group]) -> Iterator[None]:
    """Let an optimizer work with learning rates and the like of an earlier time."""
    now = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    for group, values in zip(optimizer.param_groups, then, strict=False):
        group.update(values)
    try:
        yield
    finally:
        for group, values in zip(optimizer.param_groups, now, strict=True):
            group.update(values)


def bytes_of(tensor: Tensor) -> int:
    """Return what a tensor takes on this rank."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


def _step(twin: optim.Optimizer, group: Group, state: dict[Tensor, dict[str, Any]]) -> None:
    """Step the weights of one group with a state, as the optimizer would, unnoticed by its hooks."""
    twin.param_groups = [group]
    twin.state = defaultdict(dict, state)
    step = type(twin).step
    getattr(step, "__wrapped__", step)(twin)


def _equal(ours: Sequence[Group], theirs: Sequence[Group]) -> bool:
    pairs = [(value, other[name]) for own, other in zip(ours, theirs, strict=True) for name, value in own.items()]
    return all(torch.equal(*pair) if isinstance(pair[0], Tensor) else pair[0] == pair[1] for pair in pairs)


def _copied_values(values: Group) -> Group:
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
        for name, value in values.items()
    }


def _passing_bytes(
    chunk: Sequence[Weight], stepped: Sequence[nn.Parameter], state: dict[Tensor, dict[str, Any]]
) -> int:
    tensors = [value for own in state.values() for value in own.values() if isinstance(value, Tensor)]
    spares = [spare for weight, spare in zip(chunk, stepped, strict=True) if weight.is_copy]
    return sum(map(bytes_of, tensors)) + 2 * sum(map(bytes_of, spares))
