"""Once through the pipeline with the example microbatch, so that each stage is met with its real input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from profiler.errors import MeasurementError
from profiler.microbatch import Stage, Tensors, moved, named
from profiler.model import StagedModel
from profiler.progress import Progress
from profiler.ranks import Ranks
from profiler.transfer import Boundary, TensorKind
from zbplan.placement import Placement, devices_of


class Walk:
    """Builds this process's stages in forward order, handing the microbatch on from device to device.

    Attributes
    ----------
    boundaries
        Between the stages walked through so far.
    """

    def __init__(
        self, model: StagedModel, placement: Placement, here: Ranks, device: torch.device, progress: Progress
    ) -> None:
        self.boundaries: list[Boundary] = []
        self._model = model
        self._here = here
        self._device = device
        self._progress = progress
        self._owner = devices_of(placement)

    def __iter__(self) -> Iterator[Stage]:
        """Build and yield this process's stages; the next one waits until the caller comes back."""
        inputs = tuple(tensor.detach().to(self._device) for tensor in self._model.microbatch)
        last = len(self._owner) - 1
        for index in range(last + 1):
            self._progress.advance(f"stage {index} of {last + 1}")
            stage, outputs = self._build(index, inputs, last=index == last)
            if stage is not None:
                yield stage
            del stage
            if index < last:
                inputs = self._hand_over(index, outputs)

    def _build(self, index: int, inputs: Tensors, *, last: bool) -> tuple[Stage | None, Tensors]:
        stage: Stage | None = None
        outputs: Tensors = ()
        error: MeasurementError | None = None
        if self._owner[index] == self._here.device:
            try:
                with named(index, "building and first F"):
                    module = self._model.build(index).to(self._device)
                    stage = Stage(index, module, inputs, self._loss() if last else None)
                    outputs = stage.forward(stage.arrival())
            except MeasurementError as failure:
                error = failure
        self._here.raise_together(error)
        return stage, tuple(output.detach().requires_grad_(output.requires_grad) for output in outputs)

    def _hand_over(self, index: int, outputs: Tensors) -> Tensors:
        producer, consumer = self._owner[index], self._owner[index + 1]
        kinds = self._here.share(tuple(TensorKind.of(output) for output in outputs), source=producer)
        boundary = Boundary(kinds, self._here.members[producer], self._here.members[consumer])
        self.boundaries.append(boundary)
        return boundary.carry(outputs, self._here.me, self._device)

    def _loss(self) -> Callable[[Any], Tensor]:
        loss, target = self._model.loss, moved(self._model.target, self._device)
        return lambda output: loss(output, target)
