"""``measure`` and ``measure_layers``: from a model to a profile."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch

from profiler.alike import likeness
from profiler.assemble import Measurement, describe, layer_profile, stage_profile
from profiler.checks import stage_checks
from profiler.doubts import doubts, refuse_or_keep
from profiler.errors import MeasurementError
from profiler.microbatch import Stage
from profiler.model import LayeredModel, Splitter, StagedModel
from profiler.progress import Progress, Silent
from profiler.ranks import Ranks, all_ranks
from profiler.samples import Steps
from profiler.stage import StageFigures, Way, measure_stage
from profiler.transfer import Boundary, time_transfers
from profiler.walk import Walk
from zbplan import placement as placements
from zbplan.duration import FEWEST, NEVER, Duration
from zbplan.placement import Placement
from zbplan.profile import EngineMode, Profile

TRANSFERS_PER_RUN = 6
"""A transfer is short and cheap: this many for each run of an op."""

Turns = Literal["auto", "together", "one_by_one"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a model is measured.

    Attributes
    ----------
    engine_mode
        How the runtime will run the backward; ``fused`` measures BW only. None is ``weight_grad_store`` with a
        splitter and ``fused`` without.
    splitter
        For ``weight_grad_store``, what splits a stage's backward, such as ``runtime_client.split``.
    unsplit
        Stages (or layers) that are to run BW only; the profile says so in ``splittable``.
    device
        Where this process computes.
    warmup, steady
        Runs of each op whose times are dropped, and runs whose median counts (3 or more).
    turns
        Whether the devices measure ``together``, as they will train, or ``one_by_one``. ``auto`` lets them measure
        together only where each has its own accelerator or its own cores: processes that share a core would time each
        other's slices.
    t_comm_ms
        T_comm of all boundaries, given instead of measured; needed where one process measures several stages.
    tensor_parallel
        Processes that make up a device: ranks d·k … d·k + k−1 are device d. Of what they measure the most counts.
    force
        True keeps a profile that would be refused, and marks it.
    progress
        Is told of each step.
    """

    engine_mode: EngineMode | None = None
    splitter: Splitter | None = None
    unsplit: Collection[int] = ()
    device: torch.device | str = "cpu"
    warmup: int = 2
    steady: int = 5
    turns: Turns = "auto"
    t_comm_ms: float | None = None
    tensor_parallel: int = 1
    force: bool = False
    progress: Progress = field(default_factory=Silent)

    def __post_init__(self) -> None:
        if self.t_comm_ms is not None and not 0 <= self.t_comm_ms < math.inf:
            raise MeasurementError(
                f"t_comm_ms: found {self.t_comm_ms}; needed a finite number of milliseconds, 0 or more"
            )
        if self.steady < FEWEST and not self.force:
            raise MeasurementError(f"found {self.steady} steady samples; needed {FEWEST} or more, or --force")
        if self.mode == "weight_grad_store" and self.splitter is None:
            raise MeasurementError(
                "found no splitter; needed one for weight_grad_store (--splitter), or --engine-mode native_split or "
                "fused"
            )

    @property
    def mode(self) -> EngineMode:
        """The engine mode asked for, or the one that the splitter means."""
        return self.engine_mode or ("fused" if self.splitter is None else "weight_grad_store")


def measure(model: StagedModel, options: Options, *, placement: Placement | None = None) -> Profile:
    """Measure a model's stages and transfers; every process calls it and gets the same profile.

    With an initialised ``torch.distributed`` each process (or tensor-parallel group of processes) is a device of the
    pipeline and measures the stages that it holds. Without, this process measures all stages, one after the other, and
    keeps one at a time.

    Parameters
    ----------
    model
        The stages, an example microbatch, the loss and the optimizer.
    placement
        Which stages each device holds; None is one each (linear).

    Raises
    ------
    MeasurementError
        On every process alike: when an op fails, a backward cannot be split, a microbatch leaves memory behind,
        samples are too few or too scattered, or T_comm can neither be measured nor is given as a finite number.
    zbplan.errors.InvalidInputError
        When the placement does not fit the stages and devices.
    zbplan.errors.RankGoneError
        When a process does not take part.
    """
    with all_ranks(options.tensor_parallel) as here:
        placed = _placement(placement, len(model.stages), here.count, options.t_comm_ms)
        return stage_profile(_measured(model, placed, here, options))


