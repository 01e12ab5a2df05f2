"""One microbatch through one stage, op by op as the runtime runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from profiler.backward import Backward, fused
from profiler.errors import MeasurementError
from zbplan.errors import root

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
    keywords
        Further inputs by name, which no transfer brings.
    backward
        How the backward runs.
    """

    index: int
    module: nn.Module
    inputs: Tensors
    loss: Callable[[Any], Tensor] | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)
    backward: Backward = fused

    @property
    def splits(self) -> bool:
        """Whether B and W run apart."""
        return self.backward is not fused

    def arrival(self) -> Tensors:
        """Return a fresh input, as a receive leaves it."""
        return tuple(example.detach().clone().requires_grad_(example.requires_grad) for example in self.inputs)

    def forward(self, inputs: Tensors) -> Tensors:
        """Run F, on the last stage with the loss."""
        output = self.module(*inputs, **self.keywords)
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
        with named(stage.index, "B" if stage.splits else "BW"), watch("B"):
            run_weights = stage.backward(roots, gradients, inputs)
    _give_away_gradients(inputs)
    del inputs, outputs, roots, gradients
    if run_weights is not None:
        with named(stage.index, "W"), watch("W"):
            run_weights()


def moved(nest: Any, device: Any) -> Any:
    """Return a nest with its tensors on a device."""
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, nest)


def _give_away_gradients(inputs: Tensors) -> None:
    """Take the inputs' gradients off them, as the engine does to send them: W may hold an input long after."""
    for tensor in inputs:
        tensor.grad = None


@contextmanager
def named(stage: int, op: str) -> Iterator[None]:
    """Give what goes wrong inside an op the stage's and the op's name."""
    try:
        yield
    except MeasurementError as error:
        raise MeasurementError(f"stage {stage}, {op}: {error}") from error
    except Exception as error:
        raise MeasurementError(f"stage {stage}, {op}: found {root(error)}; needed one that runs") from error
