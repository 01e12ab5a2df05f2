"""Which layers are identical, so that one measurement serves all: equal in everything but the values of tensors."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import Tensor, nn

from profiler.microbatch import Stage
from profiler.transfer import TensorKind


def likeness(stage: Stage) -> Hashable:
    """Return a value that is equal for stages which run the same ops on tensors of the same shapes.

    Whatever cannot be compared makes a stage unlike any other: it is measured once too often, never once too seldom.
    """
    inputs = tuple(TensorKind.of(tensor) for tensor in stage.inputs)
    return inputs, stage.loss, _likeness(stage.module)


def _likeness(value: Any) -> Hashable:
    kind = type(value)
    if isinstance(value, Tensor):
        return kind, tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad
    if isinstance(value, nn.Module):
        return kind, _likeness(value.__dict__)
    if isinstance(value, dict):
        return kind, tuple((name, _likeness(entry)) for name, entry in value.items())
    if isinstance(value, list | tuple):
        return kind, tuple(_likeness(entry) for entry in value)
    if isinstance(value, set | frozenset):
        return kind, frozenset(_likeness(entry) for entry in value)
    return (kind, value) if isinstance(value, Hashable) else (kind, _Unlike())


class _Unlike:
    """Equal to nothing but itself."""