def measure_layers(model: LayeredModel, stages: int, options: Options) -> Profile:
    """Measure a model's layers, identical ones once per process; the profile's stages are an even cut of them.

    As ``measure``, with an even share of the layers on each device.

    Parameters
    ----------
    model
        The layers, an example microbatch, the loss and the optimizer.
    stages
        How many stages to cut the layers in; ``Profile.cut`` makes any other cut.

    Raises
    ------
    MeasurementError, zbplan.errors.RankGoneError
        As ``measure``.
    """
    count = len(model.layers)
    if not 1 <= stages <= count:
        raise MeasurementError(f"found {stages} stages of {count} layers; needed 1 to {count}, a layer or more each")
    with all_ranks(options.tensor_parallel) as here:
        if here.count == 1 and stages > 1 and options.t_comm_ms is None:
            raise _no_transfers(stages)
        placed = [list(range(d * count // here.count, (d + 1) * count // here.count)) for d in range(here.count)]
        found = _measured(model.one_layer_each(), placed, here, options, alike=likeness)
        return layer_profile(found, stages)


def _measured(
    model: StagedModel,
    placed: Placement,
    here: Ranks,
    options: Options,
    alike: Callable[[Stage], Hashable] | None = None,
) -> Measurement:
    device, steps = torch.device(options.device), Steps(options.warmup, options.steady)
    way = Way(options.mode, options.splitter, frozenset(options.unsplit), model.optimizer, steps, device)
    one_by_one = _one_by_one(options.turns, here, device)
    walk = Walk(model, placed, here, device, options.progress)
    figures = _measure_stages(walk, here, one_by_one, way, alike)
    transfers = None
    if options.t_comm_ms is None:
        transfers = measure_transfers(walk.boundaries, here, steps, device, options.progress)
    part = "stage" if alike is None else "layer"
    found = doubts(figures, transfers or [], part)
    return Measurement(
        name=model.name,
        engine_mode=options.mode,
        figures=figures,
        boundary_bytes=[boundary.nbytes for boundary in walk.boundaries],
        transfers=transfers,
        t_comm_ms=options.t_comm_ms,
        placement=placed,
        forced=refuse_or_keep(found, force=options.force),
        checks=stage_checks(figures, part),
        environment={
            **model.environment,
            **describe(device),
            "turns": "one_by_one" if one_by_one else "together",
            "warmup": options.warmup,
            "tensor_parallel": options.tensor_parallel,
        },
    )


def _measure_stages(
    walk: Walk, here: Ranks, one_by_one: bool, way: Way, alike: Callable[[Stage], Hashable] | None
) -> list[StageFigures]:
    stages: Iterable[Stage] = walk if one_by_one else list(walk)
    mine: dict[int, StageFigures] = {}
    known: dict[Hashable, StageFigures] = {}
    error = None
    for stage in stages:
        try:
            kind = stage.index if alike is None else alike(stage)
            if kind not in known:
                known[kind] = measure_stage(stage, way)
            mine[stage.index] = known[kind]
        except MeasurementError as failure:  # told to the other processes below: they are still on their walk
            error = error or failure
        del stage
    here.raise_together(error)
    twins = here.gather_twins(mine)
    worst = {index: StageFigures.worst([twin[index] for twin in twins]) for index in mine}
    figures = {index: figure for part in here.gather(worst) for index, figure in part.items()}
    return [figures[index] for index in sorted(figures)]


def measure_transfers(
    boundaries: list[Boundary], here: Ranks, steps: Steps, device: torch.device, progress: Progress
) -> list[tuple[Duration, Duration]]:
    """Return forward and backward T_comm of each boundary, timed one boundary at a time."""
    steps = steps.times(TRANSFERS_PER_RUN)
    mine = {}
    for index, boundary in enumerate(boundaries):
        here.meet()
        progress.advance(f"transfer {index} of {len(boundaries)}")
        if boundary.producer != boundary.consumer and here.me in (boundary.producer, boundary.consumer):
            mine[index] = time_transfers(boundary, here.me, steps, device)
    mine = {index: pair for index, pair in mine.items() if pair is not None}
    twins = here.gather_twins(mine)
    slowest = {index: _slowest([twin[index] for twin in twins]) for index in mine}
    timed = {index: pair for part in here.gather(slowest) for index, pair in part.items()}
    return [timed.get(index, (NEVER, NEVER)) for index in range(len(boundaries))]


def _slowest(pairs: list[tuple[Duration, Duration]]) -> tuple[Duration, Duration]:
    forward, backward = (max(way, key=lambda duration: duration.median_ms) for way in zip(*pairs, strict=True))
    return forward, backward


def _placement(placement: Placement | None, stages: int, count: int, t_comm_ms: float | None) -> Placement:
    if count == 1 and placement is None:
        if stages > 1 and t_comm_ms is None:
            raise _no_transfers(stages)
        return [list(range(stages))]
    if placement is None:
        (placement,) = placements.candidates("linear", stages, count)
    return placements.custom(placement, stages, count)


def _no_transfers(stages: int) -> MeasurementError:
    return MeasurementError(
        f"found one process for {stages} stages, which cannot measure T_comm; needed one process per device "
        "(torchrun), or --t-comm-ms",
        on_every_rank=True,
    )


def _one_by_one(turns: Turns, here: Ranks, device: torch.device) -> bool:
    """Return whether devices take turns: where accelerators, or cores for all threads, are fewer than they need."""
    if turns != "auto" or (here.count == 1 and here.gather_twins(None) == [None]):
        return here.count == 1 or turns == "one_by_one"
    if device.type == "cuda":
        units, needs = {str(torch.cuda.get_device_properties(device).uuid)}, 1
    else:
        units, needs = {f"core {core}" for core in os.sched_getaffinity(0)}, torch.get_num_threads()
    host = socket.gethostname()
    claim = {(host, unit) for unit in units}, needs
    claims = [each for device_claims in here.gather(here.gather_twins(claim)) for each in device_claims]
    return bool(sum(needs for _, needs in claims) > len(set().union(*(units for units, _ in claims))))
