"""The ways in which an engine runs the backward of a stage: in one, or in B and W.

The one module here that touches private parts of torch.distributed.pipelining: its own B (there: I) and W.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from profiler.errors import MeasurementError

RunWeights = Callable[[], Any]

NATIVE_SINCE = (2, 13)
"""Before this torch counts a weight that a stage uses twice twice in its native W."""


class Backward(Protocol):
    """What B runs inside of it: leaves gradients on the inputs and returns W; None where W is done."""

    def __call__(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor] | None, inputs: Sequence[Tensor]
    ) -> RunWeights | None:
        """Run the backward of the outputs that have one; gradients are None for a loss."""


def fused(outputs: Sequence[Tensor], gradients: Sequence[Tensor] | None, inputs: Sequence[Tensor]) -> None:
    """Run BW."""
    torch.autograd.backward(outputs, gradients)


def stored(dw_builder: Callable[[], RunWeights]) -> Backward:
    """Return the backward of a stage whose module leaves weight gradients out (``weight_grad_store``)."""
    recording = getattr(getattr(dw_builder, "__self__", None), "recording", nullcontext)

    def run(
        outputs: Sequence[Tensor], gradients: Sequence[Tensor] | None, inputs: Sequence[Tensor]
    ) -> RunWeights | None:
        with recording():  # a store that an engine shares records only when told
            torch.autograd.backward(outputs, gradients)
        return dw_builder()

    return run


def native(module: nn.Module, *, first: bool) -> Backward:
    """Return torch's own split (``native_split``): of the first stage, W runs the whole backward and B nothing.

    Raises
    ------
    MeasurementError
        For a torch whose split gives wrong gradients.
    """
    if torch.__version__ < NATIVE_SINCE:  # type: ignore[operator]
        raise MeasurementError(
            f"found torch {torch.__version__}; needed 2.13 or later for engine mode native_split, or weight_grad_store"
        )
    return _native_first if first else lambda *given: _native(module, *given)


def _native_first(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor] | None, inputs: Sequence[Tensor]
) -> RunWeights:
    return lambda: torch.autograd.backward(outputs, gradients)


def _native(
    module: nn.Module, outputs: Sequence[Tensor], gradients: Sequence[Tensor] | None, inputs: Sequence[Tensor]
) -> RunWeights:
    kept = (outputs, gradients, inputs)  # as the engine keeps them until W
    given = None if gradients is None else list(gradients)
    _, groups = stage_backward_input(list(outputs), given, list(inputs), module.parameters())

    def run() -> None:
        nonlocal kept
        stage_backward_weight(module.parameters(), groups)
        kept = ((), None, ())
        groups.clear()

    return run
