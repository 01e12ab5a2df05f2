"""``measure``: from a model cut in stages to a profile."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from profiler.assemble import assemble, describe
from profiler.errors import MeasurementError
from profiler.microbatch import Stage, Tensors, named
from profiler.model import Splitter, StagedModel
from profiler.ranks import Ranks, ranks
from profiler.samples import NEVER, Duration, Steps
from profiler.stage import StageFigures, measure_stage
from profiler.transfer import Boundary, TensorKind, time_transfers
from zbplan import placement as placements
from zbplan.placement import Placement
from zbplan.profile import Profile

TRANSFERS_PER_RUN = 6
"""A transfer is short and cheap: this many for each run of an op."""

Turns = Literal["auto", "together", "one_by_one"]


def measure(
    model: StagedModel,
    *,
    splitter: Splitter | None = None,
    device: torch.device | str = "cpu",
    placement: Placement | None = None,
    warmup: int = 2,
    steady: int = 5,
    turns: Turns = "auto",
    t_comm_ms: float | None = None,
) -> Profile:
    """Measure a model's stages and transfers; every rank calls it and gets the same profile.

    With an initialised ``torch.distributed`` each rank is a device of the pipeline and measures the stages that it
    holds. Without, this process measures all stages, one after the other, and keeps one at a time.

    Parameters
    ----------
    model
        The stages, an example microbatch, the loss and the optimizer.
    splitter
        How the runtime splits the backward (engine mode ``weight_grad_store``); None measures BW only (``fused``).
    device
        Where this rank computes.
    placement
        Which stages each rank holds; None is one each (linear).
    warmup, steady
        Runs of each op whose times are dropped, and runs whose median counts (3 or more).
    turns
        Whether the ranks measure ``together``, as they will train, or ``one_by_one``. ``auto`` lets them measure
        together only where each has its own accelerator or its own cores: processes that share a core would time each
        other's slices.
    t_comm_ms
        T_comm of all boundaries, given instead of measured; needed where one process measures several stages.

    Raises
    ------
    MeasurementError
        On every rank alike: when an op fails, a microbatch leaves memory behind, there are too few steady samples, or
        T_comm can neither be measured nor is given as a finite number.
    zbplan.errors.InvalidInputError
        When the placement does not fit the stages and ranks.
    """
    steps, device = Steps(warmup, steady), torch.device(device)
    if t_comm_ms is not None and not 0 <= t_comm_ms < math.inf:
        raise MeasurementError(f"t_comm_ms: found {t_comm_ms}; needed a finite number of milliseconds, 0 or more")

    def measured(stage: Stage) -> StageFigures:
        return measure_stage(stage, splitter=splitter, optimizer=model.optimizer, steps=steps, device=device)

    with ranks() as here:
        placed = _placement(placement, len(model.stages), here.count, t_comm_ms)
        one_by_one = _one_by_one(turns, here, device)
        walk = _Walk(model, placed, here, device)
        figures = _measure_stages(walk, here, one_by_one, measured)
        transfers = [] if t_comm_ms is not None else _measure_transfers(walk.boundaries, here, steps, device)
    return assemble(
        name=model.name,
        engine_mode="fused" if splitter is None else "weight_grad_store",
        figures=figures,
        boundaries=walk.boundaries,
        transfers=transfers,
        placement=placed,
        t_comm_ms=t_comm_ms,
        environment={
            **model.environment,
            **describe(device),
            "turns": "one_by_one" if one_by_one else "together",
            "warmup": warmup,
        },
    )


class _Walk:
    """Once through the pipeline with the example microbatch, so that each stage is met with its real input.

    Attributes
    ----------
    boundaries
        Between the stages walked through so far.
    """

    def __init__(self, model: StagedModel, placement: Placement, here: Ranks, device: torch.device) -> None:
        self.boundaries: list[Boundary] = []
        self._model = model
        self._here = here
        self._device = device
        self._owner = {stage: rank for rank, held in enumerate(placement) for stage in held}

    def __iter__(self) -> Iterator[Stage]:
        """Build and yield this rank's stages in forward order; the next one waits until the caller comes back."""
        inputs = tuple(tensor.detach().to(self._device) for tensor in self._model.microbatch)
        last = len(self._owner) - 1
        for index in range(last + 1):
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
        if self._owner[index] == self._here.rank:
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
        boundary = Boundary(kinds, producer, consumer)
        self.boundaries.append(boundary)
        return boundary.carry(outputs, self._here.rank, self._device)

    def _loss(self) -> Callable[[Any], Tensor]:
        loss, device = self._model.loss, self._device
        target = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, self._model.target)
        return lambda output: loss(output, target)


def _measure_stages(
    walk: _Walk, here: Ranks, one_by_one: bool, measured: Callable[[Stage], StageFigures]
) -> list[StageFigures]:
    stages: Iterable[Stage] = walk if one_by_one else list(walk)
    mine: dict[int, StageFigures] = {}
    error = None
    for stage in stages:
        try:
            mine[stage.index] = measured(stage)
        except MeasurementError as failure:  # told to the other ranks below: they are still on their walk
            error = error or failure
        del stage
    here.raise_together(error)
    figures = {index: figure for part in here.gather(mine) for index, figure in part.items()}
    return [figures[index] for index in sorted(figures)]


def _measure_transfers(
    boundaries: list[Boundary], here: Ranks, steps: Steps, device: torch.device
) -> list[tuple[Duration, Duration]]:
    """Return forward and backward T_comm of each boundary, one boundary at a time."""
    steps = steps.times(TRANSFERS_PER_RUN)
    mine = {}
    for index, boundary in enumerate(boundaries):
        here.meet()
        if boundary.producer != boundary.consumer and here.rank in (boundary.producer, boundary.consumer):
            mine[index] = time_transfers(boundary, here.rank, steps, device)
    timed = {index: pair for part in here.gather(mine) for index, pair in part.items() if pair is not None}
    return [timed.get(index, (NEVER, NEVER)) for index in range(len(boundaries))]


def _placement(placement: Placement | None, stages: int, count: int, t_comm_ms: float | None) -> Placement:
    if count == 1 and placement is None:
        if stages > 1 and t_comm_ms is None:
            raise MeasurementError(
                f"found one process for {stages} stages, which cannot measure T_comm; needed one process per device "
                "(torchrun), or t_comm_ms"
            )
        return [list(range(stages))]
    if placement is None:
        (placement,) = placements.candidates("linear", stages, count)
    return placements.custom(placement, stages, count)


def _one_by_one(turns: Turns, here: Ranks, device: torch.device) -> bool:
    """Return whether ranks take turns: where accelerators, or cores for all threads, are fewer than ranks need."""
    if here.count == 1 or turns != "auto":
        return here.count == 1 or turns == "one_by_one"
    if device.type == "cuda":
        units, needs = {str(torch.cuda.get_device_properties(device).uuid)}, 1
    else:
        units, needs = {f"core {core}" for core in os.sched_getaffinity(0)}, torch.get_num_threads()
    host = socket.gethostname()
    claims = here.gather(({(host, unit) for unit in units}, needs))
    return bool(sum(needs for _, needs in claims) > len(set().union(*(units for units, _ in claims))))
