"""One microbatch through one stage, op by op as the runtime runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from profiler.errors import MeasurementError

Tensors = tuple[Tensor, ...]

Watch = Callable[[str], AbstractContextManager[None]]
"""Given F, B or W, what the op runs inside of; BW on a stage whose backward is not split goes by B."""


@dataclass
class Stage:
    """A stage with what reaches it.

    Attributes
    ----------
    index
        0 … S−1 in forward order.
    module
        What F runs.
    inputs
        Example input; the tensors that require a gradient get one in B.
    loss
        For the last stage, what turns its output into the loss.
    dw_builder
        For a split backward, what returns a microbatch's W at the end of its B.
    """

    index: int
    module: nn.Module
    inputs: Tensors
    loss: Callable[[Any], Tensor] | None = None
    dw_builder: Callable[[], Callable[..., None]] | None = None

    def arrival(self) -> Tensors:
        """Return a fresh input, as a receive leaves it."""
        return tuple(example.detach().clone().requires_grad_(example.requires_grad) for example in self.inputs)

    def forward(self, inputs: Tensors) -> Tensors:
        """Run F, on the last stage with the loss."""
        output = self.module(*inputs)
        if self.loss is not None:
            output = self.loss(output)
        return tuple(output) if isinstance(output, tuple | list) else (output,)


def run_microbatch(stage: Stage, watch: Watch) -> None:
    """Run F, B and W of one microbatch, holding between them what the runtime holds.

    What the transfers bring, input and output gradient, comes about outside the ops. The gradient has the output's own
    values, which serve time and memory as well as any.

    Raises
    ------
    MeasurementError
        When an op fails.
    """
    inputs = stage.arrival()
    with named(stage.index, "F"), watch("F"):
        outputs = stage.forward(inputs)
    roots = [output for output in outputs if output.requires_grad]
    gradients = None if stage.loss is not None else [root.detach().clone() for root in roots]
    run_weights = None
    if roots:
        with named(stage.index, "B" if stage.dw_builder else "BW"), watch("B"):
            torch.autograd.backward(roots, gradients)
            if stage.dw_builder is not None:
                run_weights = stage.dw_builder()
    _give_away_gradients(inputs)
    del inputs, outputs, roots, gradients
    if run_weights is not None:
        with named(stage.index, "W"), watch("W"):
            run_weights()


def _give_away_gradients(inputs: Tensors) -> None:
    """Take the inputs' gradients off them, as the engine does to send them: W may hold an input long after."""
    for tensor in inputs:
        tensor.grad = None


@contextmanager
def named(stage: int, op: str) -> Iterator[None]:
    """Give what goes wrong inside an op the stage's and the op's name."""
    try:
        yield
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise MeasurementError(f"stage {stage}, {op}: found {found}; needed one that runs") from error
